"""What fewer training images cost: the metric against the number of observed labels (Kim et al. 2022, figure 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelgap.studies.shares import ShareComparison, SharePoint


@dataclass(frozen=True, eq=False)
class LabelBudget:
    """A method with more and more training images.

    Attributes:
        share: ``(P,)`` of the training images, increasing.
        images: ``(P,)`` how many.
        known_labels: ``(P,)`` observed labels, present and absent, as the mean over seeds.
        value: ``(P, S)`` the metric, 0 to 1; NaN where nothing can be measured.
        score: ``(P, S)`` of val, in the selected epoch; NaN without val.
        extra_labels: whether it saw labels that were hidden from the others.
    """

    share: NDArray[np.float64]
    images: NDArray[np.int64]
    known_labels: NDArray[np.float64]
    value: NDArray[np.float64]
    score: NDArray[np.float64]
    extra_labels: bool


def label_budget(found: ShareComparison) -> dict[str, LabelBudget]:
    """Return the points of every method of a comparison on training shares, those that saw more labels last."""
    return {name: _budget([point for point in found.points if point.method == name]) for name in found.methods}


def _budget(points: list[SharePoint]) -> LabelBudget:
    shares = sorted({point.share for point in points})
    seeds = sorted({point.seed for point in points})
    value, score = (np.full((len(shares), len(seeds)), np.nan) for _ in range(2))
    for point in points:
        place = shares.index(point.share), seeds.index(point.seed)
        value[place] = np.nan if point.value is None else point.value
        score[place] = np.nan if point.score is None else point.score
    groups = [[point for point in points if point.share == share] for share in shares]
    return LabelBudget(
        np.array(shares),
        np.array([group[0].images for group in groups]),
        np.array([np.mean([point.known_labels for point in group]) for group in groups]),
        value,
        score,
        points[0].extra_labels,
    )
