"""Bootstrap intervals: how much a metric varies with the images it is measured on, of which all classes are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.special import expit, logit
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN, as_array
from labelgap.metrics.average_precision import average_precision, map_chunks, to_rows
from labelgap.metrics.classification import ConfusionCounts
from labelgap.metrics.validation import MIN_KNOWN_LABELS, Codes, Floats, Labels, Scores, format_pair

Interval: TypeAlias = tuple[float, float]

_MAX_DRAWN: Final = 1 << 22
_MAX_WORK: Final = 10_000_000_000
_MIN_RESAMPLES: Final = 100
_MIN_SPREAD: Final = 1e-9


@dataclass(frozen=True)
class Intervals:
    """The interval of each metric; None where the labels do not support one, and of F1 without decisions."""

    map: Interval | None
    map_samples: Interval | None
    f1_micro: Interval | None
    f1_macro: Interval | None
    average_precision: tuple[Interval | None, ...]
    resamples: int
    level: float


def bootstrap_intervals(
    scores: Scores,
    labels: Labels,
    decisions: Scores | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Intervals:
    r"""Bootstrap intervals over images of average precision and, for given decisions, of F1.

    .. math:: \operatorname{logit}^{-1}\Bigl(\operatorname{logit} m \pm z\, \frac{s}{m (1 - m)}\Bigr)

    with :math:`m` the metric on all images, :math:`s` its standard deviation over the resamples, and :math:`z` 1.96
    for 95 %. The scale of the logit keeps the ends between 0 and 1; in simulations of one class with 10 to 100 known
    presents such intervals contained the true value in 91 to 95 % of cases, plain percentiles in 87 to 94 %.

    All of scores, labels and decisions (what is predicted present) are ``(N, K)``. Fewer ``resamples`` are drawn, at
    least 100, where known labels × resamples exceed 10¹⁰. A class with fewer than 5 known presents or 5 known absents
    has no interval: so few are not representative. A mean over classes has one if any class has. A metric that is the
    same in every resample (a perfect ranking) has none. In a resample, a mean is over the classes that have both states
    in it.
    """
    formatted, codes = format_pair(scores, labels)
    if resamples < 2 or not 0 < level < 1:
        raise InputError(
            f"resamples ({resamples}) must be at least 2, and the level ({level}) must lie between 0 and 1."
        )
    images, classes = codes.shape
    count = min(resamples, max(_MIN_RESAMPLES, _MAX_WORK // max(int((codes != UNKNOWN).sum()), 1)))
    present, absent = codes == PRESENT, codes == ABSENT
    known = np.minimum(present.sum(axis=0), absent.sum(axis=0))
    columns, enough = np.flatnonzero(known > 0), known >= MIN_KNOWN_LABELS
    rankings = [WeightedRanking(formatted[:, column], codes[:, column]) for column in columns.tolist()]
    by_image = average_precision(formatted.T, codes.T, average=None) if codes.size else np.full(images, np.nan)
    is_counted, by_image = (~np.isnan(by_image)).astype(np.float64), np.nan_to_num(by_image)
    parts: list[_RowSums] = []
    if decisions is not None:  # F1 is over classes that have both states
        predicted = as_array(decisions, "decisions")
        entries = (predicted & present, predicted & (present | absent), present, absent)
        parts = [_RowSums.by_column(each[:, columns]) for each in entries]

    def measure(weights: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return ``(M, R)`` for weights ``(N, R)``; NaN where a resample does not have the metric."""
        values = [ranking(weights) for ranking in rankings]
        counted = is_counted @ weights
        samples = np.where(counted > 0, by_image @ weights / np.maximum(counted, 1), np.nan)
        values += [_mean_of_defined(np.array(values).reshape(-1, weights.shape[1])), samples]
        if parts:
            sums = [part(weights).astype(np.float64) for part in parts]
            both = (sums[2] > 0) & (sums[3] > 0)
            micro = ConfusionCounts(*(part.sum(axis=0) for part in sums)).f1()
            macro = _mean_of_defined(np.where(both, ConfusionCounts(*sums).f1(), np.nan))
            values += [np.where(both.any(axis=0), micro, np.nan), macro]
        return np.stack(values)

    measured = measure(np.ones((images, 1), dtype=np.float32))
    drawn = [measure(weights) for weights in bootstrap_weights(images, count, np.random.default_rng(seed))]
    values = np.ma.masked_invalid(np.concatenate([measured[:, :0], *drawn], axis=1))
    spread = values.std(axis=1, ddof=1).filled(0.0)  # 0 where fewer than two resamples have the metric
    ends = _logit_interval(measured[:, 0], spread, level).tolist()
    found: list[Interval | None] = [None if np.isnan(low) else (low, high) for low, high in ends]
    by_class: list[Interval | None] = [None] * classes
    for column, each in zip(columns.tolist(), found, strict=False):
        by_class[column] = each if enough[column] else None
    mean, samples, micro, macro = [*found[len(columns) :], None, None][:4]
    mean, micro, macro = (each if enough.any() else None for each in (mean, micro, macro))
    samples = samples if is_counted.sum() >= MIN_KNOWN_LABELS else None
    return Intervals(mean, samples, micro, macro, tuple(by_class), count, level)


