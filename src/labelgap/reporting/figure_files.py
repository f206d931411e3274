"""Figures as files for a paper: SVG, PNG and PDF, and the numbers of each as CSV.

The files have a white background, the light colors, and no font that a reader must have: text is outlines in the SVG,
and embedded TrueType (Type 42) in the PDF. All are 7 inches wide, as the text of a page,
with letters of about 8 points.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.backends import backend_pdf
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path, make_folder, write_text
from labelgap.data.dataset import Dataset
from labelgap.reporting.html import ResponsiveFigure
from labelgap.reporting.style import WIDE
from labelgap.studies.compare.results import is_comparison
from labelgap.studies.linear_eval import is_linear_evaluation
from labelgap.studies.reproduce.results import is_reproduction
from labelgap.studies.shares import is_share_comparison
from labelgap.studies.study import FILE as STUDY_FILE
from labelgap.studies.sweep.results import is_sweep
from labelgap.training.run_folder import is_run_folder

WIDTH: Final = 7.0
"""Of the files, in inches."""
_SCALE: Final = WIDTH / WIDE
_RESOLUTION: Final = 300
_FORMATS: Final = ("svg", "png", "pdf")
_OTHER_SCRIPTS: Final = (
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "PingFang SC",
)
"""Fonts for names that matplotlib's own font cannot write, where they are installed."""


def check_figure_folder(folder: Path, result: Path, data: Dataset | None = None) -> None:
    """Raise an error unless figures may be written into a folder; it is created where it does not exist.

    Args:
        folder: for the figures.
        result: folder of the run, study or other result that they are of.
        data: whose images are no place for figures.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: figures need a folder. Choose another with --figures.")
    resolved = folder.resolve()
    if folder.absolute().is_relative_to(result.absolute()) and not resolved.is_relative_to(result.resolve()):
        raise RunError(f"{folder} is a link out of {result}: remove it, or choose another folder with --figures.")
    if _is_result(resolved):
        raise InputError(
            f"{folder} is the folder of a result, whose files figures could replace: choose a folder of their own with "
            f"--figures, such as {folder / 'figures'}."
        )
    for split in () if data is None else data.splits:
        root = getattr(split.images, "root", None)
        if isinstance(root, Path) and resolved.is_relative_to(root.resolve()):
            raise InputError(
                f"{folder} is inside the images of the data ({root}): choose another folder with --figures."
            )
    make_folder(folder)


def write_figures(figures: Iterable[ResponsiveFigure], folder: Path) -> list[Path]:
    """Write NAME.svg, NAME.png, NAME.pdf and NAME.csv of every figure; each file is complete or not there.

    Returns:
        The paths of the files.
    """
    paths = []
    for figure in figures:
        for suffix in (*_FORMATS, "csv"):
            path = folder / f"{figure.name}.{suffix}"
            if path.is_symlink():
                raise RunError(f"{path} is a link, which is not followed: remove it.")
            paths.append(path)
        settings: Any = {
            "svg.fonttype": "path",
            "svg.hashsalt": figure.name,
            "pdf.fonttype": 42,
            "font.family": _fonts(),
        }
        with matplotlib.rc_context(settings):
            drawn = figure.draw(WIDE)
            drawn.patch.set(alpha=1, facecolor="white")
            for suffix in _FORMATS:
                with atomic_path(folder / f"{figure.name}.{suffix}") as temporary:
                    _SAVE[suffix](drawn, temporary)
        write_text(folder / f"{figure.name}.csv", figure.data.csv)
    return paths


def _is_result(folder: Path) -> bool:
    tests = (is_run_folder, is_comparison, is_linear_evaluation, is_reproduction, is_share_comparison, is_sweep)
    return (folder / STUDY_FILE).exists() or any(test(folder) for test in tests)


@cache
def _fonts() -> list[str]:
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _OTHER_SCRIPTS if name in installed)]


def _save_svg(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
    width, height = figure.get_size_inches()
    text = path.read_text(encoding="utf-8")
    old = f'width="{72 * width:g}pt" height="{72 * height:g}pt"'
    path.write_text(
        text.replace(old, f'width="{_SCALE * width:g}in" height="{_SCALE * height:g}in"', 1), encoding="utf-8"
    )


def _save_png(figure: Figure, path: Path) -> None:
    resolution = (_RESOLUTION, _RESOLUTION)
    figure.savefig(
        path, format="png", dpi=_SCALE * _RESOLUTION, metadata={"Software": None}, pil_kwargs={"dpi": resolution}
    )


def _save_pdf(figure: Figure, path: Path) -> None:
    """Write a page of the smaller size, with a matrix that scales everything on it: ``savefig`` has no such option."""
    pdf: Any = backend_pdf  # it has no types
    width, height = figure.get_size_inches()
    figure.dpi = 72  # of PDF coordinates
    file = pdf.PdfFile(path, metadata={"CreationDate": None})
    try:
        file.newPage(_SCALE * width, _SCALE * height)
        file.width, file.height = width, height  # it clips paths there, before the matrix
        file.output(_SCALE, 0, 0, _SCALE, 0, 0, pdf.Op.concat_matrix)
        renderer = pdf.RendererPdf(file, _RESOLUTION, height, width)
        figure.draw(renderer)
        renderer.finalize()
        file.finalize()
    finally:
        file.close()


_SAVE: Final = {"svg": _save_svg, "png": _save_png, "pdf": _save_pdf}
