"""A comparison: its page, table and figure; the best method, whether it is significantly better, and its command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from labelgap.core.text import join_names
from labelgap.reporting import style
from labelgap.reporting.descriptions import find_method
from labelgap.reporting.formatting import (
    SELECTION_RULES,
    ResultRow,
    ResultTable,
    describe_cost,
    format_elapsed,
    format_learning_rate,
    format_measure,
    format_options,
)
from labelgap.reporting.page import Page, render_template, stack_columns
from labelgap.reporting.sections.curves import epoch_scores_section
from labelgap.reporting.sections.parameter_effects import parameter_effects_section
from labelgap.studies.compare.results import BASELINE, Comparison, MethodResult
from labelgap.training.presets import LINEAR_DEFAULTS
from labelgap.training.rerun import comparison_review_commands, data_arguments, strip_directories

MAX_SCALE_FACTOR: Final = 2.5  # a method whose gap to the best is above this times the median gap is not to scale
MIN_SCALE_POINTS: Final = 4.0  # unless the gap is within so many points
_FOLDS: Final = (
    "There is no val. The setting of each method was chosen by cross-validation over all training images, on their "
    "known labels; scores of training images are out of fold, and the final heads were trained on all images."
)
_MAX_METHODS: Final = 5
_MEASURES: Final = {"F1 micro": "f1_micro", "F1 macro": "f1_macro", "train mAP": "train_map"}


def ranking_summary(comparison: Comparison) -> str:
    """Return which method is best, and whether the difference is significant."""
    measured = [row for row in comparison.competitors if row.mean is not None]
    if not measured:
        return ""
    best, second = measured[0], measured[1] if len(measured) > 1 else None
    value = f"{comparison.metric.name} {format_measure(best.mean)}"
    if second is None:
        return f"`{best.name}`: {value}. There is nothing to compare it with."
    if len(best.seeds) == 1:
        return f"`{best.name}` is highest ({value}), but with one seed no difference can be claimed: take more."
    if comparison.winner is not None and second.gap is not None:
        lead = f"{100 * second.gap.mean:.1f} ± {100 * (second.gap.half_width or 0.0):.1f} points over `{second.name}`"
        return f"`{best.name}` is significantly better than all others: by {lead}, the next."
    near = join_names([f"`{row.name}`" for row in comparison.tied[1:]], _MAX_METHODS)
    mean = f"`{best.name}` has the highest mean ({value}), but the difference is within the uncertainty"
    return f"{mean}: {near} may be as good."


def missing_label_cost(comparison: Comparison) -> str:
    """Return what the missing labels cost and what the best method recovers, where the comparison shows both."""
    rows = {row.name: row.mean for row in comparison.methods}
    full_labels = any(row.method == "bce" and row.extra_labels for row in comparison.methods)
    measured = [(row.name, row.mean) for row in comparison.competitors if row.mean is not None]
    if not full_labels or not comparison.metric.is_accuracy or not measured:
        return ""
    return describe_cost(("bce", rows.get("bce")), ("an", rows.get("an")), measured[0])


def review_commands(comparison: Comparison, *, whole_path: bool = True) -> tuple[str, ...]:
    """Return the commands that label random images, where the methods are not ordered by an accuracy."""
    if comparison.metric.is_accuracy:
        return ()
    recipe = comparison.metadata.get("recipe") or {}
    return comparison_review_commands(comparison.path, recipe, share=not whole_path)


def method_command(comparison: Comparison, row: MethodResult, *, whole_path: bool = True) -> str:
    """Return the command that trains a method with its selected setting; with folders in its paths only on request."""
    metadata, method = comparison.metadata, "an" if row.baseline else row.method
    recipe = metadata.get("recipe") or {}
    words = ["labelgap", "train", *(data_arguments(recipe if whole_path else strip_directories(recipe)) or ["DATA"])]
    words += ["--method", method]
    for name, value in row.options.items():
        words += ["--option", f"{name}={value}"]
    if row.optimizer == "newton":
        words += ["--optimizer", "newton"]
    else:
        words += ["--lr", format_learning_rate(row.lr), "--batch-size", str(row.batch_size)]
    if not row.baseline and metadata["epochs"] != LINEAR_DEFAULTS["epochs"]:
        words += ["--epochs", str(metadata["epochs"])]
    words += ["--weight-decay", f"{row.weight_decay:g}", "--standardize" if row.standardize else "--no-standardize"]
    words += ["--protocol", "linear"]
    if metadata["backbone"] != "features":
        words += ["--backbone", metadata["backbone"]]
    if metadata.get("observe"):
        amounts = ",".join(f"{name}={value}" for name, value in metadata["observe"].items())
        words += ["--observe", amounts, "--label-seed", str(metadata["label_seed"])]
    return shlex.join([*words, "--out", f"runs/{method}"])


def comparison_rows(comparison: Comparison) -> list[ResultRow]:
    """Return the measures of every method in order; the best and those that may be as good are bold."""
    tied, rows = {row.name for row in comparison.tied}, []

    def spread(mean: float | None, half: float | None) -> str:
        return format_measure(mean, 2) + ("" if half is None else f" ± {100 * half:.2f}")

    for row in comparison.methods:
        value, gap = spread(row.mean, row.deviation), row.gap
        behind = "" if gap is None or gap.mean == 0 else spread(gap.mean, gap.half_width)
        others = (format_measure(row.mean_of(_MEASURES[name]), 2) for name in _measures(comparison))
        bold = row.name in tied and not row.extra_labels
        rows.append(ResultRow(row.name, (value, behind, *others), bold, row.extra_labels))
    return rows


def setting_columns(comparison: Comparison) -> dict[str, list[str]]:
    """Return the cells of every setting, by its header; "weight decay" and "options" only if a method has any."""
    columns, rows = dict[str, list[str]](), comparison.methods
    for row in rows:
        marks = {name: "°" if name == "epoch" else "*" for name in row.at_edge}
        newton = row.optimizer == "newton"
        rate = "newton" if newton else format_learning_rate(row.lr)
        cells = {
            "weight decay": f"{row.weight_decay:.2g}{marks.get('weight_decay', '')}",
            "lr": f"{rate}{marks.get('lr', '')}{marks.get('epoch', '')}",
            "batch": "all" if newton else str(row.batch_size),
            "options": format_options(row.options),
            "tried": str(row.settings_tried),
            "epochs kept": ", ".join(str(seed.epoch) for seed in row.seeds),
            "time": format_elapsed(row.seconds),
        }
        for name, cell in cells.items():
            columns.setdefault(name, []).append(cell)
    used = {"weight decay": any(row.weight_decay for row in rows), "options": any(row.options for row in rows)}
    return {name: cells for name, cells in columns.items() if used.get(name, True)}


def comparison_columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the headers of the measures, after the label."""
    return (comparison.metric.name or "measure", "behind best", *_measures(comparison))