def average_precision_intervals(scores: Scores, labels: Labels, *, level: float = 0.95) -> NDArray[np.float64]:
    r"""Intervals of the average precision of each class, without resampling: for very many classes.

    They are those of :func:`bootstrap_intervals`, but :math:`s` is the standard deviation that a bootstrap over images
    has to first order, by the infinitesimal jackknife:

    .. math:: s^2 = \sum_i \Bigl(\frac{\partial \mathrm{AP}}{\partial w_i}\Bigr)^2

    with :math:`w_i = 1` how often image :math:`i` counts. That takes one sort of each class. In simulations of classes
    with 6 to 100 known presents the intervals were 0.96 to 1.01 times as wide as with 200 resamples, and contained the
    true value in 91 to 96 % of cases; in 88 % for 10 presents that hardly rank above the absents.

    Returns ``(K, 2)``, low and high; NaN where :func:`bootstrap_intervals` gives none.
    """
    formatted, codes = format_pair(scores, labels)
    if not 0 < level < 1:
        raise InputError(f"the level ({level}) must lie between 0 and 1.")
    known = np.minimum((codes == PRESENT).sum(axis=0), (codes == ABSENT).sum(axis=0))

    def measure(chunk: slice) -> NDArray[np.float64]:
        rankings = zip(to_rows(formatted.T[chunk]), to_rows(codes.T[chunk]), known[chunk], strict=True)
        few = (0.0, 0.0)  # nothing varies: no interval
        found = [few if least < MIN_KNOWN_LABELS else _first_order_spread(*ranking) for *ranking, least in rankings]
        return np.array(found).reshape(-1, 2)

    middle, spread = np.concatenate(map_chunks(measure, *codes.shape[::-1])).T
    return _logit_interval(middle, spread, level)


def _first_order_spread(scores: Floats, codes: Codes) -> tuple[float, float]:
    r"""Return the average precision of a class, and its standard deviation over resampled images.

    With :math:`H_c` hits among :math:`T_c` taken at the cut :math:`c` of a present entry, :math:`P` presents and
    :math:`\alpha_i = \sum_{c:\, s_c \le s_i} H_c / T_c^2`, :math:`\beta_i = \sum_{c:\, s_c \le s_i} 1 / T_c`, the
    derivative by the weight of an absent entry is :math:`-\alpha / P`, and by that of a present one
    :math:`(H/T + \beta - \alpha - \mathrm{AP}) / P`.
    """
    absent = np.sort(scores[codes == ABSENT])
    values, number = np.unique(scores[codes == PRESENT], return_counts=True)
    above = len(absent) - np.searchsorted(absent, values)
    hits = np.cumsum(number[::-1])[::-1]
    taken, count = hits + above, hits[0]
    precision = hits / taken
    average = (number * precision).sum() / count
    alpha, beta = (np.cumsum(number * each) for each in (precision / taken, 1 / taken))
    by_present = number * (precision + beta - alpha - average) ** 2
    by_absent = -np.diff(above, append=0) * alpha**2
    return float(average), math.sqrt((by_present + by_absent).sum()) / int(count)


