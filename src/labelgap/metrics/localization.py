"""Localization: does a model look at the objects that it predicts? The pointing game (Zhang et al., ECCV 2016)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError


def pointing_hits(
    points: ArrayLike, box_points: ArrayLike, corners: ArrayLike, *, tolerance: float = 0.0
) -> NDArray[np.bool_]:
    """Return ``(P,)``: whether each point ``(P, 2)`` is in one of its boxes, or within ``tolerance`` of one.

    ``box_points`` ``(M,)`` is the point that each of the ``corners`` belongs to. Zhang et al. allow 15 pixels, Kim et
    al. none.
    """
    place = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    of_point, box = np.asarray(box_points, dtype=np.int64), np.asarray(corners, dtype=np.float64).reshape(-1, 4)
    outside = np.maximum(box[:, :2] - place[of_point], place[of_point] - box[:, 2:]).clip(min=0)
    hits = np.zeros(len(place), dtype=bool)
    np.logical_or.at(hits, of_point, np.hypot(*outside.T) <= tolerance)
    return hits


def mean_class_rate(hits: ArrayLike, counts: ArrayLike) -> float:
    """Return the mean of hits / counts over the classes that were counted; an error if none was."""
    hit, count = np.asarray(hits, dtype=np.float64), np.asarray(counts)
    if not count.any():
        raise InputError("there is no box, so nothing can be pointed at.")
    return float((hit[count > 0] / count[count > 0]).mean())
