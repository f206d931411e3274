"""``write_report``: the files that describe a run, a study or another result to a reader."""

from __future__ import annotations

import os
from pathlib import Path

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import write_text
from labelgap.core.manifest import replacing
from labelgap.data.dataset import Dataset
from labelgap.reporting.html import render_template
from labelgap.reporting.model_card import MODEL_CARD_FILE, write_model_card
from labelgap.reporting.pages.comparison import comparison_page
from labelgap.reporting.pages.linear_eval import linear_eval_page
from labelgap.reporting.pages.reproduction import reproduction_page
from labelgap.reporting.pages.run import run_page
from labelgap.reporting.pages.study import REPORT_FILE, study_page
from labelgap.reporting.pages.sweep import sweep_page
from labelgap.studies import Study, open_study
from labelgap.studies.compare import Comparison
from labelgap.studies.compare.comparison import is_comparison
from labelgap.studies.linear_eval import LinearEvaluation
from labelgap.studies.linear_eval.results import is_linear_evaluation
from labelgap.studies.reproduce import Reproduction
from labelgap.studies.reproduce.results import is_reproduction
from labelgap.studies.study import FILE as STUDY_FILE
from labelgap.studies.sweep import Sweep
from labelgap.studies.sweep.results import is_sweep
from labelgap.training import Run, open_run
from labelgap.training.config.schema import CONFIG_FILE
from labelgap.training.run_folder import sweep_run

__all__ = ["write_report"]


def write_report(
    what: Run | Study | Comparison | LinearEvaluation | Reproduction | Sweep | str | os.PathLike[str],
    *,
    data: Dataset | None = None,
    images: bool = True,
) -> Path:
    """Write ``report.html`` into the folder of a result; and the card of a run.

    The page is one file that loads nothing. A study links to the reports of its runs that exist: write those first.
    Only a finished run has a model card. Without ``data``, an existing one is kept, because it may hold more than the
    run's folder can tell.

    Args:
        what: a run, a study, a comparison, a linear evaluation, a sweep, tables of papers, or the folder of one.
        data: the data set of the run; it adds label counts and example images.
        images: whether the page may contain images of the data set.

    Returns:
        The path of the page.
    """
    opened = _open(what)
    if isinstance(opened, Comparison):
        page = render_template("comparison.html", page=comparison_page(opened), has_images=False)
    elif isinstance(opened, LinearEvaluation):
        page = render_template("linear_eval.html", page=linear_eval_page(opened), has_images=False)
    elif isinstance(opened, Reproduction):
        page = render_template("reproduction.html", page=reproduction_page(opened), has_images=False)
    elif isinstance(opened, Sweep):
        page = render_template("sweep.html", page=sweep_page(opened), has_images=False)
    elif isinstance(opened, Study):
        for _, run in opened.runs:
            _check_classes(run, data)
        values = study_page(opened, data, images=images)
        page = render_template("study.html", page=values, has_images=bool(values["examples"]))
    else:
        _check_classes(opened, data)
        values = run_page(opened, data, images=images)
        page = render_template("run.html", page=values, has_images=bool(values["examples"]))
        if opened.finished:
            sweep_run(opened.path, interrupted=opened.metrics["interrupted"])
        if opened.finished and (data is not None or not (opened.path / MODEL_CARD_FILE).exists()):
            with replacing(opened.path, [MODEL_CARD_FILE]):
                write_model_card(opened, data)
    path = opened.path / REPORT_FILE
    if not isinstance(opened, Run) and not path.resolve().is_relative_to(opened.path.resolve()):
        raise RunError(f"{path} is a link out of its folder: remove it.")
    with replacing(opened.path, [REPORT_FILE]):
        write_text(path, page)
    return path


def _open(
    what: Run | Study | Comparison | LinearEvaluation | Reproduction | Sweep | str | os.PathLike[str],
) -> Run | Study | Comparison | LinearEvaluation | Reproduction | Sweep:
    if isinstance(what, Run | Study | Comparison | LinearEvaluation | Reproduction | Sweep):
        return what
    folder = Path(what)
    if is_reproduction(folder):
        return Reproduction.open(folder)
    if is_linear_evaluation(folder):
        return LinearEvaluation.open(folder)
    if is_comparison(folder):
        return Comparison.open(folder)
    if is_sweep(folder):
        return Sweep.open(folder)
    if (folder / STUDY_FILE).exists():
        return open_study(folder)
    if (folder / CONFIG_FILE).exists():
        return open_run(folder)
    if not any(folder.glob(f"*/{CONFIG_FILE}")) and folder.is_dir():
        raise RunError(f"{folder} is neither a run nor a study: it has no {CONFIG_FILE} and no {STUDY_FILE}.")
    return open_run(folder)  # an error that names the run that is probably meant


def _check_classes(run: Run, data: Dataset | None) -> None:
    if data is not None and data.classes != run.config.classes:
        raise InputError(f"{data.name} has other classes than {run.path} was trained on.")
