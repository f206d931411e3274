r"""How many labels are missing: those that were found, and an estimate of those among the undecided.

What was decided is counted. Only the rest is estimated, with the model of ``metrics.answered_scores``: all answers
improve it, and the random ones give the interval, since the ranked ones were chosen because they are probable. Let
:math:`Q_k` be the ranked labels of a class that were reached, all of them decided. The reached random labels outside
:math:`Q_k` are a random sample of all unknown labels outside it. Without scores, all labels of a class have the same
probability.

A class that was hardly reviewed would ruin a good interval of the others. So classes are taken in the order of
:math:`n_k / m_k`, random labels per undecided one, as many as keep Kish's effective sample size,
:math:`1 / \sum_k W_k^2 (1 / n_k + 1 / m_k)` with :math:`W_k = m_k / \sum_j m_j`, at half of its largest possible value
or more. The ends of the other classes' intervals are added to those of the whole; without scores they are left out.

A candidate is reached once everything that its class's list shows before it is decided. So the sample does not depend
on which candidates a reviewer picks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from labelgap.audit.estimate import RANGE_FACTOR, round_to_sum
from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics.answered_scores import (
    ALBUM_SPREAD,
    CLASS_SPREAD,
    SAMPLE_SPREAD,
    ScoreCells,
    class_shifts,
    interval,
    sample_shift,
    to_log_odds,
)

__all__ = [
    "MIN_SAMPLE",
    "ReviewEstimate",
    "ReviewedLabels",
    "SampleEstimate",
    "describe_estimate",
    "estimate_review",
    "first_undecided",
]

MIN_SAMPLE: Final = 10
"""With fewer random labels there is no interval."""
_FLAT_SPREAD: Final = 7.0
"""Standard deviation of the mean shift of all classes without scores: hardly a prior."""
_BIN_WIDTH: Final = 0.1

Counts = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ReviewedLabels:
    """Labels that were unknown before a review, ``(C,)`` each, and how many there are in all.

    Attributes:
        class_number: of the candidates.
        score: probability of being present; NaN without a model.
        decided: whether somebody answered.
        value: codes of the answers; UNKNOWN for "can't tell".
        sampled: whether an answer counts as that on a random label.
        unknown: ``(K,)`` unknown labels of each class, candidates or not.
        expected: ``(K,)`` the sum of their scores; None without a model.
    """

    class_number: NDArray[np.integer[Any]]
    score: NDArray[np.floating[Any]]
    decided: NDArray[np.bool_]
    value: NDArray[np.int8]
    sampled: NDArray[np.bool_]
    unknown: Counts
    expected: Array | None = None

    def count(self, mask: NDArray[np.bool_]) -> Counts:
        """Return how many candidates of each class a mask selects, ``(K,)``."""
        return np.bincount(self.class_number[mask], minlength=len(self.unknown))


@dataclass(frozen=True)
class SampleEstimate:
    """How many unknown labels are present: counted among the decided, estimated among the undecided.

    Attributes:
        reviewed: random labels that count.
        present: those of them that are present.
        unsure: decided labels on which the reviewer could not tell; whether they are present stays open.
        classes: number of classes that the estimate covers.
        unknown: labels of those classes that were unknown before the review.
        found: of these, present ones among the decided.
        undecided: of these, those that nobody has decided.
        still_missing: of these, present ones, estimated.
        low: lower end of the 95 % interval of ``still_missing``, or of a rough range: see ``has_interval``.
        high: upper end.
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

    @property
    def has_interval(self) -> bool:
        """Whether enough random labels were reviewed for an interval."""
        return self.reviewed >= MIN_SAMPLE or not self.undecided

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
        probability: ``(C,)`` of each candidate to be present, as the answers have it; NaN without a model.
    """

    total: SampleEstimate | None
    by_class: tuple[SampleEstimate | None, ...]
    probability: Array


def first_undecided(classes: ArrayLike, positions: ArrayLike, decided: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return the position of the first undecided of C candidates in the list of each class, ``(K,)``.

    It is the largest integer where everything is decided.

    Example:
        >>> first_undecided([0, 0, 0], [1, 3, 5], [True, False, True], 1)
        array([3])
    """
    first = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    undecided = ~np.asarray(decided, dtype=np.bool_)
    np.minimum.at(first, np.asarray(classes)[undecided], np.asarray(positions)[undecided])
    return first


