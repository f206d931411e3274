r"""How many labels are missing: those that were found, and an estimate of those among the undecided.

What was decided is counted. Only the rest is estimated, by the label model of the audit: the log-odds :math:`z` of a
class may be wrong by a shift :math:`s_k` (``metrics.label_model``), and answers say how wrong; the undecided labels
vary themselves, given their probabilities. Where counting the random answers alone gives the narrower interval
(``count_random``), that one is used. Without a model there is only counting.

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

docs/results/review.md says how often the intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from labelgap.core.special import expit
from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics.label_model import (
    CLASS_SPREAD,
    MODEL_SPREAD,
    Answers,
    draw_shifts,
    expected_counts,
    interval,
    round_to_sum,
    to_log_odds,
)
from labelgap.review.additions import ADDED_SCORE
from labelgap.review.candidates import WRONG, Candidates
from labelgap.review.folder import ReviewFolder
from labelgap.review.progress import CurrentDecisions, order_decisions
from labelgap.review.store import LabelKey

MIN_RANDOM: Final = 10  # with fewer random answers there is no interval
EXACT: Final = 40  # up to so many random answers, counting computes their distribution exactly
NEXT: Final = 50  # candidates that a page speaks of
_TAIL: Final = 0.025
_PARTS: Final = 33
_BIN_WIDTH: Final = 0.1
_CELL_WIDTH: Final = 0.5
# Without a model: a guess of the share of present labels, and how wrong it may be on a scale of log-odds.
_FLAT_SCORE: Final = 0.1
_FLAT_SPREAD: Final = 2.5
_FLAT_CLASS_SPREAD: Final = 1.5  # the spread of a class whose labels all have the same score: a guess
_NEXT_SPREAD: Final = 0.3  # how wrong the scores of all classes may be for the candidates that come next
_NEARNESS: Final = 0.7  # difference of log-odds at which an answer has lost two fifths of its weight for these
_NEARLY: Final = 1.2  # counting whose approximate interval is wider by this factor is not looked at more exactly
_NARROW: Final = 10  # an interval that is no wider is narrow
_LAST: Final = np.iinfo(np.int64).max

Counts = NDArray[np.int64]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class AuditCounts(NamedTuple):
    """The labels of each class before a review, ``(K,)`` each."""

    unknown: Counts  # how many are unknown, candidates or not
    expected: Array | None = None  # how many of these are present by the audit; None without a model
    # how wrong the scores of all classes may be before any answer, by the audit; downwards and upwards
    spread: tuple[float, float] = MODEL_SPREAD
    # how few and how many of all may be present by the audit; None for a part of what was audited
    range: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class ReviewedLabels:
    """Labels that were unknown before a review, ``(C,)`` each, and the counts before it."""

    class_number: NDArray[np.integer[Any]]  # the class of each label
    # probability of being present by the audit, which no answer changes; NaN without a model
    score: NDArray[np.floating[Any]]
    decided: Mask  # whether somebody answered
    value: NDArray[np.int8]  # codes of the answers; UNKNOWN for "can't tell"
    random: Mask  # whether a label was asked as a random one: drawn from all labels of its class that were open
    # numbers that rise with the decisions of a class; those of undecided labels do not matter
    order: NDArray[np.integer[Any]]
    before: AuditCounts

    @cached_property
    def sure(self) -> Mask:
        """Which labels were answered with present or absent."""
        return np.asarray(self.decided & (self.value != UNKNOWN))

    @cached_property
    def present(self) -> Mask:
        """Which labels were answered with present."""
        return np.asarray(self.decided & (self.value == PRESENT))

    @cached_property
    def undecided(self) -> Counts:
        """How many labels of each class nobody has decided, candidates or not, ``(K,)``."""
        return np.asarray(np.maximum(self.before.unknown - self.count(self.decided), 0))

    def count(self, mask: Mask) -> Counts:
        """Return how many candidates of each class a mask selects, ``(K,)``."""
        return np.bincount(self.class_number[mask], minlength=len(self.before.unknown))


@dataclass(frozen=True)
class SampleEstimate:
    """How many unknown labels are present: counted among the decided, estimated among the undecided."""

    reviewed: int  # random answers that count
    present: int  # of these, present
    unsure: int  # decided labels on which the reviewer could not tell; whether they are present stays open
    classes: int  # number of classes that the estimate covers
    unknown: int  # labels of those classes that were unknown before the review
    found: int  # of these, present ones among the decided
    undecided: int  # of these, those that nobody has decided
    still_missing: int  # of these, present ones, estimated
    low: int  # lower end of the 95 % interval of `still_missing`, or of a rough range: see `has_interval`
    high: int  # upper end
    counted: bool = False  # whether the interval is that of the random answers alone, without scores
    halving: int = 0  # how many more random answers halve the interval; 0 where they cannot, or it is narrow

    @property
    def has_interval(self) -> bool:
        """Whether there were enough random answers for an interval."""
        return self.reviewed >= MIN_RANDOM or not self.undecided

    @property
    def remaining(self) -> tuple[int, int, int]:
        """How many labels are still missing: the estimate, and the ends of its interval."""
        return self.still_missing, self.low, self.high

    @property
    def missing(self) -> tuple[int, int, int]:
        """How many labels were missing before the review: those found, and those that still are."""
        return self.found + self.still_missing, self.found + self.low, self.found + self.high


@dataclass(frozen=True, eq=False)
class ReviewEstimate:
    """The estimates of a review; what is still missing of the classes sums to what is still missing of all."""

    total: SampleEstimate | None  # of all classes that are covered; None when there are none
    by_class: tuple[SampleEstimate | None, ...]  # of each class; None for one that is not covered
    probability: Array  # (C,) of each candidate to be present, as the answers have it; NaN without a model


class CountedLabels(NamedTuple):
    """How many of the undecided labels of a class are present: the estimate, and the ends of its interval."""

    estimate: float
    low: int
    high: int


def count_random(labels: ReviewedLabels, class_number: int, exact: int = EXACT) -> CountedLabels:
    r"""Estimate what is left of a class from its random answers alone; without any, everything is possible.

    Let :math:`T` labels of the class be present in all. When the t-th random label is drawn, let :math:`R_t` labels be
    open, and :math:`F_t` be found by then, in whatever way. Then :math:`P(y_t = 1) = (T - F_t) / R_t`, also when
    answers change the order of the others. :math:`\sum_t y_t` is compared with its distribution under every :math:`T`;
    the interval holds those whose tails are both 2.5 % or more (Clopper & Pearson, Biometrika 1934). Without ranked
    answers the distribution is the hypergeometric one. It is computed exactly up to ``exact`` answers, with the ranked
    finds as they were, and from its mean and variance beyond. The mean, :math:`m_{t+1} = m_t + (T - A_t - m_t) / R_t`
    with :math:`A_t` ranked finds, is linear in :math:`T`; it is the number of present answers at the estimate.
    """
    rows = np.flatnonzero(labels.decided)
    rows = rows[labels.class_number[rows] == class_number]
    rows = rows[np.argsort(labels.order[rows], kind="stable")]
    present, drawn = labels.present[rows], labels.sure[rows] & labels.random[rows]
    found, left = int(present.sum()), int(labels.undecided[class_number])
    if not drawn.any() or not left:
        return CountedLabels(left / 2, 0, left)
    by_rank = np.concatenate([[0], np.cumsum(present & ~drawn)[:-1]])[drawn]
    opened = (labels.before.unknown[class_number] - np.arange(len(rows)))[drawn].astype(np.float64)
    made = by_rank, opened, int((present & drawn).sum())
    tails = _exact_tails if len(opened) <= exact else _approximate_tails
    low = _search(lambda x: tails(x, *made)[1], found, found + left)
    high = -_search(lambda x: tails(-x, *made)[0], -found - left, -found)
    after = np.cumprod(1 - 1 / opened)
    total = (made[2] / after[-1] + np.sum(by_rank / (opened * after))) / np.sum(1 / (opened * after))
    return CountedLabels(round(float(np.clip(total, low, high)) - found, 6), low - found, high - found)


def _approximate_tails(totals: Array, by_rank: Counts, opened: Array, count: int) -> tuple[Array, Array]:
    """Return what ``_exact_tails`` does, from the mean and the variance of the number."""
    after = np.cumprod(1 - 1 / opened)
    steps = np.stack([np.ones(len(opened)), by_rank]) / (opened * after)
    slope, known = np.pad(np.cumsum(steps, axis=1)[:, :-1], ((0, 0), (1, 0)))
    mean = np.concatenate([[1.0], after[:-1]]) * (totals[:, None] * slope - known)  # before each draw
    p = np.clip((totals[:, None] - by_rank - mean) / opened, 0, 1)
    variance = np.maximum(((after[-1] / after) ** 2 * p * (1 - p)).sum(axis=1), 1e-9)
    last = np.maximum(mean[:, -1] + p[:, -1], 1e-9)
    at = (count + np.array([[0.5], [-0.5]])) * last / variance + 0.5
    lower, below = gammaincc(np.maximum(at, 1e-9), last**2 / variance)
    return lower, 1 - below * (count > 0)


def _exact_tails(totals: Array, by_rank: Counts, opened: Array, count: int) -> tuple[Array, Array]:
    """Return the probabilities of at most, and of at least, so many present random labels for each total."""
    states = np.arange(count + 1)
    probability = np.zeros((len(totals), count + 1))
    probability[:, 0] = 1.0
    for ranked, size in zip(by_rank.tolist(), opened.tolist(), strict=True):
        moved = probability * np.clip((totals[:, None] - ranked - states) / size, 0, 1)
        probability -= moved
        probability[:, 1:] += moved[:, :-1]
    return probability.sum(axis=1), 1 - probability[:, :-1].sum(axis=1)


def _search(tail: Callable[[Array], Array], first: int, last: int) -> int:
    """Return the first integer whose tail is not too small, of a tail that rises; the last one where all are."""
    while first < last:
        tried = np.unique(np.linspace(first, last, _PARTS).astype(np.int64))
        good = tail(tried.astype(np.float64)) >= _TAIL
        at = int(good.argmax()) if good.any() else len(tried) - 1
        if at == 0:
            return int(tried[0])
        first, last = int(tried[at - 1]) + 1, int(tried[at])
    return first


def estimate_review(labels: ReviewedLabels) -> ReviewEstimate:
    """Count the labels that were found, and estimate how many are still missing, of each class and in all."""
    has_model, known, expected = labels.before.expected is not None, labels, labels.before.expected
    if expected is None:
        expected = np.asarray(_FLAT_SCORE * labels.before.unknown, dtype=np.float64)
        flat, before = (
            np.full(len(labels.score), _FLAT_SCORE),
            labels.before._replace(spread=(_FLAT_SPREAD, _FLAT_SPREAD)),
        )
        known = replace(labels, score=flat, before=before)
    log_odds = to_log_odds(np.where(np.isnan(known.score), 0.5, known.score))
    draws = draw_shifts(_random_answers(known, log_odds), known.before.spread, _class_spread(known))
    mean, variance = _undecided(known, log_odds, expected, np.column_stack([draws.nodes, draws.median]))
    left, counts = labels.undecided, _counts(labels)
    sampled = (left > 0) if has_model else _covered(counts["reviewed"], left)
    covered = sampled | ((left == 0) & (labels.before.unknown > 0))
    counts["still_missing"] = round_to_sum(np.where(covered, np.minimum(mean[:, -1], left), 0.0))
    number, noise = draws.count(mean, variance, left), draws.pick(variance)
    shifts, by_class = draws.pick(draws.nodes), list[SampleEstimate | None]()
    for k, ends in enumerate(interval(number).T):
        made = _count(labels, k, _sum(np.arange(len(left)) == k, counts, *ends), has_model)
        made = replace(made, halving=_halving(float(shifts[:, k].var()), noise[:, k], made))
        by_class.append(made if covered[k] else None)
        counts["still_missing"][k] = made.still_missing * covered[k]
    counts["reviewed"] *= sampled
    total = _total(covered, counts, number, by_class, has_model)
    if total is not None and labels.before.range is not None and not labels.decided.any():  # as the audit says
        total = replace(total, low=labels.before.range[0], high=labels.before.range[1])
    typical = to_log_odds(expected / np.maximum(labels.before.unknown, 1))
    shift, likeness = _fit_next(labels, log_odds, typical)
    column = labels.class_number
    shifted = expit(log_odds + likeness * shift[column] + (1 - likeness) * draws.median[column])
    probability = np.where(np.isnan(labels.score) | (not has_model), np.nan, shifted)
    return ReviewEstimate(total, tuple(by_class), probability)


def _class_spread(labels: ReviewedLabels) -> Array:
    scored, classes = ~np.isnan(labels.score), len(labels.before.unknown)
    low, high = np.full(classes, np.inf), np.full(classes, -np.inf)
    np.minimum.at(low, labels.class_number[scored], labels.score[scored])
    np.maximum.at(high, labels.class_number[scored], labels.score[scored])
    return np.where(high > low, CLASS_SPREAD, _FLAT_CLASS_SPREAD)


def _random_answers(labels: ReviewedLabels, log_odds: Array) -> Answers:
    """Return the sure random answers on candidates, by class, with :math:`1 - r / R` and :math:`g / R` of each."""
    scored = np.flatnonzero(~np.isnan(labels.score))
    bins = np.floor(log_odds[scored] / _CELL_WIDTH).astype(np.int64)
    cell = labels.class_number[scored].astype(np.int64) * 100 + bins + 50
    when = np.where(labels.decided, labels.order, _LAST)[scored]
    order = np.lexsort((when, cell))
    rows, cell = scored[order], cell[order]
    last = np.searchsorted(cell, cell, side="right")
    ranked = labels.decided[rows] & ~labels.random[rows]

    def later(mask: Mask) -> Array:
        total = np.concatenate([[0], np.cumsum(mask)])
        return np.asarray(total[last] - total[1:], dtype=np.float64)

    open_then = last - np.arange(len(rows))
    share, found = 1 - later(ranked) / open_then, later(ranked & labels.present[rows]) / open_then
    chosen = np.flatnonzero((labels.sure & labels.random)[rows])  # by class, as the cells are
    rows = rows[chosen]
    return Answers(labels.class_number[rows], log_odds[rows], labels.present[rows], share[chosen], found[chosen])


def _fit_next(labels: ReviewedLabels, log_odds: Array, typical: Array) -> tuple[Array, Array]:
    """Return the shift of each class, ``(K,)``, and how much each candidate is like its class's next ones, ``(C,)``."""
    classes, column = len(labels.before.unknown), labels.class_number
    front, is_open = np.full(classes, -np.inf), ~labels.decided & ~np.isnan(labels.score)
    np.maximum.at(front, column[is_open], log_odds[is_open])
    front = np.where(np.isfinite(front), front, typical)
    rows = np.flatnonzero(labels.sure & ~np.isnan(labels.score))
    rows = rows[np.argsort(column[rows], kind="stable")]
    near = np.exp(-(((log_odds[rows] - front[column[rows]]) / _NEARNESS) ** 2) / 2)
    answers = Answers(column[rows], log_odds[rows], labels.present[rows], weight=near)
    draws = draw_shifts(answers, (_NEXT_SPREAD, _NEXT_SPREAD), classes=classes)
    likeness = np.clip((log_odds - typical[column]) / np.maximum(front - typical, 1.0)[column], 0, 1)
    return draws.median, likeness


