r"""From logits of several runs to one score, comparable between classes: the probability that a label is missing.

Four steps, each with few numbers to estimate, so that little data is enough. All of it looks at out-of-fold logits:

1. *One scale.* The logits :math:`x_r` of each run become log-odds that a label is *given*, by one slope and one
   intercept for all classes (Platt), and the mean over runs is brought to that scale again:
   :math:`z = a\,\overline{(a_r x_r + b_r)} + b`.
2. *How many are missing* of each class, :math:`m_k` beside its :math:`n_k` known ones, at most: ``obvious_first`` of
   ``estimate_missing_from_scores``.
3. *An offset for each class.* Were tags missing at random, the chance that a label which nobody gave is there would be
   :math:`(m_k / n_k)\,e^{z}` (Elkan and Noto). Estimates of :math:`m_k` err, so the offset goes half of the way:
   :math:`\tfrac12 \ln (m_k / n_k)`.
4. *One shift* :math:`\beta` for all, such that the scores of all unknown labels sum up to :math:`\sum_k m_k`. Most of
   them are next to nothing, and the many of them make up for the false alarms in :math:`m_k`.

.. math:: \text{score} = \sigma\big(z + \tfrac12 \ln (m_k / n_k) + \beta\big)

Reference: Elkan & Noto, "Learning classifiers from only positive and unlabeled data", KDD 2008. Chosen among some
thirty variants on the val images of VOC 2012; docs/audit.md tells how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.audit.estimate import FEWEST, MissingEstimate, cut_points, estimate_missing_from_scores
from labelgap.audit.score_sample import ScoreSample
from labelgap.metrics.calibration import platt_scaling

__all__ = ["ScoreCalibration", "UnknownCounter", "fit_calibration", "platt_line", "shift_to_estimate"]

SHARE: Final = 0.5
"""How far the offset of a class goes."""
_MIN_SLOPE: Final = 0.01
"""The smallest slope, in standard deviations: a model that knows nothing does not turn the ranking of others round."""
_ENOUGH: Final = 500_000
_BINS: Final = 8192


@dataclass(frozen=True, eq=False)
class ScoreCalibration:
    """Makes scores of logits.

    Attributes:
        lines: ``(R, 2)`` slope and intercept of each run.
        whole: slope and intercept of their mean.
        offset: ``(K,)`` of each class, the common shift in it.
        usual: ``(K,)`` the mean score of labels of a class that are not known to be present.
        present: ``(K,)`` the mean score of those that are; 1 where they are too few to tell.
    """

    lines: NDArray[np.float64]
    whole: NDArray[np.float64]
    offset: NDArray[np.float64]
    usual: NDArray[np.float64]
    present: NDArray[np.float64]

    def log_odds(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """Return the log-odds ``(B, K)`` of being missing, from logits ``(R, B, K)``: they rank the unknown labels."""
        return _line(_pooled(logits, self.lines), self.whole) + self.offset.astype(np.float32)

    def scores(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scores ``(B, K)``, from 0 to 1, of logits ``(R, B, K)``."""
        probabilities: NDArray[np.float32] = expit(self.log_odds(logits))
        return probabilities


UnknownCounter = Callable[[Callable[[NDArray[Any]], NDArray[Any]], NDArray[np.float64]], NDArray[np.int64]]
"""Counts unknown labels of all images at cuts; see ``count_at``."""


def fit_calibration(
    evidence: ScoreSample, counter: UnknownCounter | None = None
) -> tuple[ScoreCalibration, MissingEstimate | None]:
    """Find out what makes the logits of R runs one score.

    Args:
        evidence: with one leading axis of R.
        counter: counts the unknown labels of all images, where the evidence holds a sample of them.

    Returns:
        The calibration, and how many labels are missing; None where no class has enough known ones to tell.
    """
    lines = np.array([platt_line(_of_run(evidence, run)) for run in range(len(evidence.present))]).reshape(-1, 2)
    pooled = evidence.mapped(lambda logits: _pooled(logits, lines))
    whole = np.array(platt_line(pooled))
    odds = pooled.mapped(lambda scores: _line(scores, whole))
    cuts = cut_points(odds)
    taken = None if counter is None else counter(lambda logits: _line(_pooled(logits, lines), whole), cuts)
    estimate = estimate_missing_from_scores(odds, cuts, taken)
    offset = SHARE * np.log(_missing_per_known(odds, estimate))
    offset = offset + (0.0 if estimate is None else shift_to_estimate(odds.moved(offset), estimate))
    usual, present = _means(odds.moved(offset).mapped(expit))
    return ScoreCalibration(lines, whole, offset, usual, present), estimate