def _measures(comparison: Comparison) -> list[str]:
    return [name for name, key in _MEASURES.items() if any(row.mean_of(key) is not None for row in comparison.methods)]


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return the notes under the table."""
    metric, rows = comparison.metric, comparison.methods
    notes = [f"{metric.reason[:1].upper()}{metric.reason[1:]}."] if metric.reason else []
    classes = len(comparison.metadata["classes"])
    if metric.name and metric.classes_counted < classes:
        counted = "those that are present in one image and not in another"
        if metric.is_accuracy:
            counted = "those with a known present and enough known absent labels"
        notes.append(f"{metric.name} is over {metric.classes_counted:,} of {classes:,} classes: {counted}.")
    seeds = max((len(row.seeds) for row in rows), default=0)
    if seeds > 1:
        half = "under behind best, half the 95 % interval of the difference"
        notes.append(f"± is the standard deviation over {seeds} seeds; {half}.")
    chances = [row.mean_of("chance") for row in rows]
    if metric.is_accuracy and chances and chances[0] is not None:
        notes.append(f"Random scores reach a test mAP of {format_measure(chances[0], 2)}.")
    if any(edge != "last" for row in rows for edge in row.at_edge.values()):
        notes.append("* the lowest or highest value that was compared: one beyond it may be better.")
    if any("epoch" in row.at_edge for row in rows):
        notes.append("° the last epoch was the best one: more (--epochs) may be better.")
    if any(row.baseline for row in rows):
        regression = "scikit-learn's LogisticRegression of every class with unknown labels as absent, C searched"
        notes.append(f"{BASELINE} is the baseline: {regression}, solved by labelgap.")
    above = [row for row in rows if row.extra_labels]
    if above:
        names = {saw: [row.name for row in above if row.label_view == saw] for saw in (row.label_view for row in above)}
        views = "; ".join(f"{join_names(each)} saw {saw}" for saw, each in names.items())
        others = join_names(list(dict.fromkeys(row.label_view for row in rows if not row.extra_labels)))
        notes.append(f"Below the line: {views}. The others saw {others}." if others else f"{views}.")
    return notes


def comparison_table(comparison: Comparison) -> ResultTable:
    """Return the table for the terminal: the measures, weight decay, lr and, if it differs, batch."""
    named = [row for row in comparison.methods if not row.options.keys() <= row.variant.keys()]
    options = "; ".join(f"{row.name} ({format_options(row.options)})" for row in named)
    notes = [*comparison_notes(comparison), *([f"Options: {options}."] if options else [])]
    several = len({row.batch_size for row in comparison.methods if row.optimizer != "newton"}) > 1
    shown = ("weight decay", "lr", "batch") if several else ("weight decay", "lr")
    settings = {name: cells for name, cells in setting_columns(comparison).items() if name in shown}
    each = zip(comparison_rows(comparison), zip(*settings.values(), strict=True), strict=True)
    rows = [row._replace(cells=(*row.cells, *cells)) for row, cells in each]
    return ResultTable(comparison.title, (*comparison_columns(comparison), *settings), rows, notes)


def comparison_figure(comparison: Comparison, *, width: float = style.WIDE) -> Figure:
    """Draw the measure of every method and, where a screen is wide, the interval of its gap to the best."""
    rows = {
        number + (0.6 if row.extra_labels else 0.0): row
        for number, row in enumerate(row for row in comparison.methods if row.mean is not None)
    }
    gaps = width > style.NARROW and any(row.gap is not None and row.gap.half_width is not None for row in rows.values())
    figure, axes = style.make_figure(1, 2 if gaps else 1, width=width, height=0.95 + 0.3 * (max(rows) + 1))
    means = sorted((100 * (row.mean or 0.0) for row in rows.values() if not row.extra_labels), reverse=True)
    lowest = 0.0  # methods below it are only marked, so that the others can be distinguished
    if means:
        lowest = means[0] - max(MIN_SCALE_POINTS, MAX_SCALE_FACTOR * (means[0] - means[len(means) // 2]))
    _draw_values(axes[0], rows, comparison.metric.name, lowest)
    style.set_rows(axes[0], list(rows), style.fit_names((row.name for row in rows.values()), width), 12)
    if gaps:
        axes[0].get_gridspec().set_width_ratios([3, 2])  # type: ignore[union-attr]
        _draw_gaps(axes[1], rows, lowest)
        axes[1].set_ylim(axes[0].get_ylim())
    return figure


def _draw_values(axis: Axes, rows: Mapping[float, MethodResult], name: str, lowest: float) -> None:
    means = {place: 100 * (row.mean or 0.0) for place, row in rows.items()}
    every = [100 * value for place, row in rows.items() for value in row.values if means[place] >= lowest]
    low, high = min(every), max(every)
    pad = max(0.08 * (high - low), 0.4)
    axis.set_xlim(max(low - 2 * pad, 0.0), min(high + 3.5 * pad, 100 + 3 * pad))
    style.swap_grid(axis)
    for place, row in rows.items():
        muted = (style.MUTED_COLOR, style.MUTED_COLOR, style.BACKGROUND_COLOR)
        color, value_color, face = muted if row.extra_labels else (style.BLUE, style.TEXT_COLOR, style.BLUE)
        mean, seeds = means[place], [100 * value for value in row.values]
        if mean < axis.get_xlim()[0]:
            edge = blended_transform_factory(axis.transAxes, axis.transData)
            axis.text(0.0, place, f"◂ {mean:.1f}", transform=edge, va="center", color=style.MUTED_COLOR, fontsize=11)
            continue
        if len(seeds) > 1:
            axis.plot(seeds, [place] * len(seeds), "|", color=color, markersize=9, markeredgewidth=1.3, alpha=0.75)
        axis.plot([mean], [place], "o", markersize=7.5, markerfacecolor=face, markeredgecolor=color, zorder=3)
        style.draw_value(axis, f"{mean:.1f}", max(seeds), place, color=value_color)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.set_xlabel(name)


def _draw_gaps(axis: Axes, rows: Mapping[float, MethodResult], lowest: float) -> None:
    shown = [
        (row.gap, place)
        for place, row in rows.items()
        if row.gap is not None and row.gap.mean > 0 and 100 * (row.mean or 0.0) >= lowest
    ]
    limit = max([1.0, *(100 * (gap.mean + (gap.half_width or 0.0)) for gap, _ in shown)])
    axis.set_xlim(-1.06 * limit, 0.18 * limit)
    style.swap_grid(axis)
    axis.axvline(0, color=style.MUTED_COLOR, linewidth=1.0)
    for gap, place in shown:
        mean, half = -100 * gap.mean, 100 * (gap.half_width or 0.0)
        color = style.MUTED_COLOR if gap.significant else style.VERMILLION
        axis.plot([mean - half, mean + half], [place, place], color=color, linewidth=1.8, solid_capstyle="butt")
        axis.plot([mean], [place], "o", markersize=5, color=color)
    axis.set_yticks([])
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("points from the best, 95 %")


def comparison_page(comparison: Comparison, page: Page) -> Markup:
    """Return the page."""
    rows, settings = comparison_rows(comparison), setting_columns(comparison)
    measured = [row for row in comparison.competitors if row.mean is not None]
    cells, figure = zip(*settings.values(), strict=True), None
    columns: dict[str, Any] = {
        row.name: {
            "seed": [seed.seed for seed in row.seeds],
            "value": row.values,
            "mean": row.mean,
            "gap": None if row.gap is None else row.gap.mean,
            "gap_half_width": None if row.gap is None else row.gap.half_width,
            "extra_labels": row.extra_labels,
        }
        for row in comparison.methods
        if row.mean is not None
    }
    if columns:
        values = "; ".join(f"{name} {format_measure(each['mean'])}" for name, each in columns.items())
        text = f"{comparison.metric.name}: {values}."
        figure = page.figure("comparison", text, stack_columns("method", columns), comparison_figure, comparison)
    return render_template(
        "pages/comparison.html",
        title=comparison.title,
        comparison=comparison,
        metadata=comparison.metadata,
        summary=[text for text in (ranking_summary(comparison), missing_label_cost(comparison)) if text],
        figure=figure,
        columns=comparison_columns(comparison),
        rows=rows,
        notes=comparison_notes(comparison),
        sections=[parameter_effects_section(comparison, page), epoch_scores_section(comparison, page)],
        selection=_FOLDS if comparison.metadata.get("folds") else SELECTION_RULES[comparison.rule],
        has_train_map=any(row.mean_of("train_map") is not None for row in comparison.methods),
        command=method_command(comparison, measured[0], whole_path=False) if measured else "",
        review_commands=review_commands(comparison, whole_path=False),
        setting_columns=list(settings),
        setting_rows=[row._replace(cells=each) for row, each in zip(rows, cells, strict=True)],
        methods=[(name, _describe(name)) for name in dict.fromkeys(row.method for row in comparison.methods)],
        classes=join_names(comparison.metadata["classes"], 12),
        has_images=False,
    )


def _describe(method: str) -> str:
    if method == BASELINE:
        return "the baseline: every class alone, unknown labels as absent, an L2 penalty (C) that is searched"
    entry = find_method(method)
    return "" if entry is None else f"{entry.summary} ({entry.reference})"
