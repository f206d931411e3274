"""The values of a run's page, for ``run.html``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.analysis.class_table import class_table
from labelgap.reporting.example_images import random_examples
from labelgap.reporting.figures.run import learning_curves, selection_score_name
from labelgap.reporting.formatting import (
    format_count,
    format_measure,
    selection_rule_text,
    single_line,
)
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.reporting.pages.sections.classes import classes_section
from labelgap.reporting.pages.sections.label_changes import label_changes_section
from labelgap.reporting.pages.sections.label_scores import label_scores_section
from labelgap.reporting.pages.sections.localization import localization_section
from labelgap.reporting.pages.sections.memorization import memorization_section
from labelgap.reporting.pages.sections.summary import summary_section
from labelgap.reporting.run_description import (
    describe_data,
    describe_method_choice,
    describe_settings,
    revises_labels,
)
from labelgap.training import Run
from labelgap.training.config import RunConfig
from labelgap.training.history import trained_epochs
from labelgap.training.settings import PROTOCOLS

_FINAL_HEAD: Final = "The final head was trained on all images, with the settings that cross-validation chose."


def run_page(run: Run, data: Dataset | None, figures: FigureRenderer, *, images: bool) -> dict[str, Any]:
    """Return the values of the template."""
    config = run.config
    table = class_table(run, data)
    return {
        "name": single_line(run.path.resolve().name),
        "lead": _lead(config),
        "run": run,
        "summary": summary_section(run, data, table),
        "selection": _FINAL_HEAD if config.folds else selection_rule_text(config.select),
        "compared": _compared(run),
        "folds": config.folds,
        "curves": _curves(run, figures),
        **memorization_section({config.method: run}, data, figures),
        **label_scores_section({config.method: run}, data, figures),
        "classes": classes_section(run, table, figures),
        **label_changes_section(run, data, figures, images=images),
        **localization_section({config.method: run}, data, figures, images=images),
        "examples": random_examples(run, data) if images and data is not None else [],
        "findings": [single_line(str(finding)) for finding in data.findings] if data is not None else [],
        "label_counts": _label_counts(run, data),
        "data": describe_data(config),
        "method": describe_method_choice(config),
        "revisions": _revisions(run),
        "settings": describe_settings(config),
    }


def _lead(config: RunConfig) -> str:
    name = config.data.get("name", "")
    first = "" if config.linear_epochs is None else f"{config.linear_epochs} + "
    epochs = f"{first}{pluralize(config.epochs, 'epoch')}"
    text = f"{config.method}, {config.backbone}, {PROTOCOLS[config.protocol]}, {epochs}"
    return single_line(f"{name}: {text}" if name else text)


def _compared(run: Run) -> list[tuple[str, list[str]]]:
    """Return a row for every setting that was compared, the best first: method, weight decay, score."""
    lines = (run.metrics.get("cross_validation") or run.metrics.get("search") or {}).get("compared", [])
    ranked = sorted(lines, key=lambda line: -(line["score"] or 0.0))
    return [(line["method"], [f"{line['weight_decay']:.3g}", format_measure(line["score"])]) for line in ranked]


def _curves(run: Run, figures: FigureRenderer) -> ResponsiveFigure | None:
    history, config = run.history, run.config
    if not history:
        return None
    loss = [_number(record["loss"]) for record in history]
    scores = [_number(record.get("score")) for record in history]
    scored = config.select != "last" and any(np.isfinite(scores))
    counted = [record["classes_counted"] for record in history if record.get("classes_counted") is not None]
    rule = selection_score_name(config.select, max(counted, default=None), len(config.classes)) if scored else ""
    chosen = run.metrics.get("best_epoch")

    return figures.render(
        lambda width: learning_curves(
            loss, scores if scored else None, rule=rule, chosen=chosen, first=history[0]["epoch"], width=width
        ),
        f"Training loss{' and ' + rule if scored else ''} over {pluralize(trained_epochs(history), 'epoch')}.",
        name="learning-curves",
        data={"epoch": [record["epoch"] for record in history], "loss": loss, "score": scores},
    )


def _label_counts(run: Run, data: Dataset | None) -> list[tuple[str, list[str]]]:
    """Count the observed labels of each split; without the data set, those of train if the trace has them all."""
    if data is not None:
        return [(split.name, _label_count_cells(len(split), *split.labels.counts().total)) for split in data.splits]
    if run.config.trace == "all" and run.trace:
        observed = run.trace["observed"]
        found = [int((observed == state).sum()) for state in (PRESENT, ABSENT, UNKNOWN)]
        return [("train", _label_count_cells(len(observed) // len(run.config.classes), *found))]
    return []


def _label_count_cells(images: int, present: int, absent: int, unknown: int) -> list[str]:
    share = unknown / max(present + absent + unknown, 1)
    return [*map(format_count, (images, present, absent)), f"{unknown:,} ({100 * share:.0f} %)"]


def _revisions(run: Run) -> str:
    revisions = run.revisions
    if len(revisions) == 0:
        return "No label was revised permanently." if revises_labels(run.config.method) else ""
    counts = pc.value_counts(revisions.to_table()["source"]).to_pylist()
    by = ", ".join(f"{item['counts']:,} by {single_line(item['values'])}" for item in counts)
    return f"{len(revisions):,} labels were revised ({by}); the observed labels are kept, see revisions.parquet."


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
