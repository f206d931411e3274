r"""How many labels are missing: those that were found, and an estimate of those among the undecided.

What was decided is counted. Only the rest is estimated, from the random candidates: the ranked ones were chosen because
they are probable. Let :math:`Q_c` be the ranked labels of a class that were reached, all of them decided. The reached
random labels outside :math:`Q_c`, :math:`n_c` of them with :math:`k_c` present, are a random sample of all unknown
labels outside :math:`Q_c`. With :math:`m_c` undecided labels of a class, over the classes with :math:`n_c > 0`

.. math:: \hat p = \sum_c W_c\, k_c / n_c, \qquad W_c = m_c / \sum_j m_j, \qquad
          n_\mathrm{eff} = 1 / \sum_c W_c^2 \bigl(1 / n_c + 1 / m_c\bigr)

and the interval of the share among the undecided is Wilson's at :math:`n_\mathrm{eff}` (Kish's effective sample size;
:math:`1 / m_c` because the undecided labels are few enough to vary themselves). A class that was hardly reviewed would
ruin a good estimate of the others, so classes are taken in the order of :math:`n_c / m_c`, as many as keep
:math:`n_\mathrm{eff}` at half of its largest possible value or more. Classes without undecided labels are exact.

A candidate is reached once everything that its class's list shows before it is decided. So the sample does not depend
on which candidates a reviewer picks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT, UNKNOWN

__all__ = [
    "ClassTally",
    "MIN_SAMPLE",
    "SampleEstimate",
    "describe_estimate",
    "estimate_from_sample",
    "first_undecided",
    "wilson_interval",
]

MIN_SAMPLE: Final = 10
"""With fewer random labels no estimate is shown."""


@dataclass(frozen=True, eq=False)
class ClassTally:
    """Counts of each class, ``(K,)``.

    Attributes:
        unknown: labels that were unknown before the review.
        decided: of these, decided ones; those on which the reviewer could not tell count.
        found: of these, the present ones.
        unsure: of the decided, those on which the reviewer could not tell.
    """

    unknown: NDArray[np.int64]
    decided: NDArray[np.int64]
    found: NDArray[np.int64]
    unsure: NDArray[np.int64]

    @property
    def undecided(self) -> NDArray[np.int64]:
        """Labels that nobody has decided."""
        rest: NDArray[np.int64] = np.maximum(self.unknown - self.decided, 0)
        return rest

    def only(self, number: int) -> ClassTally:
        """Return the counts of one class; all others are 0."""
        one = np.arange(len(self.unknown)) == number
        counts = (self.unknown, self.decided, self.found, self.unsure)
        return ClassTally(*(np.where(one, each, 0) for each in counts))


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
        share: share of the undecided that is present.
        low: lower end of the share's 95 % interval.
        high: upper end.
    """

    reviewed: int
    present: int
    unsure: int
    classes: int
    unknown: int
    found: int
    undecided: int
    share: float
    low: float
    high: float

    @property
    def remaining(self) -> tuple[int, int, int]:
        """How many labels are still missing: the estimate, and the ends of its interval."""
        estimate, low, high = (self.undecided * share for share in (self.share, self.low, self.high))
        return round(estimate), math.floor(low), math.ceil(high)

    @property
    def missing(self) -> tuple[int, int, int]:
        """How many labels were missing before the review: those found, and those that still are."""
        estimate, low, high = self.remaining
        return self.found + estimate, self.found + low, self.found + high


