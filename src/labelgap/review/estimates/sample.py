r"""How many labels are missing: those that were found, and an estimate of those among the undecided.

What was decided is counted. Only the rest is estimated, by the label model of the audit: the log-odds :math:`z` of a
class may be wrong by a shift :math:`s_k` (``metrics.label_model``), and answers say how wrong; the undecided labels
vary themselves, given their probabilities. Where counting the random answers alone gives the narrower interval
(``counting``), that one is used. Without a model there is only counting.

*Random answers* give the posterior of the shifts. A random slot holds the first label of the random draw of its class
that is still open: a uniform draw from all labels that are open *at that moment*, in whatever order the others were
decided, and also when answers change that order. The same holds within a cell, i.e. among labels of a class with about
the same score. Of the :math:`R` labels of its cell that were open, let :math:`r` have been decided in ranked order
since, :math:`g` of them present. Then

.. math:: P(y = 1) = \Bigl(1 - \frac{r}{R}\Bigr) \sigma(z + s_k) + \frac{g}{R}

so an early answer says little about what is left where most of its cell is decided by now. Cells are fixed by the
audit's scores, before any answer.

*Ranked answers* are counted, and say nothing here: they are about the labels that looked most probable. On the digits
and on VOC, shifts that were fitted to them made the estimate of what is left worse. But they say how probable the
candidates are that come next: there all answers count, by how near their :math:`z` is to that of the most probable open
candidate of the class, since scores are often too sure where they are high. Between such labels and those of a typical
score, for which the random answers decide, the shift changes linearly with :math:`z`.

Without a model, a class that was hardly reviewed would ruin a good interval of the others. So classes are taken in the
order of :math:`n_k / m_k`, random answers per undecided label, as many as keep Kish's effective sample size,
:math:`1 / \sum_k W_k^2 (1 / n_k + 1 / m_k)` with :math:`W_k = m_k / \sum_j m_j`, at half of its largest possible value
or more; the others are left out.

docs/results/review.md says how often the intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.metrics.label_model import (
    CLASS_SPREAD,
    Answers,
    draw_shifts,
    expected_counts,
    interval,
    round_to_sum,
    to_log_odds,
)
from labelgap.review.estimates.counting import CountedLabels, count_random
from labelgap.review.estimates.labels import MIN_RANDOM, ReviewedLabels, ReviewEstimate, SampleEstimate

_BIN_WIDTH: Final = 0.1
_CELL_WIDTH: Final = 0.5
_FLAT_SCORE: Final = 0.1
_FLAT_SPREAD: Final = 2.5
"""Without a model: a guess of the share of present labels, and how wrong it may be on a scale of log-odds."""
_FLAT_CLASS_SPREAD: Final = 1.5
"""The spread of a class whose labels all have the same score: a guess."""
_NEXT_SPREAD: Final = 0.3
"""How wrong the scores of all classes may be for the candidates that come next."""
_NEARNESS: Final = 0.7
"""Difference of log-odds at which an answer has lost two fifths of its weight for these."""
_LOCAL_SPREAD: Final = 0.5
"""How wrong the shift may be for the candidates that follow the answered ones."""
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
    spread = labels.spread if has_model else (_FLAT_SPREAD, _FLAT_SPREAD)
    draws = draw_shifts(_random_answers(known, log_odds), spread, _class_spread(known))
    mean, variance = _undecided(known, log_odds, expected, np.column_stack([draws.nodes, draws.median]))
    left, counts = labels.undecided, _counts(labels)
    sampled = (left > 0) if has_model else _covered(counts["reviewed"], left)
    covered = sampled | ((left == 0) & (labels.unknown > 0))
    counts["still_missing"] = round_to_sum(np.where(covered, np.minimum(mean[:, -1], left), 0.0))
    number, noise = draws.count(mean, variance, left), draws.pick(variance)
    low, high = interval(number)
    shifts, by_class, answered = draws.pick(draws.nodes), list[SampleEstimate | None](), labels.answered()
    for k in range(len(left)):
        made = _sum(np.arange(len(left)) == k, counts, low[k], high[k])
        made = replace(
            _count(answered, k, made, has_model), halving=_halving(float(shifts[:, k].var()), noise[:, k], made)
        )
        by_class.append(made if covered[k] else None)
        counts["still_missing"][k] = made.still_missing * covered[k]
    total = _total(covered, {**counts, "reviewed": counts["reviewed"] * sampled}, number, by_class, has_model)
    if total is not None and labels.range is not None and not labels.decided.any():  # as the audit says
        total = replace(total, low=labels.range[0], high=labels.range[1])
    typical = to_log_odds(expected / np.maximum(labels.unknown, 1))
    shift, deviation, likeness = _fit_next(labels, log_odds, typical)
    column = labels.class_number
    shifted = expit(log_odds + likeness * shift[column] + (1 - likeness) * draws.median[column])
    probability = np.where(np.isnan(labels.score) | (not has_model), np.nan, shifted)
    return ReviewEstimate(total, tuple(by_class), column, probability, shifts - draws.median, deviation, likeness)


def _class_spread(labels: ReviewedLabels) -> Array:
    """Return how wrong the scores of each class may be, ``(K,)``."""
    scored, classes = ~np.isnan(labels.score), len(labels.unknown)
    low, high = np.full(classes, np.inf), np.full(classes, -np.inf)
    np.minimum.at(low, labels.class_number[scored], labels.score[scored])
    np.maximum.at(high, labels.class_number[scored], labels.score[scored])
    return np.where(high > low, CLASS_SPREAD, _FLAT_CLASS_SPREAD)


def _random_answers(labels: ReviewedLabels, log_odds: Array) -> Answers:
    """Return the sure random answers on candidates, by class, with :math:`1 - r / R` and :math:`g / R` of each."""
    scored = np.flatnonzero(~np.isnan(labels.score))
    bins = np.floor(log_odds[scored] / _CELL_WIDTH).astype(np.int64)
    cell = labels.class_number[scored].astype(np.int64) * 100 + bins + 50
    when = np.where(labels.decided, labels.order, np.iinfo(np.int64).max)[scored]
    order = np.lexsort((when, cell))
    rows, cell = scored[order], cell[order]
    last = np.searchsorted(cell, cell, side="right")
    ranked = labels.decided[rows] & ~labels.random[rows]

    def later(mask: Mask) -> Array:
        total = np.concatenate([[0], np.cumsum(mask)])
        return np.asarray(total[last] - total[1:], dtype=np.float64)

    open_then = last - np.arange(len(rows))
    share, found = 1 - later(ranked) / open_then, later(ranked & labels.present[rows]) / open_then
    chosen = np.flatnonzero((labels.sure & labels.random)[rows])
    chosen = chosen[np.argsort(labels.class_number[rows[chosen]], kind="stable")]
    rows = rows[chosen]
    return Answers(labels.class_number[rows], log_odds[rows], labels.present[rows], share[chosen], found[chosen])


def _fit_next(labels: ReviewedLabels, log_odds: Array, typical: Array) -> tuple[Array, Array, Array]:
    """Return what all answers say of candidates like those that come next.

    Args:
        labels: with the answers.
        log_odds: ``(C,)`` by the audit.
        typical: ``(K,)`` log-odds of the mean score of a class, where the likeness is 0.

    Returns:
        The shift of each class and its standard deviation, ``(K,)`` each, and how much each candidate is like those
        that come next of its class, ``(C,)`` from 0 to 1.
    """
    classes, column = len(labels.unknown), labels.class_number
    front, is_open = np.full(classes, -np.inf), ~labels.decided & ~np.isnan(labels.score)
    np.maximum.at(front, column[is_open], log_odds[is_open])
    front = np.where(np.isfinite(front), front, typical)
    rows = np.flatnonzero(labels.sure & ~np.isnan(labels.score))
    rows = rows[np.argsort(column[rows], kind="stable")]
    near = np.exp(-(((log_odds[rows] - front[column[rows]]) / _NEARNESS) ** 2) / 2)
    answers = Answers(column[rows], log_odds[rows], labels.present[rows], weight=near)
    draws = draw_shifts(answers, (_NEXT_SPREAD, _NEXT_SPREAD), classes=classes)
    deviation = np.hypot(draws.pick(draws.nodes).std(axis=0), _LOCAL_SPREAD)
    likeness = np.clip((log_odds - typical[column]) / np.maximum(front - typical, 1.0)[column], 0, 1)
    return draws.median, deviation, likeness


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
    made = _sum(covered, counts, *interval(number[:, covered].sum(axis=1)))
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
    return expected_counts(group[order], size[order], odds[order], nodes)


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
    low, high = min(int(low), still), min(max(int(high), still), sums["undecided"])
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
