r"""How many of the known labels that look wrong are wrong, and when to stop asking about them.

Let :math:`z_i` be the log-odds of the model that label :math:`i` of class :math:`k` is not what was observed. It is
wrong with probability

.. math:: p_i = \sigma(z_i + \delta_k), \qquad \delta_k \sim N(\mu, s^2), \qquad \mu \sim N(m, r^2)

so precision falls along the list, which has the least plausible labels first, and classes borrow from each other. The
shift says how wrong the audit is about the rate of errors. (Older audits had no such rate: their scores say whether a
class is there, and of people's labels few are wrong.) The shifts are integrated on a grid. "Can't tell" is no
information.

The *precision* of a class is the mean of :math:`p_i` over its labels that nobody has decided, and its interval that of
:math:`\delta_k`, 95 %. That of all classes is integrated over :math:`\mu`, with the sum over the classes normal.

**The rule.** A class is put away once at least ``MIN_ANSWERS`` labels, of any class, are answered, and the upper end of
its precision is below ``MIN_PRECISION``; or that of all classes is, and the class's precision is. The queue is put away
once all its classes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit, log_expit, ndtr

from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics.label_model import to_log_odds
from labelgap.review.candidates import WRONG
from labelgap.review.estimates import describe_left
from labelgap.review.session import Review

MIN_PRECISION: Final = 0.10  # below this share of wrong labels it is not worth asking
MIN_ANSWERS: Final = 10  # answers before anything is put away
MEAN_SHIFT, MEAN_SPREAD = 0.0, 2.0  # m and r, before any answer
OLD_PRIOR: Final = (-4.0, 3.0)  # m and r for an audit without a rate of errors: about one label in fifty is wrong
# s, the standard deviation of the classes' shifts around it; docs/results/review.md has the evidence
CLASS_SPREAD: Final = 1.0
_GRID: Final = np.arange(-16.0, 8.01, 0.125)
_LEVELS: Final = (0.025, 0.975)

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


def estimate_wrong_labels(
    labels: WrongLabels, prior: tuple[float, float] = (MEAN_SHIFT, MEAN_SPREAD)
) -> WrongLabelEstimate:
    """Estimate how many of the labels that look wrong are wrong, and which classes to put away, by the prior m, r."""
    odds, column = to_log_odds(np.asarray(labels.implausibility, dtype=np.float64)), labels.class_number
    numbers, left = np.arange(labels.classes), labels.count(~labels.decided)
    told = labels.wrong | labels.right
    sign = np.where(labels.wrong, 1.0, -1.0)[told, None]
    log_likelihood = _sum_by_class(log_expit(sign * (odds[told, None] + _GRID)), column[told], labels.classes)
    posterior = _Posterior(log_likelihood, prior)
    chances = expit(odds[:, None] + _GRID)
    wrong_left = _sum_by_class(chances * ~labels.decided[:, None], column, labels.classes)
    size = np.maximum(left, 1)
    share = (posterior.shift * wrong_left).sum(axis=1) / size
    below = [(np.cumsum(posterior.shift, axis=1) < level).sum(axis=1) for level in _LEVELS]
    low, high = (wrong_left[numbers, np.minimum(at, len(_GRID) - 1)] / size for at in below)
    total = posterior.total(wrong_left, int(left.sum()))
    answered, wrong = labels.count(labels.decided), labels.count(labels.wrong)
    away = (high < MIN_PRECISION) | ((total[2] < MIN_PRECISION) & (share < MIN_PRECISION))
    away &= (left > 0) & (answered.sum() >= MIN_ANSWERS)
    parts = (answered, wrong, left, share, low, high, away)
    rows = zip(*(values.tolist() for values in parts), strict=True)
    by_class = tuple(Precision(*row) if row[0] + row[2] else None for row in rows)
    hidden = bool(left.any()) and bool(away[left > 0].all())
    everything = Precision(int(answered.sum()), int(wrong.sum()), int(left.sum()), *total, hidden)
    return WrongLabelEstimate(everything, by_class)


def describe_put_away(precision: Precision) -> str:
    """Return why labels are not asked about, as a sentence."""
    left = f"{precision.left:,}"
    if not precision.answered:
        these = "this one is" if precision.left == 1 else f"these {left} are"
        return f"Hardly any of other classes was wrong: {these} probably right."
    others = "other one is" if precision.left == 1 else f"other {left} are"
    were = "was" if precision.wrong == 1 else "were"
    return f"{precision.wrong:,} of {precision.answered:,} {were} wrong: the {others} probably right."


class _Posterior:
    """The distribution of the shifts on the grid of G points, given ``(K, G)`` log-likelihoods of the answers."""

    def __init__(self, log_likelihood: Array, prior: tuple[float, float]) -> None:
        kernel = np.exp(-0.5 * ((_GRID[:, None] - _GRID) / CLASS_SPREAD) ** 2)
        self.kernel: Array = kernel / kernel.sum(axis=1, keepdims=True)  # of δ, given μ
        self.likelihood: Array = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
        self.evidence: Array = np.maximum(self.likelihood @ self.kernel.T, 1e-300)  # (K, G): given μ
        log_weight = np.log(self.evidence).sum(axis=0) - 0.5 * ((_GRID - prior[0]) / prior[1]) ** 2
        weight = np.exp(log_weight - log_weight.max())
        self.mean: Array = weight / weight.sum()  # (G,) of μ
        self.shift: Array = self.likelihood * ((self.mean / self.evidence) @ self.kernel)

    def total(self, values: Array, left: int) -> tuple[float, float, float]:
        """Return the sum over the classes of a function of their shifts, ``(K, G)``, and its normal interval, per
        label.
        """
        if not left:
            return 0.0, 0.0, 0.0
        mean, square = ((self.likelihood * each) @ self.kernel.T / self.evidence for each in (values, values**2))
        middle, spread = mean.sum(axis=0), np.sqrt(np.maximum(square - mean**2, 1e-18).sum(axis=0))
        ends = []
        for level in _LEVELS:
            low, high = 0.0, float(left)
            for _ in range(40):
                value = (low + high) / 2
                is_below = float(self.mean @ ndtr((value - middle) / spread)) < level
                low, high = (value, high) if is_below else (low, value)
            ends.append(low / left)
        return float(self.mean @ middle) / left, ends[0], ends[1]


def _sum_by_class(values: Array, column: NDArray[np.integer[Any]], classes: int) -> Array:
    ones = (np.ones(len(column)), (column, np.arange(len(column))))
    sums: Array = csr_array(ones, shape=(classes, len(column))) @ values
    return sums


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
    is_old = review.candidates.metadata["expected_wrong"] is None
    estimate = estimate_wrong_labels(labels, *([OLD_PRIOR] if is_old else []))
    parts = tuple(
        (number, review.candidates.classes[number], describe_put_away(each))
        for number, each in enumerate(estimate.by_class)
        if each is not None and each.put_away
    )
    away = np.isin(classes, [number for number, _, _ in parts])
    answered = rows[decided][np.argsort(-version[decided], kind="stable")]
    return WrongQueue(rows[~decided & ~away], rows[~decided & away], answered, estimate, parts)
