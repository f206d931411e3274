r"""How many labels are missing: those that were found, and an estimate of those among the undecided.

What was decided is counted. Only the rest is estimated. With a model, from its scores and the random answers: see
``shifts``; the undecided labels vary themselves, given their probabilities. Where counting
the random answers alone gives the narrower interval (``counting``), that one is used. Without a model there is only
counting.

Without a model, a class that was hardly reviewed would ruin a good interval of the others. So classes are taken in the
order of :math:`n_k / m_k`, random answers per undecided label, as many as keep Kish's effective sample size,
:math:`1 / \sum_k W_k^2 (1 / n_k + 1 / m_k)` with :math:`W_k = m_k / \sum_j m_j`, at half of its largest possible value
or more; the others are left out.

docs/results/review-coverage.md says how often the intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.audit.estimate import RANGE_FACTOR, round_to_sum
from labelgap.review.estimates.counting import CountedLabels, count_random
from labelgap.review.estimates.labels import MIN_RANDOM, ReviewedLabels, ReviewEstimate, SampleEstimate
from labelgap.review.estimates.probabilities import fit_answers
from labelgap.review.estimates.shifts import draw_shifts, to_log_odds

_ENDS: Final = (0.025, 0.975)
_BIN_WIDTH: Final = 0.1
_FLAT_SCORE: Final = 0.1
_FLAT_SPREAD: Final = 2.5
"""Without a model: a guess of the share of present labels, and how wrong it may be on a scale of log-odds."""
_NEARLY: Final = 1.2
"""Counting whose approximate interval is wider by this factor is not looked at more exactly."""
_NARROW: Final = 10
"""An interval that is no wider is narrow."""

Counts = NDArray[np.int64]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def estimate_review(labels: ReviewedLabels) -> ReviewEstimate:
    """Count the labels that were found, and estimate how many are still missing, of each class and in all.

    Example:
        >>> decided, value = np.arange(1000) < 20, (np.arange(1000) < 2).astype(np.int8)
        >>> column, order = np.zeros(1000, dtype=np.int64), np.arange(1000)
        >>> labels = ReviewedLabels(column, column + np.nan, decided, value, decided, order, np.array([1000]))
        >>> made = estimate_review(labels)
        >>> made.total.found, made.total.remaining
        (2, (87, 11, 312))
    """
    has_model = labels.expected is not None
    expected = np.asarray(
        _FLAT_SCORE * labels.unknown if labels.expected is None else labels.expected, dtype=np.float64
    )
    known = labels if has_model else replace(labels, score=np.full(len(labels.score), _FLAT_SCORE))
    scores = known.score.astype(np.float64)
    log_odds = to_log_odds(np.where(np.isnan(scores), 0.5, scores))
    draws = draw_shifts(known, log_odds) if has_model else draw_shifts(known, log_odds, _FLAT_SPREAD)
    mean, variance = _undecided(known, log_odds, expected, np.column_stack([draws.nodes, draws.median]))
    left, counts, noise = labels.undecided, _counts(labels), draws.pick(variance)
    sampled = (left > 0) if has_model else _covered(counts["reviewed"], left)
    covered = sampled | ((left == 0) & (labels.unknown > 0))
    counts["still_missing"] = round_to_sum(np.where(covered, np.minimum(mean[:, -1], left), 0.0))
    number = _draw_numbers(np.minimum(draws.pick(mean), left), noise, left)
    low, high = np.quantile(number, _ENDS, axis=0, method="nearest").astype(np.float64)
    shifts, by_class, answered = draws.pick(draws.nodes), list[SampleEstimate | None](), labels.answered()
    for k in range(len(left)):
        made = _sum(np.arange(len(left)) == k, counts, low[k], high[k])
        made = replace(
            _count(answered, k, made, has_model), halving=_halving(float(shifts[:, k].var()), noise[:, k], made)
        )
        by_class.append(made if covered[k] else None)
        counts["still_missing"][k] = made.still_missing * covered[k]
    total = _total(covered, {**counts, "reviewed": counts["reviewed"] * sampled}, number, by_class, has_model)
    typical = to_log_odds(expected / np.maximum(labels.unknown, 1))
    fit, column = fit_answers(labels, log_odds, typical), labels.class_number
    shifted = expit(log_odds + fit.likeness * fit.shift[column] + (1 - fit.likeness) * draws.median[column])
    probability = np.where(np.isnan(labels.score) | (not has_model), np.nan, shifted)
    return ReviewEstimate(total, tuple(by_class), column, probability, shifts - draws.median, fit.spread, fit.likeness)


def _counts(labels: ReviewedLabels) -> dict[str, Counts]:
    counted = labels.random & labels.sure
    return {
        "reviewed": labels.count(counted),
        "present": labels.count(counted & labels.present),
        "unsure": labels.count(labels.decided & ~labels.sure),
        "unknown": labels.unknown,
        "found": labels.count(labels.present),
        "undecided": labels.undecided,
    }


def _total(
    covered: Mask, counts: Mapping[str, Counts], number: Counts, parts: list[SampleEstimate | None], has_model: bool
) -> SampleEstimate | None:
    """Return the estimate of all classes that are covered."""
    if not covered.any():
        return None
    made = _sum(covered, counts, *np.quantile(number[:, covered].sum(axis=1), _ENDS, method="nearest"))
    if made.reviewed < MIN_RANDOM and made.undecided and has_model:  # as the audit says
        return _sum(covered, counts, made.still_missing / RANGE_FACTOR, max(made.still_missing, 1) * RANGE_FACTOR)
    only = [part for part in parts if part is not None]
    if len(only) == 1:
        return replace(made, low=only[0].low, high=only[0].high, counted=only[0].counted, halving=only[0].halving)
    return replace(made, counted=not has_model)


def _undecided(labels: ReviewedLabels, log_odds: Array, expected: Array, nodes: Array) -> tuple[Array, Array]:
    """Return mean and variance of the number of present undecided labels of each class at the nodes, ``(K, S)``."""
    classes, column = len(labels.unknown), labels.class_number.astype(np.int64)
    scored = ~np.isnan(labels.score)
    unlisted = np.maximum(labels.unknown - labels.count(scored) - labels.count(labels.decided & ~scored), 0)
    rest = expected - np.bincount(column[scored], weights=labels.score[scored], minlength=classes)
    rest_odds = to_log_odds(rest / np.maximum(labels.unknown - labels.count(scored), 1))
    is_open = scored & ~labels.decided
    used, cell = np.unique(
        column[is_open] * 1000 + np.floor(log_odds[is_open] / _BIN_WIDTH).astype(np.int64) + 500, return_inverse=True
    )
    size = np.bincount(cell, minlength=len(used)).astype(np.float64)
    odds = np.bincount(cell, weights=log_odds[is_open], minlength=len(used)) / np.maximum(size, 1)
    group = np.concatenate([used // 1000, np.arange(classes)])
    size, odds = np.concatenate([size, unlisted]), np.concatenate([odds, rest_odds])
    order = np.argsort(group, kind="stable")
    group, size, odds = group[order], size[order, None], odds[order]
    p = expit(odds[:, None] + nodes[group])
    starts = np.searchsorted(group, np.arange(classes))
    return np.add.reduceat(size * p, starts, axis=0), np.add.reduceat(size * p * (1 - p), starts, axis=0)


def _draw_numbers(mean: Array, variance: Array, most: Counts, seed: int = 1) -> Counts:
    """Draw numbers of present labels, from binomials with these means and variances, ``(D, K)``."""
    share = np.clip(1 - variance / np.maximum(mean, 1e-12), 1e-9, 1)
    trials = np.maximum(np.minimum(np.ceil(mean / share), most), 1)
    return np.random.default_rng(seed).binomial(trials.astype(np.int64), np.minimum(mean / trials, 1))


def _count(labels: ReviewedLabels, k: int, made: SampleEstimate, has_model: bool) -> SampleEstimate:
    """Return the estimate of a class, with the interval of counting where that one is narrower, or without a model."""
    if not made.undecided or (has_model and made.reviewed < MIN_RANDOM):
        return made
    width = made.high - made.low
    if has_model and _width(count_random(labels, k, 0)) > _NEARLY * width:
        return made
    counted = count_random(labels, k)
    if has_model and _width(counted) >= width:
        return made
    still = min(max(made.still_missing, counted.low), counted.high)
    return replace(made, still_missing=still, low=counted.low, high=counted.high, counted=True)


def _width(counted: CountedLabels) -> int:
    return counted.high - counted.low


def _halving(spread: float, variance: Array, made: SampleEstimate) -> int:
    r"""Return how many more random answers halve the interval of a class; 0 where they cannot, or it is narrow.

    Four times the precision is needed: an answer adds :math:`p (1 - p)` to :math:`1 / \mathrm{var}(s)`.
    """
    if made.high - made.low <= max(_NARROW, made.still_missing) or not made.has_interval:
        return 0
    each = float(np.median(variance)) / max(made.undecided, 1)
    needed = math.ceil(3 / max(spread, 1e-9) / max(each, 1e-9))
    return needed if needed < made.undecided else 0


def _sum(mask: Mask, counts: Mapping[str, NDArray[Any]], low: float, high: float) -> SampleEstimate:
    """Return the estimate of some classes; the ends hold the estimate, and are possible numbers."""
    sums = {name: int(values[mask].sum()) for name, values in counts.items()}
    still = sums["still_missing"]
    low, high = min(math.floor(low), still), min(max(math.ceil(high), still), sums["undecided"])
    return SampleEstimate(**sums, classes=int(mask.sum()), low=low, high=high, counted=False)


def _covered(reviewed: Counts, rest: Counts) -> Mask:
    """Return the classes whose random labels count, ``(K,)``; it depends on sample sizes alone, never on answers."""
    sampled = np.flatnonzero((reviewed > 0) & (rest > 0))
    chosen = np.zeros(len(rest), dtype=np.bool_)
    if len(sampled):
        order = sampled[np.argsort(-reviewed[sampled] / rest[sampled], kind="stable")]
        size = rest[order].astype(np.float64)
        effective = np.cumsum(size) ** 2 / np.cumsum(size**2 * (1 / reviewed[order] + 1 / size))
        chosen[order[: np.flatnonzero(effective >= effective.max() / 2)[-1] + 1]] = True
    return chosen
