"""The values of the page of methods on shares of the training images, for ``shares.html``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labelgap.reporting.analysis.label_budget import LabelBudget, label_budget
from labelgap.reporting.figure_data import Columns, stack_columns
from labelgap.reporting.figures.curves import label_budget_figure
from labelgap.reporting.formatting import format_count, format_elapsed, selection_rule_text, single_line
from labelgap.reporting.html import FigureRenderer
from labelgap.reporting.tables.shares import share_columns, share_notes, share_rows
from labelgap.studies.shares import ShareComparison


def shares_page(found: ShareComparison, figures: FigureRenderer) -> dict[str, Any]:
    """Return the values of the template."""
    methods = label_budget(found)
    measured = {name: values for name, values in methods.items() if np.isfinite(values.value).any()}
    name = found.metric.name or "nothing measured"
    rows = share_rows(found)
    return {
        "title": single_line(f"Fewer training images of {found.data}"),
        "seeds": len({point.seed for point in found.points}),
        "finding": label_budget_finding(methods),
        "accuracy": found.metric.is_accuracy,
        "reason": found.metric.reason,
        "figure": figures.render(
            lambda width: label_budget_figure(measured, name, width=width),
            f"{name} against the number of observed labels. "
            + "; ".join(f"{single_line(method)}: {', '.join(cells)}" for method, cells, _ in rows),
            name="label-budget",
            data=stack_columns("method", {method: _columns(values) for method, values in measured.items()}),
        )
        if measured
        else None,
        "columns": ("", *share_columns(found)),
        "groups": [[(method, cells) for method, cells, more in rows if more is extra] for extra in (False, True)],
        "labels": [
            (method, [format_count(round(float(count))) for count in values.known_labels])
            for method, values in methods.items()
        ],
        "notes": share_notes(found),
        "selection": selection_rule_text(found.rule),
        "skipped": [(row.method, single_line(row.reason)) for row in found.skipped],
        "settings": _settings(found),
    }


def label_budget_finding(methods: Mapping[str, LabelBudget]) -> str:
    """Say what all images with few labels are worth in images with all labels, where both were measured.

    It is the sentence of the paper: a share of fully labeled images, and the method that reaches it with fewer labels.
    """
    full = [values for values in methods.values() if values.extra_labels and np.isfinite(values.value).any()]
    weak = {name: values for name, values in methods.items() if not values.extra_labels}
    means = {name: float(np.nanmean(values.value[-1])) for name, values in weak.items() if _measured(values)}
    if len(full) != 1 or not means:
        return ""
    best, upper = max(means, key=lambda name: means[name]), full[0]
    reached = np.flatnonzero(np.nanmean(upper.value, axis=1) >= means[best])
    labels = float(weak[best].known_labels[-1])
    all_images = (
        f"With {100 * weak[best].share[-1]:g} % of the images {single_line(best)} reaches {100 * means[best]:.1f}"
    )
    if not len(reached):
        return f"{all_images}, more than full labels of any share that was tried."
    first = reached[0]
    ratio = float(upper.known_labels[first]) / max(labels, 1.0)
    return (
        f"{all_images}; with every label known, {100 * upper.share[first]:g} % of the images are needed for that, "
        f"with {ratio:.1f} times as many labels."
    )


def _measured(values: LabelBudget) -> bool:
    return bool(np.isfinite(values.value[-1]).any())


def _columns(values: LabelBudget) -> Columns:
    points, seeds = values.value.shape
    return {
        "share": np.repeat(values.share, seeds),
        "seed": np.tile(np.arange(seeds), points),
        "images": np.repeat(values.images, seeds),
        "known_labels": np.repeat(values.known_labels, seeds),
        "value": values.value.ravel(),
        "val": values.score.ravel(),
        "extra_labels": [values.extra_labels] * (points * seeds),
    }


def _settings(found: ShareComparison) -> list[tuple[str, str]]:
    observe = found.observe
    pairs = [
        ("data", found.data),
        ("images", ", ".join(f"{count:,} {name}" for name, count in found.images.items())),
        ("classes", format_count(found.classes)),
        ("labels", ", ".join(f"{name} {value}" for name, value in observe.items()) if observe else "as in the table"),
        ("backbone", found.backbone),
        ("protocol", "linear"),
        ("epochs", str(found.epochs)),
        ("time", format_elapsed(found.seconds)),
    ]
    return [(name, single_line(text)) for name, text in pairs]
