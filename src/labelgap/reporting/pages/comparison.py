"""The words, numbers and figure of a comparison's report."""

from __future__ import annotations

from typing import Any

from labelgap.core.errors import UnknownNameError
from labelgap.losses import describe_method
from labelgap.reporting.figures.comparison import comparison_figure
from labelgap.reporting.findings import SIGNIFICANCE_RULE, method_command, missing_label_cost, ranking_summary
from labelgap.reporting.formatting import format_elapsed, format_measure, join_names, selection_rule_text
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.reporting.style import single_line
from labelgap.reporting.tables.comparison import (
    ComparisonRow,
    comparison_columns,
    comparison_notes,
    comparison_rows,
    setting_columns,
)
from labelgap.studies.compare.comparison import Comparison

__all__ = ["comparison_page"]


def comparison_page(comparison: Comparison) -> dict[str, Any]:
    """Return everything that the template of a comparison asks for."""
    rows = comparison_rows(comparison)
    measured = [row for row in comparison.competitors if row.mean is not None]
    return {
        "title": single_line(comparison.title),
        "lead": _lead(comparison),
        "findings": [text for text in (ranking_summary(comparison), missing_label_cost(comparison)) if text],
        "warning": "" if comparison.metric.is_accuracy else comparison.metric.reason,
        "figure": _figure(comparison),
        "caption": _caption(comparison),
        "columns": comparison_columns(comparison),
        "groups": _groups(rows),
        "notes": comparison_notes(comparison),
        "reading": _reading(comparison),
        "not_run": [(row.method, single_line(row.reason)) for row in comparison.skipped],
        "command": method_command(comparison, measured[0], whole_path=False) if measured else "",
        "setting_columns": setting_columns(comparison),
        "methods": [(row.method, _about(row.method)) for row in comparison.methods],
        "settings": _settings(comparison),
    }


def _lead(comparison: Comparison) -> str:
    about = comparison.metadata
    images = ", ".join(f"{count:,} {split}" for split, count in about["images"].items())
    many = f"{len(comparison.methods)} method{'s' if len(comparison.methods) != 1 else ''}"
    seeds = f"{about['seeds']} seed{'s' if about['seeds'] != 1 else ''}"
    return single_line(f"{many}, each a linear head on the same features, with {seeds}. {images} images.")


def _figure(comparison: Comparison) -> ResponsiveFigure | None:
    rows = [row for row in comparison.methods if row.mean is not None]
    if not rows:
        return None
    told = "; ".join(f"{row.method} {format_measure(row.mean)}" for row in rows)
    return FigureRenderer().render(
        lambda width: comparison_figure(comparison, width=width), f"{comparison.metric.name}: {told}."
    )


def _caption(comparison: Comparison) -> str:
    several = comparison.metadata["seeds"] > 1
    parts = ["Dots are means, ticks the single seeds." if several else "One seed each."]
    if any(row.extra_labels for row in comparison.methods):
        parts.append("Hollow: methods that saw more labels than the others.")
    if several:
        parts.append("Vermillion: may be as good as the best; grey: behind by more than chance explains.")
    return " ".join([*parts, "The axis does not begin at zero; ◂ marks what lies far to the left of it."])


def _groups(rows: list[ComparisonRow]) -> list[list[ComparisonRow]]:
    groups = [[row for row in rows if not row.extra_labels], [row for row in rows if row.extra_labels]]
    return [group for group in groups if group]


def _reading(comparison: Comparison) -> list[str]:
    about = comparison.metadata
    said = [selection_rule_text(comparison.rule)]
    if comparison.rule != "last":
        said.append(
            "The setting of a method (learning rate, batch size, options) was chosen in the same way, by its mean over "
            "the seeds; test was looked at once, for the chosen heads."
        )
    if comparison.metric.is_accuracy:
        said.append("F1 is at a threshold for each class that was chosen on val.")
    if any(row.mean_of("train_map") is not None for row in comparison.methods):
        said.append(
            "Train mAP is measured on the training images against their full labels, most of which training never saw: "
            "how well a method finds labels that are missing."
        )
    if about["seeds"] > 1:
        said.append(SIGNIFICANCE_RULE)
    moved = "the first weights and what a method draws itself"
    if about.get("observe"):
        moved += f", and which labels are hidden: seed s has label seed {about['label_seed']} + s"
    said.append(f"A seed moves {moved}. The order of the batches is the same for all.")
    said.append("Time is a method's share, over all its settings and seeds, of heads that were trained together.")
    said.append(
        "These are linear heads on fixed features. Where the whole network learns, the order of methods can be another."
    )
    return said


def _about(method: str) -> str:
    try:
        entry = describe_method(method)
    except UnknownNameError:
        return ""
    return single_line(f"{entry.summary} ({entry.reference})")


def _settings(comparison: Comparison) -> list[tuple[str, str]]:
    about = comparison.metadata
    observe = about.get("observe")
    hidden = ", ".join(f"{name} {value}" for name, value in observe.items()) if observe else "the table as it is"
    pairs = [
        ("data", str(about["data"])),
        ("labels", hidden),
        ("classes", f"{len(about['classes']):,}: {join_names([single_line(name) for name in about['classes']], 12)}"),
        ("backbone", str(about["backbone"])),
        ("protocol", "linear"),
        ("epochs", str(about["epochs"])),
        ("grid", str(about["grid"])),
        ("device", str(about["device"])),
        ("time", format_elapsed(comparison.seconds)),
    ]
    return [(name, single_line(text)) for name, text in pairs]
