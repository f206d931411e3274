"""Figures of a run: learning curves, and average precision per class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from labelgap.reporting.colors import BACKGROUND_COLOR, BLUE, MUTED_COLOR, TEXT_COLOR
from labelgap.reporting.figures.class_rows import draw_bars, outermost, set_class_rows
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, make_figure, set_epoch_axis

MAX_BARS = 60


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
    first: int = 1,
    width: float = WIDE,
) -> Figure:
    """Draw the training loss, and the score that epochs are chosen by, per epoch.

    Args:
        loss: ``(E,)``
        score: ``(E,)``, 0 to 1; None when the last epoch is kept unseen.
        rule: what the score is, written above it; see ``selection_score_name``.
        chosen: the epoch that was kept.
        first: the number of the first epoch; 0 where it is the linear head before the training, which has no loss.
        width: in inches.
    """
    losses = np.asarray(loss, dtype=np.float64)
    panels = 1 if score is None else 2
    narrow = width <= NARROW
    rows, columns = (panels, 1) if narrow else (1, panels)
    figure, axes = make_figure(rows, columns, width=width, height=2.7 * rows)
    low = chosen is None or not losses[chosen - first] > 0.7 * np.nanmax(losses, initial=0.0)
    _curve(axes[0], losses, "training loss", chosen, first, f"epoch {chosen}", top=bool(low))
    axes[0].set_ylim(bottom=min(0.0, float(np.nanmin(losses, initial=0.0))))
    if score is not None:
        scores = 100 * np.asarray(score, dtype=np.float64)
        label = "" if chosen is None else f"epoch {chosen}: {scores[chosen - first]:.1f}"
        _curve(axes[1], scores, rule, chosen, first, label, top=False)
    axes[-1].set_xlabel("epoch")
    axes[0].set_xlabel("" if narrow and panels == 2 else "epoch")
    return figure


def _curve(
    axis: Axes, values: NDArray[np.float64], title: str, chosen: int | None, first: int, label: str, top: bool = True
) -> None:
    """Draw one curve with the chosen epoch marked on it, the mark's label where the curve is not."""
    epochs = np.arange(first, first + len(values))
    axis.plot(epochs, values, color=BLUE, linewidth=2, solid_capstyle="round")
    axis.set_title(title, loc="left", color=TEXT_COLOR)
    set_epoch_axis(axis, first + len(values) - 1, first)
    if chosen is not None and np.isfinite(values[chosen - first]):
        axis.axvline(chosen, color=MUTED_COLOR, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        (mark,) = axis.plot([chosen], [values[chosen - first]], marker="o", markersize=8, color=BLUE, clip_on=False)
        mark.set_markeredgecolor(BACKGROUND_COLOR)
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


def average_precision_bars(
    average_precision: Mapping[str, float | None],
    mean: float | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    *,
    label: str = "average precision",
    width: float = WIDE,
) -> Figure:
    """Draw the average precision of every class that counts, the highest on top.

    Args:
        average_precision: class → 0 to 1, or None for a class that the known labels cannot support: not drawn.
        mean: of the classes that count, drawn as a line.
        intervals: class → ends, 0 to 1, drawn as a thin line over the bar; NaN or left out for none.
        label: of the axis.
        width: in inches. Of more than ``MAX_BARS`` classes the lowest and the highest are shown.
    """
    counted = sorted(((value, name) for name, value in average_precision.items() if value is not None), reverse=True)
    shown = outermost(counted, MAX_BARS)
    values = [100 * value for value, _ in shown]
    figure, (axis,) = make_figure(width=width, height=0.55 + 0.25 * max(len(shown), 1))
    names = [truncate_label(name, 28 if width > NARROW else 18) for _, name in shown]
    places = set_class_rows(axis, names, len(counted))
    draw_bars(axis, places, values, BLUE, 100, 108)
    ends = [(intervals or {}).get(name, (np.nan, np.nan)) for _, name in shown]
    low, high = 100 * np.array(ends, dtype=np.float64).reshape(-1, 2).T
    for color, linewidth in ((BACKGROUND_COLOR, 3.2), (TEXT_COLOR, 1.4)):
        axis.hlines(places, low, high, color=color, linewidth=linewidth)
    axis.set_xticks([0, 25, 50, 75, 100])
    if mean is not None:
        axis.axvline(100 * mean, color=TEXT_COLOR, linewidth=1.2, linestyle=(0, (4, 3)))
    axis.set_xlabel(label if mean is None else f"{label} (dashed: the mean, {100 * mean:.1f})")
    return figure
