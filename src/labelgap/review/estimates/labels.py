"""What an estimate is made from, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics.label_model import MODEL_SPREAD

MIN_RANDOM: Final = 10
"""With fewer random answers there is no interval."""

Counts = NDArray[np.int64]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ReviewedLabels:
    """Labels that were unknown before a review, ``(C,)`` each, and how many there are in all.

    Attributes:
        class_number: of the candidates.
        score: probability of being present by the audit, which no answer changes; NaN without a model.
        decided: whether somebody answered.
        value: codes of the answers; UNKNOWN for "can't tell".
        random: whether a label was asked as a random one: drawn from all labels of its class that were open.
        order: numbers that rise with the decisions of a class; those of undecided labels do not matter.
        unknown: ``(K,)`` unknown labels of each class, candidates or not.
        expected: ``(K,)`` the sum of their scores; None without a model.
        spread: how wrong the scores of all classes may be before any answer, by the audit; downwards and upwards.
        range: how few and how many labels may be present before any answer, by the audit.
    """

    class_number: NDArray[np.integer[Any]]
    score: NDArray[np.floating[Any]]
    decided: Mask
    value: NDArray[np.int8]
    random: Mask
    order: NDArray[np.integer[Any]]
    unknown: Counts
    expected: Array | None = None
    spread: tuple[float, float] = MODEL_SPREAD
    range: tuple[int, int] | None = None

    @property
    def sure(self) -> Mask:
        """Which labels were answered with present or absent."""
        return np.asarray(self.decided & (self.value != UNKNOWN))

    @property
    def present(self) -> Mask:
        """Which labels were answered with present."""
        return np.asarray(self.decided & (self.value == PRESENT))

    @property
    def undecided(self) -> Counts:
        """How many labels of each class nobody has decided, candidates or not, ``(K,)``."""
        return np.asarray(np.maximum(self.unknown - self.count(self.decided), 0))

    def answered(self) -> ReviewedLabels:
        """Return the decided ones."""
        rows = np.flatnonzero(self.decided)
        return replace(
            self,
            class_number=self.class_number[rows],
            score=self.score[rows],
            decided=self.decided[rows],
            value=self.value[rows],
            random=self.random[rows],
            order=self.order[rows],
        )

    def count(self, mask: Mask) -> Counts:
        """Return how many candidates of each class a mask selects, ``(K,)``."""
        return np.bincount(self.class_number[mask], minlength=len(self.unknown))


@dataclass(frozen=True)
class SampleEstimate:
    """How many unknown labels are present: counted among the decided, estimated among the undecided.

    Attributes:
        reviewed: random answers that count.
        present: those of them that are present.
        unsure: decided labels on which the reviewer could not tell; whether they are present stays open.
        classes: number of classes that the estimate covers.
        unknown: labels of those classes that were unknown before the review.
        found: of these, present ones among the decided.
        undecided: of these, those that nobody has decided.
        still_missing: of these, present ones, estimated.
        low: lower end of the 95 % interval of ``still_missing``, or of a rough range: see ``has_interval``.
        high: upper end.
        counted: whether the interval is that of the random answers alone, without scores.
        halving: how many more random answers halve the interval; 0 where they cannot, or it is narrow.
    """

    reviewed: int
    present: int
    unsure: int
    classes: int
    unknown: int
    found: int
    undecided: int
    still_missing: int
    low: int
    high: int
    counted: bool = False
    halving: int = 0

    @property
    def has_interval(self) -> bool:
        """Whether there were enough random answers for an interval."""
        return self.reviewed >= MIN_RANDOM or not self.undecided

    @property
    def remaining(self) -> tuple[int, int, int]:
        """How many labels are still missing: the estimate, and the ends of its interval."""
        return self.still_missing, self.low, self.high

    @property
    def missing(self) -> tuple[int, int, int]:
        """How many labels were missing before the review: those found, and those that still are."""
        return self.found + self.still_missing, self.found + self.low, self.found + self.high


@dataclass(frozen=True, eq=False)
class ReviewEstimate:
    """The estimates of a review; what is still missing of the classes sums to what is still missing of all.

    Attributes:
        total: of all classes that are covered; None when there are none.
        by_class: of each class; None for one that is not covered.
        class_number: ``(C,)`` of the candidates.
        probability: ``(C,)`` of each candidate to be present, as the answers have it; NaN without a model.
        shifts: ``(D, K)`` draws of how far the log-odds of labels that score low may be from these probabilities.
        spread: ``(K,)`` standard deviation of the same for labels like those that were answered.
        likeness: ``(C,)`` how much a candidate is like those, from 0 to 1.
    """

    total: SampleEstimate | None
    by_class: tuple[SampleEstimate | None, ...]
    class_number: NDArray[np.integer[Any]]
    probability: Array
    shifts: Array
    spread: Array
    likeness: Array

    def spread_over(self, numbers: NDArray[np.int64], class_number: NDArray[np.integer[Any]]) -> ReviewEstimate:
        """Return the same for more candidates: the first of these have the given numbers, the others no probability."""
        probability, likeness = np.full((2, len(class_number)), np.nan)
        probability[numbers], likeness[numbers] = self.probability[: len(numbers)], self.likeness[: len(numbers)]
        return replace(self, class_number=class_number, probability=probability, likeness=likeness)
