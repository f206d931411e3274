"""Localization: does a model look at the objects that it predicts? The pointing game (Zhang et al., ECCV 2016)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from labelgap.core.errors import InputError

__all__ = ["pointing_accuracy"]


def pointing_accuracy(points: ArrayLike, classes: ArrayLike, box_points: ArrayLike, corners: ArrayLike) -> float:
    """Return how often a point falls inside one of its boxes, averaged over the classes.

    Args:
        points: ``(P, 2)`` x and y, one for each pair of an image and a class that has boxes in it.
        classes: ``(P,)`` class of each point.
        box_points: ``(M,)`` number of the point that each box belongs to.
        corners: ``(M, 4)`` x0, y0, x1, y1 of each box; points on its edges are inside.

    Example:
        >>> corners = [[0, 0, 4, 4], [6, 6, 9, 9], [2, 2, 3, 3]]
        >>> pointing_accuracy([[6, 9], [5, 1], [2, 3]], [0, 0, 1], [0, 1, 2], corners)
        0.5
        >>> pointing_accuracy([[6, 9], [5, 1], [2, 3]], [0, 0, 1], [0, 0, 2], corners)
        0.75
    """
    place, of_class = np.asarray(points, dtype=np.float64), np.asarray(classes)
    of_point, box = np.asarray(box_points), np.asarray(corners, dtype=np.float64)
    if not len(place):
        raise InputError("there is no box, so nothing can be pointed at.")
    x, y = place[of_point].T
    inside = (box[:, 0] <= x) & (x <= box[:, 2]) & (box[:, 1] <= y) & (y <= box[:, 3])
    hits = np.zeros(len(place), dtype=bool)
    np.logical_or.at(hits, of_point, inside)
    return float(np.mean([hits[of_class == each].mean() for each in np.unique(of_class)]))
