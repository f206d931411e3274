"""Figures of gradient regimes: gradient against logit, by the state of the label or by setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from labelgap.reporting.analysis.gradients import GradientRegimes
from labelgap.reporting.colors import BLUE, COLOR_CYCLE, GREEN, MUTED_COLOR, TEXT_COLOR, VERMILLION
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, add_legend, make_figure

SMALL = 0.3
"""Below this share of the present label's gradient, the unknown label's has a panel of its own."""
DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)), (0, (3, 1.5)))


def gradient_figure(
    regimes: GradientRegimes, revised: GradientRegimes | None = None, *, title: str = "", width: float = NARROW
) -> Figure:
    """Draw the gradient against the logit of a present, an absent and an unknown label.

    Above zero, training lowers the logit; below zero it raises it. A gradient that depends on the rest of the batch or
    on the epoch says in which it was taken. A second panel shows an unknown label whose gradient is small.

    Args:
        regimes: from ``gradient_regimes``.
        revised: the same after the method has revised the unknown label in an earlier epoch; its unknown label is drawn
            as well.
        title: the name of the method when not given.
        width: in inches.
    """
    curves = [
        ("present", regimes.present, {"color": BLUE, "linewidth": 2}),
        ("absent", regimes.absent, {"color": VERMILLION, "linewidth": 3.2, "alpha": 0.75}),
        ("unknown", regimes.unknown, {"color": TEXT_COLOR, "linewidth": 1.6, "linestyle": DASHES[1]}),
    ]
    if revised is not None:
        curves.append(("revised", revised.unknown, {"color": GREEN, "linewidth": 3, "linestyle": (0, (0.7, 1.5))}))
    small = 0 < max(_height(values) for _, values, _ in curves[2:]) < SMALL * _height(regimes.present)
    figure, axes = make_figure(1, 2 if small else 1, width=width, height=3.1)
    lines = [axes[0].plot(regimes.logits, values, **style)[0] for _, values, style in curves]
    note = _context_note(regimes)
    _finish_axis(axes[0], truncate_label(title or regimes.method, 44) + ("" if not note else f"\n{note}"))
    if small:
        for _, values, style in curves[2:]:
            axes[1].plot(regimes.logits, values, **style)
        _finish_axis(axes[1], "unknown, own scale")
    axes[0].set_ylabel("gradient")
    add_legend(figure, lines, [name for name, _, _ in curves], columns=4)
    return figure


def gradient_comparison_figure(regimes: Mapping[str, GradientRegimes], *, width: float = 2 * NARROW) -> Figure:
    """Draw the gradients of several methods or settings, in a panel for each state of the label."""
    narrow = width <= NARROW
    rows, columns = (3, 1) if narrow else (1, 3)
    figure, axes = make_figure(rows, columns, width=width, height=2.3 * rows + 0.6)
    lines = []
    for place, (axis, state) in enumerate(zip(axes, ("present", "absent", "unknown"), strict=True)):
        for number, each in enumerate(regimes.values()):
            color, dash = COLOR_CYCLE[number % len(COLOR_CYCLE)][0], DASHES[number % len(DASHES)]
            drawn = axis.plot(each.logits, getattr(each, state), color=color, linewidth=1.8, linestyle=dash)
            lines += drawn if place == 0 else []
        _finish_axis(axis, state)
    axes[0].set_ylabel("gradient")
    add_legend(figure, lines, [truncate_label(name, 40) for name in regimes], columns=1 if narrow else 4)
    return figure


def _context_note(regimes: GradientRegimes) -> str:
    """Say in which batch and epoch the gradient was taken, as far as it depends on them."""
    images, classes = regimes.context.labels.shape
    batch = [f"in a batch of {images} × {classes}"] if regimes.depends_on_batch else []
    epoch = [f"epoch {regimes.context.epoch} of {regimes.context.epochs}"] if regimes.depends_on_epoch else []
    return ", ".join(batch + epoch)


def _height(values: NDArray[np.float64]) -> float:
    return float(np.abs(values).max())


def _finish_axis(axis: Axes, title: str) -> None:
    if not any(np.any(line.get_ydata()) for line in axis.lines):
        axis.set_ylim(-1, 1)
    axis.axhline(0, color=MUTED_COLOR, linewidth=0.8, zorder=1)
    axis.set_title(title, loc="left", color=TEXT_COLOR, parse_math=False)
    axis.set_xlabel("logit")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.margins(x=0.01)
