"""Bootstrap intervals: how much a metric varies with the images it is measured on.

Images are resampled with replacement, and every metric is computed on each resample. All classes of an image are drawn
together, since they are not independent, so that the interval of a mean over classes is right too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit, logit, ndtri

from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN, as_array
from labelgap.metrics.average_precision import Cuts, average_precision, cuts_at_present, map_chunks, to_rows
from labelgap.metrics.classification import ConfusionCounts
from labelgap.metrics.validation import MIN_KNOWN_LABELS, Codes, Floats, Labels, Scores, format_pair

Interval: TypeAlias = tuple[float, float]

_MAX_DRAWN: Final = 1 << 22
_MAX_WORK: Final = 10_000_000_000
_MIN_RESAMPLES: Final = 100
_MIN_SPREAD: Final = 1e-9


@dataclass(frozen=True)
class Intervals:
    """The interval of each metric; None where the labels do not support one, and of F1 without decisions.

    ``map`` is the mean of average precision over classes, ``map_samples`` over images; about ``level`` of such
    intervals contain the true value.
    """

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

    Args:
        scores: ``(N, K)`` finite numbers, probabilities or logits alike.
        labels: ``(N, K)`` of 1 present, 0 absent, -1 or NaN unknown; or a label table.
        decisions: ``(N, K)``, what is predicted present; without it there is no interval of F1.
        resamples: number of resamples. Fewer are drawn, at least 100, where known labels × resamples exceed 10¹⁰.
        seed: of the draws.
        level: from 0 to 1.

    A class with fewer than 5 known presents or 5 known absents has no interval: so few are not representative. A mean
    over classes has one if any class has. A metric that is the same in every resample (a perfect ranking) has none. In
    a resample, a mean is over the classes that have both states in it.
    """
    formatted, codes = format_pair(scores, labels)
    if resamples < 2 or not 0 < level < 1:
        raise InputError(f"resamples ({resamples}) are at least 2, and the level ({level}) lies between 0 and 1.")
    count = min(resamples, max(_MIN_RESAMPLES, _MAX_WORK // max(int((codes != UNKNOWN).sum()), 1)))
    metrics = _ResampledMetrics(formatted, codes, None if decisions is None else as_array(decisions, "decisions"))
    measured = metrics(np.ones((len(codes), 1), dtype=np.float32))
    parts = [metrics(weights) for weights in bootstrap_weights(len(codes), count, np.random.default_rng(seed))]
    values = np.ma.masked_invalid(np.concatenate([measured[:, :0], *parts], axis=1))
    spread = values.std(axis=1, ddof=1).filled(0.0)  # 0 where fewer than two resamples have the metric
    ends = _logit_interval(measured[:, 0], spread, level).tolist()
    return metrics.named([None if np.isnan(low) else (low, high) for low, high in ends], count, level)


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
        raise InputError(f"the level ({level}) lies between 0 and 1.")
    found = np.full((codes.shape[1], 2), np.nan)

    def measure(chunk: slice) -> NDArray[np.float64]:
        states = to_rows(codes.T[chunk])
        cuts = cuts_at_present(to_rows(formatted.T[chunk]), states)
        present, absent = (np.count_nonzero(states == state, axis=1) for state in (PRESENT, ABSENT))
        ends = _logit_interval(*_first_order_spread(cuts, present), level)
        ends[(present < MIN_KNOWN_LABELS) | (absent < MIN_KNOWN_LABELS)] = np.nan
        return ends

    for chunk, ends in map_chunks(measure, *codes.shape[::-1]):
        found[chunk] = ends
    return found


def _first_order_spread(cuts: Cuts, present: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return the average precision of R rankings and its standard deviation over resampled images, ``(R,)`` each.

    With :math:`H_c` hits among :math:`T_c` taken at the cut :math:`c` of a present entry, :math:`P` presents and
    :math:`\alpha_i = \sum_{c:\, s_c \le s_i} H_c / T_c^2`, :math:`\beta_i = \sum_{c:\, s_c \le s_i} 1 / T_c`, the
    derivative by the weight of an absent entry is :math:`-\alpha / P`, and by that of a present one
    :math:`(H/T + \beta - \alpha - \mathrm{AP}) / P`.
    """
    hits, taken, ranking, count = cuts.hits.astype(np.float64), cuts.taken, cuts.ranking, len(present)
    new = np.ones(len(hits), dtype=bool)  # the first of entries with equal scores
    new[1:] = (cuts.hits[1:] != cuts.hits[:-1]) | (ranking[1:] != ranking[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(hits)) - 1 if len(hits) else first
    starts = np.cumsum(present) - present

    def lower_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.concatenate([[0.0], np.cumsum(values)])
        lower: NDArray[np.float64] = total[last + 1] - total[starts[ranking[first]]]
        return lower

    def sums(values: NDArray[np.float64], of: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.bincount(of, weights=values, minlength=count).astype(np.float64)

    precision, divisor = hits / taken, np.maximum(present, 1)
    average = sums(precision, ranking) / divisor
    alpha, beta, group = lower_sums(precision / taken), lower_sums(1 / taken), ranking[first]
    by_present = precision[first] + beta - alpha - average[group]
    wrong = np.append((taken - cuts.hits)[first], 0)  # absent entries at or above a cut
    higher = np.where(np.append(group[1:] == group[:-1], False) if len(group) else group, wrong[1:], 0)
    squares = (last - first + 1) * by_present**2 + (wrong[:-1] - higher) * alpha**2
    return average, np.sqrt(sums(squares, group)) / divisor


def _logit_interval(middle: NDArray[np.float64], spread: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Return the ends of intervals on the scale of the logit, ``(M, 2)``; NaN where nothing varies."""
    varies = (middle > 0) & (middle < 1) & (spread >= _MIN_SPREAD)
    safe = np.where(varies, middle, 0.5)
    reach = float(ndtri((1 + level) / 2)) * spread / (safe * (1 - safe))
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
    """Return the mean average precision over classes in every resample, ``(R,)``.

    Equal scores are one step, unknown entries are left out, and so is a class that a resample has no present or no
    absent image of; NaN where that is every class. The weights, ``(N, R)``, are those of :func:`bootstrap_weights`.
    """
    counted = np.flatnonzero((codes == PRESENT).any(axis=0) & (codes == ABSENT).any(axis=0))
    values = [WeightedRanking(scores[:, column], codes[:, column])(weights) for column in counted.tolist()]
    return _mean_of_defined(np.stack(values) if values else np.empty((0, weights.shape[1])))


class WeightedRanking:
    """The average precision of one class, with a known present, when every image counts as often as its weight says.

    A resample only changes how often each image counts, so the order is found once; of a resample, only the sums
    between the cuts at present entries are needed, which a sparse matrix of ones gives for many resamples at a time.
    """

    def __init__(self, scores: Floats, codes: Codes) -> None:
        known = np.flatnonzero(codes != UNKNOWN)
        order = known[np.argsort(-scores[known].astype(np.float64), kind="stable")]
        ranked, is_present = scores[order], codes[order] == PRESENT
        last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(order) - 1)
        group = np.searchsorted(last, np.arange(len(order)))
        cuts = last[np.unique(group[is_present])]
        self._taken = _row_sums(order, np.concatenate([[0], cuts + 1]), len(codes))
        places = np.flatnonzero(is_present)
        self._hits = _row_sums(order[places], np.concatenate([[0], np.searchsorted(places, cuts + 1)]), len(codes))
        self._absent = _row_sums(order[~is_present], np.array([0, (~is_present).sum()]), len(codes))

    def __call__(self, weights: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return average precision, ``(R,)``, for weights ``(N, R)``; NaN where a resample lacks one of the states."""
        new_hits = self._hits @ weights
        hits = np.cumsum(new_hits, axis=0, dtype=np.float64)
        precision = hits / np.maximum(np.cumsum(self._taken @ weights, axis=0, dtype=np.float64), 1)
        both = (hits[-1] > 0) & ((self._absent @ weights)[0] > 0)
        return np.where(both, (new_hits * precision).sum(axis=0) / np.maximum(hits[-1], 1), np.nan)


def _row_sums(rows: NDArray[np.int64], borders: NDArray[np.int64], images: int) -> csr_array:
    """Return the ``(C, N)`` matrix that sums what lies between borders of a list of rows."""
    rows = rows[: borders[-1]]
    return csr_array((np.ones(len(rows), dtype=np.float32), rows, borders), shape=(len(borders) - 1, images))


class _ResampledMetrics:
    """All metrics of resampled images: of each class that has both states, their mean, mean over images, and F1."""

    def __init__(self, scores: Floats, codes: Codes, decisions: NDArray[np.bool_] | None) -> None:
        present, absent = (np.count_nonzero(codes == state, axis=0) for state in (PRESENT, ABSENT))
        self.classes = codes.shape[1]
        self.columns = np.flatnonzero((present > 0) & (absent > 0))
        self.enough = (present >= MIN_KNOWN_LABELS) & (absent >= MIN_KNOWN_LABELS)
        self.rankings = [WeightedRanking(scores[:, column], codes[:, column]) for column in self.columns.tolist()]
        each = average_precision(scores.T, codes.T, average=None) if codes.size else np.full(len(codes), np.nan)
        self.counted = (~np.isnan(each)).astype(np.float64)
        self.each = np.where(np.isnan(each), 0.0, each)
        self.decided = None if decisions is None else _Decisions(decisions[:, self.columns], codes[:, self.columns])

    def __call__(self, weights: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return ``(M, R)`` for weights ``(N, R)``; NaN where a resample does not have the metric."""
        resamples = weights.shape[1]
        values = [ranking(weights) for ranking in self.rankings]
        mean = _mean_of_defined(np.stack(values) if values else np.empty((0, resamples)))
        images = self.counted @ weights
        samples = np.where(images > 0, self.each @ weights / np.maximum(images, 1), np.nan)
        return np.stack([*values, mean, samples, *(() if self.decided is None else self.decided(weights))])

    def named(self, found: Sequence[Interval | None], resamples: int, level: float) -> Intervals:
        """Return the intervals of all metrics by name."""
        by_class: list[Interval | None] = [None] * self.classes
        for column, interval in zip(self.columns.tolist(), found, strict=False):
            by_class[column] = interval if self.enough[column] else None
        mean, samples, micro, macro = [*found[len(self.columns) :], None, None][:4]
        mean, micro, macro = (each if self.enough.any() else None for each in (mean, micro, macro))
        samples = samples if self.counted.sum() >= MIN_KNOWN_LABELS else None
        return Intervals(mean, samples, micro, macro, tuple(by_class), resamples, level)


class _Decisions:
    """F1 of decisions on classes that have both states."""

    def __init__(self, decisions: NDArray[np.bool_], codes: Codes) -> None:
        present, absent = codes == PRESENT, codes == ABSENT
        entries = (decisions & present, decisions & (present | absent), present, absent)
        self.parts = [csr_array(each.T.astype(np.float32)) for each in entries]

    def __call__(self, weights: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return F1 micro and macro, ``(R,)`` each, for weights ``(N, R)``."""
        sums = [np.asarray(part @ weights, dtype=np.float64) for part in self.parts]
        counts = ConfusionCounts(*sums)
        both = (counts.present > 0) & (counts.absent > 0)
        micro = ConfusionCounts(*(part.sum(axis=0) for part in sums)).f1()
        return np.where(both.any(axis=0), micro, np.nan), _mean_of_defined(np.where(both, counts.f1(), np.nan))


def _mean_of_defined(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each column over its values that are not NaN; NaN where there is none."""
    defined = ~np.isnan(values)
    count = defined.sum(axis=0)
    mean = np.where(defined, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    return np.where(count > 0, mean, np.nan)
