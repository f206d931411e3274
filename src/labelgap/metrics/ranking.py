"""How good an order of candidates is for somebody who reviews them from the top: what is found, and how soon.

All measures take the answers in the order of review. ``weights`` count a candidate several times, or not at all, as a
bootstrap does that draws whole images; without them each counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator

__all__ = [
    "PairedDifference",
    "RankingMeasure",
    "paired_bootstrap",
    "precision_at_k",
    "ranked_average_precision",
    "recall_at_k",
]

Bools = NDArray[np.bool_]
RankingMeasure = Callable[[Bools, NDArray[np.int64]], float]
"""From hits in the order of review, and how often each counts, to a number."""


@dataclass(frozen=True)
class PairedDifference:
    """How much better one order is than another.

    Attributes:
        value: the difference.
        low: lower end of its interval.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @property
    def ahead(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0


def precision_at_k(hits: ArrayLike, count: int, weights: ArrayLike | None = None) -> float:
    """Return the share of hits among the first ``count`` candidates; NaN where there is none.

    Example:
        >>> precision_at_k([True, False, True, True], 2)
        0.5
    """
    found, taken = _first(*_formatted(hits, weights), count)
    return found / taken if taken else float("nan")


def recall_at_k(hits: ArrayLike, count: float, weights: ArrayLike | None = None) -> float:
    """Return which share of all hits lies among the first ``count`` candidates; NaN where there is no hit.

    Example:
        >>> recall_at_k([True, False, True, True], 3)
        0.6666666666666666
    """
    ordered, times = _formatted(hits, weights)
    total = int(times[ordered].sum())
    return _first(ordered, times, round(count))[0] / total if total else float("nan")


def ranked_average_precision(hits: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Return the average precision of an order without ties: the mean precision at its hits; NaN where there is none.

    Example:
        >>> ranked_average_precision([True, False, True])
        0.8333333333333333
    """
    ordered, times = _formatted(hits, weights)
    taken, found = np.cumsum(times), np.cumsum(times * ordered)
    counted = times[ordered]
    total = int(counted.sum())
    if not total:
        return float("nan")
    return float((counted * found[ordered] / np.maximum(taken[ordered], 1)).sum() / total)


def paired_bootstrap(
    hits: NDArray[np.bool_],
    images: NDArray[np.int64],
    ours: NDArray[np.int64],
    theirs: NDArray[np.int64],
    measures: Mapping[str, RankingMeasure],
    *,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, PairedDifference]:
    """Say how much better one order is than another, with an interval over images.

    Images are drawn with replacement, as many as there are, and both orders are measured on the same draw; the
    interval holds the middle of the differences (percentiles).

    Args:
        hits: ``(C,)`` whether a candidate is right.
        images: ``(C,)`` its image, from 0.
        ours: ``(C,)`` candidates in the order of review.
        theirs: ``(C,)`` the same candidates in the other order.
        measures: by name.
        draws: how many.
        confidence: how often such intervals hold the truth, if images were drawn at random in the first place.
        seed: of the draws.

    Example:
        >>> hits = np.array([True, False] * 50)
        >>> good, bad = np.argsort(~hits, kind="stable"), np.argsort(hits, kind="stable")
        >>> found = paired_bootstrap(hits, np.arange(100), good, bad, {"AP": ranked_average_precision}, draws=50)
        >>> found["AP"].ahead
        True
    """
    if not len(hits) == len(images) == len(ours) == len(theirs):
        raise InputError("hits, images and both orders speak of the same candidates: each needs one value for each.")
    count = int(images.max(initial=-1)) + 1
    once = np.ones(count, dtype=np.int64)
    random = numpy_generator(seed, "bootstrap")

    def differences(times: NDArray[np.int64]) -> list[float]:
        values = []
        for measure in measures.values():
            pair = [measure(hits[order], times[images[order]]) for order in (ours, theirs)]
            values.append(pair[0] - pair[1])
        return values

    drawn = np.array(
        [differences(np.bincount(random.integers(count, size=count), minlength=count)) for _ in range(draws)]
    ).reshape(draws, len(measures))
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    values = zip(measures, differences(once), low.tolist(), high.tolist(), strict=True)
    return {name: PairedDifference(value, down, up) for name, value, down, up in values}


def _formatted(hits: ArrayLike, weights: ArrayLike | None) -> tuple[Bools, NDArray[np.int64]]:
    ordered = np.asarray(hits, dtype=np.bool_)
    times = np.ones(len(ordered), dtype=np.int64) if weights is None else np.asarray(weights, dtype=np.int64)
    if ordered.ndim != 1 or times.shape != ordered.shape:
        raise InputError(f"hits {ordered.shape} and weights {times.shape}: one of each for every candidate.")
    return ordered, times


def _first(hits: Bools, times: NDArray[np.int64], count: int) -> tuple[int, int]:
    """Return hits and candidates among the first ``count``; a candidate that counts several times may be cut."""
    ends: NDArray[Any] = np.cumsum(times)
    last = int(np.searchsorted(ends, count))
    found, taken = int(times[:last][hits[:last]].sum()), int(ends[last - 1]) if last else 0
    if last < len(hits) and taken < count:
        part = count - taken
        found, taken = found + part * int(hits[last]), count
    return found, taken
