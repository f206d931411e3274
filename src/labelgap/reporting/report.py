"""``write_report``: the page of a run, of a study or of a comparison, in its folder."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import write_text
from labelgap.data.dataset import Dataset
from labelgap.reporting.html import render_template
from labelgap.reporting.pages.comparison import comparison_page
from labelgap.reporting.pages.run import run_page
from labelgap.reporting.pages.study import REPORT_FILE, study_page
from labelgap.studies import Comparison, Study, open_study
from labelgap.studies.compare.comparison import is_comparison
from labelgap.studies.study import FILE as STUDY
from labelgap.training import Run, open_run
from labelgap.training.config.schema import CONFIG_FILE as CONFIG

__all__ = ["package_version", "write_report"]


def write_report(
    what: Run | Study | Comparison | str | os.PathLike[str], *, data: Dataset | None = None, images: bool = True
) -> Path:
    """Write ``report.html`` into the folder of a run, a study or a comparison, whole or not at all.

    The page is one file that loads nothing from anywhere. A study's links lead to the reports of its runs, as far as
    they are written: write those first.

    Args:
        what: a run, a study, a comparison, or the folder of one.
        data: what the run was trained on, if there is more to be shown than the run's folder holds: the states of the
            labels, and example images.
        images: whether pictures of the data may be in it.

    Returns:
        The path of the page.
    """
    opened = _open(what)
    if isinstance(opened, Comparison):
        page, template, pictures = comparison_page(opened), "compare.html", False
    elif isinstance(opened, Study):
        for _, run in opened.runs:
            _check(run, data)
        page, template = study_page(opened, data, images=images), "study.html"
        pictures = bool(page["contrasts"])
    else:
        _check(opened, data)
        page, template = run_page(opened, data, images=images), "run.html"
        pictures = bool(page["examples"])
    path = opened.path / REPORT_FILE
    write_text(path, render_template(template, page=page, pictures=pictures, version=package_version()))
    return path


def _open(what: Run | Study | Comparison | str | os.PathLike[str]) -> Run | Study | Comparison:
    if isinstance(what, Run | Study | Comparison):
        return what
    folder = Path(what)
    if is_comparison(folder):
        return Comparison.open(folder)
    if (folder / STUDY).exists():
        return open_study(folder)
    if (folder / CONFIG).exists():
        return open_run(folder)
    raise RunError(f"{folder} is neither a run nor a study: it has no {CONFIG} and no {STUDY}.")


def _check(run: Run, data: Dataset | None) -> None:
    if data is not None and data.classes != run.config.classes:
        raise InputError(f"{data.name} has other classes than {run.path} was trained on.")


def package_version() -> str:
    """Return the version of labelgap, for the foot of a page."""
    try:
        return version("labelgap")
    except PackageNotFoundError:
        return "from source"
