r"""How many labels are missing, estimated from scores before a review, and the assumption behind the estimate.

**If tags are missing at random**, missing labels score as high as known present ones. Then nearly all labels that score
as high as the top quarter of a class's known present labels are present, and a quarter of the missing labels score that
high. Let :math:`u` be the number of unknown labels at or above a cut, and :math:`r` the share of the known present
labels at or above it, all with out-of-fold scores. Then

.. math:: m = \frac{u\,p}{r}, \qquad
          p = \frac{\text{known present at or above}}{\text{known present and known absent at or above}}

labels are missing; where no absent label is known, :math:`p = 1`.

**If annotators tagged the obvious labels first**, missing labels score lower than known ones, and few of them score
high. At a lower cut, where recall² / share taken is largest (Lee and Liu, as in ``metrics.thresholds`` where only
positives are known), the same formula gives a larger number: more missing labels are above that cut, and false
positives too. The class offsets of ``calibration`` use it, and the command shows it as an upper value.

There is no interval: only a review of random candidates supports one.

Reference: Lee & Liu, "Learning with positive and unlabeled examples using weighted logistic regression", ICML 2003.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.score_sample import ScoreSample
from labelgap.metrics.thresholds import MIN_PRESENT

__all__ = ["ASSUMPTION", "MissingEstimate", "cut_points", "estimate_from_scores"]

MAX_CUTS: Final = 256
TOP_SHARE: Final = 0.25
ASSUMPTION: Final = "tags are missing at random"


@dataclass(frozen=True, eq=False)
class MissingEstimate:
    """How many unknown labels are present.

    Attributes:
        by_class: ``(K,)`` if tags are missing at random; 0 where a class is not counted.
        upper_by_class: ``(K,)`` if the obvious labels were tagged first.
        counted: ``(K,)`` whether a class has enough known present labels, five.
        known: known present labels of those classes.
        known_above_cut: the top quarter of them.
        unknown_above_cut: unknown labels that score as high.
    """

    by_class: NDArray[np.float64]
    upper_by_class: NDArray[np.float64]
    counted: NDArray[np.bool_]
    known: int
    known_above_cut: int
    unknown_above_cut: float

    @property
    def missing(self) -> float:
        """Missing labels of all counted classes, if tags are missing at random."""
        return float(self.by_class.sum())

    @property
    def upper(self) -> float:
        """Missing labels if the obvious ones were tagged first; at least ``missing``."""
        return max(float(self.upper_by_class.sum()), self.missing)

    def to_json(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return the metadata for ``candidates.parquet``."""
        by_class = {name: round(float(self.by_class[k]), 1) for k, name in enumerate(classes) if self.counted[k]}
        return {
            "missing": round(self.missing),
            "assumption": ASSUMPTION,
            "upper": round(self.upper),
            "interval": None,
            "known": self.known,
            "known_above_cut": self.known_above_cut,
            "unknown_above_cut": round(self.unknown_above_cut),
            "classes": int(self.counted.sum()),
            "missing_per_class": by_class,
        }


def cut_points(scores: ScoreSample, max_cuts: int = MAX_CUTS) -> NDArray[np.float64]:
    """Return possible cuts of each class: the scores of its known present labels, or evenly spaced ones of them.

    They are ``(K, G)``, ascending, inf where a class has fewer.
    """
    by_class = _by_class(scores.present, scores.present_class, scores.classes)
    points = [np.unique(values) if len(values) >= MIN_PRESENT else values[:0] for values in by_class]
    points = [
        values if len(values) <= max_cuts else values[np.linspace(0, len(values) - 1, max_cuts).round().astype(int)]
        for values in points
    ]
    cuts = np.full((scores.classes, max(map(len, points), default=0)), np.inf)
    for number, values in enumerate(points):
        cuts[number, : len(values)] = values
    return cuts


def estimate_from_scores(
    scores: ScoreSample,
    cuts: NDArray[np.float64] | None = None,
    unknown_above: NDArray[np.integer[Any]] | None = None,
) -> MissingEstimate | None:
    """Estimate how many labels are missing; the formula is in the module's docstring.

    Args:
        scores: any that rank the images of a class.
        cuts: ``(K, G)`` possible cuts; ``cut_points`` when None.
        unknown_above: ``(K, G)`` unknown labels at or above the cuts; counted in the sample when None.

    Returns:
        None where no class has five known present labels.

    Example:
        >>> unknown = np.array([[0.9], [0.7], [0.2], [0.1], [0.1], [0.0]])
        >>> present = np.array([0.9, 0.8, 0.8, 0.7, 0.1])
        >>> empty = np.empty(0), np.empty(0, np.int64)
        >>> estimate = estimate_from_scores(ScoreSample(present, np.zeros(5, np.int64), *empty, unknown))
        >>> round(estimate.missing, 2), estimate.upper
        (1.67, 2.5)
    """
    cuts = cut_points(scores) if cuts is None else cuts
    classes = scores.classes
    present = _by_class(scores.present, scores.present_class, classes)
    absent = _by_class(scores.absent, scores.absent_class, classes)
    missing, upper, counted = np.zeros(classes), np.zeros(classes), np.zeros(classes, dtype=np.bool_)
    known, known_above_cut, unknown_above_cut = 0, 0, 0.0
    for k in range(classes):
        points = cuts[k][np.isfinite(cuts[k])]
        if not len(points):
            continue
        unknown = _unknown_above(scores, k, points) if unknown_above is None else unknown_above[k, : len(points)]
        true, false = (len(values) - np.searchsorted(values, points) for values in (present[k], absent[k]))
        missing_at = unknown * (true / (true + false)) * len(present[k]) / true
        top = int(np.flatnonzero(true >= TOP_SHARE * len(present[k]))[-1])
        merit = true.astype(np.float64) ** 2 / (true + false + unknown)
        best = len(merit) - 1 - int(np.argmax(merit[::-1]))  # the highest cut of equals
        counted[k], missing[k], upper[k] = True, missing_at[top], missing_at[best]
        known, known_above_cut = known + len(present[k]), known_above_cut + int(true[top])
        unknown_above_cut += float(unknown[top])
    if not counted.any():
        return None
    return MissingEstimate(missing, upper, counted, known, known_above_cut, unknown_above_cut)


def _unknown_above(scores: ScoreSample, number: int, points: NDArray[Any]) -> NDArray[np.float64]:
    """Return how many unknown labels of a class are at or above points, extrapolated from the sample."""
    column = np.sort(scores.unknown[:, number])
    unknown = column[: len(column) - int(np.isnan(column).sum())]
    return scores.scale * (len(unknown) - np.searchsorted(unknown, points)).astype(np.float64)


def _by_class(values: NDArray[Any], columns: NDArray[np.int64], classes: int) -> list[NDArray[Any]]:
    """Return the values of every class, ascending."""
    order = np.lexsort((values, columns))
    return np.split(values[order], np.searchsorted(columns[order], np.arange(1, classes)))
