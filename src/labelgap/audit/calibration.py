r"""From logits of several runs to one score, comparable between classes: the probability that a label is missing.

Three steps, each with few parameters, so that little data is enough. All of them use out-of-fold logits:

1. *One scale.* The logits :math:`x_r` of each run become log-odds that a label is *observed present*, by one slope and
   one intercept for all classes (Platt), and so does the mean over runs:
   :math:`z = a\,\overline{(a_r x_r + b_r)} + b`. A prior, such as zero-shot scores, joins them by a logistic
   regression on both, in which it counts as much as the known labels follow it: ``prior_lines``.
2. *Which labels are present, and which of those are known*: the model of ``estimate``, fitted to histograms of
   :math:`z`.
3. *Scores*: the model's probability that an unknown label is present, one slope for all classes and an offset for each.
   Their sum over the unknown labels of a class is the estimate of how many are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.audit.estimate import fit_label_model, stopping_ratio
from labelgap.audit.score_sample import ScoreSample
from labelgap.metrics.calibration import nonnegative_logistic, platt_scaling
from labelgap.metrics.thresholds import MIN_PRESENT

_MIN_SLOPE: Final = 0.01
"""Per standard deviation of the logits: an uninformative model does not reverse the ranking of the others."""
_MAX_UNKNOWN: Final = 500_000
_BINS: Final = 64
"""Of the histogram of a class."""


@dataclass(frozen=True, eq=False)
class ScoreCalibration:
    """Turns logits into scores.

    Attributes:
        lines: ``(R, 2)`` slope and intercept of each run.
        mean_line: slope and intercept of their mean.
        offset: ``(K,)`` of each class.
        mean_not_present: ``(K,)`` the mean score of the labels of a class that are not known to be present.
        mean_present: ``(K,)`` the mean score of those that are; 1 where they are fewer than five.
    """

    lines: NDArray[np.float64]
    mean_line: NDArray[np.float64]
    offset: NDArray[np.float64]
    mean_not_present: NDArray[np.float64]
    mean_present: NDArray[np.float64]

    def log_odds(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """Return the log-odds ``(B, K)`` of being missing, from logits ``(R, B, K)``: they rank the unknown labels."""
        return _apply(_mean_log_odds(logits, self.lines), self.mean_line) + self.offset.astype(np.float32)

    def scores(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scores ``(B, K)``, from 0 to 1, of logits ``(R, B, K)``."""
        scores: NDArray[np.float32] = expit(self.log_odds(logits))
        return scores


UnknownCounter = Callable[[Callable[[NDArray[Any]], NDArray[Any]], NDArray[np.float64]], NDArray[np.int64]]
"""Counts the unknown labels of all images at or above cuts; see ``count_unknown_above``."""


def fit_calibration(
    sample: ScoreSample, counter: UnknownCounter | None = None, *, prior: bool = False
) -> ScoreCalibration:
    """Fit the calibration of R runs, the leading axis of the sample.

    ``counter`` is given where the sample does not hold all unknown labels. With ``prior``, the last is no run but a
    prior, standardized for each class.
    """
    runs = [sample.map(itemgetter(run)) for run in range(len(sample.present) - prior)]
    lines = np.array([platt_line(run) for run in runs]).reshape(-1, 2)
    lines = prior_lines(sample, lines) if prior else lines
    mean = sample.map(lambda logits: _mean_log_odds(logits, lines))
    mean_line = np.array(platt_line(mean))
    odds = mean.map(lambda values: _apply(values, mean_line))
    edges = _bin_edges(odds)
    unknown_above = None
    if counter is not None:
        unknown_above = counter(lambda logits: _apply(_mean_log_odds(logits, lines), mean_line), edges)
    model = fit_label_model(_centers(edges), _histograms(odds, edges, unknown_above))
    offset = model.unknown_offset(stopping_ratio(odds))
    means = _class_means(odds.map(lambda values: values * model.slope).shift(offset).map(expit))
    return ScoreCalibration(lines, model.slope * mean_line, offset, *means)


def _bin_edges(odds: ScoreSample) -> NDArray[np.float64]:
    """Return the lower edges of each class's bins, ``(K, G)``, evenly spaced over its scores; the first is -inf."""
    low, high = np.full(odds.classes, np.inf), np.full(odds.classes, -np.inf)
    for values, columns in ((odds.present, odds.present_class), (odds.absent, odds.absent_class)):
        np.minimum.at(low, columns, values)
        np.maximum.at(high, columns, values)
    low = np.minimum(low, np.nanmin(odds.unknown, axis=0, initial=np.inf))
    high = np.maximum(high, np.nanmax(odds.unknown, axis=0, initial=-np.inf))
    low, high = np.where(low <= high, low, 0.0), np.where(low <= high, high, 0.0)
    edges: NDArray[np.float64] = np.linspace(low, np.maximum(high, low + 1e-3), _BINS, axis=1, endpoint=False)
    edges[:, 0] = -np.inf
    return edges


