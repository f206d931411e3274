r"""How many labels are missing, estimated from the reviewed random candidates.

The ranked candidates cannot tell how many labels are missing: they were chosen because they are probable. The random
ones can. Of the :math:`U_c` unknown labels of a class, a random sample of :math:`n_c` was reviewed and :math:`k_c` of
them are present. Over the classes with :math:`n_c > 0`

.. math:: \hat p = \sum_c W_c\, k_c / n_c, \qquad W_c = U_c / \sum_j U_j, \qquad n_\mathrm{eff} = 1 / \sum_c W_c^2 / n_c

and the interval is Wilson's at :math:`n_\mathrm{eff}` (Kish's effective sample size). When every class is sampled in
proportion to its unknown labels, :math:`n_\mathrm{eff} = \sum_c n_c` and this is the plain Wilson interval. A class
that was hardly reviewed would ruin a good estimate of the others, so classes are taken in the order of
:math:`n_c / U_c`, as many as keep :math:`n_\mathrm{eff}` at half of its largest possible value or more.

A random label counts once everything that its class's list shows before its place in the sample is decided. A random
label can also be ranked. It is then probably present and is decided before its turn; counted at once, it would make the
share too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN

__all__ = [
    "MIN_SAMPLE",
    "SampleEstimate",
    "describe_estimate",
    "estimate_from_sample",
    "first_undecided",
    "wilson_interval",
]

MIN_SAMPLE: Final = 10
"""With fewer random labels no estimate is shown."""


@dataclass(frozen=True)
class SampleEstimate:
    """How many unknown labels are present, with an interval.

    Attributes:
        reviewed: random labels that count.
        present: those of them that are present.
        unsure: random labels on which the reviewer could not tell; they are left out.
        classes: number of classes that the estimate covers.
        unknown: unknown labels of those classes.
        share: share of these that are present.
        low: lower end of the share's 95 % interval.
        high: upper end.
    """

    reviewed: int
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


def estimate_from_sample(classes: ArrayLike, values: ArrayLike, unknown: ArrayLike) -> SampleEstimate | None:
    """Estimate how many unknown labels are present.

    Args:
        classes: ``(S,)`` class numbers of the random labels that count.
        values: ``(S,)`` the decisions; UNKNOWN, "can't tell", is left out.
        unknown: ``(K,)`` number of unknown labels of each class.

    Returns:
        None when no random label was decided.

    Example:
        >>> estimate = estimate_from_sample([0] * 20, [1] * 2 + [0] * 18, [1000])
        >>> estimate.share, estimate.missing
        (0.1, (100, 27, 302))
    """
    group, value, total = np.asarray(classes, dtype=np.int64), np.asarray(values), np.asarray(unknown, dtype=np.int64)
    sure = value != UNKNOWN
    reviewed = np.bincount(group[sure], minlength=len(total))
    present = np.bincount(group[sure & (value == PRESENT)], minlength=len(total))
    covered = _covered(reviewed, total)
    if not len(covered):
        return None
    weight = total[covered] / total[covered].sum()
    share = float((weight * present[covered] / reviewed[covered]).sum())
    effective = float(1 / (weight**2 / reviewed[covered]).sum())
    low, high = wilson_interval(share * effective, effective)
    return SampleEstimate(
        reviewed=int(reviewed[covered].sum()),
        present=int(present[covered].sum()),
        unsure=int((~sure).sum()),
        classes=len(covered),
        unknown=int(total[covered].sum()),
        share=share,
        low=low,
        high=high,
    )


def _covered(reviewed: NDArray[np.int64], unknown: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the classes that an estimate covers; the choice depends on sample sizes alone, never on answers."""
    sampled = np.flatnonzero((reviewed > 0) & (unknown > 0))
    if not len(sampled):
        return sampled
    order = sampled[np.argsort(-reviewed[sampled] / unknown[sampled], kind="stable")]
    size = unknown[order].astype(np.float64)
    effective = np.cumsum(size) ** 2 / np.cumsum(size**2 / reviewed[order])
    return np.sort(order[: np.flatnonzero(effective >= effective.max() / 2)[-1] + 1])


def describe_estimate(
    estimate: SampleEstimate | None, class_name: str = "", audit: Mapping[str, Any] | None = None
) -> str:
    """Return an estimate as a sentence; the audit's, with its assumption, until the sample is large enough.

    Example:
        >>> describe_estimate(estimate_from_sample([0] * 20, [1] * 2 + [0] * 18, [1000]), "dog")
        'About 100 labels of dog are missing (95 %: 27 to 302). 20 random candidates were reviewed, 2 are present.'
    """
    if estimate is None or estimate.reviewed < MIN_SAMPLE:
        count = 0 if estimate is None else estimate.reviewed
        guess = f"About {audit['missing']:,}, if {audit['assumption']}. " if audit and "assumption" in audit else ""
        return (
            f"{guess}An estimate needs {MIN_SAMPLE} reviewed random candidates; {count} so far. "
            "A random candidate counts once everything above it in its list is decided."
        )
    missing, low, high = estimate.missing
    count = estimate.classes
    labels = f"labels of {class_name}" if class_name else f"labels of {count:,} {'class' if count == 1 else 'classes'}"
    unsure = f" {estimate.unsure:,} undecidable ones are left out." if estimate.unsure else ""
    sample = f"{estimate.reviewed:,} random candidates were reviewed, {estimate.present:,} are present."
    return f"About {missing:,} {labels} are missing (95 %: {low:,} to {high:,}). {sample}{unsure}"
