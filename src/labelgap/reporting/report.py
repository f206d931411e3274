"""``write_report``: the files that describe a run, a study or another result to a reader."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import make_folder, write_text
from labelgap.core.manifest import replacing
from labelgap.data.dataset import Dataset
from labelgap.reporting.method_table import FOLDER
from labelgap.reporting.model_card import MODEL_CARD_FILE, render_model_card
from labelgap.reporting.page import REPORT_FILE, Page, write_figures
from labelgap.reporting.pages.comparison import comparison_page
from labelgap.reporting.pages.datasets import dataset_method_table, datasets_page
from labelgap.reporting.pages.linear_eval import linear_eval_page
from labelgap.reporting.pages.reproduction import paper_table, reproduction_page
from labelgap.reporting.pages.run import run_page
from labelgap.reporting.pages.shares import shares_page
from labelgap.reporting.pages.study import study_page
from labelgap.reporting.pages.sweep import sweep_page
from labelgap.studies import Study, open_study
from labelgap.studies.compare import Comparison
from labelgap.studies.datasets import DatasetComparison
from labelgap.studies.linear_eval import LinearEvaluation
from labelgap.studies.reproduce import Reproduction
from labelgap.studies.shares import ShareComparison
from labelgap.studies.study import FILE as STUDY_FILE
from labelgap.studies.study import study_of_runs
from labelgap.studies.sweep import Sweep
from labelgap.training import Run, open_run
from labelgap.training.config import CONFIG_FILE
from labelgap.training.run_folder import is_run_folder, sweep_run

Result = Run | Study | Comparison | DatasetComparison | LinearEvaluation | Reproduction | ShareComparison | Sweep
_PAGES: Final[dict[Any, Callable[[Any, Page], str]]] = {
    Reproduction: reproduction_page,
    LinearEvaluation: linear_eval_page,
    Comparison: comparison_page,
    DatasetComparison: datasets_page,
    ShareComparison: shares_page,
    Sweep: sweep_page,
    Study: study_page,
    Run: run_page,
}


def write_report(
    what: Result | str | os.PathLike[str],
    *,
    data: Dataset | None = None,
    images: bool = True,
    figures: str | os.PathLike[str] | None = None,
    label_changes: Sequence[str] = (),
) -> Path:
    """Write ``report.html`` into the folder of a result, and the card of a run; return the path of the page.

    The page is one file that loads nothing. A study links to the reports of its runs that exist: write those first.
    Only a finished run has a model card. Without ``data``, an existing one is kept, because it may hold more than the
    run's folder can tell.

    Args:
        what: a run, a study, a comparison, a linear evaluation, a sweep, tables of papers, or the folder of one.
        data: the data set of the run; it adds label counts and example images.
        images: whether the page may contain images of the data set.
        figures: a folder that gets every figure as NAME.svg, NAME.png and NAME.pdf for a paper, and its numbers as
            NAME.csv; not the folder of a result.
        label_changes: names of training images whose changed labels are shown; eight are chosen when not given.
    """
    opened = open_result(what)
    runs = [opened] if isinstance(opened, Run) else [run for _, run in opened.runs] if isinstance(opened, Study) else []
    if data is not None:
        network = next((run for run in runs if run.config.protocol != "linear"), None)
        data = data if network is None else network.with_val(data)  # it held images out: they were not trained on
    if figures is not None:
        check_figure_folder(Path(figures), opened.path, data)
    for run in runs:
        if data is not None and data.classes != run.config.classes:
            raise InputError(f"{data.name} has other classes than {run.path} was trained on.")
    page = Page(data, images=images, label_changes=label_changes)
    text = _PAGES[type(opened)](opened, page)
    if isinstance(opened, Run) and opened.finished:
        sweep_run(opened.path, interrupted=opened.metrics["interrupted"])
        if data is not None or not (opened.path / MODEL_CARD_FILE).exists():
            with replacing(opened.path, [MODEL_CARD_FILE]):
                write_text(opened.path / MODEL_CARD_FILE, render_model_card(opened, data))
    path = opened.path / REPORT_FILE
    if not isinstance(opened, Run) and not path.resolve().is_relative_to(opened.path.resolve()):
        raise RunError(f"{path} is a link out of its folder: remove it.")
    tables = [dataset_method_table(opened)] if isinstance(opened, DatasetComparison) else []
    tables += [paper_table(opened, name) for name in opened.tables] if isinstance(opened, Reproduction) else []
    with replacing(opened.path, [REPORT_FILE, *(file for table in tables for file in table.files)]):
        for table in tables:
            table.write(opened.path / FOLDER)
        write_text(path, text)
    if figures is not None:
        write_figures(page.figures, Path(figures))
    return path


def check_figure_folder(folder: Path, result: Path, data: Dataset | None = None) -> None:
    """Create a folder for figures; refuse one with a result or with images of the data, and one outside by a link."""
    other = "choose a folder of their own with --figures"
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file and figures need a folder: {other}.")
    resolved = folder.resolve()
    if folder.absolute().is_relative_to(result.absolute()) and not resolved.is_relative_to(result.resolve()):
        raise RunError(f"{folder} is a link out of {result}: remove it, or {other}.")
    if is_run_folder(resolved) or any(kind.is_in(resolved) for kind in _PAGES if kind is not Run):
        raise InputError(f"{folder} is the folder of a result, whose files figures could replace: {other}.")
    for split in () if data is None else data.splits:
        root = getattr(split.images, "root", None)
        if isinstance(root, Path) and resolved.is_relative_to(root.resolve()):
            raise InputError(f"{folder} is inside the images of the data ({root}): {other}.")
    make_folder(folder)


def open_result(what: Result | str | os.PathLike[str]) -> Result:
    """Open the folder of a run, a study or another result."""
    if isinstance(what, Result):
        return what
    folder = Path(what)
    for kind in _PAGES:
        if kind not in (Run, Study) and kind.is_in(folder):
            opened: Result = kind.open(folder)
            return opened
    if Study.is_in(folder):
        return open_study(folder)
    if (folder / CONFIG_FILE).exists():
        return open_run(folder)
    if not any(folder.glob(f"*/{CONFIG_FILE}")) and folder.is_dir():
        raise RunError(f"{folder} is neither a run nor a study: it has no {CONFIG_FILE} and no {STUDY_FILE}.")
    if (runs := study_of_runs(folder)) is not None:
        return runs
    return open_run(folder)  # an error that names the run that is probably meant
