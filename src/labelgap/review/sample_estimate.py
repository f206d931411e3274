r"""How many labels are missing, from the random ones among those that were reviewed.

The ranked candidates say nothing about how many labels are missing: they were chosen for being probable. The random
ones do. Of the :math:`U_c` unknown labels of a class a random sample of :math:`n_c` was looked at, :math:`k_c` of them
present. Over the classes with :math:`n_c > 0`

.. math:: \hat p = \sum_c W_c\, k_c / n_c, \qquad W_c = U_c / \sum_j U_j, \qquad n_\mathrm{eff} = 1 / \sum_c W_c^2 / n_c

and the interval is Wilson's at :math:`n_\mathrm{eff}` (Kish's effective size). Where every class was sampled in
proportion to its unknown labels, :math:`n_\mathrm{eff} = \sum_c n_c` and this is the plain interval of Wilson. A class
that was hardly looked at would make a good estimate of the others worthless, so classes are taken in the order of
:math:`n_c / U_c`, as many as leave :math:`n_\mathrm{eff}` at half of the largest it could be, or more.

A random label counts once everything that its class's list shows before its place in the sample is decided. It may be
among the ranked ones too, and such a one, which is probably present, is decided before its turn: counted at once, it
would make the share too large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN

__all__ = ["MIN_SAMPLE", "SampleEstimate", "estimate_from_sample", "first_undecided", "wilson_interval"]

MIN_SAMPLE: Final = 10
"""Fewer random labels say next to nothing, and what they say is not shown."""


@dataclass(frozen=True)
class SampleEstimate:
    """How many unknown labels are present, and how sure that is.

    Attributes:
        looked: random labels that count.
        present: those of them that are there.
        unsure: random labels of which the reviewer could not tell; they are left out.
        classes: classes that the estimate speaks of.
        unknown: unknown labels of those classes.
        share: of these that are present.
        low: lower end of the share's interval.
        high: upper end.
    """

    looked: int
    present: int
    unsure: int
    classes: int
    unknown: int
    share: float
    low: float
    high: float

    @property
    def missing(self) -> tuple[int, int, int]:
        """How many labels are missing: the estimate, and the ends of its interval."""
        estimate, low, high = (self.unknown * share for share in (self.share, self.low, self.high))
        return round(estimate), math.floor(low), math.ceil(high)


def wilson_interval(present: float, looked: float, confidence: float = 0.95) -> tuple[float, float]:
    r"""Return the interval of a share that Wilson (1927) gave.

    .. math:: \frac{1}{1 + z^2/n} \left( \hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} +
        \frac{z^2}{4 n^2}} \right)

    Args:
        present: how many were there; with an effective size it need not be whole.
        looked: of how many, more than 0.
        confidence: how often such intervals hold the truth.

    Example:
        >>> [round(end, 4) for end in wilson_interval(2, 20)]
        [0.0279, 0.301]
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = present / looked
    center = share + z * z / (2 * looked)
    spread = z * math.sqrt(share * (1 - share) / looked + z * z / (4 * looked * looked))
    scale = 1 + z * z / looked
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


def first_undecided(classes: ArrayLike, keys: ArrayLike, decided: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return how far the list of each class was decided without a gap: the smallest key that is not decided.

    Args:
        classes: ``(C,)`` class number of everything that is listed.
        keys: ``(C,)`` place in its class's list.
        decided: ``(C,)``
        count: K, of the classes.

    Returns:
        ``(K,)``; the largest number there is where no gap is left.

    Example:
        >>> first_undecided([0, 0, 0], [1, 3, 5], [True, False, True], 1)
        array([3])
    """
    gaps = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    open_ones = ~np.asarray(decided, dtype=np.bool_)
    np.minimum.at(gaps, np.asarray(classes)[open_ones], np.asarray(keys)[open_ones])
    return gaps


def estimate_from_sample(classes: ArrayLike, values: ArrayLike, unknown: ArrayLike) -> SampleEstimate | None:
    """Estimate how many unknown labels are present.

    Args:
        classes: ``(S,)`` class numbers of the random labels that count.
        values: ``(S,)`` what was decided; UNKNOWN, "can't tell", is left out.
        unknown: ``(K,)`` how many labels of every class are unknown.

    Returns:
        None where no random label was decided.

    Example:
        >>> made = estimate_from_sample([0] * 20, [1] * 2 + [0] * 18, [1000])
        >>> made.share, made.missing
        (0.1, (100, 27, 302))
    """
    group, value, total = np.asarray(classes, dtype=np.int64), np.asarray(values), np.asarray(unknown, dtype=np.int64)
    sure = value != UNKNOWN
    looked = np.bincount(group[sure], minlength=len(total))
    present = np.bincount(group[sure & (value == PRESENT)], minlength=len(total))
    covered = _covered(looked, total)
    if not len(covered):
        return None
    weight = total[covered] / total[covered].sum()
    share = float((weight * present[covered] / looked[covered]).sum())
    effective = float(1 / (weight**2 / looked[covered]).sum())
    low, high = wilson_interval(share * effective, effective)
    return SampleEstimate(
        looked=int(looked[covered].sum()),
        present=int(present[covered].sum()),
        unsure=int((~sure).sum()),
        classes=len(covered),
        unknown=int(total[covered].sum()),
        share=share,
        low=low,
        high=high,
    )


def _covered(looked: NDArray[np.int64], unknown: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the classes that an estimate speaks of, by what was looked at alone, never by what was seen."""
    open_ones = np.flatnonzero((looked > 0) & (unknown > 0))
    if not len(open_ones):
        return open_ones
    order = open_ones[np.argsort(-looked[open_ones] / unknown[open_ones], kind="stable")]
    size = unknown[order].astype(np.float64)
    effective = np.cumsum(size) ** 2 / np.cumsum(size**2 / looked[order])
    return np.sort(order[: np.flatnonzero(effective >= effective.max() / 2)[-1] + 1])
