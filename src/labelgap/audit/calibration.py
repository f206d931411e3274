r"""From logits of several runs to one score, comparable between classes: the probability that a label is missing.

Three steps, each with few parameters, so that little data is enough. All of them use out-of-fold logits:

1. *One scale.* The logits :math:`x_r` of each run become log-odds that a label is *observed present*, by one slope and
   one intercept for all classes (Platt), and so does the mean over runs:
   :math:`z = a\,\overline{(a_r x_r + b_r)} + b`. Priors, such as zero-shot scores or a teacher's, join them by a
   logistic regression on all, in which each counts as much as the known labels follow it: ``prior_lines``.
2. *Which labels are present, and which of those are known*: ``metrics.label_model``, fitted to histograms of :math:`z`.
3. *Scores*: the model's probability that an unknown label is present, one slope for all classes and an offset for each.
   Their sum over the unknown labels of a class is the estimate of how many are missing.

All known labels are kept for this. Of the unknown ones, those of a random sample of images are kept, so that memory
does not grow with images × classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.scorers import BLOCK_SIZE, Scorer, score_blocks
from labelgap.core.seeds import numpy_generator
from labelgap.core.special import expit
from labelgap.labels import PRESENT, LabelTable
from labelgap.metrics.label_model import (
    BINS,
    MIN_SLOPE,
    Answers,
    ErrorModel,
    draw_shifts,
    expected_counts,
    fit_error_model,
    fit_label_model,
    interval,
    logistic_line,
    platt_scaling,
    stopping_ratio,
)

_MAX_UNKNOWN: Final = 500_000


@dataclass(frozen=True, eq=False)
class ScoreCalibration:
    """Turns logits into scores."""

    lines: NDArray[np.float64]  # (R, 2) slope and intercept of each run
    mean_line: NDArray[np.float64]  # slope and intercept of their mean
    offset: NDArray[np.float64]  # (K,) of each class
    scale: float  # log-odds of being missing for one of being known
    errors: ErrorModel  # by the log-odds of being known
    spread: tuple[float, float]  # how wrong the log-odds of all classes may be, down and up; a review starts from it
    range: tuple[int, int]  # how few and how many labels may be missing: the 95 % interval of the label model

    def log_odds(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """Return the log-odds ``(B, K)`` of being missing, from logits ``(R, B, K)``: they rank the unknown labels."""
        return _apply(_mean_log_odds(logits, self.lines), self.mean_line) + self.offset.astype(np.float32)

    def scores(self, logits: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scores ``(B, K)``, from 0 to 1, of logits ``(R, B, K)``."""
        return expit(self.log_odds(logits))

    def wrong(
        self, log_odds: NDArray[np.float32], column: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return the probabilities ``(L,)`` that known labels of some classes are wrong."""
        return self.errors.wrong((log_odds - self.offset[column]) / self.scale, column, present)


@dataclass(frozen=True, eq=False)
class ScoreSample:
    """Scores of all known labels, the present ones first, and of the unknown labels of a sample of images."""

    known: NDArray[np.floating[Any]]  # (…, L); leading axes are those of several scorers, if any
    column: NDArray[np.int64]  # (L,) class numbers
    is_present: NDArray[np.bool_]  # (L,)
    others: NDArray[np.int64]  # (L,) other known present labels in the image of each known present one
    unknown: NDArray[np.floating[Any]]  # (…, M, K) of the sampled images; NaN where the label is known
    unknown_others: NDArray[np.int64]  # (M,) known present labels of the sampled images
    scale: float = 1.0  # number of images per sampled image

    def map(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> ScoreSample:
        """Return the sample with a function applied to all scores; it may remove the leading axes."""
        return replace(self, known=function(self.known), unknown=function(self.unknown))


UnknownCounter = Callable[[Callable[[NDArray[Any]], NDArray[Any]], NDArray[np.float64]], NDArray[np.int64]]
"""Counts the unknown labels of all images in bins; see ``count_unknown``."""


def fit_calibration(sample: ScoreSample, counter: UnknownCounter | None = None, *, priors: int = 0) -> ScoreCalibration:
    """Fit the calibration of R runs, the leading axis of the sample, of which the last ones are priors instead.

    ``counter`` is given where the sample does not hold all unknown labels.
    """
    runs = [sample.map(itemgetter(run)) for run in range(len(sample.known) - priors)]
    lines = np.array([platt_line(run) for run in runs]).reshape(-1, 2)
    lines = prior_lines(sample, lines) if priors else lines
    mean = sample.map(lambda logits: _mean_log_odds(logits, lines))
    mean_line = np.array(platt_line(mean))
    odds = mean.map(lambda values: _apply(values, mean_line))
    edges = _bin_edges(odds)
    counts = _histograms(odds, edges)
    if counter is not None:
        counts[2] = counter(lambda logits: _apply(_mean_log_odds(logits, lines), mean_line), edges)
    width = edges[:, 2:3] - edges[:, 1:2]
    centers = edges[:, 1:2] + width * (np.arange(BINS) - 0.5)  # that of the first, which is open, as far as the others'
    stopping = _stopping(odds)
    model, errors = fit_label_model(centers, counts, stopping), fit_error_model(centers, counts, stopping)
    draws = draw_shifts(Answers.none(), model.spread, classes=len(centers))
    group, place = np.nonzero(counts[2])
    log_odds = model.scale * centers[group, place] + model.unknown_offset[group]
    moments = expected_counts(group, counts[2, group, place], log_odds, draws.nodes)
    low, high = interval(draws.count(*moments, counts[2].sum(axis=1).astype(np.int64)).sum(axis=1))
    span = int(low), int(high)
    return ScoreCalibration(
        lines, model.scale * mean_line, model.unknown_offset, model.scale, errors, model.spread, span
    )


def _stopping(odds: ScoreSample) -> float:
    """Return κ of the label model."""
    beside = odds.is_present & (odds.others > 0)
    expected = odds.scale * float(np.nansum(expit(odds.unknown[odds.unknown_others > 0])))
    return stopping_ratio(float(beside.sum()), expected + float(expit(odds.known[beside]).sum()))


def _bin_edges(odds: ScoreSample) -> NDArray[np.float64]:
    """Return the lower edges of each class's bins, ``(K, G)``, evenly spaced over its scores; the first is -inf."""
    low = np.nanmin(odds.unknown, axis=0, initial=np.inf).astype(np.float64)
    high = np.nanmax(odds.unknown, axis=0, initial=-np.inf).astype(np.float64)
    np.minimum.at(low, odds.column, odds.known)
    np.maximum.at(high, odds.column, odds.known)
    low, high = np.where(low <= high, low, 0.0), np.where(low <= high, high, 0.0)
    edges: NDArray[np.float64] = np.linspace(low, np.maximum(high, low + 1e-3), BINS, axis=1, endpoint=False)
    edges[:, 0] = -np.inf
    return edges


def _histograms(odds: ScoreSample, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many known present, known absent and unknown labels are in each bin, ``(3, K, G)``."""
    place = _bins(odds.known, odds.column, edges) + edges.size * ~odds.is_present
    counts = np.bincount(place, minlength=3 * edges.size).astype(np.float64).reshape(3, -1)
    columns, step = np.arange(len(edges)), max(1, BLOCK_SIZE // max(len(edges), 1))
    for start in range(0, len(odds.unknown), step):
        part = odds.unknown[start : start + step]
        place = _bins(np.nan_to_num(part), columns, edges)[~np.isnan(part)]
        counts[2] += np.bincount(place, minlength=edges.size) * odds.scale
    return counts.reshape(3, *edges.shape)


def _bins(
    values: NDArray[np.floating[Any]], columns: NDArray[np.int64], edges: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the bins that values of some classes are in, ``class · G + bin``, by the lower edges ``(K, G)``."""
    first, width, bins = edges[:, 1], edges[:, 2] - edges[:, 1], edges.shape[1]
    ends = np.append(edges[:, 1:], np.full((len(edges), 1), np.inf), axis=1)
    number = np.clip(np.floor((values - first[columns]) / width[columns]) + 1, 0, bins - 1)
    place: NDArray[np.int64] = number.astype(np.int64) + columns * bins
    place += values >= ends.take(place)  # the quotient is rounded: the edges decide
    place -= values < edges.take(place)
    return place


def platt_line(sample: ScoreSample) -> tuple[float, float]:
    r"""Fit :math:`P(\text{observed present}) = \sigma(a x + b)` over all classes, of a sample without leading axes."""
    (values,), is_present, weights = _observations(sample.map(lambda scores: scores[None]))
    if is_present.all() or not is_present.any() or np.ptp(values) == 0:
        return 1.0, 0.0
    return platt_scaling(values, is_present, weights, min_slope=MIN_SLOPE)


def prior_lines(sample: ScoreSample, lines: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return the lines of R runs and of the priors, the last scorers, whose mean are the log-odds of all.

    .. math:: P(\text{observed present}) = \sigma(\alpha\, m + \sum_j \beta_j z_j + \gamma), \qquad
              m = \overline{a_r x_r + b_r}

    fitted over all classes, with :math:`\beta_j \ge 0`: a prior that known labels contradict counts nothing.
    """
    runs = len(lines)
    whole = sample.map(lambda scores: np.stack([_mean_log_odds(scores[:runs], lines), *scores[runs:]]))
    values, is_present, weights = _observations(whole)
    slopes, gamma = np.eye(len(values))[0], 0.0
    if is_present.any() and not is_present.all():
        least = (MIN_SLOPE, *[0.0] * (len(values) - 1))
        slopes, gamma = logistic_line(values, is_present, weights, min_slopes=least)
    added = np.stack([slopes[1:], np.full(len(slopes) - 1, gamma / (len(slopes) - 1))], axis=1)
    return (runs + len(added)) * np.concatenate([slopes[0] / runs * lines, added])


def _observations(sample: ScoreSample) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return the scores ``(R, M)`` of known and of some unknown labels, which are observed present, and weights."""
    rows = sample.unknown[0]
    unknown = sample.unknown[:, :: -(-rows.size // _MAX_UNKNOWN) or 1]
    weight = sample.scale * len(rows) / max(unknown.shape[1], 1)
    unknown = unknown[:, ~np.isnan(unknown[0])]
    added = unknown.shape[1]
    values = np.concatenate([sample.known, unknown], axis=1).astype(np.float64)
    weights = np.append(np.ones(len(sample.column)), np.full(added, weight))
    return values, np.append(sample.is_present, np.zeros(added, dtype=bool)), weights


def _mean_log_odds(logits: NDArray[Any], lines: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the mean over runs, the first axis, of their log-odds."""
    total: NDArray[np.float32] = np.zeros(logits.shape[1:], dtype=np.float32)
    for run, line in zip(logits, lines, strict=True):
        total += _apply(run, line)
    return total / np.float32(len(lines))


def _apply(values: NDArray[Any], line: NDArray[np.float64]) -> NDArray[np.float32]:
    slope, intercept = line.astype(np.float32)
    return np.asarray(np.asarray(values, dtype=np.float32) * slope + intercept)


def sample_scores(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    seed: int,
    max_sampled: int,
    advance: Callable[[int], None] = lambda count: None,
) -> ScoreSample:
    """Score all images once; keep the scores of known labels, and at most ``max_sampled`` of unknown ones."""
    images = sum(map(len, tables.values()))
    classes = len(next(iter(tables.values())).classes)
    count = min(images, max(1, max_sampled // max(classes * len(scorers), 1)))
    sampled = np.sort(numpy_generator(seed, "evidence").permutation(images)[:count])
    unknown = np.empty((len(scorers), count, classes), dtype=np.float32)
    unknown_others = np.empty(count, dtype=np.int64)
    known: list[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int8], NDArray[np.int64]]] = []
    for block in score_blocks(tables, scorers):
        flat, length = block.logits.reshape(len(scorers), -1), block.logits.shape[1]
        row = block.known // classes
        present_count = np.bincount(row[block.values == PRESENT], minlength=length)
        known.append((flat[:, block.known], block.known % classes, block.values, present_count[row] - 1))
        flat[:, block.known] = np.nan
        first, last = np.searchsorted(sampled, [block.first, block.first + length])
        rows = sampled[first:last] - block.first
        unknown[:, first:last], unknown_others[first:last] = block.logits[:, rows], present_count[rows]
        advance(length)
    logits = np.concatenate([part[0] for part in known], axis=1)
    columns, values, others = (np.concatenate([part[item] for part in known]) for item in (1, 2, 3))
    order = np.argsort(values != PRESENT, kind="stable")
    known_scores = logits[:, order], columns[order], values[order] == PRESENT, others[order]
    return ScoreSample(*known_scores, unknown, unknown_others, images / max(count, 1))


def count_unknown(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    log_odds: Callable[[NDArray[np.float32]], NDArray[np.floating[Any]]],
    edges: NDArray[np.float64],
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.int64]:
    """Count the unknown labels of each class in each bin, ``(K, G)``, over all images.

    A sample is enough for frequent classes, but holds nothing of a class that one image in a million shows.
    """
    counts, columns = np.zeros(edges.size, dtype=np.int64), np.arange(len(edges))
    for block in score_blocks(tables, scorers):
        odds = np.asarray(log_odds(block.logits), dtype=np.float32)
        place = _bins(odds, columns, edges).ravel()
        counts += np.bincount(place, minlength=len(counts)) - np.bincount(place[block.known], minlength=len(counts))
        advance(len(odds))
    return counts.reshape(edges.shape)