def _centers(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centers of bins; that of the first, which is open, is as far from its upper edge as the others'."""
    width = edges[:, 2:3] - edges[:, 1:2]
    return edges[:, 1:2] + width * (np.arange(edges.shape[1]) - 0.5)


def _histograms(
    odds: ScoreSample, edges: NDArray[np.float64], unknown_above: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Return how many known present, known absent and unknown labels are in each bin, ``(3, K, G)``."""
    counts = np.zeros((3, *edges.shape))
    present = _by_class(odds.present, odds.present_class, odds.classes)
    absent = _by_class(odds.absent, odds.absent_class, odds.classes)
    for number in range(odds.classes):
        unknown = odds.unknown[~np.isnan(odds.unknown[:, number]), number]
        for state, values in enumerate((present[number], absent[number], unknown)):
            at = np.searchsorted(edges[number], values, side="right") - 1
            counts[state, number] = np.bincount(at, minlength=edges.shape[1])
    counts[2] *= odds.scale
    if unknown_above is not None:
        counts[2] = -np.diff(unknown_above, axis=1, append=0)
    return counts


def _by_class(
    values: NDArray[np.floating[Any]], columns: NDArray[np.int64], classes: int
) -> list[NDArray[np.floating[Any]]]:
    """Return the values of each class, found by one sort."""
    order = np.argsort(columns, kind="stable")
    return np.split(values[order], np.cumsum(np.bincount(columns, minlength=classes))[:-1])


def platt_line(sample: ScoreSample) -> tuple[float, float]:
    r"""Fit :math:`P(\text{observed present}) = \sigma(a x + b)` over all classes by Platt scaling; return a and b.

    The sample has no leading axes. Unknown and absent labels count as not observed present.
    """
    (values,), is_present, weights = _observations(sample.map(lambda scores: scores[None]))
    if is_present.all() or not is_present.any() or np.ptp(values) == 0:
        return 1.0, 0.0
    return platt_scaling(values, is_present, weights, min_slope=_MIN_SLOPE)


def prior_lines(sample: ScoreSample, lines: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return the lines of R runs and a prior, the last scorer of the sample, whose mean are the log-odds of both.

    .. math:: P(\text{observed present}) = \sigma(\alpha\, m + \beta z + \gamma), \qquad m = \overline{a_r x_r + b_r}

    fitted over all classes as ``platt_line`` does, with :math:`\beta \ge 0`: a prior that known labels contradict
    counts nothing.
    """
    both = sample.map(lambda scores: np.stack([_mean_log_odds(scores[:-1], lines), scores[-1]]))
    values, is_present, weights = _observations(both)
    alpha, beta, gamma = 1.0, 0.0, 0.0
    if is_present.any() and not is_present.all():
        (alpha, beta), gamma = nonnegative_logistic(values, is_present, weights, min_slopes=(_MIN_SLOPE, 0.0))
    total = len(lines) + 1
    return total * np.concatenate([alpha / len(lines) * lines, [[beta, gamma]]])


def _observations(
    sample: ScoreSample,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return the scores ``(R, M)`` of known and of some unknown labels, which are observed present, and weights."""
    rows = sample.unknown[0]
    unknown = sample.unknown[:, :: -(-rows.size // _MAX_UNKNOWN) or 1]
    weight = sample.scale * len(rows) / max(unknown.shape[1], 1)
    unknown = unknown[:, ~np.isnan(unknown[0])]
    values = np.concatenate([sample.present, sample.absent, unknown], axis=1).astype(np.float64)
    known, count = sample.present.shape[1] + sample.absent.shape[1], values.shape[1]
    weights = np.where(np.arange(count) < known, 1.0, weight)
    return values, np.arange(count) < sample.present.shape[1], weights


def _mean_log_odds(logits: NDArray[Any], lines: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the mean over runs, the first axis, of their log-odds."""
    total: NDArray[np.float32] = np.zeros(logits.shape[1:], dtype=np.float32)
    for run, line in zip(logits, lines, strict=True):
        total += _apply(run, line)
    return total / np.float32(len(lines))


def _apply(values: NDArray[Any], line: NDArray[np.float64]) -> NDArray[np.float32]:
    slope, intercept = line.astype(np.float32)
    result: NDArray[np.float32] = np.asarray(values, dtype=np.float32) * slope + intercept
    return result


def _class_means(scores: ScoreSample) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean score of each class's labels that are not known to be present, and of those that are."""
    classes = scores.classes
    known = np.bincount(scores.present_class, minlength=classes)
    total = np.bincount(scores.present_class, weights=scores.present, minlength=classes)
    present = np.where(known >= MIN_PRESENT, total / np.maximum(known, 1), 1.0)
    count = scores.scale * (~np.isnan(scores.unknown)).sum(axis=0)
    others = scores.scale * np.nansum(scores.unknown, axis=0)
    count = count + np.bincount(scores.absent_class, minlength=classes)
    others = others + np.bincount(scores.absent_class, weights=scores.absent, minlength=classes)
    return others / np.maximum(count, 1), present