def _counts(labels: ReviewedLabels) -> dict[str, Counts]:
    answered, unsure = labels.random & labels.sure, labels.decided & ~labels.sure
    masks = {"reviewed": answered, "present": answered & labels.present, "unsure": unsure, "found": labels.present}
    counts = {name: labels.count(mask) for name, mask in masks.items()}
    return counts | {"unknown": labels.before.unknown, "undecided": labels.undecided}


def _total(
    covered: Mask, counts: Mapping[str, Counts], number: Counts, parts: list[SampleEstimate | None], has_model: bool
) -> SampleEstimate | None:
    if not covered.any():
        return None
    made = _sum(covered, counts, *interval(number[:, covered].sum(axis=1)))
    only = [part for part in parts if part is not None]
    if len(only) == 1:
        return replace(made, low=only[0].low, high=only[0].high, counted=only[0].counted, halving=only[0].halving)
    return replace(made, counted=not has_model)


def _undecided(labels: ReviewedLabels, log_odds: Array, expected: Array, nodes: Array) -> tuple[Array, Array]:
    """Return mean and variance of the number of present undecided labels of each class at the nodes, ``(K, S)``."""
    classes, column = len(labels.before.unknown), labels.class_number.astype(np.int64)
    scored = ~np.isnan(labels.score)
    unlisted = np.maximum(labels.before.unknown - labels.count(scored) - labels.count(labels.decided & ~scored), 0)
    rest = expected - np.bincount(column[scored], weights=labels.score[scored], minlength=classes)
    rest_odds = to_log_odds(rest / np.maximum(labels.before.unknown - labels.count(scored), 1))
    is_open = scored & ~labels.decided
    bins = np.floor(log_odds[is_open] / _BIN_WIDTH).astype(np.int64)
    used, cell = np.unique(column[is_open] * 1000 + bins + 500, return_inverse=True)
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
    for exact, factor in ((0, _NEARLY), (EXACT, 1.0)) if has_model else ((EXACT, math.inf),):
        _, low, high = count_random(labels, k, exact)
        if high - low >= factor * (made.high - made.low):
            return made
    still = min(max(made.still_missing, low), high)
    return replace(made, still_missing=still, low=low, high=high, counted=True)


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
    sums = {name: int(values[mask].sum()) for name, values in counts.items()}
    still = sums["still_missing"]
    low, high = min(int(low), still), min(max(int(high), still), sums["undecided"])
    return SampleEstimate(**sums, classes=int(mask.sum()), low=low, high=high, counted=False)


