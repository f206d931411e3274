"""What fewer training images cost: the metric against the number of observed labels (Kim et al. 2022, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from labelgap.reporting import style
from labelgap.reporting.formatting import SELECTION_RULES, ResultRow, ResultTable, format_spread, truncate_label
from labelgap.reporting.page import Page, render_template, stack_columns
from labelgap.reporting.sections.parameter_effects import LOG_RATIO
from labelgap.studies.shares import ShareComparison


@dataclass(frozen=True, eq=False)
class LabelBudget:
    """A method with P shares of the training images and S seeds."""

    share: NDArray[np.float64]  # (P,) of the training images, increasing
    images: NDArray[np.int64]  # (P,) how many
    known_labels: NDArray[np.float64]  # (P,) observed labels, present and absent, as the mean over seeds
    value: NDArray[np.float64]  # (P, S) the metric, 0 to 1; NaN where nothing can be measured
    score: NDArray[np.float64]  # (P, S) of val, in the selected epoch; NaN without val
    extra_labels: bool  # whether it saw labels that were hidden from the others


def label_budget(found: ShareComparison) -> dict[str, LabelBudget]:
    """Return the points of every method of a comparison on training shares, those that saw more labels last."""
    budgets = {}
    for name in found.methods:
        points = [point for point in found.points if point.method == name]
        shares, seeds = sorted({point.share for point in points}), sorted({point.seed for point in points})
        table = np.full((3, len(shares), len(seeds)), np.nan)
        for point in points:
            values = (point.value, point.score, point.known_labels)  # None becomes NaN
            table[:, shares.index(point.share), seeds.index(point.seed)] = np.array(values, dtype=np.float64)
        counts = {point.share: point.images for point in points}
        images, labels = np.array([counts[share] for share in shares]), np.nanmean(table[2], axis=1)
        budgets[name] = LabelBudget(np.array(shares), images, labels, table[0], table[1], points[0].extra_labels)
    return budgets


def label_budget_figure(
    methods: Mapping[str, LabelBudget], name: str = "test mAP", *, width: float = style.WIDE
) -> Figure:
    """Draw the metric, called ``name``, of every method against the number of labels that it saw."""
    narrow = width <= style.NARROW
    figure, (axis,) = style.make_figure(width=width, height=3.8 + (0.22 * len(methods) if narrow else 0))
    for number, (label, values) in enumerate(methods.items()):
        color, marker, dash = style.curve_style(number)
        look = color, marker, (0, (5, 2)) if values.extra_labels else dash, truncate_label(label, 30)
        style.draw_spread(axis, values.known_labels, 100 * values.value, *look)
    axis.set_xscale("log")
    counts = np.concatenate([values.known_labels for values in methods.values()])
    fine = counts.max() < (LOG_RATIO if narrow else 20 * LOG_RATIO) * max(counts.min(), 1)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if fine else (1,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_title(name, loc="left")
    axis.set_xlabel("observed training labels, present and absent")
    style.add_legend(figure)
    return figure


def label_budget_finding(methods: Mapping[str, LabelBudget]) -> str:
    """Return what all images with few labels are worth in fully labeled images, where both were measured."""
    full = [values for values in methods.values() if values.extra_labels and np.isfinite(values.value).any()]
    weak = [
        (float(np.nanmean(values.value[-1])), name, values)
        for name, values in methods.items()
        if not values.extra_labels and np.isfinite(values.value[-1]).any()
    ]
    if len(full) != 1 or not weak:
        return ""
    upper, (mean, best, values) = full[0], max(weak, key=lambda each: each[0])
    reached = np.flatnonzero(np.nanmean(upper.value, axis=1) >= mean)
    reaches = f"With {100 * values.share[-1]:g} % of the images {best} reaches {100 * mean:.1f}"
    if not len(reached):
        return f"{reaches}, more than full labels of any share that was tried."
    ratio = float(upper.known_labels[reached[0]]) / max(float(values.known_labels[-1]), 1.0)
    return (
        f"{reaches}; with every label known, {100 * upper.share[reached[0]]:g} % of the images are needed for that, "
        f"with {ratio:.1f} times as many labels."
    )


def share_table(found: ShareComparison) -> ResultTable:
    """Return the table: the metric of every method with each share of the training images."""
    columns = [f"{100 * share:g} %" for share in sorted({point.share for point in found.points})]
    rows = [
        ResultRow(name, [format_spread(100 * values, 1) for values in budget.value], apart=budget.extra_labels)
        for name, budget in label_budget(found).items()
    ]
    seeds = len({point.seed for point in found.points})
    notes = [f"{found.metric.name or 'Nothing could be measured'} by the share of the training images"]
    notes[0] += f", ± the standard deviation over {seeds} seeds." if seeds > 1 else ", one seed."
    if found.metric.reason:
        notes.append(f"{found.metric.reason[:1].upper()}{found.metric.reason[1:]}.")
    if extra := [row.label for row in rows if row.apart]:
        notes.append(f"Below the line: {', '.join(extra)}, which saw labels that were hidden from the others.")
    return ResultTable(f"Fewer training images of {found.data}", columns, rows, notes)


def shares_page(found: ShareComparison, page: Page) -> Markup:
    """Return the page."""
    methods, table, figure = label_budget(found), share_table(found), None
    measured = {method: values for method, values in methods.items() if np.isfinite(values.value).any()}
    if measured:
        columns = {
            method: {
                "share": values.share[:, None],
                "seed": np.arange(values.value.shape[1]),
                "images": values.images[:, None],
                "known_labels": values.known_labels[:, None],
                "value": values.value,
                "val": values.score,
                "extra_labels": values.extra_labels,
            }
            for method, values in measured.items()
        }
        shown = "; ".join(f"{row.label}: {', '.join(row.cells)}" for row in table.rows)
        text = f"{found.metric.name} against the number of observed labels. {shown}"
        given = label_budget_figure, measured, found.metric.name
        figure = page.figure("label-budget", text, stack_columns("method", columns), *given)
    return render_template(
        "pages/shares.html",
        title=table.title,
        seeds=len({point.seed for point in found.points}),
        finding=label_budget_finding(methods),
        found=found,
        figure=figure,
        table=table,
        labels=[(method, values.known_labels.round().astype(int).tolist()) for method, values in methods.items()],
        selection=SELECTION_RULES[found.rule],
        has_images=False,
    )