def estimate_review(labels: ReviewedLabels) -> ReviewEstimate:
    """Count the labels that were found, and estimate how many are still missing, of each class and in all.

    Example:
        >>> decided, value = np.arange(1000) < 20, (np.arange(1000) < 2).astype(np.int8)
        >>> classes, scores = np.zeros(1000, dtype=np.int64), np.full(1000, np.nan)
        >>> made = estimate_review(ReviewedLabels(classes, scores, decided, value, decided, np.array([1000])))
        >>> made.total.found, made.total.remaining
        (2, (98, 26, 298))
    """
    cells, log_odds = _make_cells(labels)
    rest = np.maximum(labels.unknown - labels.count(labels.decided), 0)
    reviewed = cells.sums(cells.sampled).astype(np.int64)
    sampled = _covered(reviewed, rest)
    weight = np.where(rest > 0, rest / np.maximum(reviewed, 1), 0.0)
    numbers, together = np.arange(cells.classes), np.where(sampled, 0, -1)
    if labels.expected is not None:
        spread, covered, shift = SAMPLE_SPREAD, labels.unknown > 0, class_shifts(cells, ALBUM_SPREAD)
        own = cells.shifted(shift)
    else:
        spread, covered, shift = math.inf, sampled | ((rest == 0) & (labels.unknown > 0)), np.zeros(cells.classes)
        own = cells.shifted(class_shifts(cells, _FLAT_SPREAD))
    if sampled.any():
        shift = shift + sample_shift(cells.shifted(shift), weight, together, 1, spread)
    cells = cells.shifted(shift)
    total_still = np.minimum(cells.expected(), rest)[covered].sum()
    still = np.where(covered, np.minimum(own.expected(), rest), 0.0)
    still = np.minimum(still * (total_still / max(float(still.sum()), 1e-9)), rest)
    class_ends = interval(own, weight, numbers, cells.classes, math.hypot(spread, CLASS_SPREAD))
    ends = class_ends[:, covered & ~sampled].sum(axis=1)
    if sampled.any():
        ends = ends + interval(cells, weight, together, 1, spread)[:, 0]
    elif labels.expected is not None:
        ends = total_still * np.array([1 / RANGE_FACTOR, RANGE_FACTOR])  # as the audit says
    counts = {
        "present": cells.sums(cells.sampled_present),
        "unsure": labels.count(labels.decided & (labels.value == UNKNOWN)),
        "unknown": labels.unknown,
        "found": labels.count(labels.decided & (labels.value == PRESENT)),
        "undecided": rest,
        "still_missing": round_to_sum(still),
    }
    total = _sum(covered, {**counts, "reviewed": reviewed * sampled}, ends) if covered.any() else None
    counts["reviewed"] = reviewed
    by_class = tuple(_sum(numbers == k, counts, class_ends[:, k]) if covered[k] else None for k in numbers)
    probability = np.where(np.isnan(labels.score), np.nan, expit(log_odds + shift[labels.class_number]))
    return ReviewEstimate(total, by_class, probability)


def _sum(mask: NDArray[np.bool_], counts: Mapping[str, NDArray[Any]], ends: Array) -> SampleEstimate:
    """Return the estimate of some classes; the ends hold the estimate, and are possible numbers."""
    sums = {name: int(values[mask].sum()) for name, values in counts.items()}
    still = sums["still_missing"]
    low, high = min(math.floor(ends[0]), still), min(max(math.ceil(ends[1]), still), sums["undecided"])
    return SampleEstimate(**sums, classes=int(mask.sum()), low=low, high=high)


