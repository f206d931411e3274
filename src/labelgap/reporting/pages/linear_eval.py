"""The values of the page of a linear evaluation, for ``linear_eval.html``."""

from __future__ import annotations

from typing import Any

from labelgap.data.feature_vectors import FEATURES
from labelgap.reporting.figures.linear_eval import penalty_figure
from labelgap.reporting.formatting import format_count, format_measure, single_line
from labelgap.reporting.html import FigureRenderer
from labelgap.reporting.tables.linear_eval import LINEAR_EVAL_COLUMNS, linear_eval_notes, linear_eval_rows
from labelgap.studies.linear_eval import LinearEvaluation


def linear_eval_page(evaluation: LinearEvaluation, figures: FigureRenderer) -> dict[str, Any]:
    """Return the values of the template."""
    chosen, best, metric = evaluation.chosen, evaluation.best_on_test, evaluation.metric
    images = ", ".join(f"{count:,} {name}" for name, count in evaluation.images.items())
    brought = evaluation.backbone == FEATURES
    backbone = "features that came with the data" if brought else f"features of {evaluation.backbone}"
    finding = f"Val chooses the penalty {chosen.penalty:.3g}: {metric} {format_measure(chosen.val)} on val"
    if best is not None:
        finding += f", {format_measure(chosen.test)} on test (the best on test: {format_measure(best.test)})"
    return {
        "title": single_line(f"Linear classifiers on the features of {evaluation.data}"),
        "lead": f"{evaluation.classes:,} classes, {evaluation.task}; {images} images; {backbone}.",
        "finding": f"{finding}.",
        "figure": figures.render(
            lambda width: penalty_figure(evaluation, width=width),
            finding,
            name="penalties",
            data={
                name: [getattr(result, name) for result in evaluation.results] for name in ("penalty", "val", "test")
            },
        ),
        "columns": ("", *LINEAR_EVAL_COLUMNS),
        "rows": linear_eval_rows(evaluation),
        "notes": linear_eval_notes(evaluation),
        "class_score": "average precision" if evaluation.task == "multi-label" else "share of its images that get it",
        "class_columns": ("", "present in train", "val", "test"),
        "class_rows": [
            (single_line(each.name), [format_count(each.present), format_measure(each.val), format_measure(each.test)])
            for each in sorted(evaluation.class_results, key=lambda each: -1 if each.val is None else each.val)
        ],
    }
