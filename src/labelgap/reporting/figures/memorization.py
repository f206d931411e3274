"""Figures of memorization: the mean loss of missing labels over epochs, and the losses of single labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labelgap.reporting.analysis.memorization import LabelLosses, Memorization
from labelgap.reporting.colors import BACKGROUND_COLOR, BLUE, MUTED_COLOR, TEXT_COLOR, VERMILLION
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, add_legend, make_figure, set_epoch_axis

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
            getattr(values, name).mean,
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
    losses = np.r_[values.false_negative.mean, values.true_negative.mean]
    return float(losses[np.isfinite(losses)].max(initial=0.0))


def memorization_legend() -> tuple[list[Line2D], list[str]]:
    """Return the legend of ``draw_memorization``: lines and their names."""
    style = {"linewidth": 2.0, "markersize": 6.0, "markeredgecolor": BACKGROUND_COLOR}
    lines = [
        Line2D([], [], color=VERMILLION, marker="o", **style),  # type: ignore[arg-type]
        Line2D([], [], color=BLUE, marker="s", **style),  # type: ignore[arg-type]
    ]
    return lines, ["unknown, truly present (false negative)", "unknown, truly absent (true negative)"]


def single_label_panels(kinds: Mapping[str, LabelLosses], *, width: float = WIDE) -> Figure:
    """Draw the losses of single labels over epochs, thin, and the mean of all labels of the kind, one panel a kind.

    The panels share a scale.
    """
    narrow = width <= NARROW
    rows, columns = (len(kinds), 1) if narrow else (1, len(kinds))
    figure, axes = make_figure(rows, columns, width=width, height=2.5 * rows + 0.4)
    top = max(float(np.nanmax(np.c_[losses.single, losses.mean], initial=0.0)) for losses in kinds.values())
    single = None
    for number, (axis, (title, losses)) in enumerate(zip(axes, kinds.items(), strict=True)):
        epochs = np.arange(1, len(losses.mean) + 1)
        single, *_ = axis.plot(epochs, losses.single, color=MUTED_COLOR, linewidth=0.8, alpha=0.7)
        axis.plot(epochs, losses.mean, color=(VERMILLION, BLUE)[number % 2], linewidth=2.5)
        axis.set_title(title, loc="left", color=TEXT_COLOR)
        axis.set_ylim(0, 1.06 * top if top > 0 else 1.0)
        axis.set_ylabel("loss" if narrow or number == 0 else "")
        set_epoch_axis(axis, len(epochs))
        if not narrow or number == len(kinds) - 1:
            axis.set_xlabel("epoch")
    if single is not None:
        add_legend(figure, [single, Line2D([], [], color=TEXT_COLOR, linewidth=2.5)], ["a single label", "the mean"], 2)
    return figure
