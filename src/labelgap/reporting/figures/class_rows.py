"""Figures with a row for each class: of very many, the first and the last are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from labelgap.reporting.colors import MUTED_COLOR
from labelgap.reporting.style import set_rows, swap_grid

T = TypeVar("T")


def outermost(order: Sequence[T], most: int) -> list[T]:
    """Return the first and the last of an order, ``most`` together, or all if there are not more.

    Example:
        >>> outermost(range(5000), 12)[4:8]
        [4, 5, 4994, 4995]
    """
    half = most // 2
    return list(order) if len(order) <= most else [*order[:half], *order[-half:]]


def set_class_rows(axis: Axes, names: Sequence[str], counted: int) -> NDArray[np.float64]:
    """Label the rows with the outermost of so many classes, from the top down, and return their places."""
    places = np.arange(len(names), dtype=np.float64)
    if len(names) < counted:
        half = len(names) // 2
        places[half:] += 1
        axis.text(0, half, f"… {counted - len(names):,} more classes between …", va="center", color=MUTED_COLOR)
    set_rows(axis, places, names)
    return places


def draw_bars(
    axis: Axes, places: NDArray[np.float64], values: Sequence[float], color: str, top: float, end: float
) -> None:
    """Draw a bar for each class up to ``top`` at the most, and its value at the end of the row."""
    axis.barh(places, values, height=0.66, color=color)
    for place, value in zip(places, values, strict=True):
        axis.text(end - 0.01 * top, place, f"{value:.1f}", va="center", ha="right", color=MUTED_COLOR, fontsize=11)
    axis.set_xlim(0, end)
    swap_grid(axis)
    axis.spines["bottom"].set_visible(False)
