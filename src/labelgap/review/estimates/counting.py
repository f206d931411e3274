r"""Intervals that only count: random answers without scores.

A random slot holds a label that is drawn uniformly from the labels of its class that are open at that moment. Of class
:math:`k` let :math:`T` labels be present in all. When the t-th random label is drawn, let :math:`R_t` labels be open,
and :math:`F_t` be found by then, in whatever way. Then :math:`P(y_t = 1) = (T - F_t) / R_t`, also when answers change
the order of the others. :math:`\sum_t y_t` is compared with its distribution under every :math:`T`; the interval holds
those whose tails are both 2.5 % or more (Clopper & Pearson, Biometrika 1934). Without ranked answers the distribution
is the hypergeometric one. It is computed exactly up to ``EXACT`` answers, with the ranked finds as they were, and from
its mean and variance beyond. The mean, :math:`m_{t+1} = m_t + (T - A_t - m_t) / R_t` with :math:`A_t` ranked finds, is
linear in :math:`T`; it is the number of present answers at the estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from labelgap.review.estimates.labels import ReviewedLabels

EXACT: Final = 40
_TAIL: Final = 0.025
_PARTS: Final = 33

Array = NDArray[np.float64]


class CountedLabels(NamedTuple):
    """How many of the undecided labels of a class are present: the estimate, and the ends of its interval."""

    estimate: float
    low: int
    high: int


def count_random(labels: ReviewedLabels, class_number: int, exact: int = EXACT) -> CountedLabels:
    """Estimate what is left of a class from its random answers alone; without any, everything is possible.

    Args:
        labels: undecided ones may be left out.
        class_number: of the class.
        exact: up to so many random answers the distribution is computed exactly.

    Example:
        >>> decided, value = np.arange(1000) < 20, (np.arange(1000) < 2).astype(np.int8)
        >>> column, order = np.zeros(1000, dtype=np.int64), np.arange(1000)
        >>> count_random(ReviewedLabels(column, column + np.nan, decided, value, decided, order, np.array([1000])), 0)
        CountedLabels(estimate=98.0, low=11, high=312)
    """
    rows = np.flatnonzero((labels.class_number == class_number) & labels.decided)
    rows = rows[np.argsort(labels.order[rows], kind="stable")]
    present, drawn = labels.present[rows], (labels.sure & labels.random)[rows]
    found, left = int(present.sum()), int(labels.undecided[class_number])
    if not drawn.any() or not left:
        return CountedLabels(left / 2, 0, left)
    by_rank = np.concatenate([[0], np.cumsum(present & ~drawn)[:-1]])[drawn]
    opened = (labels.unknown[class_number] - np.arange(len(rows)))[drawn].astype(np.float64)
    count, path = int((present & drawn).sum()), _MeanPath(by_rank, opened)

    def tails(totals: Array) -> tuple[Array, Array]:
        if len(opened) <= exact:
            return _exact_tails(totals, by_rank, opened, count)
        mean, variance = path.moments(totals)
        at = (count + np.array([[0.5], [-0.5]])) * mean / variance + 0.5
        lower, below = gammaincc(np.maximum(at, 1e-9), mean**2 / variance)
        return lower, 1 - below * (count > 0)

    low, high = _search(lambda x: tails(x)[1], found, found + left), found + left
    high = -_search(lambda x: tails(-x)[0], -high, -found)
    estimate = min(max(path.total(count) - found, low - found), high - found)
    return CountedLabels(round(estimate, 6), low - found, high - found)


class _MeanPath:
    """The number of present random labels: its mean after each draw, and its variance after the last."""

    def __init__(self, by_rank: NDArray[np.int64], opened: Array) -> None:
        self.by_rank, self.opened = by_rank, opened
        after = np.cumprod(1 - 1 / opened)
        self.before = np.concatenate([[1.0], after[:-1]])
        self.influence = after[-1] / after
        self.slope = np.cumsum(1 / (opened * after))
        self.known = np.cumsum(by_rank / (opened * after))

    def total(self, count: int) -> float:
        """Return the total whose mean is a number of present random labels."""
        last = self.before[-1] * (1 - 1 / self.opened[-1])
        return float((count / last + self.known[-1]) / self.slope[-1])

    def moments(self, totals: Array) -> tuple[Array, Array]:
        """Return mean and variance for each total."""
        slope, known = (np.concatenate([[0.0], values[:-1]]) for values in (self.slope, self.known))
        mean = self.before * (totals[:, None] * slope - known)
        p = np.clip((totals[:, None] - self.by_rank - mean) / self.opened, 0, 1)
        variance = (self.influence**2 * p * (1 - p)).sum(axis=1)
        return np.maximum(mean[:, -1] + p[:, -1], 1e-9), np.maximum(variance, 1e-9)


def _exact_tails(totals: Array, by_rank: NDArray[np.int64], opened: Array, count: int) -> tuple[Array, Array]:
    """Return the probabilities of at most, and of at least, so many present random labels for each total."""
    states = np.arange(count + 1)
    probability = np.zeros((len(totals), count + 1))
    probability[:, 0] = 1.0
    for ranked, size in zip(by_rank.tolist(), opened.tolist(), strict=True):
        moved = probability * np.clip((totals[:, None] - ranked - states) / size, 0, 1)
        probability -= moved
        probability[:, 1:] += moved[:, :-1]
    return probability.sum(axis=1), 1 - probability[:, :-1].sum(axis=1)


def _search(tail: Callable[[Array], Array], first: int, last: int) -> int:
    """Return the first integer whose tail is not too small, of a tail that rises; the last one where all are."""
    while first < last:
        tried = np.unique(np.linspace(first, last, _PARTS).astype(np.int64))
        good = tail(tried.astype(np.float64)) >= _TAIL
        at = int(good.argmax()) if good.any() else len(tried) - 1
        if at == 0:
            return int(tried[0])
        first, last = int(tried[at - 1]) + 1, int(tried[at])
    return first