def _make_cells(labels: ReviewedLabels) -> tuple[ScoreCells, Array]:
    """Return the cells of all unknown labels, and the log-odds of the candidates, ``(C,)``."""
    classes, column = len(labels.unknown), labels.class_number.astype(np.int64)
    score, expected = np.full(len(column), 0.5), labels.unknown / 2
    scored = np.ones(len(column), dtype=np.bool_)
    if labels.expected is not None:
        score, expected, scored = labels.score.astype(np.float64), labels.expected, ~np.isnan(labels.score)
        score = np.where(scored, score, 0.5)
    log_odds = to_log_odds(score)
    used, cell = np.unique(column * 1000 + np.floor(log_odds / _BIN_WIDTH).astype(np.int64) + 500, return_inverse=True)

    def count(mask: NDArray[Any]) -> Array:
        return np.bincount(cell, weights=mask, minlength=len(used)).astype(np.float64)

    unlisted = np.maximum(labels.unknown - labels.count(labels.decided | ~labels.decided), 0)
    others = np.flatnonzero(unlisted)  # classes with labels that are no candidates
    rest = expected - np.bincount(column, weights=score * scored, minlength=classes)
    mean = rest / np.maximum(labels.unknown - labels.count(scored), 1)
    sure, none = labels.decided & (labels.value != UNKNOWN) & scored, np.zeros(len(others))
    present, sampled = labels.value == PRESENT, labels.sampled & sure
    cells = ScoreCells(
        classes,
        column=np.concatenate([used // 1000, others]),
        log_odds=to_log_odds(np.concatenate([count(score) / count(np.ones(len(cell))), mean[others]])),
        present=np.concatenate([count(sure & present), none]),
        absent=np.concatenate([count(sure & ~present), none]),
        sampled=np.concatenate([count(sampled), none]),
        sampled_present=np.concatenate([count(sampled & present), none]),
        undecided=np.concatenate([count(~labels.decided), unlisted[others].astype(np.float64)]),
    )
    return cells, log_odds


def _covered(reviewed: Counts, rest: Counts) -> NDArray[np.bool_]:
    """Return the classes whose random labels count, ``(K,)``; it depends on sample sizes alone, never on answers."""
    sampled = np.flatnonzero((reviewed > 0) & (rest > 0))
    chosen = np.zeros(len(rest), dtype=np.bool_)
    if len(sampled):
        order = sampled[np.argsort(-reviewed[sampled] / rest[sampled], kind="stable")]
        size = rest[order].astype(np.float64)
        effective = np.cumsum(size) ** 2 / np.cumsum(size**2 * (1 / reviewed[order] + 1 / size))
        chosen[order[: np.flatnonzero(effective >= effective.max() / 2)[-1] + 1]] = True
    return chosen


def describe_estimate(estimate: SampleEstimate | None, class_name: str = "") -> str:
    """Return an estimate as a sentence.

    Example:
        >>> describe_estimate(SampleEstimate(20, 2, 0, 1, 1000, 2, 980, 98, 26, 298), "dog")  # doctest: +ELLIPSIS
        'About 100 labels of dog were missing: 2 found, about 98 still missing among 980 undecided ones (95 %: 26 to ...
    """
    if estimate is None:
        return "There is no estimate before a random candidate is reviewed, with everything above it in its list."
    unsure = f" {pluralize(estimate.unsure, 'label')} could not be told." if estimate.unsure else ""
    of = class_name or pluralize(estimate.classes, "class")
    found, still, low, high = estimate.found, *estimate.remaining
    if not estimate.undecided:
        exact = "" if estimate.unsure else ", so this is exact"
        were = f"{pluralize(found, 'label')} of {of} {'was' if found == 1 else 'were'} missing"
        return f"{were}, and {'is' if found == 1 else 'are'} found: every unknown label is decided{exact}.{unsure}"
    ends = f"95 %: {low:,} to {high:,}" if estimate.has_interval else f"{low:,} to {high:,} are possible"
    sample = (
        f"{pluralize(estimate.reviewed, 'random candidate')} counted, {estimate.present:,} present."
        if estimate.has_interval
        else f"An interval needs {MIN_SAMPLE} random candidates; {estimate.reviewed} so far. One counts once all "
        "that its list shows before it is decided."
    )
    return (
        f"About {pluralize(found + still, 'label')} of {of} {'was' if found + still == 1 else 'were'} missing: "
        f"{found:,} found, about {still:,} still missing among {estimate.undecided:,} undecided ones ({ends}). "
        f"{sample}{unsure}"
    )
