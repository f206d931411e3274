r"""How many of the known labels that look wrong are wrong, and when to stop asking about them.

Let :math:`z_i` be the log-odds of the model that label :math:`i` of class :math:`k` is not what was observed. It is
wrong with probability :math:`p_i = \sigma(z_i + s_k)`, with the shifts :math:`s_k = u + w\,t_k` of the label model
(``metrics.label_model``): so precision falls along the list, which has the least plausible labels first, and classes
borrow from each other. The common shift says how wrong the audit is about the rate of errors. "Can't tell" is no
information.

The *precision* of a class is the mean of :math:`p_i` over its labels that nobody has decided, and its interval that of
the shift, 95 %; that of all classes is over all labels.

**The rule.** A class is put away once at least ``MIN_ANSWERS`` labels, of any class, are answered, and the upper end of
its precision is below ``MIN_PRECISION``; or that of all classes is, and the class's precision is. The queue is put away
once all its classes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics.label_model import Answers, draw_shifts, expected_counts, to_log_odds
from labelgap.review.candidates import WRONG
from labelgap.review.estimates import describe_left
from labelgap.review.session import Review

MIN_PRECISION: Final = 0.10  # below this share of wrong labels it is not worth asking
MIN_ANSWERS: Final = 10  # answers before anything is put away
COMMON_SPREAD: Final = 1.2  # of u, before any answer
_ENDS: Final = (0.025, 0.975)

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WrongLabels:
    """Known labels that look wrong, ``(S,)`` each, and the answers so far."""

    classes: int  # K
    class_number: NDArray[np.integer[Any]]  # the class of each label
    # probability that the label is not what was observed, as the model has it
    implausibility: NDArray[np.floating[Any]]
    decided: Bools  # whether somebody answered
    wrong: Bools  # whether the answer is that it is wrong
    right: Bools  # whether the answer is that it is right; neither where the reviewer could not tell

    def count(self, mask: Bools) -> NDArray[np.int64]:
        """Return how many labels of each class a mask selects, ``(K,)``."""
        return np.bincount(self.class_number[mask], minlength=self.classes)


@dataclass(frozen=True)
class Precision:
    """The precision of what is left, of a class or of all."""

    answered: int  # labels that are answered, those that could not be told included
    wrong: int  # of these, wrong ones
    left: int  # labels that nobody has decided
    share: float  # how many of these are wrong, as a share: expected; 0 where nothing is left
    low: float  # lower end of its 95 % interval
    high: float  # upper end
    put_away: bool  # whether it is not worth asking about those that are left


class WrongLabelEstimate(NamedTuple):
    """The precision of the suggestions: of all classes, and of each; None for a class without suggestions."""

    total: Precision
    by_class: tuple[Precision | None, ...]


def estimate_wrong_labels(labels: WrongLabels) -> WrongLabelEstimate:
    """Estimate how many of the labels that look wrong are wrong, and which classes to put away."""
    order = np.argsort(labels.class_number, kind="stable")
    column, odds = labels.class_number[order].astype(np.int64), to_log_odds(labels.implausibility[order])
    told, is_open = (labels.wrong | labels.right)[order], ~labels.decided[order]
    answers = Answers(column[told], odds[told], labels.wrong[order][told])
    draws = draw_shifts(answers, (COMMON_SPREAD, COMMON_SPREAD), classes=labels.classes)
    mean, _ = expected_counts(column[is_open], np.ones(is_open.sum()), odds[is_open], draws.nodes)
    wrong_left, left = draws.pick(mean), labels.count(~labels.decided)
    share, low, high = _summarize(wrong_left / np.maximum(left, 1))
    mean_share, lowest, highest = _summarize(wrong_left.sum(axis=1) / max(left.sum(), 1)).tolist()
    answered, wrong = labels.count(labels.decided), labels.count(labels.wrong)
    away = (high < MIN_PRECISION) | ((highest < MIN_PRECISION) & (share < MIN_PRECISION))
    away &= (left > 0) & (answered.sum() >= MIN_ANSWERS)
    parts = (answered, wrong, left, share, low, high, away)
    rows = zip(*(values.tolist() for values in parts), strict=True)
    by_class = tuple(Precision(*row) if row[0] + row[2] else None for row in rows)
    hidden = bool(left.any()) and bool(away[left > 0].all())
    counts = int(answered.sum()), int(wrong.sum()), int(left.sum())
    everything = Precision(*counts, mean_share, lowest, highest, hidden)
    return WrongLabelEstimate(everything, by_class)


def _summarize(shares: Array) -> Array:
    """Return the mean of draws along the first axis, and the ends of their 95 % interval, ``(3, …)``."""
    return np.stack([shares.mean(axis=0), *np.quantile(shares, _ENDS, axis=0)])


def describe_put_away(precision: Precision) -> str:
    """Return why labels are not asked about, as a sentence."""
    left = f"{precision.left:,}"
    if not precision.answered:
        these = "this one is" if precision.left == 1 else f"these {left} are"
        return f"Hardly any of other classes was wrong: {these} probably right."
    others = "other one is" if precision.left == 1 else f"other {left} are"
    were = "was" if precision.wrong == 1 else "were"
    return f"{precision.wrong:,} of {precision.answered:,} {were} wrong: the {others} probably right."


@dataclass(frozen=True, eq=False)
class WrongQueue:
    """The queue at one moment."""

    asked: Numbers  # labels to ask about, the least plausible first
    put_away: Numbers  # open labels of classes that were put away
    decided: Numbers  # labels that are answered, the newest first
    estimate: WrongLabelEstimate
    parts: tuple[tuple[int, str, str], ...]  # number, name and sentence of each class that was put away

    @property
    def total(self) -> Precision:
        """Of all classes."""
        return self.estimate.total

    @property
    def summary(self) -> str:
        """What the queue has brought, and what is left, in a sentence."""
        return describe_put_away(self.total) if self.total.put_away else describe_precision(self.total)


def wrong_queue(review: Review) -> WrongQueue | None:
    """Return the queue; None where no label looks wrong."""
    queue: WrongQueue | None = review.cached("wrong queue", lambda: _make(review))
    return queue


def describe_precision(precision: Precision) -> str:
    """Return how many labels are wrong, answered and left, as a sentence."""
    if not precision.left:
        return f"{pluralize(precision.answered, 'label')} answered, {precision.wrong:,} wrong; none is left."
    if not precision.answered:
        expected = round(precision.share * precision.left)
        return f"{pluralize(precision.left, 'label')} to look at, about {expected:,} of them wrong."
    low, high = int(precision.low * precision.left), -int(-precision.high * precision.left // 1)
    left = describe_left(round(precision.share * precision.left), high, precision.left)
    return f"{precision.answered:,} answered, {precision.wrong:,} wrong. {left} wrong (95 %: {low:,} to {high:,})."


def _make(review: Review) -> WrongQueue | None:
    columns, current = review.candidates.columns, review.current
    rows = np.flatnonzero((columns.kind == WRONG) & review.copies.shown)
    rows = rows[np.argsort(columns.rank[rows], kind="stable")]  # the least plausible first
    if not len(rows):
        return None
    with current.lock:
        decided, value, version = current.decided[rows], current.value[rows], current.version[rows]
    observed, score = columns.observed[rows], np.nan_to_num(columns.score[rows].astype(np.float64), nan=0.5)
    told, classes = decided & (value != UNKNOWN), columns.class_number[rows]
    implausibility = np.where(observed == PRESENT, 1 - score, score)
    answers = told & (value != observed), told & (value == observed)
    labels = WrongLabels(len(review.candidates.classes), classes, implausibility, decided, *answers)
    estimate = estimate_wrong_labels(labels)
    parts = tuple(
        (number, review.candidates.classes[number], describe_put_away(each))
        for number, each in enumerate(estimate.by_class)
        if each is not None and each.put_away
    )
    away = np.isin(classes, [number for number, _, _ in parts])
    answered = rows[decided][np.argsort(-version[decided], kind="stable")]
    return WrongQueue(rows[~decided & ~away], rows[~decided & away], answered, estimate, parts)