def _logit_interval(middle: NDArray[np.float64], spread: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Return the ends of intervals on the scale of the logit, ``(M, 2)``; NaN where nothing varies."""
    varies = (middle > 0) & (middle < 1) & (spread >= _MIN_SPREAD)
    safe = np.where(varies, middle, 0.5)
    reach = NormalDist().inv_cdf((1 + level) / 2) * spread / (safe * (1 - safe))
    ends: NDArray[np.float64] = expit(logit(safe)[:, None] + reach[:, None] * np.array([-1.0, 1.0]))
    return np.where(varies[:, None], ends, np.nan)


def bootstrap_weights(images: int, resamples: int, random: np.random.Generator) -> Iterator[NDArray[np.float32]]:
    """Draw images with replacement: yield how often each was drawn, ``(N, R)``, a few resamples at a time."""
    step = max(1, min(resamples, _MAX_DRAWN // max(images, 1)))
    for start in range(0, resamples if images else 0, step):
        weights = np.empty((images, min(step, resamples - start)), dtype=np.float32)
        for column in weights.T:
            column[:] = np.bincount(random.integers(0, images, images), minlength=images)
        yield weights


def resampled_average_precision(scores: Floats, codes: Codes, weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean average precision over classes in every resample, ``(R,)``, with its weights.

    A class that a resample has no present or no absent image of is left out; NaN where that is every class.
    """
    counted = np.flatnonzero((codes == PRESENT).any(axis=0) & (codes == ABSENT).any(axis=0))
    values = [WeightedRanking(scores[:, column], codes[:, column])(weights) for column in counted.tolist()]
    return _mean_of_defined(np.stack(values) if values else np.empty((0, weights.shape[1])))


class WeightedRanking:
    """The average precision of one class when images count by weights; the order is found once for many resamples."""

    def __init__(self, scores: Floats, codes: Codes) -> None:
        known = np.flatnonzero(codes != UNKNOWN)
        order = known[np.argsort(-scores[known].astype(np.float64), kind="stable")]
        ranked, is_present = scores[order], codes[order] == PRESENT
        last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(order) - 1)
        group = np.searchsorted(last, np.arange(len(order)))
        cuts = last[np.unique(group[is_present])]
        places, starts = np.flatnonzero(is_present), np.append(0, cuts[:-1] + 1)
        lists = (order[: cuts[-1] + 1], order[places], order[~is_present])
        first, second, _ = np.cumsum([len(rows) for rows in lists])
        self._sums = _RowSums(
            np.concatenate(lists), np.concatenate([starts, first + np.searchsorted(places, starts), [second]])
        )

    def __call__(self, weights: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return average precision, ``(R,)``, for weights ``(N, R)``; NaN where a resample lacks one of the states."""
        sums = self._sums(weights)
        taken, new_hits = sums[:-1].reshape(2, -1, weights.shape[1])
        hits = np.cumsum(new_hits, axis=0, dtype=np.float64)
        precision = hits / np.maximum(np.cumsum(taken, axis=0, dtype=np.float64), 1)
        both = (hits[-1] > 0) & (sums[-1] > 0)
        return np.where(both, (new_hits * precision).sum(axis=0) / np.maximum(hits[-1], 1), np.nan)


class _RowSums(NamedTuple):
    """Lists of rows, one after the other, and where each begins."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def by_column(cls, entries: NDArray[np.bool_]) -> _RowSums:
        """Return a list for each column of a table: where it is true."""
        columns, rows = np.nonzero(entries.T)
        return cls(rows, np.searchsorted(columns, np.arange(entries.shape[1])))

    def __call__(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the sums ``(C, R)`` of the weights ``(N, R)`` of each list."""
        import torch

        rows, table, starts = (torch.from_numpy(each) for each in (self.rows, weights, self.starts))
        return np.asarray(torch.nn.functional.embedding_bag(rows, table, starts, mode="sum").numpy())


def _mean_of_defined(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each column over its values that are not NaN; NaN where there is none."""
    defined = ~np.isnan(values)
    count = defined.sum(axis=0)
    mean = np.where(defined, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    return np.where(count > 0, mean, np.nan)
