r"""Whether one method is better than another, or only luckier.

Two things move a mean: the seeds (first weights, and which labels were hidden where they were hidden on purpose) and
the images it was measured on. Both are paired: all methods have the same seeds and the same images. For the difference
:math:`d` of two methods, over :math:`S` seeds,

.. math:: d \pm \sqrt{(t_{0.975,\,S-1} \; s / \sqrt S)^2 + (1.96 \; b)^2}

with :math:`s` the standard deviation of the seeds' differences and :math:`b` that of the difference over images drawn
with replacement (the bootstrap). A method is called better only where this interval lies above zero. One seed says
nothing about other seeds, so nothing is claimed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from labelgap.core.seeds import numpy_generator
from labelgap.metrics.bootstrap import bootstrap_weights

__all__ = ["GapToBest", "gaps_to_best", "resamples"]

MOST: Final = 100
FEWEST: Final = 40
_WORK: Final = 3e9
"""Entries that are looked at in all, before fewer samples are drawn."""


@dataclass(frozen=True)
class GapToBest:
    """How far a method is behind the best.

    Attributes:
        mean: of the best less this one's, over the seeds.
        half_width: half of the interval's width; None with one seed.
    """

    mean: float
    half_width: float | None

    @property
    def significant(self) -> bool:
        """Whether the best is ahead by more than chance explains."""
        return self.half_width is not None and self.mean > self.half_width


def gaps_to_best(
    values: Mapping[str, Sequence[float]], samples: Mapping[str, NDArray[np.float64]] | None
) -> dict[str, GapToBest]:
    """Compare every method with the best of them.

    Args:
        values: for every method what was measured with each seed, in the same order.
        samples: for every method the measure over resampled images, ``(R,)``, the mean over its seeds; None where
            images have no part in it.

    Returns:
        the best first, with a difference of zero; then as the means are ordered.

    Example:
        >>> found = gaps_to_best({"a": [0.8, 0.81, 0.8], "b": [0.7, 0.71, 0.7], "c": [0.6, 0.95, 0.7]}, None)
        >>> [(name, difference.significant) for name, difference in found.items()]
        [('a', False), ('c', False), ('b', True)]
    """
    order = sorted(values, key=lambda name: -float(np.mean(values[name])))
    best = np.asarray(values[order[0]], dtype=np.float64)
    found = {}
    for name in order:
        gap = best - np.asarray(values[name], dtype=np.float64)
        half = None
        if len(gap) > 1:
            seeds = float(stats.t.ppf(0.975, len(gap) - 1)) * float(gap.std(ddof=1)) / np.sqrt(len(gap))
            images = 0.0 if samples is None else 1.96 * _deviation(samples[order[0]] - samples[name])
            half = float(np.hypot(seeds, images))
        found[name] = GapToBest(float(gap.mean()), half)
    return found


def _deviation(values: NDArray[Any]) -> float:
    """Return the standard deviation of what could be measured: a sample without any present label could not."""
    found = values[np.isfinite(values)]
    return float(np.std(found, ddof=1)) if len(found) > 1 else 0.0


def resamples(images: int, classes: int, rankings: int) -> NDArray[np.float32]:
    """Draw images with replacement: how often each is in every sample, ``(N, R)``; fewer where it would take long.

    Args:
        images: N.
        classes: K.
        rankings: how many sets of scores will be looked at.
    """
    count = int(np.clip(_WORK / max(images * classes * rankings, 1), FEWEST, MOST))
    drawn = bootstrap_weights(images, count, numpy_generator(0, "bootstrap"))
    return np.ascontiguousarray(np.concatenate(list(drawn), axis=1))