def wilson_interval(present: float, reviewed: float, confidence: float = 0.95) -> tuple[float, float]:
    r"""Return the score interval of a proportion (Wilson, 1927).

    .. math:: \frac{1}{1 + z^2/n} \left( \hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} +
        \frac{z^2}{4 n^2}} \right)

    Args:
        present: number of successes; not necessarily an integer with an effective sample size.
        reviewed: sample size, more than 0.
        confidence: coverage.

    Example:
        >>> [round(end, 4) for end in wilson_interval(2, 20)]
        [0.0279, 0.301]
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = present / reviewed
    center = share + z * z / (2 * reviewed)
    spread = z * math.sqrt(share * (1 - share) / reviewed + z * z / (4 * reviewed * reviewed))
    scale = 1 + z * z / reviewed
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


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


def estimate_from_sample(classes: ArrayLike, values: ArrayLike, tally: ClassTally) -> SampleEstimate | None:
    """Estimate how many labels are still missing, and count those that were found.

    Args:
        classes: ``(S,)`` class numbers of the random labels that count.
        values: ``(S,)`` the decisions; UNKNOWN, "can't tell", is left out.
        tally: of each class.

    Returns:
        None when no random label was decided and undecided labels remain.

    Example:
        >>> tally = ClassTally(np.array([1000]), np.array([20]), np.array([2]), np.array([0]))
        >>> estimate = estimate_from_sample([0] * 20, [1] * 2 + [0] * 18, tally)
        >>> estimate.found, estimate.remaining, estimate.missing
        (2, (98, 26, 298), (100, 28, 300))
    """
    group, value, rest = np.asarray(classes, dtype=np.int64), np.asarray(values), tally.undecided
    sure = value != UNKNOWN
    reviewed = np.bincount(group[sure], minlength=len(rest))
    present = np.bincount(group[sure & (value == PRESENT)], minlength=len(rest))
    exact = np.flatnonzero((rest == 0) & (tally.unknown > 0))
    sampled = _covered(reviewed, rest)
    if not len(sampled) and (rest.any() or not len(exact)):
        return None
    covered = np.sort(np.concatenate([exact, sampled]))
    share = low = high = 0.0
    if len(sampled):
        weight = rest[sampled] / rest[sampled].sum()
        share = float((weight * present[sampled] / reviewed[sampled]).sum())
        effective = float(1 / (weight**2 * (1 / reviewed[sampled] + 1 / rest[sampled])).sum())
        low, high = wilson_interval(share * effective, effective)
    return SampleEstimate(
        reviewed=int(reviewed[sampled].sum()),
        present=int(present[sampled].sum()),
        unsure=int(tally.unsure[covered].sum()),
        classes=len(covered),
        unknown=int(tally.unknown[covered].sum()),
        found=int(tally.found[covered].sum()),
        undecided=int(rest[covered].sum()),
        share=share,
        low=low,
        high=high,
    )


def _covered(reviewed: NDArray[np.int64], rest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the classes that an estimate covers; the choice depends on sample sizes alone, never on answers."""
    sampled = np.flatnonzero((reviewed > 0) & (rest > 0))
    if not len(sampled):
        return sampled
    order = sampled[np.argsort(-reviewed[sampled] / rest[sampled], kind="stable")]
    size = rest[order].astype(np.float64)
    effective = np.cumsum(size) ** 2 / np.cumsum(size**2 * (1 / reviewed[order] + 1 / size))
    return np.sort(order[: np.flatnonzero(effective >= effective.max() / 2)[-1] + 1])


def describe_estimate(
    estimate: SampleEstimate | None, class_name: str = "", audit: Mapping[str, Any] | None = None
) -> str:
    """Return an estimate as a sentence; the audit's, with its assumption, until the sample is large enough.

    Example:
        >>> tally = ClassTally(np.array([1000]), np.array([20]), np.array([2]), np.array([0]))
        >>> describe_estimate(estimate_from_sample([0] * 20, [1] * 2 + [0] * 18, tally), "dog")  # doctest: +ELLIPSIS
        '2 missing labels of dog were found; about 98 are still missing among 980 undecided ones (95 %: 26 to 298). ...'
    """
    unsure = f" {pluralize(estimate.unsure, 'label')} could not be told." if estimate and estimate.unsure else ""
    if estimate is not None and not estimate.undecided:
        exact = "" if estimate.unsure else ", so this is exact"
        return f"{_labels(estimate, class_name)}: every unknown label is decided{exact}.{unsure}"
    if estimate is None or estimate.reviewed < MIN_SAMPLE:
        count = 0 if estimate is None else estimate.reviewed
        guess = f"About {audit['missing']:,} were missing, by the audit's scores. " if audit else ""
        return (
            f"{guess}An estimate needs {MIN_SAMPLE} reviewed random candidates; {count} so far. "
            "A random candidate counts once everything above it in its list is decided."
        )
    remaining, low, high = estimate.remaining
    return (
        f"{_labels(estimate, class_name)}; about {remaining:,} {'is' if remaining == 1 else 'are'} still missing among "
        f"{estimate.undecided:,} undecided ones (95 %: {low:,} to {high:,}). "
        f"{pluralize(estimate.reviewed, 'random candidate')} were reviewed, {estimate.present:,} present.{unsure}"
    )


def _labels(estimate: SampleEstimate, class_name: str) -> str:
    of = class_name or pluralize(estimate.classes, "class")
    return f"{pluralize(estimate.found, 'missing label')} of {of} {'was' if estimate.found == 1 else 'were'} found"