def _covered(reviewed: Counts, rest: Counts) -> Mask:
    r"""Return the classes whose random labels count without a model, ``(K,)``.

    A class that was hardly reviewed would ruin a good interval of the others. So classes are taken in the order of
    :math:`n_k / m_k`, random answers per undecided label, as many as keep Kish's effective sample size,
    :math:`1 / \sum_k W_k^2 (1 / n_k + 1 / m_k)` with :math:`W_k = m_k / \sum_j m_j`, at half of its largest possible
    value or more. It depends on sample sizes alone, never on answers.
    """
    sampled = np.flatnonzero((reviewed > 0) & (rest > 0))
    chosen = np.zeros(len(rest), dtype=np.bool_)
    if len(sampled):
        order = sampled[np.argsort(-reviewed[sampled] / rest[sampled], kind="stable")]
        size = rest[order].astype(np.float64)
        effective = np.cumsum(size) ** 2 / np.cumsum(size**2 * (1 / reviewed[order] + 1 / size))
        chosen[order[: np.flatnonzero(effective >= effective.max() / 2)[-1] + 1]] = True
    return chosen


def describe_estimate(estimate: SampleEstimate | None, class_name: str = "") -> str:
    """Return an estimate as sentences: what was counted, what is left, and where the interval comes from."""
    if estimate is None:
        return "There is no estimate before a random candidate is decided."
    unsure = f" {pluralize(estimate.unsure, 'label')} could not be told." if estimate.unsure else ""
    found = f"{class_name or pluralize(estimate.classes, 'class')}: {estimate.found:,} found."
    if not estimate.undecided:
        exact = "" if estimate.unsure else ", so this is exact"
        return f"{found} Every unknown label is decided{exact}.{unsure}"
    still, low, high = estimate.remaining
    ends = f"95 %: {low:,} to {high:,}" if estimate.has_interval else f"{low:,} to {high:,} are possible"
    return f"{found} {describe_left(still, high, estimate.undecided)} present ({ends}){_source(estimate)}{unsure}"


