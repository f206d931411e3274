"""The figure of a comparison: the mean and the seeds of every method, and its gap to the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from labelgap.reporting.colors import BACKGROUND_COLOR, BLUE, MUTED_COLOR, TEXT_COLOR, VERMILLION
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, draw_value, make_figure, set_rows, swap_grid
from labelgap.studies.compare.results import Comparison, MethodResult

MAX_SCALE_FACTOR: Final = 2.5
"""A method whose gap to the best is more than so many times the median gap is not drawn to scale,"""
MIN_SCALE_POINTS: Final = 4.0
"""unless the gap is within so many points."""


def comparison_figure(comparison: Comparison, *, width: float = WIDE) -> Figure:
    """Draw the measure of every method and, on a wide screen and with several seeds, the 95 % interval of its gap.

    Dots are means, ticks the seeds. Methods that saw more labels than the others are hollow, at the bottom. There must
    be at least one mean.
    """
    rows = [row for row in comparison.methods if row.mean is not None]
    places = [number + (0.6 if row.extra_labels else 0.0) for number, row in enumerate(rows)]
    gaps = width > NARROW and any(row.gap is not None and row.gap.half_width is not None for row in rows)
    figure, axes = make_figure(1, 2 if gaps else 1, width=width, height=0.95 + 0.3 * (places[-1] + 1))
    if gaps:
        grid = axes[0].get_gridspec()
        assert grid is not None
        grid.set_width_ratios([3, 2])
    _values(axes[0], rows, places, comparison.metric.name, _lowest(rows))
    set_rows(axes[0], places, [truncate_label(row.name, 24 if width > NARROW else 16) for row in rows], 12)
    if gaps:
        _gaps(axes[1], rows, places, _lowest(rows))
        axes[1].set_ylim(axes[0].get_ylim())
    return figure


def _lowest(rows: Sequence[MethodResult]) -> float:
    """Return the mean, in percent, below which methods are only marked, so that the others can be distinguished."""
    means = sorted((100 * (row.mean or 0.0) for row in rows if not row.extra_labels), reverse=True)
    if not means:
        return 0.0
    return means[0] - max(MIN_SCALE_POINTS, MAX_SCALE_FACTOR * (means[0] - means[len(means) // 2]))


def _values(axis: Axes, rows: Sequence[MethodResult], places: Sequence[float], name: str, lowest: float) -> None:
    means = [100 * (row.mean or 0.0) for row in rows]
    drawn = [value for value in means if value >= lowest]
    every = [100 * value for row, mean in zip(rows, means, strict=True) for value in row.values if mean in drawn]
    low, high = min(every), max(every)
    pad = max(0.08 * (high - low), 0.4)
    axis.set_xlim(max(low - 2 * pad, 0.0), min(high + 3.5 * pad, 100 + 3 * pad))
    swap_grid(axis)
    for row, mean, place in zip(rows, means, places, strict=True):
        color = MUTED_COLOR if row.extra_labels else BLUE
        if mean < axis.get_xlim()[0]:
            edge = blended_transform_factory(axis.transAxes, axis.transData)
            axis.text(0.0, place, f"◂ {mean:.1f}", transform=edge, va="center", color=MUTED_COLOR, fontsize=11)
            continue
        seeds = [100 * value for value in row.values]
        if len(seeds) > 1:
            axis.plot(seeds, [place] * len(seeds), "|", color=color, markersize=9, markeredgewidth=1.3, alpha=0.75)
        face = BACKGROUND_COLOR if row.extra_labels else color
        axis.plot([mean], [place], "o", markersize=7.5, markerfacecolor=face, markeredgecolor=color, zorder=3)
        value_color = MUTED_COLOR if row.extra_labels else TEXT_COLOR
        draw_value(axis, f"{mean:.1f}", max(seeds), place, color=value_color)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.set_xlabel(name)


def _gaps(axis: Axes, rows: Sequence[MethodResult], places: Sequence[float], lowest: float) -> None:
    """Draw the gap of every method to the best; the largest are left out."""
    shown = [
        (row.gap, place)
        for row, place in zip(rows, places, strict=True)
        if row.gap is not None and row.gap.mean > 0 and 100 * (row.mean or 0.0) >= lowest
    ]
    limit = max([1.0, *(100 * (gap.mean + (gap.half_width or 0.0)) for gap, _ in shown)])
    axis.set_xlim(-1.06 * limit, 0.18 * limit)
    swap_grid(axis)
    axis.axvline(0, color=MUTED_COLOR, linewidth=1.0)
    for gap, place in shown:
        mean, half = -100 * gap.mean, 100 * (gap.half_width or 0.0)
        color = MUTED_COLOR if gap.significant else VERMILLION
        axis.plot([mean - half, mean + half], [place, place], color=color, linewidth=1.8, solid_capstyle="butt")
        axis.plot([mean], [place], "o", markersize=5, color=color)
    axis.set_yticks([])
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    ticks = [tick for tick in axis.get_xticks() if axis.get_xlim()[0] <= tick <= axis.get_xlim()[1]]
    axis.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in np.round(ticks, 6)])
    axis.set_xlabel("points from the best, 95 %")
