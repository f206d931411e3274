"""The values of a comparison's page, for ``comparison.html``."""

from __future__ import annotations

from typing import Any

from labelgap.core.text import join_names
from labelgap.reporting.comparison_summary import (
    SIGNIFICANCE_RULE,
    method_command,
    missing_label_cost,
    ranking_summary,
    review_commands,
)
from labelgap.reporting.figure_data import Columns, stack_columns
from labelgap.reporting.figures.comparison import comparison_figure
from labelgap.reporting.formatting import format_elapsed, format_measure, selection_rule_text, single_line
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.reporting.pages.sections.curves import epoch_scores_section, parameter_effects_section
from labelgap.reporting.run_description import find_method
from labelgap.reporting.tables.comparison import comparison_columns, comparison_notes, comparison_rows, setting_columns
from labelgap.studies.compare.results import BASELINE, Comparison

FOLDS_TEXT = (
    "There is no val. The setting of each method was chosen by cross-validation over all training images, on their "
    "known labels; scores of training images are out of fold, and the final heads were trained on all images."
)


def comparison_page(comparison: Comparison, figures: FigureRenderer) -> dict[str, Any]:
    """Return the values of the template."""
    rows = comparison_rows(comparison)
    measured = [row for row in comparison.competitors if row.mean is not None]
    groups = [[row for row in rows if row.extra_labels is extra] for extra in (False, True)]
    return {
        "title": single_line(comparison.title),
        "comparison": comparison,
        "metadata": comparison.metadata,
        "summary": [text for text in (ranking_summary(comparison), missing_label_cost(comparison)) if text],
        "figure": _figure(comparison, figures),
        "columns": comparison_columns(comparison),
        "groups": [group for group in groups if group],
        "notes": comparison_notes(comparison),
        "selection": FOLDS_TEXT if comparison.metadata.get("folds") else selection_rule_text(comparison.rule),
        "significance": SIGNIFICANCE_RULE,
        "has_train_map": any(row.mean_of("train_map") is not None for row in comparison.methods),
        "skipped": [(row.method, single_line(row.reason)) for row in comparison.skipped],
        "command": method_command(comparison, measured[0], whole_path=False) if measured else "",
        "review_commands": review_commands(comparison, whole_path=False),
        "setting_columns": setting_columns(comparison),
        "methods": [(name, _describe(name)) for name in dict.fromkeys(row.method for row in comparison.methods)],
        "settings": _settings(comparison),
        **parameter_effects_section(comparison, figures),
        **epoch_scores_section(comparison, figures),
    }


def _figure(comparison: Comparison, figures: FigureRenderer) -> ResponsiveFigure | None:
    rows = [row for row in comparison.methods if row.mean is not None]
    if not rows:
        return None
    values = "; ".join(f"{row.name} {format_measure(row.mean)}" for row in rows)
    each: dict[str, Columns] = {
        row.name: {
            "seed": [seed.seed for seed in row.seeds],
            "value": row.values,
            "mean": [row.mean] * len(row.seeds),
            "gap": [None if row.gap is None else row.gap.mean] * len(row.seeds),
            "gap_half_width": [None if row.gap is None else row.gap.half_width] * len(row.seeds),
            "extra_labels": [row.extra_labels] * len(row.seeds),
        }
        for row in rows
    }
    return figures.render(
        lambda width: comparison_figure(comparison, width=width),
        f"{comparison.metric.name}: {values}.",
        name="comparison",
        data=stack_columns("method", each),
    )


def _describe(method: str) -> str:
    if method == BASELINE:
        return "the baseline: every class alone, unknown labels as absent, an L2 penalty (C) that is searched"
    entry = find_method(method)
    return "" if entry is None else single_line(f"{entry.summary} ({entry.reference})")


def _settings(comparison: Comparison) -> list[tuple[str, str]]:
    metadata = comparison.metadata
    observe = metadata.get("observe")
    labels = ", ".join(f"{name} {value}" for name, value in observe.items()) if observe else "as in the table"
    pairs = [
        ("data", str(metadata["data"])),
        ("labels", labels),
        (
            "classes",
            f"{len(metadata['classes']):,}: {join_names([single_line(name) for name in metadata['classes']], 12)}",
        ),
        ("backbone", str(metadata["backbone"])),
        ("protocol", "linear"),
        ("epochs", str(metadata["epochs"])),
        ("grid", str(metadata["grid"])),
        ("device", str(metadata["device"])),
        ("time", format_elapsed(comparison.seconds)),
    ]
    return [(name, single_line(text)) for name, text in pairs]