def describe_left(number: int, high: int, left: int) -> str:
    """Return how many of those left are something, by a rounded estimate, not 0 where ``high`` is not, and the verb."""
    about = f"About {number:,}" if number else "Less than 1" if high else "Probably none"
    return f"{about} of the {left:,} left {'are' if number > 1 else 'is'}"


def _source(estimate: SampleEstimate) -> str:
    """Return the end of the sentence: what the interval is from, and what would narrow it."""
    if not estimate.has_interval:
        return f". An interval needs {MIN_RANDOM} random answers; {estimate.reviewed} so far."
    answers, present = pluralize(estimate.reviewed, "random answer"), f"({estimate.present:,} present)."
    source = f"counted from {answers} alone" if estimate.counted else f"by the scores and {answers}"
    more = f" About {estimate.halving:,} more random answers would halve this interval." if estimate.halving else ""
    return f", {source} {present}{more}"


def describe_next(candidates: int, present: float | None) -> str:
    """Return what the next candidates are expected to hold, without an interval; maybe nothing."""
    if present is None or not candidates:
        return ""
    number = f"about {present:,.0f}" if present >= 0.95 else "less than 1" if present >= 0.05 else "none"
    return f"The next {candidates:,} are expected to hold {number}."


def _other_decisions(
    folder: ReviewFolder, others: Mapping[LabelKey, int], splits: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    found: list[tuple[int, int]] = []
    classes = {name: number for number, name in enumerate(folder.classes)}
    for split in [split for split in folder.data.splits if split.name in splits] if others else ():
        rows = {name: row for row, name in enumerate(split.labels.images)}
        own = [key for key in others if key.split == split.name and key.class_name in classes and key.image in rows]
        columns = np.array([classes[key.class_name] for key in own], dtype=np.int64)
        codes = split.labels.codes_at(np.array([rows[key.image] for key in own], dtype=np.int64), columns)
        pairs = zip(own, columns.tolist(), codes.tolist(), strict=True)
        found += [(column, others[key]) for key, column, code in pairs if code == UNKNOWN]
    made = np.array(found, dtype=np.int64).reshape(-1, 2)
    return made[:, 0], made[:, 1].astype(np.int8)


def count_audited(folder: ReviewFolder, candidates: Candidates, split: str | None) -> AuditCounts:
    """Count the labels before a review of one split, or of all that was audited."""
    metadata, names, own = candidates.metadata, candidates.classes, len(folder.classes)
    counts = metadata.get("unknown_per_class") or {}
    audited = np.array([int(counts.get(name, 0)) for name in names], dtype=np.int64)
    known = audited[:own] if split is None else folder.data.split(split).labels.counts().unknown
    asked = np.bincount(candidates.columns.class_number, minlength=len(names))
    unknown = np.concatenate([known, asked[own:]])
    if metadata.get("estimate") is None:
        return AuditCounts(unknown, None)
    estimate = metadata["estimate"]
    missing = np.array([float(estimate["missing_per_class"].get(name, 0)) for name in names])
    expected = missing * unknown / np.maximum(audited, 1)
    expected[own:] = ADDED_SCORE * unknown[own:]
    ends = estimate.get("range") if split is None and len(names) == own else None
    return AuditCounts(unknown, expected, tuple(estimate.get("spread") or MODEL_SPREAD), ends and tuple(ends))


def estimate_current(
    folder: ReviewFolder, current: CurrentDecisions, counts: AuditCounts, splits: Sequence[str], shown: Mask
) -> ReviewEstimate:
    """Estimate how many labels are missing in an open review; ``shown`` are the candidates that are asked about."""
    candidates = current.candidates
    columns, decisions = candidates.columns, order_decisions(current, shown)
    group, answer = _other_decisions(folder, current.others, splits)
    answers = np.bincount(columns.class_number[decisions.random], minlength=len(candidates.classes))
    silent = (np.arange(len(answers)) >= len(folder.classes)) & (answers < MIN_RANDOM)
    numbers = np.flatnonzero((columns.kind != WRONG) & ~silent[columns.class_number])
    decided, value, random, order = (values[numbers] for values in decisions)
    own: list[Any] = [columns.class_number[numbers], columns.score[numbers], decided, value, random, order]
    true, last = np.ones(len(group), dtype=np.bool_), np.full(len(group), _LAST)
    more: list[Any] = [group, np.full(len(group), np.nan), true, answer, ~true, last]
    expected = None if counts.expected is None else np.where(silent, 0.0, counts.expected)
    before = counts._replace(unknown=np.where(silent, 0, counts.unknown), expected=expected)
    names = ("class_number", "score", "decided", "value", "random", "order")
    joined: dict[str, Any] = {name: np.concatenate(pair) for name, *pair in zip(names, own, more, strict=True)}
    made = estimate_review(ReviewedLabels(**joined, before=before))
    probability = np.full(len(columns.ids), np.nan)
    probability[numbers] = made.probability[: len(numbers)]
    return replace(made, probability=probability)