def platt_line(evidence: ScoreSample) -> tuple[float, float]:
    r"""Fit one slope and one intercept: :math:`P(\text{given as present}) = \sigma(a x + b)`, over all classes.

    See ``platt_scaling``.

    Args:
        evidence: of one run, without leading axes. Unknown and absent labels are those that were not given as present.
    """
    present = evidence.present.astype(np.float64)
    unknown = evidence.unknown[:: -(-evidence.unknown.size // _ENOUGH) or 1]
    weight = evidence.scale * len(evidence.unknown) / max(len(unknown), 1)
    unknown = unknown[~np.isnan(unknown)].astype(np.float64)
    values = np.concatenate([present, evidence.absent, unknown])
    weights = np.concatenate([np.ones(len(present) + len(evidence.absent)), np.full(len(unknown), weight)])
    is_present = np.arange(len(values)) < len(present)
    if is_present.all() or not is_present.any() or np.ptp(values) == 0:
        return 1.0, 0.0
    return platt_scaling(values, is_present, weights, min_slope=_MIN_SLOPE)


def shift_to_estimate(odds: ScoreSample, estimate: MissingEstimate) -> float:
    """Return the number that, added to all log-odds, makes the scores of unknown labels sum up to the estimate.

    Only classes that the estimate speaks of count. Log-odds are put into a fine histogram first, so that the search
    costs the same for any number of them.
    """
    values = odds.unknown[:, estimate.counted]
    values = values[~np.isnan(values)]
    if not len(values):
        return 0.0
    counts, edges = np.histogram(values, bins=_BINS)
    middle = (edges[1:] + edges[:-1]) / 2
    wanted = np.clip(estimate.most / odds.scale, 0.5, 0.99 * len(values))
    low, high = -60.0 - float(edges[-1]), 60.0 - float(edges[0])
    for _ in range(80):
        shift = (low + high) / 2
        low, high = (shift, high) if float(counts @ expit(middle + shift)) < wanted else (low, shift)
    return (low + high) / 2


def _of_run(evidence: ScoreSample, run: int) -> ScoreSample:
    return evidence.mapped(lambda logits: logits[run])


def _pooled(logits: NDArray[Any], lines: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the mean over runs, the first axis, of their log-odds."""
    total: NDArray[np.float32] = np.zeros(logits.shape[1:], dtype=np.float32)
    for each, line in zip(logits, lines, strict=True):
        total += _line(each, line)
    return total / np.float32(len(lines))


def _line(values: NDArray[Any], line: NDArray[np.float64]) -> NDArray[np.float32]:
    slope, intercept = line.astype(np.float32)
    result: NDArray[np.float32] = np.asarray(values, dtype=np.float32) * slope + intercept
    return result


def _missing_per_known(odds: ScoreSample, estimate: MissingEstimate | None) -> NDArray[np.float64]:
    """Return missing labels for each known one, ``(K,)``; few known ones are drawn towards the ratio of all."""
    if estimate is None or not estimate.obvious_first.any():
        return np.ones(odds.classes)
    known = np.bincount(odds.present_class, minlength=odds.classes)
    overall = float(estimate.obvious_first.sum()) / estimate.known
    missing = np.where(estimate.counted, estimate.obvious_first, overall * known)
    ratio: NDArray[np.float64] = (missing + FEWEST * overall) / (known + FEWEST)
    return ratio


def _means(scores: ScoreSample) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return, for each class, the mean score of labels that are not known to be present, and of those that are."""
    known = np.bincount(scores.present_class, minlength=scores.classes)
    total = np.bincount(scores.present_class, weights=scores.present, minlength=scores.classes)
    present = np.where(known >= FEWEST, total / np.maximum(known, 1), 1.0)
    count = scores.scale * (~np.isnan(scores.unknown)).sum(axis=0)
    others = scores.scale * np.nansum(scores.unknown, axis=0)
    count = count + np.bincount(scores.absent_class, minlength=scores.classes)
    others = others + np.bincount(scores.absent_class, weights=scores.absent, minlength=scores.classes)
    return others / np.maximum(count, 1), present
