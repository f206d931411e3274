"""Figures of memorization: the loss of missing labels over epochs, and the labels that a method modified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.memorization import Memorization, ModifiedLabels
from labelgap.reporting.style import (
    BACKGROUND_COLOR,
    BLUE,
    COLOR_CYCLE,
    MUTED_COLOR,
    NARROW,
    TEXT_COLOR,
    VERMILLION,
    WIDE,
    add_legend,
    make_figure,
    set_epoch_axis,
)

__all__ = [
    "draw_memorization",
    "memorization_legend",
    "memorization_panels",
    "modified_label_panels",
    "set_memorization_limits",
]

MAX_SCALE_RATIO = 4.0
"""Panels share a scale unless their highest losses differ by more than this factor."""


def memorization_panels(methods: Mapping[str, Memorization], *, width: float = WIDE) -> Figure:
    """Draw the mean loss of true and false negatives among the unknown labels, one panel a method.

    The panels share a scale, unless one method's losses are so high that the others could not be read on it.
    """
    most = 4 if width > NARROW else 2
    columns = min(len(methods), most)
    rows = -(-len(methods) // columns)
    figure, axes = make_figure(rows, columns, width=width, height=2.4 * rows + 0.5)
    for place, (axis, (label, values)) in enumerate(zip(axes, methods.items(), strict=False)):
        draw_memorization(axis, values)
        axis.set_title(truncate_label(label, 24), loc="left", color=TEXT_COLOR, fontweight="bold", parse_math=False)
        if place % columns == 0:
            axis.set_ylabel("mean loss")
        if place + columns >= len(methods):
            axis.set_xlabel("epoch")
            axis.tick_params(labelbottom=True)
    for axis in axes[len(methods) :]:
        axis.set_visible(False)
    set_memorization_limits(axes[: len(methods)], methods.values(), columns)
    add_legend(figure, *memorization_legend(), columns=2 if width > NARROW else 1)
    return figure


def draw_memorization(axis: Axes, values: Memorization) -> None:
    """Draw one method's true and false negatives."""
    epochs = np.arange(1, values.epochs + 1)
    for name, color, marker in (("false_negative", VERMILLION, "o"), ("true_negative", BLUE, "s")):
        axis.plot(
            epochs,
            getattr(values, name),
            color=color,
            marker=marker,
            markersize=5,
            markeredgecolor=BACKGROUND_COLOR,
            markeredgewidth=0.8,
            linewidth=2,
        )
    set_epoch_axis(axis, values.epochs)


def set_memorization_limits(axes: Iterable[Axes], methods: Iterable[Memorization], columns: int) -> None:
    """Give panels the same axes, from zero to just above the highest loss, over the longest run.

    If the highest losses differ by more than ``MAX_SCALE_RATIO``, each panel has its own scale.
    """
    shown = list(methods)
    tops = [_highest(values) for values in shown]
    common = max(tops) <= MAX_SCALE_RATIO * min(tops)
    for place, (axis, top) in enumerate(zip(axes, tops, strict=True)):
        limit = max(tops) if common else top
        axis.set_ylim(0, 1.06 * limit if limit > 0 else 1.0)
        axis.tick_params(labelleft=not common or place % columns == 0)
        set_epoch_axis(axis, max(values.epochs for values in shown))


def _highest(values: Memorization) -> float:
    losses = np.r_[values.false_negative, values.true_negative]
    return float(losses[np.isfinite(losses)].max(initial=0.0))


def memorization_legend() -> tuple[list[Line2D], list[str]]:
    """Return the legend of ``draw_memorization``: lines and their names."""
    style = {"linewidth": 2.0, "markersize": 6.0, "markeredgecolor": BACKGROUND_COLOR}
    lines = [
        Line2D([], [], color=VERMILLION, marker="o", **style),  # type: ignore[arg-type]
        Line2D([], [], color=BLUE, marker="s", **style),  # type: ignore[arg-type]
    ]
    return lines, ["unknown, truly present (false negative)", "unknown, truly absent (true negative)"]


def modified_label_panels(methods: Mapping[str, ModifiedLabels], *, width: float = WIDE) -> Figure:
    """Draw, per epoch, the share of unknown labels that a method modified, and how many of those are truly present.

    Up to six methods differ in color and marker.
    """
    narrow = width <= NARROW
    figure, axes = make_figure(*((2, 1) if narrow else (1, 2)), width=width, height=5.2 if narrow else 2.9)
    lines = []
    for number, values in enumerate(methods.values()):
        color, marker = COLOR_CYCLE[number % len(COLOR_CYCLE)]
        epochs = np.arange(1, len(values.share) + 1)
        for axis, shown in zip(axes, (values.share, values.precision), strict=True):
            line = axis.plot(
                epochs, 100 * shown, color=color, marker=marker, markeredgecolor=BACKGROUND_COLOR, linewidth=2
            )[0]
            set_epoch_axis(axis, len(epochs))
        lines.append(line)
    base_rate = 100 * float(np.mean([values.base_rate for values in methods.values()]))
    lines.append(axes[1].axhline(base_rate, color=MUTED_COLOR, linewidth=1.2, linestyle=(0, (4, 3))))
    axes[0].set_title("modified, % of the unknown labels", loc="left", color=TEXT_COLOR)
    axes[1].set_title("truly present, % of the modified", loc="left", color=TEXT_COLOR)
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylim(0, 103)
    axes[-1].set_xlabel("epoch")
    axes[0].set_xlabel("" if narrow else "epoch")
    names = [truncate_label(label, 24) for label in methods]
    add_legend(
        figure, lines, [*names, f"modifying at random ({base_rate:.1f} %)"], columns=1 if narrow else min(len(lines), 4)
    )
    return figure
