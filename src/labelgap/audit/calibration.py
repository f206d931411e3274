r"""From logits of several runs to one score, comparable between classes: the probability that a label is missing.

Four steps, each with few parameters, so that little data is enough. All of them use out-of-fold logits:

1. *One scale.* The logits :math:`x_r` of each run become log-odds that a label is *observed present*, by one slope and
   one intercept for all classes (Platt), and so does the mean over runs:
   :math:`z = a\,\overline{(a_r x_r + b_r)} + b`.
2. *How many labels are missing* of each class, :math:`m_k` beside its :math:`n_k` known ones, at most:
   ``upper_by_class`` of ``estimate_from_scores``.
3. *An offset for each class.* If tags were missing at random, the odds that an unknown label is present would be
   :math:`(m_k / n_k)\,e^{z}` (Elkan and Noto). Estimates of :math:`m_k` are inexact, so the offset is half of that:
   :math:`\tfrac12 \ln (m_k / n_k)`.
4. *One shift* :math:`\beta` for all classes, such that the scores of all unknown labels sum to :math:`\sum_k m_k`. Most
   scores are close to zero, and their large number balances the false positives in :math:`m_k`.

.. math:: \text{score} = \sigma\big(z + \tfrac12 \ln (m_k / n_k) + \beta\big)

Reference: Elkan & Noto, "Learning classifiers from only positive and unlabeled data", KDD 2008. Chosen among some
thirty variants on the val images of VOC 2012; see docs/audit.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.audit.estimate import MissingEstimate, cut_points, estimate_from_scores
from labelgap.audit.score_sample import ScoreSample
from labelgap.metrics.calibration import platt_scaling
from labelgap.metrics.thresholds import MIN_PRESENT

__all__ = ["ScoreCalibration", "UnknownCounter", "fit_calibration", "platt_line", "shift_to_estimate"]

OFFSET_SHARE: Final = 0.5
"""The share of ln(missing / known) that becomes the offset of a class."""
_MIN_SLOPE: Final = 0.01
"""Per standard deviation of the logits: an uninformative model does not reverse the ranking of the others."""
_MAX_UNKNOWN: Final = 500_000
_BINS: Final = 8192


@dataclass(frozen=True, eq=False)
class ScoreCalibration:
    """Turns logits into scores.

    Attributes:
        lines: ``(R, 2)`` slope and intercept of each run.
        mean_line: slope and intercept of their mean.
        offset: ``(K,)`` of each class, including the common shift.
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
    sample: ScoreSample, counter: UnknownCounter | None = None
) -> tuple[ScoreCalibration, MissingEstimate | None]:
    """Fit the calibration of R runs, the leading axis of the sample, and estimate how many labels are missing.

    ``counter`` is given where the sample does not hold all unknown labels. The estimate is None where no class has
    enough known labels.
    """
    runs = [sample.map(itemgetter(run)) for run in range(len(sample.present))]
    lines = np.array([platt_line(run) for run in runs]).reshape(-1, 2)
    mean = sample.map(lambda logits: _mean_log_odds(logits, lines))
    mean_line = np.array(platt_line(mean))
    odds = mean.map(lambda values: _apply(values, mean_line))
    cuts = cut_points(odds)
    unknown_above = None
    if counter is not None:
        unknown_above = counter(lambda logits: _apply(_mean_log_odds(logits, lines), mean_line), cuts)
    estimate = estimate_from_scores(odds, cuts, unknown_above)
    offset = OFFSET_SHARE * np.log(_missing_per_known(odds, estimate))
    offset = offset + (0.0 if estimate is None else shift_to_estimate(odds.shift(offset), estimate))
    means = _class_means(odds.shift(offset).map(expit))
    return ScoreCalibration(lines, mean_line, offset, *means), estimate


def platt_line(sample: ScoreSample) -> tuple[float, float]:
    r"""Fit :math:`P(\text{observed present}) = \sigma(a x + b)` over all classes by Platt scaling; return a and b.

    The sample has no leading axes. Unknown and absent labels count as not observed present.
    """
    present = sample.present.astype(np.float64)
    unknown = sample.unknown[:: -(-sample.unknown.size // _MAX_UNKNOWN) or 1]
    weight = sample.scale * len(sample.unknown) / max(len(unknown), 1)
    unknown = unknown[~np.isnan(unknown)].astype(np.float64)
    values = np.concatenate([present, sample.absent, unknown])
    weights = np.concatenate([np.ones(len(present) + len(sample.absent)), np.full(len(unknown), weight)])
    is_present = np.arange(len(values)) < len(present)
    if is_present.all() or not is_present.any() or np.ptp(values) == 0:
        return 1.0, 0.0
    return platt_scaling(values, is_present, weights, min_slope=_MIN_SLOPE)


def shift_to_estimate(odds: ScoreSample, estimate: MissingEstimate) -> float:
    """Return the number that, added to all log-odds, makes the scores of unknown labels sum to the upper estimate.

    Only the classes that the estimate counts take part. A fine histogram of the log-odds bounds the cost of the search.
    """
    values = odds.unknown[:, estimate.counted]
    values = values[~np.isnan(values)]
    if not len(values):
        return 0.0
    counts, edges = np.histogram(values, bins=_BINS)
    centers = (edges[1:] + edges[:-1]) / 2
    target = np.clip(estimate.upper / odds.scale, 0.5, 0.99 * len(values))
    low, high = -60.0 - float(edges[-1]), 60.0 - float(edges[0])
    for _ in range(80):
        shift = (low + high) / 2
        low, high = (shift, high) if float(counts @ expit(centers + shift)) < target else (low, shift)
    return (low + high) / 2


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


def _missing_per_known(odds: ScoreSample, estimate: MissingEstimate | None) -> NDArray[np.float64]:
    """Return missing labels per known one, ``(K,)``; classes with few known labels shrink to the overall ratio."""
    if estimate is None or not estimate.upper_by_class.any():
        return np.ones(odds.classes)
    known = np.bincount(odds.present_class, minlength=odds.classes)
    overall = float(estimate.upper_by_class.sum()) / estimate.known
    missing = np.where(estimate.counted, estimate.upper_by_class, overall * known)
    ratio: NDArray[np.float64] = (missing + MIN_PRESENT * overall) / (known + MIN_PRESENT)
    return ratio


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
