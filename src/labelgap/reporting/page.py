"""Pages as single files: templates, figures as inline SVG, and the same figures as files for a paper.

A page loads no script, font or other file; the one script that it may contain, which sorts tables, is allowed by its
hash.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from labelgap.core.errors import RunError
from labelgap.core.files import atomic_path, write_text
from labelgap.core.text import join_names, pluralize
from labelgap.data.dataset import Dataset
from labelgap.reporting.formatting import format_elapsed, format_measure, single_line
from labelgap.reporting.style import NARROW, WIDE, inline_svg
from labelgap.studies.study import csv_text

REPORT_FILE: Final = "report.html"
MAX_LINK: Final = 60_000
_FOLDER: Final = Path(__file__).parent
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_RESOLUTION: Final = 300
_METADATA: Final[dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
"""The formats of a figure's files, without what would make two files of the same figure differ."""
_OTHER_SCRIPTS: Final = (
    *("Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei"),
    *("Arial Unicode MS", "Microsoft YaHei", "PingFang SC"),
)
"""Fonts for names that matplotlib's own font cannot write, where they are installed."""
Columns = Mapping[str, Any]  # a table: arrays, lists or single values that broadcast, by the name of the column


class FigureData:
    """The numbers behind a figure: named columns that broadcast to one table; None and NaN are empty cells."""

    def __init__(self, columns: Columns) -> None:
        arrays = [each if isinstance(each, np.ndarray) else np.array(each, dtype=object) for each in columns.values()]
        cells = [np.ravel(each).tolist() for each in np.broadcast_arrays(*arrays)]
        self.names = [single_line(name) for name in columns]
        self.rows = [[_cell(value) for value in row] for row in zip(*cells, strict=True)]

    @property
    def csv(self) -> str:
        """The table as CSV text with a header."""
        return csv_text(self.names, self.rows)

    @property
    def link(self) -> str:
        """The CSV text as the address of a download; "" where it is longer than ``MAX_LINK`` bytes."""
        text = self.csv.encode()
        return f"data:text/csv;charset=utf-8;base64,{b64encode(text).decode()}" if len(text) <= MAX_LINK else ""


def _cell(value: Any) -> Any:
    """Return a number with eight significant digits, a text on one line, or "" for what is not known."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return float(f"{value:.8g}") if np.isfinite(value) else ""
    return "" if value is None else int(value) if isinstance(value, int) else single_line(str(value))


def stack_columns(keys: str, parts: Mapping[Any, Columns]) -> Columns:
    """Put tables of the same columns below each other, after the key of each: a name, or names for ``"run kind"``."""
    labels, names = keys.split(), [*keys.split(), *next(iter(parts.values()))]
    named = ((key if isinstance(key, tuple) else (key,), columns) for key, columns in parts.items())
    tables = (FigureData({**dict(zip(labels, key, strict=True)), **columns}) for key, columns in named)
    rows = [row for table in tables for row in table.rows]
    return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())


@dataclass(frozen=True, eq=False)
class ResponsiveFigure:
    """A figure of a page, drawn for a wide and for a narrow screen; CSS shows the one that fits."""

    wide: Markup
    narrow: Markup
    name: str  # of its files, unique in the page
    data: FigureData
    draw: Callable[..., Figure]  # makes the figure for a ``width`` in inches


class Page:
    """A page in the making: the data set, whether images may be in it, and the figures that its sections drew."""

    def __init__(self, data: Dataset | None = None, *, images: bool = True, label_changes: Sequence[str] = ()) -> None:
        self.data, self.images, self.label_changes = data, images, label_changes
        self.figures: list[ResponsiveFigure] = []

    def figure(
        self, name: str, description: str, data: Columns, draw: Callable[..., Figure], *given: Any, shown: bool = True
    ) -> ResponsiveFigure:
        """Draw a figure by ``draw(*given, width=…)`` for both screens; with ``shown=False`` it is kept for its files
        alone.

        Its name is unique in the page. The data have a row per point; shares are 0 to 1.
        """
        if not _NAME.fullmatch(name) or any(each.name == name for each in self.figures):
            raise ValueError(f"{name!r}: a figure has a name of its own, in lower-case words with hyphens")
        drawn = partial(draw, *given)
        screens = both_screens(drawn, f"f{len(self.figures) + 1}", description) if shown else (Markup(""), Markup(""))
        self.figures.append(ResponsiveFigure(*screens, name, FigureData(data), drawn))
        return self.figures[-1]


def both_screens(draw: Callable[..., Figure], prefix: str, description: str) -> tuple[Markup, Markup]:
    """Draw a figure for a wide and for a narrow screen; ids begin with ``prefix``."""
    wide, narrow = draw(width=WIDE), draw(width=NARROW)
    return inline_svg(wide, f"{prefix}w", description), inline_svg(narrow, f"{prefix}n", description)


def render_template(template: str, **values: Any) -> Markup:
    """Render a template of this package; in HTML, values that are not ``Markup`` are escaped."""
    return Markup(_environment().get_template(template).render(version=package_version(), **values))


def inline_code(text: object) -> Markup:
    """Return escaped text in which the parts between backticks are code."""
    code = Markup("<code>{}</code>")
    parts = (code.format(part) if odd % 2 else escape(part) for odd, part in enumerate(str(text).split("`")))
    return Markup("").join(parts)


def escape_markdown(text: str) -> str:
    r"""Return text on one line that Markdown, also in a table, shows as it is: ``a\|b \*c\*``."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", line.replace("&", "&amp;"))


