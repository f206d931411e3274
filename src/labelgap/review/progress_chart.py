"""The budget curve as a small inline SVG: how many labels were found by reviewing so many."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

__all__ = ["progress_chart"]

_WIDTH, _HEIGHT = 260, 132
_LEFT, _RIGHT, _TOP, _BOTTOM = 30, 8, 10, 22
_POINTS: Final = 160


def progress_chart(found: NDArray[np.int64], share: float | None = None) -> Markup:
    """Draw found against reviewed; every colour is a class of the page's style sheet.

    Args:
        found: ``(n,)`` how many were found among the first 1, 2, … n that were reviewed.
        share: of unknown labels that are present, where it is known: what reviewing at random would have found.

    Example:
        >>> "polyline" in progress_chart(np.array([1, 1, 2]))
        True
    """
    reviewed, most = len(found), int(found[-1]) if len(found) else 0
    if not reviewed:
        return Markup('<p class="notes">The curve of what you find begins with your first decision.</p>')
    right, top = _nice(reviewed), _nice(max(most, 1))
    at = np.unique(np.linspace(0, reviewed, min(reviewed, _POINTS) + 1).astype(np.int64))
    values = np.concatenate([[0], found])[at]

    def x(count: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * count / right

    def y(count: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(count / top, 1.0)

    points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(at.tolist(), values.tolist(), strict=True))
    said = f"{most:,} found by reviewing {reviewed:,}"
    parts = [
        Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(_WIDTH, _HEIGHT, said),
        *(_line("grid", _LEFT, y(level), _WIDTH - _RIGHT, y(level)) for level in (top / 2, top)),
        _line("axis", _LEFT, y(0), _WIDTH - _RIGHT, y(0)),
        *(_text("end", _LEFT - 5, y(level) + 3.5, f"{level:,g}") for level in (top / 2, top) if level == int(level)),
        _text("end", _WIDTH - _RIGHT, _HEIGHT - 6, f"{right:,} reviewed"),
        _text("start", _LEFT, _HEIGHT - 6, "0"),
    ]
    if share is not None:
        parts.append(_line("random", x(0), y(0), x(reviewed), y(share * reviewed)))
    parts.append(Markup('<polyline class="found" points="{}"/>').format(points))
    parts.append(Markup('<circle class="now" cx="{:.1f}" cy="{:.1f}" r="3.2"/>').format(x(reviewed), y(most)))
    return Markup("").join([*parts, Markup("</svg>")])


def _line(kind: str, x0: float, y0: float, x1: float, y1: float) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(kind, x0, y0, x1, y1)


def _text(anchor: str, x: float, y: float, words: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, words)


def _nice(value: int) -> int:
    """Return the next number that looks well at the end of an axis.

    Example:
        >>> [_nice(value) for value in (1, 7, 23, 180)]
        [2, 8, 30, 200]
    """
    if value <= 2:
        return 2
    step = int(10 ** int(math.log10(value)))
    for factor in (1, 2, 3, 4, 6, 8, 10):
        if factor * step >= value:
            return factor * step
    return 10 * step
