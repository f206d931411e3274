"""Calibration curves: of labels with a probability of 30 %, are 30 % present? Only images labeled in full can say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT

BINS: Final = 10


@dataclass(frozen=True, eq=False)
class CalibrationCurves:
    """Labels by their probability, in ten bins of equal width, for each of K classes.

    Attributes:
        count: ``(K, 10)`` labels in a bin.
        present: ``(K, 10)`` those of them that are present.
        total: ``(K, 10)`` the sum of their probabilities.
    """

    count: NDArray[np.int64]
    present: NDArray[np.int64]
    total: NDArray[np.float64]

    @property
    def observed(self) -> NDArray[np.float64]:
        """The share of a bin's labels that is present, ``(K, 10)``; NaN for an empty bin."""
        return _divide(self.present, self.count)

    @property
    def predicted(self) -> NDArray[np.float64]:
        """The mean probability of a bin, ``(K, 10)``; NaN for an empty bin."""
        return _divide(self.total, self.count)

    @property
    def error(self) -> NDArray[np.float64]:
        """The expected calibration error, ``(K,)``: the mean over labels of |observed − predicted| of their bin."""
        distance = np.abs(np.nan_to_num(self.observed) - np.nan_to_num(self.predicted))
        return _divide((self.count * distance).sum(axis=1), self.count.sum(axis=1))

    @property
    def overall(self) -> CalibrationCurves:
        """The curve of all labels together, as one class."""
        return CalibrationCurves(*(each.sum(axis=0, keepdims=True) for each in (self.count, self.present, self.total)))

    def select(self, classes: NDArray[np.bool_]) -> CalibrationCurves:
        """Return the curves of some classes, by a mask ``(K,)``."""
        return CalibrationCurves(self.count[classes], self.present[classes], self.total[classes])

    @classmethod
    def concatenate(cls, parts: list[CalibrationCurves]) -> CalibrationCurves:
        """Return the curves of several groups of classes, in order."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("count", "present", "total")))


def bin_probabilities(probabilities: NDArray[np.floating[Any]], codes: NDArray[np.int8]) -> CalibrationCurves:
    """Return the curves of probabilities ``(N, K)`` of known labels ``(N, K)``; those that are NaN are left out.

    Example:
        >>> curves = bin_probabilities(np.array([[0.05], [0.85], [0.85]]), np.array([[0], [1], [0]], dtype=np.int8))
        >>> curves.observed[0, [0, 8]], curves.error.round(3)
        (array([0. , 0.5]), array([0.25]))
    """
    classes, known = codes.shape[1], ~np.isnan(probabilities)
    values = probabilities[known].astype(np.float64)
    column = np.broadcast_to(np.arange(classes), codes.shape)[known]
    place = column * BINS + np.clip((values * BINS).astype(np.int64), 0, BINS - 1)

    def sums(weights: NDArray[Any] | None) -> NDArray[Any]:
        return np.bincount(place, weights, minlength=classes * BINS).reshape(classes, BINS)

    present = sums((codes[known] == PRESENT).astype(np.float64)).astype(np.int64)
    return CalibrationCurves(sums(None).astype(np.int64), present, sums(values))


def _divide(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan)