def package_version() -> str:
    """Return the installed version of labelgap."""
    try:
        return version("labelgap")
    except PackageNotFoundError:
        return "from source"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([_FOLDER, _FOLDER / "templates"]),
        autoescape=select_autoescape(["html"]),  # in Markdown, names are escaped by the filter `md`
        undefined=StrictUndefined,
        finalize=lambda value: single_line(value) if type(value) is str and not value.isprintable() else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_FOLDER / "templates" / "sortable_tables.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    environment.globals |= {"sortable_script": Markup(script), "script_hash": f"sha256-{digest}"}
    environment.globals["pluralize"] = pluralize
    environment.filters |= {
        "code": inline_code,
        "counted": lambda measured: f"{measured['classes_counted']:,} of {measured['classes']:,} classes",
        "elapsed": format_elapsed,
        "json": lambda text: json.dumps(" ".join(str(text).split()), ensure_ascii=False),
        "md": escape_markdown,
        "measure": format_measure,
        "names": lambda names, most: join_names([escape_markdown(name) for name in names], most),
        "thousands": "{:,}".format,
        "whole_percent": lambda share: f"{100 * share:.0f} %",
    }
    return environment


def write_figures(figures: Iterable[ResponsiveFigure], folder: Path) -> list[Path]:
    """Write NAME.svg, NAME.png, NAME.pdf and NAME.csv of every figure, each complete or not there; return the paths."""
    written: list[Path] = []
    for figure in figures:
        paths = {suffix: folder / f"{figure.name}.{suffix}" for suffix in (*_METADATA, "csv")}
        for path in paths.values():
            if path.is_symlink():
                raise RunError(f"{path} is a link, which is not followed: remove it.")
        settings: Any = {"svg.fonttype": "path", "pdf.fonttype": 42, "font.family": _fonts()}
        with matplotlib.rc_context({**settings, "svg.hashsalt": figure.name}):
            drawn = figure.draw(width=WIDE)
            drawn.patch.set(alpha=1, facecolor="white")
            for suffix, metadata in _METADATA.items():
                with atomic_path(paths[suffix]) as temporary:
                    drawn.savefig(temporary, format=suffix, dpi=_RESOLUTION, metadata=metadata)
        write_text(paths["csv"], figure.data.csv)
        written += paths.values()
    return written


@cache
def _fonts() -> list[str]:
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _OTHER_SCRIPTS if name in installed)]
