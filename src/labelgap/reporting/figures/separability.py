"""Figures per class: densities of the scores of positives and negatives, and the share of unknown positives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from labelgap.reporting.analysis.label_scores import BINS
from labelgap.reporting.analysis.separability import ClassSeparability, UnknownPositives
from labelgap.reporting.colors import BLUE, MUTED_COLOR, TEXT_COLOR, VERMILLION
from labelgap.reporting.figures.class_rows import draw_bars, outermost, set_class_rows
from labelgap.reporting.formatting import NO_VALUE, truncate_label
from labelgap.reporting.style import NARROW, WIDE, add_legend, make_figure

MAX_CLASSES = 12
"""Classes that a figure shows: half of them the first, half the last."""


def score_density_figure(splits: Mapping[str, ClassSeparability], *, width: float = WIDE) -> Figure:
    """Draw the densities of the scores of every class, present up and absent down (Zhou et al. 2022, figure 11).

    Each density is as high as its own highest value. The AUC is written beside them.

    Args:
        splits: by the name of the images, the same classes in each; those of the first order the classes, the most
            separable on top. Of more than ``MAX_CLASSES`` the most and the least separable are drawn.
        width: in inches.
    """
    first = next(iter(splits.values()))
    order = first.counted[::-1]
    shown = outermost(order.tolist(), MAX_CLASSES)
    names = [truncate_label(first.classes[number], 24 if width > NARROW else 16) for number in shown]
    columns = 1 if width <= NARROW else len(splits)
    rows = -(-len(splits) // columns)
    height = rows * (1.0 + 0.52 * max(len(shown), 1))
    figure, axes = make_figure(rows, columns, width=width, height=height)
    for place, (axis, (name, found)) in enumerate(zip(axes, splits.items(), strict=True)):
        places = set_class_rows(axis, names, len(order))
        _draw_densities(axis, found, shown, places)
        axis.set_title(name, loc="left", color=TEXT_COLOR)
        axis.tick_params(axis="y", labelleft=place % columns == 0)
        axis.set_xlabel("score" if place + columns >= len(splits) else "")
    style = {"linestyle": "", "marker": "s", "markersize": 9.0, "alpha": 0.75}
    squares = [Line2D([], [], color=color, **style) for color in (VERMILLION, BLUE)]  # type: ignore[arg-type]
    add_legend(figure, squares, ["present, upwards", "absent, downwards"], 2)
    return figure


def _draw_densities(axis: Axes, found: ClassSeparability, shown: Sequence[int], places: NDArray[np.float64]) -> None:
    """Draw the densities of every class at its place."""
    edges = np.linspace(0, 1, BINS + 1)
    for place, number in zip(places.tolist(), shown, strict=True):
        present, absent = found.present_shares[number], found.absent_shares[number]
        for shares, sign, color in ((present, -1, VERMILLION), (absent, 1, BLUE)):
            if np.isfinite(shares).all():
                heights = place + sign * 0.44 * shares / shares.max()
                axis.stairs(heights, edges, baseline=place, fill=True, color=color, alpha=0.75, linewidth=0)
        auc = f"{found.auc[number]:.2f}" if np.isfinite(found.auc[number]) else NO_VALUE
        axis.text(1.02, place, f"AUC {auc}", va="center", color=MUTED_COLOR, fontsize=11)
    axis.set_xlim(0, 1.2)
    axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])


def unknown_positive_bars(found: UnknownPositives, *, width: float = WIDE) -> Figure:
    """Draw the percentage of the unknown labels of a class that are truly present (Zhou et al. 2022, figure 10).

    The highest is on top; of more than ``MAX_CLASSES`` classes the highest and the lowest are drawn.
    """
    share = 100 * found.share
    counted = np.flatnonzero(np.isfinite(share))
    order = counted[np.argsort(-share[counted], kind="stable")]
    shown = outermost(order.tolist(), MAX_CLASSES)
    figure, (axis,) = make_figure(width=width, height=0.7 + 0.27 * max(len(shown), 1))
    names = [truncate_label(found.classes[number], 24 if width > NARROW else 16) for number in shown]
    places = set_class_rows(axis, names, len(order))
    top = float(np.nanmax(share, initial=0.0)) or 1.0
    draw_bars(axis, places, share[shown].tolist(), VERMILLION, top, 1.13 * top)
    total = 100 * found.present.sum() / max(found.unknown.sum(), 1)
    axis.axvline(total, color=TEXT_COLOR, linewidth=1.2, linestyle=(0, (4, 3)))
    what = "of the unknown labels, truly present" if width > NARROW else "of unknown"
    axis.set_xlabel(f"% {what} (dashed: all classes, {total:.1f})")
    return figure
