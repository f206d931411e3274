"""Figures of a sweep: the importance of each setting, and all trials in parallel coordinates."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labelgap.reporting.colors import BACKGROUND_COLOR, BLUE, GREEN, MUTED_COLOR, TEXT_COLOR, VERMILLION
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, draw_value, make_figure, set_rows, swap_grid
from labelgap.studies.sweep.results import Sweep
from labelgap.studies.sweep.search_space import Parameter, Value

_MAX_LABELS: Final = 14
"""Values of a parameter that are written beside its axis."""
_GOOD: Final = 0.1
"""Share of the trials that is drawn in blue: the best ones."""


def importance_figure(sweep: Sweep, *, width: float = WIDE) -> Figure:
    """Draw the share of the variance of the scores that each setting explains."""
    rows = sorted(sweep.importance.items(), key=lambda pair: -pair[1])
    figure, (axis,) = make_figure(width=width, height=0.8 + 0.36 * len(rows))
    places = np.arange(len(rows))
    axis.barh(places, [value for _, value in rows], height=0.55, color=BLUE)
    for place, (_, value) in enumerate(rows):
        draw_value(axis, f"{100 * value:.0f} %", value, place, offset=6)
    names = [truncate_label(name.replace("_", " "), 24 if width > NARROW else 16) for name, _ in rows]
    set_rows(axis, places, names, 12)
    axis.set_xlim(0, max(1.15 * max(value for _, value in rows), 0.1))
    swap_grid(axis)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    return figure


def parallel_figure(sweep: Sweep, score: str, *, width: float = WIDE) -> Figure:
    """Draw every trial with a score as a line over an axis for each setting, and one for the score.

    The best trial is thick, with markers; the best tenth is blue, the others are thin and gray. A green mark beside the
    axis of the score is ``auto``.
    """
    trials = [trial for trial in sweep.trials if trial.score is not None and trial.state != "running"]
    figure, (axis,) = make_figure(width=width, height=4.2)
    axis.grid(False)
    axis.spines["bottom"].set_visible(False)
    columns = [_Column.of(parameter) for parameter in sweep.space]
    scores = [100 * (trial.score or 0.0) for trial in trials]
    line = None if sweep.auto is None or sweep.auto.score is None else 100 * sweep.auto.score
    ends = scores if line is None else [*scores, line]
    columns.append(_Column("score", min(ends), max(ends)))
    ranks = {trial.number: rank for rank, trial in enumerate(sweep.ranked)}
    good = max(round(_GOOD * len(ranks)), 2)
    for trial in sorted(trials, key=lambda each: -ranks.get(each.number, len(trials))):
        rank = ranks.get(trial.number, len(trials))
        values = [*(trial.values.get(parameter.name) for parameter in sweep.space), 100 * (trial.score or 0.0)]
        heights = [column.height(value) for column, value in zip(columns, values, strict=True)]
        places = np.arange(len(columns))
        if rank == 0:
            axis.plot(places, heights, color=VERMILLION, linewidth=2.6, marker="o", markersize=6, zorder=5)
        elif rank < good:
            axis.plot(places, heights, color=BLUE, linewidth=1.6, zorder=4)
        else:
            dashes = (0, (3, 2)) if trial.state == "pruned" else "-"
            axis.plot(places, heights, color=MUTED_COLOR, linewidth=0.8, alpha=0.55, linestyle=dashes)
    _draw_columns(axis, columns)
    if line is not None:
        _draw_auto(axis, len(columns) - 1, columns[-1].height(line), f"auto {line:.2f}")
    names = [*(parameter.name.replace("_", " ") for parameter in sweep.space), score]
    labels = [
        textwrap.fill(truncate_label(name), 16 if width > NARROW else 9, break_long_words=False) for name in names
    ]
    axis.set_xticks(range(len(columns)), labels, parse_math=False)
    axis.tick_params(axis="x", labelcolor=TEXT_COLOR, labelsize=12)
    axis.set_yticks([])
    axis.set_ylim(-0.05, 1.05)
    axis.set_xlim(-0.3, len(columns) - 0.6)
    return figure


class _Column:
    """One axis of the parallel coordinates: the height of a value, from 0 to 1, and the values beside it."""

    def __init__(self, name: str, low: float, high: float, log: bool = False, choices: Sequence[Value] = ()) -> None:
        self.name, self.low, self.high, self.log, self.choices = name, low, high, log, list(choices)

    @classmethod
    def of(cls, parameter: Parameter) -> _Column:
        if parameter.choices:
            numbers = all(isinstance(value, int | float) for value in parameter.choices)
            ordered = sorted(parameter.choices, key=float) if numbers else parameter.choices
            return cls(parameter.name, 0, len(ordered) - 1, choices=ordered)
        return cls(parameter.name, float(parameter.low), float(parameter.high), parameter.log)

    def height(self, value: Value | None) -> float:
        if self.choices:
            value = self.choices.index(value) if value in self.choices else 0
        number = float(value or 0)
        low, high = (np.log(self.low), np.log(self.high)) if self.log else (self.low, self.high)
        number = float(np.log(number)) if self.log else number
        return 0.5 if high == low else float((number - low) / (high - low))

    def ticks(self) -> list[tuple[float, str]]:
        if self.choices:
            step = -(-len(self.choices) // _MAX_LABELS)
            return [(self.height(value), _text(value)) for value in self.choices[::step]]
        ends = [self.low, self.high]
        middle = float(np.sqrt(self.low * self.high)) if self.log else sum(ends) / 2
        return [(self.height(value), f"{value:.3g}") for value in (self.low, middle, self.high)]


def _draw_columns(axis: Axes, columns: Sequence[_Column]) -> None:
    for place, column in enumerate(columns):
        axis.plot([place, place], [0, 1], color=MUTED_COLOR, linewidth=1.0, zorder=2)
        for height, text in column.ticks():
            label = axis.annotate(
                truncate_label(text, 14),
                (place, height),
                (6, 0),
                textcoords="offset points",
                va="center",
                color=TEXT_COLOR,
                fontsize=10,
                zorder=6,
                parse_math=False,
            )
            label.set_bbox({"facecolor": BACKGROUND_COLOR, "edgecolor": "none", "alpha": 0.8, "pad": 1})


def _draw_auto(axis: Axes, place: int, height: float, text: str) -> None:
    """Mark a score beside its axis, to the left, where no value is written."""
    axis.plot([place - 0.12, place], [height, height], color=GREEN, linewidth=2.6, zorder=7)
    label = axis.annotate(
        text,
        (place - 0.12, height),
        (-4, 0),
        textcoords="offset points",
        va="center",
        ha="right",
        color=GREEN,
        zorder=7,
    )
    label.set_bbox({"facecolor": BACKGROUND_COLOR, "edgecolor": "none", "alpha": 0.8, "pad": 1})


def _text(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
