"""Figures of a study: the test mAP of its runs, and a summary for a README or a talk."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import MaxNLocator

from labelgap.core.errors import RunError
from labelgap.reporting.analysis.memorization import Memorization, label_losses, memorization_by_label
from labelgap.reporting.colors import BACKGROUND_COLOR, BLUE, GRID_COLOR, TEXT_COLOR
from labelgap.reporting.figures.memorization import draw_memorization, memorization_legend, set_memorization_limits
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, add_legend, draw_value, make_figure, set_rows, style_axes
from labelgap.reporting.tables.study import study_rows
from labelgap.studies import Study


def method_map_figure(
    methods: Mapping[str, float | None], extra: Mapping[str, float | None] | None = None, *, width: float = WIDE
) -> Figure:
    """Draw the test mAP of methods as dots, and of runs that saw more labels than the others as lines."""
    figure, (axis,) = make_figure(width=width, height=0.95 + 0.36 * max(len(methods), 1))
    draw_method_map(axis, methods, extra or {}, 24 if width > NARROW else 16)
    return figure


def draw_method_map(
    axis: Axes, methods: Mapping[str, float | None], extra: Mapping[str, float | None], length: int = 24
) -> None:
    """Draw into given axes; names are truncated to ``length``."""
    shown = [(name, 100 * value) for name, value in methods.items() if value is not None]
    limits = {name: 100 * value for name, value in extra.items() if value is not None}
    values = [value for _, value in shown]
    places = np.arange(len(shown))
    everything = [*values, *limits.values()] or [0.0, 100.0]
    low, high = min(everything), max(everything)
    pad = max(0.12 * (high - low), 1.0)
    axis.set_xlim(max(low - 2 * pad, 0), min(high + 2 * pad, max(high, 100) + 0.3 * pad))
    axis.hlines(places, axis.get_xlim()[0], values, color=GRID_COLOR, linewidth=1.2)
    axis.plot(values, places, linestyle="none", marker="o", markersize=9, color=BLUE, markeredgecolor=BACKGROUND_COLOR)
    for place, value in enumerate(values):
        draw_value(axis, f"{value:.1f}", value, place)
    for number, (name, value) in enumerate(limits.items()):
        axis.axvline(value, color=TEXT_COLOR, linewidth=1.4, linestyle=(0, (5, 3)))
        axis.annotate(
            f"{truncate_label(name, length)} {value:.1f}",
            (value, 1.0),
            (0, 5 + 14 * number),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if value > sum(axis.get_xlim()) / 2 else "left",
            va="bottom",
            color=TEXT_COLOR,
            fontsize=11,
            parse_math=False,
        )
    set_rows(axis, places, [truncate_label(name, length) for name, _ in shown], 12)
    axis.grid(False)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axis.set_xlabel("test mAP")


def study_figure(study: Study) -> Figure:
    """Draw the memorization of every method in a panel of its own, and below them the test mAP.

    Save it with ``study_figure(study).savefig("demo.png", dpi=200)``; the background is white.
    """
    rows = study_rows(study)
    panels = memorization_by_label(
        {member.label: label_losses(run.trace) for member, run in study.runs if not member.extra_labels}
    )
    methods = {row.label: row.map for row in rows if not row.extra_labels}
    extra = {row.label: row.map for row in rows if row.extra_labels}
    if not panels and all(value is None for value in [*methods.values(), *extra.values()]):
        raise RunError(f"{study.path} holds nothing to draw: no traces with known truth, and no test mAP.")
    longest = max(len(truncate_label(label)) for label in methods) if methods else 0
    left, right = 0.05 + 0.0115 * max(longest, 3), 0.965
    above, below = (4.3 if panels else 0.7), 1.15 + 0.38 * len(methods)
    height = above + below
    figure = Figure(figsize=(10, height), facecolor="white")
    figure.text(
        0.03,
        1 - 0.3 / height,
        truncate_label(study.title, 80),
        va="top",
        fontsize=17,
        fontweight="bold",
        color=TEXT_COLOR,
    )
    if panels:
        grid = figure.add_gridspec(
            1, len(panels), left=left, right=right, top=1 - 1.5 / height, bottom=(below + 0.5) / height, wspace=0.16
        )
        _draw_panels(figure, grid, panels)
        add_legend(figure, *memorization_legend(), columns=2, position=(0.022, 1 - 0.72 / height))
    grid = figure.add_gridspec(1, 1, left=left, right=right, top=(below - 0.5) / height, bottom=0.6 / height)
    axis = figure.add_subplot(grid[0])
    style_axes(axis)
    draw_method_map(axis, methods, extra, 28)
    return figure


def _draw_panels(figure: Figure, grid: GridSpec, panels: Mapping[str, Memorization]) -> None:
    """Draw a panel for each method."""
    for place, (label, values) in enumerate(panels.items()):
        axis = figure.add_subplot(grid[place])
        style_axes(axis)
        draw_memorization(axis, values)
        axis.set_title(
            truncate_label(label, 20), loc="left", color=TEXT_COLOR, fontsize=13, fontweight="bold", parse_math=False
        )
        axis.set_xlabel("epoch")
        axis.set_ylabel("mean training loss" if place == 0 else "")
    set_memorization_limits(figure.axes, panels.values(), len(panels))
