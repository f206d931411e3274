"""The figures: from arrays to a picture, and nothing else. They draw on no window and keep no state between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from labelgap.reporting.memorization import Memorization, ModifiedLabels
from labelgap.reporting.style import (
    BACKGROUND_COLOR,
    BLUE,
    COLOR_CYCLE,
    GRID_COLOR,
    MUTED_COLOR,
    NARROW,
    TEXT_COLOR,
    VERMILLION,
    WIDE,
    add_legend,
    make_figure,
    set_epoch_axis,
    truncate_label,
)

__all__ = [
    "average_precision_bars",
    "draw_memorization",
    "draw_method_map",
    "learning_curves",
    "memorization_legend",
    "memorization_panels",
    "method_map_figure",
    "modified_label_panels",
    "selection_score_name",
    "set_memorization_limits",
]

MAX_BARS = 60
MAX_SCALE_RATIO = 4.0


def selection_score_name(rule: str, counted: int | None = None, classes: int | None = None) -> str:
    """Say what the score of an epoch is under a selection rule; only a measured one is called mAP.

    Example:
        >>> selection_score_name("clean"), selection_score_name("known", 12, 20)
        ('val mAP', 'val mAP, 12 of 20 classes')
        >>> selection_score_name("observed", 20, 20)
        'observed ranking (not an accuracy)'
    """
    if rule == "observed":
        return "observed ranking (not an accuracy)"
    return "val mAP" if counted == classes else f"val mAP, {counted} of {classes} classes"


def learning_curves(
    loss: ArrayLike,
    score: ArrayLike | None = None,
    *,
    rule: str = "val mAP",
    chosen: int | None = None,
    width: float = WIDE,
) -> Figure:
    """Draw the training loss, and the score that epochs are chosen by, per epoch.

    Args:
        loss: ``(E,)``
        score: ``(E,)``, 0 to 1; None when the last epoch is kept unseen.
        rule: what the score is, written above it; see ``selection_score_name``.
        chosen: the epoch that was kept, counted from 1.
        width: in inches.
    """
    losses = np.asarray(loss, dtype=np.float64)
    panels = 1 if score is None else 2
    narrow = width <= NARROW
    rows, columns = (panels, 1) if narrow else (1, panels)
    figure, axes = make_figure(rows, columns, width=width, height=2.7 * rows)
    _curve(axes[0], losses, "training loss", chosen, f"epoch {chosen}")
    axes[0].set_ylim(bottom=min(0.0, float(np.nanmin(losses, initial=0.0))))
    if score is not None:
        scores = 100 * np.asarray(score, dtype=np.float64)
        label = f"epoch {chosen}: {scores[chosen - 1]:.1f}" if chosen else ""
        _curve(axes[1], scores, rule, chosen, label, top=False)
    axes[-1].set_xlabel("epoch")
    axes[0].set_xlabel("" if narrow and panels == 2 else "epoch")
    return figure


def _curve(
    axis: Axes, values: NDArray[np.float64], title: str, chosen: int | None, label: str, top: bool = True
) -> None:
    """Draw one curve with the chosen epoch marked on it, the mark's label where the curve is not."""
    epochs = np.arange(1, len(values) + 1)
    axis.plot(epochs, values, color=BLUE, linewidth=2, solid_capstyle="round")
    axis.set_title(title, loc="left", color=TEXT_COLOR)
    set_epoch_axis(axis, len(values))
    if chosen is not None and np.isfinite(values[chosen - 1]):
        axis.axvline(chosen, color=MUTED_COLOR, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axis.plot(
            [chosen], [values[chosen - 1]], marker="o", markersize=8, color=BLUE, markeredgecolor=BACKGROUND_COLOR
        )
        right = chosen > 0.6 * len(values)
        axis.annotate(
            label,
            (chosen, 1.0 if top else 0.0),
            xycoords=("data", "axes fraction"),
            xytext=(-6 if right else 6, -2 if top else 4),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top" if top else "bottom",
            color=MUTED_COLOR,
            fontsize=11,
        )


def memorization_panels(methods: Mapping[str, Memorization], *, width: float = WIDE) -> Figure:
    """Draw the mean loss of true and false negatives among the unknown labels, one panel a method.

    The panels have one scale, unless a method keeps the loss so high that the others could not be read on it.

    Args:
        methods: label → what its trace came to; one at least.
        width: in inches.
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

    Where the highest losses of two panels are further apart than ``MAX_SCALE_RATIO`` each panel has a scale of its own.

    Args:
        axes: one per method.
        methods: what is drawn in them.
        columns: panels in a row.
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
    """Return the key of ``draw_memorization``: lines and their names."""
    style = {"linewidth": 2.0, "markersize": 6.0, "markeredgecolor": BACKGROUND_COLOR}
    lines = [
        Line2D([], [], color=VERMILLION, marker="o", **style),  # type: ignore[arg-type]
        Line2D([], [], color=BLUE, marker="s", **style),  # type: ignore[arg-type]
    ]
    return lines, ["unknown, truly present (false negative)", "unknown, truly absent (true negative)"]


def modified_label_panels(methods: Mapping[str, ModifiedLabels], *, width: float = WIDE) -> Figure:
    """Draw, per epoch, the share of unknown labels a method modified, and how many of those are truly present.

    Args:
        methods: label → what it modified; one at least, six at most are told apart by colour and marker.
        width: in inches.
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
    chance = 100 * float(np.mean([values.chance for values in methods.values()]))
    lines.append(axes[1].axhline(chance, color=MUTED_COLOR, linewidth=1.2, linestyle=(0, (4, 3))))
    axes[0].set_title("modified, % of the unknown labels", loc="left", color=TEXT_COLOR)
    axes[1].set_title("truly present, % of the modified", loc="left", color=TEXT_COLOR)
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylim(0, 103)
    axes[-1].set_xlabel("epoch")
    axes[0].set_xlabel("" if narrow else "epoch")
    names = [truncate_label(label, 24) for label in methods]
    add_legend(
        figure, lines, [*names, f"modifying at random ({chance:.1f} %)"], columns=1 if narrow else min(len(lines), 4)
    )
    return figure


def average_precision_bars(
    average_precision: Mapping[str, float | None], mean: float | None = None, *, width: float = WIDE
) -> Figure:
    """Draw the average precision of every class that counts, the highest on top.

    Args:
        average_precision: class → 0 to 1, or None for a class that the known labels cannot support: not drawn.
        mean: of the classes that count, drawn as a line.
        width: in inches. Of more than ``MAX_BARS`` classes the lowest and the highest are shown.
    """
    counted = sorted(((value, name) for name, value in average_precision.items() if value is not None), reverse=True)
    half = MAX_BARS // 2
    shown = counted if len(counted) <= MAX_BARS else [*counted[:half], *counted[-half:]]
    values = [100 * value for value, _ in shown]
    figure, (axis,) = make_figure(width=width, height=0.55 + 0.25 * max(len(shown), 1))
    places = np.arange(len(shown), dtype=np.float64)
    if len(shown) < len(counted):
        places[half:] += 1
        axis.text(0, half, f"… {len(counted) - len(shown):,} more classes between …", va="center", color=MUTED_COLOR)
    axis.barh(places, values, height=0.66, color=BLUE)
    for place, value in zip(places, values, strict=True):
        axis.text(107, place, f"{value:.1f}", va="center", ha="right", color=MUTED_COLOR, fontsize=11)
    axis.set_yticks(places, [truncate_label(name, 28 if width > NARROW else 18) for _, name in shown], parse_math=False)
    axis.tick_params(axis="y", labelcolor=TEXT_COLOR)
    axis.set_ylim((places[-1] if len(shown) else 0) + 0.6, -0.6)
    axis.set_xlim(0, 108)
    axis.set_xticks([0, 25, 50, 75, 100])
    axis.grid(False, axis="y")
    axis.grid(True, axis="x", color=GRID_COLOR, linewidth=0.8)
    axis.spines["bottom"].set_visible(False)
    if mean is not None:
        axis.axvline(100 * mean, color=TEXT_COLOR, linewidth=1.2, linestyle=(0, (4, 3)))
    axis.set_xlabel("average precision" if mean is None else f"average precision (dashed: the mean, {100 * mean:.1f})")
    return figure


def method_map_figure(
    methods: Mapping[str, float | None], ceilings: Mapping[str, float | None] | None = None, *, width: float = WIDE
) -> Figure:
    """Draw the test mAP of methods as dots; runs that saw more labels than the others are lines, apart.

    Args:
        methods: label → 0 to 1; None is not drawn.
        ceilings: the same for the runs that are shown apart.
        width: in inches.
    """
    figure, (axis,) = make_figure(width=width, height=0.95 + 0.36 * max(len(methods), 1))
    draw_method_map(axis, methods, ceilings or {}, 24 if width > NARROW else 16)
    return figure


def draw_method_map(
    axis: Axes, methods: Mapping[str, float | None], ceilings: Mapping[str, float | None], length: int = 24
) -> None:
    """Draw the comparison into axes; names are cut to ``length``."""
    shown = [(name, 100 * value) for name, value in methods.items() if value is not None]
    limits = {name: 100 * value for name, value in ceilings.items() if value is not None}
    values = [value for _, value in shown]
    places = np.arange(len(shown))
    everything = [*values, *limits.values()] or [0.0, 100.0]
    low, high = min(everything), max(everything)
    pad = max(0.12 * (high - low), 1.0)
    axis.set_xlim(max(low - 2 * pad, 0), min(high + 2 * pad, max(high, 100) + 0.3 * pad))
    axis.hlines(places, axis.get_xlim()[0], values, color=GRID_COLOR, linewidth=1.2)
    axis.plot(values, places, linestyle="none", marker="o", markersize=9, color=BLUE, markeredgecolor=BACKGROUND_COLOR)
    for place, value in zip(places, values, strict=True):
        axis.annotate(
            f"{value:.1f}",
            (value, place),
            (9, 0),
            textcoords="offset points",
            va="center",
            color=TEXT_COLOR,
            fontsize=11,
        )
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
    axis.set_yticks(places, [truncate_label(name, length) for name, _ in shown], parse_math=False)
    axis.tick_params(axis="y", labelcolor=TEXT_COLOR, labelsize=12)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.grid(False)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axis.set_xlabel("test mAP")
