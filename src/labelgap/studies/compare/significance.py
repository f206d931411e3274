r"""Whether the best method is better than another by more than chance.

Two things vary a mean: the seeds (initial weights, and which labels are hidden where they are hidden on purpose) and
the test images. Both are paired: all methods have the same seeds and the same images. For the difference :math:`d` of
two methods, over :math:`S` seeds,

.. math:: d \pm \sqrt{(t_{0.975,\,S-1} \; s / \sqrt S)^2 + (1.96 \; b)^2}

with :math:`s` the standard deviation of the seeds' differences and :math:`b` that of the difference over images drawn
with replacement (the bootstrap). A method is called better only where this interval is above zero. One seed says
nothing about other seeds, so it supports no claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from scipy.special import stdtrit

from labelgap.core.seeds import numpy_generator
from labelgap.metrics.bootstrap import bootstrap_weights

MAX_RESAMPLES: Final = 100
MIN_RESAMPLES: Final = 40
_MAX_ENTRIES: Final = 3e9
"""Number of entries over all resamples above which fewer resamples are drawn."""


@dataclass(frozen=True)
class GapToBest:
    """How far a method is behind the best.

    Attributes:
        mean: of the best minus this method, over the seeds.
        half_width: of the interval; None with one seed.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    mean: Annotated[float, Field(ge=-1, le=1)]
    half_width: Annotated[float, Field(ge=0, le=1e6)] | None

    @property
    def significant(self) -> bool:
        """Whether the interval is above zero."""
        return self.half_width is not None and self.mean > self.half_width


def gaps_to_best(
    values: Mapping[str, Sequence[float]], resampled: Mapping[str, NDArray[np.float64]] | None
) -> dict[str, GapToBest]:
    """Compare every method with the best one.

    Args:
        values: method → the metric with each seed, in the same order.
        resampled: method → the metric over resampled images, ``(R,)``, averaged over seeds; None to leave images out.

    Returns:
        The best first, with a gap of zero; then by decreasing mean.

    Example:
        >>> gaps = gaps_to_best({"a": [0.8, 0.81, 0.8], "b": [0.7, 0.71, 0.7], "c": [0.6, 0.95, 0.7]}, None)
        >>> [(name, gap.significant) for name, gap in gaps.items()]
        [('a', False), ('c', False), ('b', True)]
    """
    order = sorted(values, key=lambda name: -float(np.mean(values[name])))
    best = np.asarray(values[order[0]], dtype=np.float64)
    gaps = {}
    for name in order:
        difference = best - np.asarray(values[name], dtype=np.float64)
        count, half_width = len(difference), None
        if count > 1:
            seeds = float(stdtrit(count - 1, 0.975)) * float(difference.std(ddof=1)) / np.sqrt(count)
            images = 0.0 if resampled is None else 1.96 * _deviation(resampled[order[0]] - resampled[name])
            half_width = float(np.hypot(seeds, images))
        gaps[name] = GapToBest(float(difference.mean()), half_width)
    return gaps


def _deviation(values: NDArray[Any]) -> float:
    """Return the standard deviation over the resamples that have a value: those with both states of a class."""
    finite = values[np.isfinite(values)]
    return float(np.std(finite, ddof=1)) if len(finite) > 1 else 0.0


def draw_resamples(images: int, classes: int, rankings: int) -> NDArray[np.float32]:
    """Draw images with replacement: how often each is in every resample, ``(N, R)``.

    R is smaller for large data: ``rankings`` score matrices of images × classes will be resampled.
    """
    count = int(np.clip(_MAX_ENTRIES / max(images * classes * rankings, 1), MIN_RESAMPLES, MAX_RESAMPLES))
    weights = bootstrap_weights(images, count, numpy_generator(0, "bootstrap"))
    return np.ascontiguousarray(np.concatenate(list(weights), axis=1))
