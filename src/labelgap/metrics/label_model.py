r"""One model of which labels are present, and which of those are known: whatever counts labels asks it.

With the logit :math:`x` of an image, from a model that has not seen its labels, a label of class :math:`k` is

.. math:: P(\text{present}) = p = \sigma(a x + b_k), \qquad P(\text{known} \mid \text{present}) = e_k, \qquad
          P(\text{known} \mid \text{absent}) = f_k

whatever the image (labels are **missing at random**, given their state). So presents alone determine the line: where
nearly all of the highest-scoring labels are known, :math:`e_k` is high; where few are, many labels are missing. Scores
that hardly separate, or a handful of known labels, say little about :math:`e_k`, so classes share their strength. Let
:math:`z` be the log-odds that a label is *observed* present, by one line for all classes (Platt, 1999). In units of
:math:`z`, :math:`\ln a` is normal; so are, around a common mean each, the logits of :math:`e_k` and of :math:`f_k`, and
:math:`b_k + \ln e_k`, which is 0 for exact scores (Elkan & Noto, KDD 2008). The parameters are a maximum of the
posterior, reached from the priors' means. :math:`f_k` is 0 where no absent label is known.

**People stop after one or two tags.** Then a label beside a known one is known less often than :math:`e_k`. Let
:math:`r` be the number of known present labels beside another one of their image, divided by the sum of
:math:`\sigma(z)` over all labels beside a known present one. It is about 0.7 without such a habit (of several likely
labels some are alternatives), and 0 if nobody gives a second tag. With :math:`\kappa = 0.4 + 0.6 \min(1, r / 0.7)`

.. math:: \frac{P(\text{present} \mid \text{unknown})}{P(\text{absent} \mid \text{unknown})}
          = e^{a x + b_k}\; \frac{1 - \kappa e_k}{1 - f_k}

**How many are present** is the sum of these probabilities. The log-odds of a class may be wrong by
:math:`s_k = u + w\,t_k`, less its median: a common :math:`u`, and a :math:`t_k` of each class, both heavy-tailed
(Student's): most models are about right, and some are wrong by a factor of five. The spread of :math:`u` on either side
comes from the curvature of the posterior; from how wrong the model was on data whose truth is known, less where absents
are known; and downwards from :math:`\kappa`, since alternatives look like people who stop. A range is that of draws of
:math:`s`, and of labels given their probabilities. Answers of a review narrow :math:`s`. docs/audit.md says how the
constants were chosen, and what came true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.core.special import expit, logit, student_quantile
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics.average_precision import cuts_at_present, map_chunks, to_rows
from labelgap.metrics.validation import (
    MIN_KNOWN_LABELS,
    Codes,
    Floats,
    Labels,
    Scores,
    format_labels,
    format_pair,
    unknown_as_absent,
)

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

MIN_RANKING: Final = 2.0  # standard deviations by which known presents score higher, in the mean over classes
MIN_SLOPE: Final = 0.01  # of the line of z, per deviation of the logits: a useless model does not reverse the others
MIN_INFORMATIVE_SLOPE: Final = 0.3  # of the model, likewise: with less, scores say next to nothing
BINS: Final = 64  # of the histogram of a class
_MAX_DEVIATION: Final = 8.0  # logits farther from the mean of their class, in standard deviations, count as this

_PRIOR_MEAN: Final = np.array([0.0, 0.0, 0.0, -2.0])  # of ln a; means of b + ln e, of the logit of e, of that of f
_PRECISION: Final = np.array([0.5, np.inf, 1.0, 3.0]) ** -2.0  # of these; the second has no prior
_SPREADS: Final = np.array([0.3, 1.0, 1.0])  # over classes, of the logit of e, of b + ln e and of the logit of f
_NEWTON_ITERATIONS, _LONGEST_STEP = 200, 1.0
_COLLINEAR: Final = 1e-9  # no step where the relative curvature is lower: scores that say the same, or the reverse
_DECREASE: Final = 1e-9  # twice the decrease of minus the log-posterior for which no further step is made
_DIFFERENCE: Final = 1e-4
_TINY: Final = 1e-300
_MIN_SCORE: Final = 1e-6  # a score of 0 counts as this
INDEPENDENT_RATIO: Final = 0.7  # r where people do not stop early
MIN_STOPPING: Final = 0.4  # the smallest κ

PRIOR_RIGHT: Final = 50.0  # of each state, known labels that are taken to be right before any is seen
_MAX_WRONG: Final = 0.5  # of the known labels of a state
_ERROR_ITERATIONS, _SHARE_ITERATIONS = 12, 20

MODEL_SPREAD: Final = (0.45, 0.3)
"""How wrong the log-odds of all classes may be without a known absent, downwards and upwards."""
KNOWN_SPREAD: Final = 0.15  # the same with as many known absents per class as here:
ENOUGH_ABSENTS: Final = 10.0
STOPPING_SHARE: Final = 0.5  # of what κ adds to the log-odds: so much it may be wrong by
CLASS_SPREAD: Final = 0.7  # w
_FREEDOM, _COMMON_FREEDOM = 4.0, 2.0  # of t, and of u
_DRAWS: Final = 2000
_MAX_DRAWN: Final = 1_000_000  # shifts, over all classes
_SETS_AT_ONCE, _COUNTED_AT_ONCE = 1 << 12, 1 << 17
_ENDS: Final = (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class LabelModel:
    """The parameters; see the module's docstring."""

    scale: float  # a, above 0
    offset: Array  # (K,) b
    present_known: Array  # (K,) e, the share of the present labels that is known
    absent_known: Array  # (K,) f, that of the absent labels
    stopping: float = 1.0  # κ
    spread: tuple[float, float] = MODEL_SPREAD  # of u, downwards and upwards
    slope: float = math.nan  # a for logits of deviation 1: near 0 for scores that do not rank

    @property
    def is_informative(self) -> bool:
        """Whether logits say more than next to nothing."""
        return self.slope >= MIN_INFORMATIVE_SLOPE

    @classmethod
    def fit(cls, logits: Floats, codes: Codes) -> LabelModel | None:
        """Fit the model to logits ``(N, K)`` and codes of images that the scoring model was not trained on.

        None without a known present, and where known presents score no higher than other labels: nothing separates
        "few are present" from "all are present, and few of them known" then.
        """
        if not ranks_presents(logits, codes):
            return None
        present = np.count_nonzero(codes == PRESENT, axis=1)

        chunks = map_chunks(lambda part: _histograms(logits[:, part], codes[:, part], present), *codes.shape[::-1])
        value, counts = (np.concatenate(each, axis=-2) for each in zip(*chunks, strict=True))
        is_used = np.asarray(counts[:3].any(axis=(0, 2)))[:, None]  # classes with a known label
        state, *place = np.nonzero(counts * is_used)
        line = platt_scaling(value[*place], state < 2, counts[state, *place], min_slope=MIN_SLOPE)
        z = line[0] * value + line[1]
        expected = float((counts[[1, 4]].sum(axis=0) * is_used * expit(z)).sum())
        states = np.stack([counts[0] + counts[1], counts[2], counts[3] + counts[4]])
        model = fit_label_model(z, states, stopping_ratio(float(counts[1].sum()), expected))
        total = states.sum(axis=0) * is_used
        deviation = math.sqrt(np.average((value - np.average(value, weights=total)) ** 2, weights=total))
        scale = model.scale * line[0]
        return replace(model, scale=scale, offset=model.offset + model.scale * line[1], slope=scale * deviation)

    @property
    def unknown_offset(self) -> Array:
        """What is added to ``scale`` × logit for the log-odds of an unknown label, ``(K,)``."""
        return self.offset + np.log1p(-self.stopping * self.present_known) - np.log1p(-self.absent_known)

    def probabilities(self, logits: Floats, columns: slice = slice(None)) -> Array:
        """Return p of any images, ``(N, K)``, whatever is known of them; of some classes where ``columns`` says so."""
        result: Array = expit(self.scale * logits[:, columns].astype(np.float64) + self.offset[columns])
        return result

    def posterior(self, logits: Floats, codes: Codes, columns: slice = slice(None)) -> Array:
        """Return the probability that each label is present, given what is known of it, ``(N, K)``.

        1 and 0 for known labels. An unknown one is less often present than ``probabilities`` says where people label
        mostly what is present. The sum over the images estimates how many are present.
        """
        odds, codes = self.scale * logits[:, columns].astype(np.float64), codes[:, columns]
        known: Array = (codes == PRESENT).astype(np.float64)
        return np.where(codes == UNKNOWN, expit(odds + self.unknown_offset[columns]), known)


def platt_scaling(
    logits: NDArray[np.floating[Any]],
    present: NDArray[np.bool_],
    weights: NDArray[np.floating[Any]] | None = None,
    *,
    min_slope: float | None = None,
) -> tuple[float, float]:
    """Fit the line of Platt scaling to logits ``(M,)``; return its slope and intercept."""
    slopes, intercept = logistic_line(logits[None], present, weights, min_slopes=(min_slope,))
    return float(slopes[0]), intercept


def logistic_line(
    values: NDArray[np.floating[Any]],
    present: NDArray[np.bool_],
    weights: NDArray[np.floating[Any]] | None = None,
    *,
    min_slopes: Sequence[float | None],
) -> tuple[Array, float]:
    r"""Fit a logistic regression on scores ``(R, M)`` of R kinds; return the slopes ``(R,)`` and the intercept.

    .. math:: \min_{a, b} - \sum_i w_i \bigl( t_i \ln \sigma(a \cdot x_i + b) + (1 - t_i) \ln(1 - \sigma(\cdot)) \bigr)

    with targets :math:`t = (P + 1) / (P + 2)` for a present entry and :math:`1 / (A + 2)` for an absent one, where P
    and A are the weights of the two states: scores that separate the two perfectly still give a finite line (Platt).
    ``min_slopes`` are the smallest ones, per standard deviation of the scores, so that scores that rank at random do
    not reverse the order; None for no limit. The slope of constant scores is 0.
    """
    values = values.astype(np.float64)
    weight = np.ones(values.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
    positives, negatives = float(weight[present].sum()), float(weight[~present].sum())
    targets = np.where(present, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    mean = np.average(values, axis=1, weights=weight)
    deviation = np.sqrt(np.average((values - mean[:, None]) ** 2, axis=1, weights=weight))
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    design = np.concatenate([(values - mean[:, None]) * scale[:, None], np.ones((1, values.shape[1]))])
    share = weight / weight.sum()

    def objective(line: Array) -> tuple[float, Array]:
        odds = line @ design
        return float(share @ (np.logaddexp(0.0, odds) - targets * odds)), design @ (share * (expit(odds) - targets))

    line = np.array([*(max(slope or 0.0, 0.0) for slope in min_slopes), np.log((positives + 1) / (negatives + 1))])
    lowest = np.array([*(-np.inf if slope is None else slope for slope in min_slopes), -np.inf])

    def newton_step(line: Array, gradient: Array) -> Array:
        """Return the step of the slopes that are not held by their limit, and of the intercept."""
        free = np.flatnonzero((line > lowest) | (gradient < 0))
        p, step = expit(line @ design), np.zeros_like(line)
        hessian = (design[free] * (share * p * (1 - p))) @ design[free].T
        step[free] = -np.linalg.lstsq(hessian, gradient[free], rcond=_COLLINEAR)[0]
        return step

    line = _descend(objective, newton_step, line, 1e-15, lowest)
    slopes = line[:-1] * scale
    return slopes, float(line[-1] - slopes @ mean)


def _descend(
    evaluate: Callable[[Array], tuple[float, Array]],
    newton_step: Callable[[Array, Array], Array],
    values: Array,
    decrease: float,
    lowest: Array | float = -np.inf,
) -> Array:
    """Return a minimum that Newton's steps lead to; none lowers the cost by half of ``decrease`` any more."""
    cost, gradient = evaluate(values)
    for _ in range(_NEWTON_ITERATIONS):
        step = newton_step(values, gradient)
        slope = float(gradient @ step)
        if slope > -decrease:
            break
        length, after = 2 * min(1.0, _LONGEST_STEP / float(np.abs(step).max())), (np.inf, gradient)
        while after[0] > cost + 1e-4 * length * slope and length > 1e-6:
            length /= 2
            moved = np.maximum(values + length * step, lowest)
            after = evaluate(moved)
        if after[0] >= cost:
            break
        values, (cost, gradient) = moved, after
    return values


def ranks_presents(logits: Floats, codes: Codes) -> bool:
    """Return whether known presents score higher than the other labels of their class: a rank-sum test."""
    excess, variance = 0.0, 0.0
    for column in np.flatnonzero((codes == PRESENT).any(axis=0)).tolist():
        present = codes[:, column] == PRESENT
        own, others = logits[present, column], np.sort(logits[~present, column])
        below = (np.searchsorted(others, own) + np.searchsorted(others, own, side="right")) / 2
        excess += float((below - len(others) / 2).sum())
        variance += len(own) * len(others) * (len(codes) + 1) / 12
    return excess > 0 and excess >= MIN_RANKING * math.sqrt(variance)


def _histograms(logits: Floats, codes: Codes, present: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the mean logit of the bins of each class ``(K, G)``, and how many labels of five states are in each.

    Those are present, present beside another one of the image, absent, unknown, and unknown beside a present.
    """
    beside = present[:, None] > (codes == PRESENT)
    values = logits.astype(np.float64)
    mean, reach = values.mean(axis=0), _MAX_DEVIATION * values.std(axis=0) + 1e-9
    values = np.clip(values, mean - reach, mean + reach)
    low, classes = values.min(axis=0), codes.shape[1]
    width = np.maximum((values.max(axis=0) - low) / BINS, 1e-12)
    place = np.minimum((values - low) / width, BINS - 1).astype(np.int64) + np.arange(classes) * BINS
    state = np.select([codes == PRESENT, codes == ABSENT], [0, 2], 3) + (beside & (codes != ABSENT))
    cells = classes * BINS
    counts = np.bincount((state * cells + place).ravel(), minlength=5 * cells).reshape(5, classes, BINS)
    total = np.bincount(place.ravel(), weights=values.ravel(), minlength=cells).reshape(classes, BINS)
    center = low[:, None] + width[:, None] * (np.arange(BINS) + 0.5)
    number = counts.sum(axis=0)
    return np.where(number, total / np.maximum(number, 1), center), counts.astype(np.float64)


def stopping_ratio(beside: float, expected: float) -> float:
    """Return κ, from 0.4 to 1, by the known presents beside another one, and how many are expected; few keep it 1."""
    ratio = min(1.0, (beside / INDEPENDENT_RATIO + 2) / (expected + 2))
    return MIN_STOPPING + (1 - MIN_STOPPING) * ratio


def fit_label_model(z: Array, counts: NDArray[np.floating[Any]], stopping: float = 1.0) -> LabelModel:
    """Fit the model to z of bins ``(K, G)`` and the counts of present, absent and unknown labels, ``(3, K, G)``."""
    return _fit(z, counts, stopping)[0]


def _fit(
    z: Array, counts: NDArray[np.floating[Any]], stopping: float, start: Array | None = None
) -> tuple[LabelModel, Array]:
    """Return the model, and its parameters, from which ``start`` leads to those of nearly the same counts quickly."""
    used = np.flatnonzero(counts[:2].any(axis=(0, 2)))
    problem = _Problem(z[used], counts[:, used])
    problem.start = problem.start if start is None else start
    values = problem.minimize() if used.size else problem.start
    slope, *own = problem.unpack(values)
    part = LabelModel(slope, own[0], own[1], own[2] * problem.any_absent, stopping)
    known, absent = (np.full(len(z), expit(each)) for each in values[2:4])
    offset = values[1] - np.log(known)
    offset[used], known[used], absent[used] = own
    spread = _common_spread(problem, values, part) if used.size else MODEL_SPREAD
    return LabelModel(slope, offset, known, absent * counts[1].any(), stopping, spread), values


@dataclass(frozen=True, eq=False)
class ErrorModel:
    r"""How often known labels are wrong: absent labels are noted as present at a rate η, and the reverse at ζ.

    .. math:: P(\text{wrong} \mid \text{known present}) = \frac{\eta (1 - p)}{\eta (1 - p) + e_k p}, \qquad
              P(\text{wrong} \mid \text{known absent}) = \frac{\zeta p}{\zeta p + f_k (1 - p)}
    """

    model: LabelModel  # of z, fitted to each known label as far as it is right
    log_rates: tuple[float, float]  # ln η and ln ζ

    def wrong(self, z: Array, column: NDArray[np.integer[Any]], present: NDArray[np.bool_]) -> Array:
        """Return the probabilities that known labels of some classes are wrong, by z; all of one shape."""
        odds, known = self.model.scale * z + self.model.offset[column], self.model.present_known[column]
        absent_known = np.maximum(self.model.absent_known[column], _TINY)
        log_odds = [self.log_rates[0] - odds - np.log(known), self.log_rates[1] + odds - np.log(absent_known)]
        return expit(np.where(present, *log_odds))


def fit_error_model(z: Array, counts: NDArray[np.floating[Any]], stopping: float = 1.0) -> ErrorModel:
    """Fit the label model and the rates of errors to the counts that ``fit_label_model`` takes.

    By expectation and maximization: known labels count as far as they are right, and the share of wrong ones is that
    with which presents among low scores, and absents among high ones, are most likely. Hard images look alike, and the
    line of the model has room for them: rather few labels than many are found wrong.
    """
    state, column, place = np.nonzero(counts[:2])  # the bins with known labels
    number, values, total = counts[state, column, place], z[column, place], counts.sum(axis=0)
    known, share, kept = counts[:2].sum(axis=(1, 2)), np.full(2, 0.01), counts.copy()
    wrong, start = np.zeros_like(number), None
    for _ in range(_ERROR_ITERATIONS):
        before = wrong
        kept[state, column, place] = number * (1 - wrong)
        model, start = _fit(z, kept, stopping, start)
        p = expit(model.scale * z + model.offset[:, None])
        right = (p * model.present_known[:, None], (1 - p) * model.absent_known[:, None])
        sums = [[float((total * part).sum()) for part in pair] for pair in zip(right, (1 - p, p), strict=True)]
        even = np.log(np.maximum(sums, _TINY)) @ [1, -1]  # the rates if half of the known labels are wrong
        log_odds = to_log_odds(ErrorModel(model, (even[0], even[1])).wrong(values, column, state == 0))
        for _ in range(_SHARE_ITERATIONS):
            wrong = expit(log_odds + logit(share)[state])
            found = np.bincount(state, number * wrong, minlength=2)
            share = np.clip(found / (known + PRIOR_RIGHT), _TINY, _MAX_WRONG)
        if float(number @ abs(wrong - before)) < max(0.1, 0.01 * found.sum()):
            break
    rates = even + logit(share)
    return ErrorModel(model, (float(rates[0]), float(rates[1])))


def _common_spread(problem: _Problem, values: Array, model: LabelModel) -> tuple[float, float]:
    """Return the spread of u: of the posterior's curvature, of the model, and downwards of κ."""
    z, unknown, e, kappa = problem.z, problem.counts[2], model.present_known, model.stopping
    weight = expit(model.scale * z + model.unknown_offset[:, None])
    stopped = float((unknown * weight).sum())
    plain = float((unknown * expit(model.scale * z + replace(model, stopping=1.0).unknown_offset[:, None])).sum())
    weight = unknown * weight * (1 - weight)
    total, by_known = weight.sum(axis=1), e - 1 - kappa * e * (1 - e) / (1 - kappa * e)
    parts = [(weight * model.scale * z).sum(axis=1), total, total * by_known, total * model.absent_known]
    common, own = np.stack(parts, axis=1), np.stack([parts[2], parts[1], parts[3]], axis=1) * _SPREADS
    shared, across, inverse = problem.curvature(values)
    slope = (common - np.einsum("ki,kij,kcj->kc", own, inverse, across)).sum(axis=0) / max(total.sum(), _TINY)
    fitted = math.sqrt(max(float(slope @ _positive_inverse(shared) @ slope), 0.0))
    enough = min(float(problem.counts[1].sum()) / (ENOUGH_ABSENTS * len(z)), 1.0)
    down, up = (each + (KNOWN_SPREAD - each) * enough for each in MODEL_SPREAD)
    stops = STOPPING_SHARE * math.log(max(stopped, _TINY) / max(plain, _TINY))
    return math.hypot(fitted, down, stops), math.hypot(fitted, up)


class _Problem:
    """Minus the logarithm of the posterior: of four common parameters, then of three of each class, standard normal."""

    def __init__(self, z: Array, counts: NDArray[np.floating[Any]]) -> None:
        self.z, self.counts, self.any_absent = z, counts, bool(counts[1].any())
        self.start = np.concatenate([_PRIOR_MEAN, np.zeros(3 * len(z))])

    def unpack(self, values: Array) -> tuple[float, Array, Array, Array]:
        own = values[4:].reshape(3, -1) * _SPREADS[:, None]
        known, absent = expit(values[2] + own[0]), expit(values[3] + own[2])
        return float(np.exp(values[0])), values[1] - np.log(known) + own[1], known, absent

    def __call__(self, values: Array, *, with_cost: bool = True) -> tuple[float, Array]:
        """Return the cost, which takes longer than the gradient and is 0 without it, and the gradient."""
        slope, offset, known, known_absent = self.unpack(values)
        present, absent, hidden = self.counts
        e, f, cost = known[:, None], known_absent[:, None] * self.any_absent, 0.0
        x = slope * self.z + offset[:, None]
        p, q = expit(x), expit(-x)
        unknown = np.maximum((1 - e) * p + (1 - f) * q, _TINY)
        if with_cost:
            cost += (present * (np.logaddexp(0, -x) - np.log(e)) - hidden * np.log(unknown)).sum()
        by_x = -present * q - hidden * (f - e) * p * q / unknown
        by_known = ((hidden * p / unknown).sum(axis=1) - present.sum(axis=1) / known) * known * (1 - known)
        by_absent = np.zeros(len(known))
        if self.any_absent:
            if with_cost:
                cost += (absent * (np.logaddexp(0, x) - np.log(f))).sum()
            by_x += absent * p
            by_f = (hidden * q / unknown).sum(axis=1) - absent.sum(axis=1) / known_absent
            by_absent = by_f * known_absent * (1 - known_absent)
        by_offset = by_x.sum(axis=1)
        by_known -= by_offset * (1 - known)
        common = values[:4] - _PRIOR_MEAN
        gradient = np.concatenate([_PRECISION * common, values[4:]])
        cost += 0.5 * (gradient[:4] @ common + values[4:] @ values[4:])
        gradient[:4] += [slope * (by_x * self.z).sum(), by_offset.sum(), by_known.sum(), by_absent.sum()]
        gradient[4:] += (_SPREADS[:, None] * [by_known, by_offset, by_absent]).ravel()
        return float(cost), gradient

    def minimize(self) -> Array:
        """Return parameters at a minimum, by Newton's method, whose short steps stay at the prior's side."""
        return _descend(self, self.newton_step, self.start, _DECREASE)

    def curvature(self, values: Array) -> tuple[Array, Array, Array]:
        r"""Return the Hessian of the common parameters with those of the classes eliminated, and what that took.

        Two classes meet only in the four common parameters :math:`c`, so seven differences of the gradient give
        all of it: :math:`H_{cc} - \sum_k H_{ck} H_{kk}^{-1} H_{kc}` ``(4, 4)``, :math:`H_{ck}` ``(K, 4, 3)`` and
        :math:`H_{kk}^{-1}` ``(K, 3, 3)``.
        """
        classes = len(self.z)
        columns = []
        for group in np.split(np.arange(len(values)), [1, 2, 3, 4, 4 + classes, 4 + 2 * classes]):
            step = np.zeros_like(values)
            step[group] = _DIFFERENCE
            above, below = (self(values + each, with_cost=False)[1] for each in (step, -step))
            columns.append((above - below) / (2 * _DIFFERENCE))
        shared, own = np.stack(columns)[:4, :4], np.stack(columns)[:, 4:].reshape(7, 3, classes).transpose(2, 0, 1)
        across, own = own[:, :4], own[:, 4:]
        inverse = _positive_inverse((own + own.transpose(0, 2, 1)) / 2)
        return (shared + shared.T) / 2 - np.einsum("kci,kij,kdj->cd", across, inverse, across), across, inverse

    def newton_step(self, values: Array, gradient: Array) -> Array:
        """Return the step of Newton's method; negative curvature is turned around, so that it always descends."""
        shared, across, inverse = self.curvature(values)
        own = gradient[4:].reshape(3, -1).T
        common = _positive_inverse(shared) @ (np.einsum("kci,kij,kj->c", across, inverse, own) - gradient[:4])
        return np.concatenate([common, -np.einsum("kij,kj->ik", inverse, own + common @ across).ravel()])


def _positive_inverse(matrix: Array) -> Array:
    """Return the inverse of symmetric matrices ``(…, n, n)``, eigenvalues by their magnitude."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors / np.maximum(np.abs(values), 1e-3)[..., None, :]) @ np.swapaxes(vectors, -1, -2))


class Answers(NamedTuple):
    r"""What people say of labels, ``(M,)`` each, by class: :math:`P(y = 1) = c\,\sigma(z + s_k) + g`.

    ``column`` are class numbers, ascending; ``log_odds`` z, by the model; ``present`` y; ``share`` c; ``found`` g;
    ``weight`` how much each counts.
    """

    column: NDArray[np.integer[Any]]
    log_odds: Array
    present: NDArray[np.bool_]
    share: Array | float = 1.0
    found: Array | float = 0.0
    weight: Array | float = 1.0

    @classmethod
    def none(cls) -> Answers:
        """Return no answers."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0, dtype=np.bool_))

    def log_likelihood(self, shift: Array) -> Array:
        """Return that of shifts ``(K, S)``, ``(K, S)``."""
        share, found, weight = (np.broadcast_to(each, len(self.column))[:, None] for each in self[3:])
        p = share * expit(self.log_odds[:, None] + shift[self.column]) + found
        p = np.clip(np.where(self.present[:, None], p, 1 - p), 1e-12, 1)
        return _sum_by_class(self.column, weight * np.log(p), len(shift))


@dataclass(frozen=True, eq=False)
class ShiftDraws:
    """Draws from the posterior of s: nodes ``(K, S)``, the number of the node of each draw ``(D, K)``, and medians."""

    nodes: Array
    index: Counts
    median: Array

    def pick(self, values: Array) -> Array:
        """Return values at the nodes, ``(K, S)``, for each draw, ``(D, K)``."""
        return values[np.arange(len(values)), self.index]

    def count(self, mean: Array, variance: Array, most: Counts) -> Counts:
        """Draw numbers of present labels, ``(D, K)``, at most ``most``, from binomials of these moments at nodes."""
        numbers, random = np.empty(self.index.shape, dtype=np.int64), np.random.default_rng(1)
        step = max(1, _COUNTED_AT_ONCE // len(numbers))
        for first in range(0, len(mean), step):
            part = slice(first, first + step)
            column, at = np.arange(len(mean))[part], self.index[:, part]
            expected = np.minimum(mean[column, at], most[part])
            share = np.clip(1 - variance[column, at] / np.maximum(expected, 1e-12), 1e-9, 1)
            trials = np.maximum(np.minimum(np.ceil(expected / share), most[part]), 1)
            numbers[:, part] = random.binomial(trials.astype(np.int64), np.minimum(expected / trials, 1))
        return numbers


def interval(numbers: Counts) -> Counts:
    """Return the ends of the 95 % interval of draws along the first axis, ``(2, …)``."""
    return np.asarray(np.quantile(numbers, _ENDS, axis=0, method="nearest"), dtype=np.int64)


def expected_counts(group: Counts, size: Array, log_odds: Array, nodes: Array) -> tuple[Array, Array]:
    """Return mean and variance of the presents of each class at nodes of s, ``(K, S)``, from M sets of equal odds."""
    mean, variance = np.zeros_like(nodes), np.zeros_like(nodes)
    for first in range(0, len(group), _SETS_AT_ONCE):
        part = slice(first, first + _SETS_AT_ONCE)
        p = expit(log_odds[part, None] + nodes[group[part]])
        mean += _sum_by_class(group[part], size[part, None] * p, len(nodes))
        variance += _sum_by_class(group[part], size[part, None] * p * (1 - p), len(nodes))
    return mean, variance


def _sum_by_class(column: NDArray[np.integer[Any]], values: Array, classes: int) -> Array:
    result = np.zeros((classes, values.shape[1]))
    used, starts = np.unique(column, return_index=True)
    result[used] = np.add.reduceat(values, starts, axis=0) if len(starts) else 0.0
    return result


def round_to_sum(values: Array) -> Counts:
    """Round numbers to integers that sum to their rounded sum: those with the largest fractions are rounded up."""
    floor = np.floor(values).astype(np.int64)
    up = round(float(values.sum())) - int(floor.sum())
    floor[np.argsort(floor - values, kind="stable")[:up]] += 1
    return floor


def draw_shifts(
    answers: Answers, common: tuple[float, float], own: Array | float = CLASS_SPREAD, classes: int = 0
) -> ShiftDraws:
    """Draw from the posterior of s that answers give, with the spreads of u and w; a function of these alone."""
    own = np.broadcast_to(own, classes or np.size(own))[:, None]
    center = _prior_median(common, own)
    nodes, log_weight = _place_nodes(answers.log_likelihood, np.hypot(max(common), own))
    log_likelihood = answers.log_likelihood(nodes) + log_weight

    def given(v: float) -> Array:  # u in units of its spread
        return np.asarray(log_likelihood + _student((nodes + center - v * common[int(v > 0)]) / own))

    def weigh(grid: Array) -> Array:
        likelihood = np.array([_normalize(given(v))[1].sum() for v in grid])
        return _normalize(likelihood + _student(grid, _COMMON_FREEDOM) + np.log(np.cosh(spaced)))[0]

    spaced = np.linspace(-3.2, 3.2, 49)
    grid = np.sinh(spaced)
    low, middle, high = np.interp((0.16, 0.5, 0.84), np.cumsum(weigh(grid)), grid)
    grid = middle + max((high - low) / 2, 0.05) * np.sinh(spaced)
    draws = max(min(_DRAWS, _MAX_DRAWN // len(nodes)), 200)
    weight = weigh(grid)
    at = np.searchsorted(np.cumsum(weight), (np.arange(draws) + 0.5) / draws)
    counts = np.bincount(np.minimum(at, len(grid) - 1), minlength=len(grid))
    random, marginal, index = np.random.default_rng(0), np.zeros_like(nodes), []
    for v, share, count in zip(grid, weight, counts, strict=True):
        density, _ = _normalize(given(v))
        marginal += share * density
        cumulative = np.cumsum(density, axis=1)
        drawn = random.random((count, len(nodes))) * cumulative[:, -1]
        index.append(np.stack([np.searchsorted(cumulative[k], drawn[:, k]) for k in range(len(nodes))], axis=1))
    halfway = np.cumsum(marginal, axis=1) - marginal / 2
    median = np.array([np.interp(0.5, each, at) for each, at in zip(halfway, nodes, strict=True)])
    return ShiftDraws(nodes, np.concatenate(index), median if len(answers.column) else 0 * median)


def _prior_median(common: tuple[float, float], own: Array) -> Array:
    """Return the median of u + w t for each w: without it, the estimate before any answer is the audit's."""
    share = (np.arange(200) + 0.5) / 200
    u = student_quantile(_COMMON_FREEDOM, share) * np.where(share < 0.5, *common)
    each, which = np.unique(own, return_inverse=True)
    median = np.array([np.median(np.add.outer(u, w * student_quantile(_FREEDOM, share))) for w in each])
    return np.asarray(median[which].reshape(own.shape))


def _place_nodes(likelihood: Callable[[Array], Array], scale: Array) -> tuple[Array, Array]:
    """Return nodes ``(K, S)`` that are dense where the posterior of each class is high, and their log-weights."""

    def posterior(shift: Array) -> Array:
        return np.asarray(likelihood(shift) + _student(shift / scale))

    center = np.zeros_like(scale)
    for half in (10.0, 1.0, 0.1):
        grid = center + np.linspace(-half, half, 21)
        center = np.take_along_axis(grid, posterior(grid).argmax(axis=1)[:, None], axis=1)
    beside = posterior(center + np.array([-0.1, 0.0, 0.1]))
    curvature = (2 * beside[:, 1] - beside[:, 0] - beside[:, 2])[:, None] / 0.1**2
    deviation, spaced = 1 / np.sqrt(np.maximum(curvature, scale**-2 / 2)), np.linspace(-3.2, 3.2, 65)
    return center + deviation * np.sinh(spaced), np.log(deviation * np.cosh(spaced))


def _normalize(log: Array) -> tuple[Array, Array]:
    """Return numbers that are given by their logarithms, divided by their sum over the last axis, and its logarithm."""
    largest = log.max(axis=-1, keepdims=True)
    values = np.exp(log - largest)
    total = values.sum(axis=-1, keepdims=True)
    return values / total, (largest + np.log(total))[..., 0]


def _student(x: Array, freedom: float = _FREEDOM) -> Array:
    """Return the logarithm of Student's density, without its constant."""
    return np.asarray(-(freedom + 1) / 2 * np.log1p(x * x / freedom))


def to_log_odds(share: NDArray[np.floating[Any]]) -> Array:
    """Return the log-odds of probabilities, from -16 to 16 or so."""
    return logit(np.clip(share.astype(np.float64), 1e-7, 1 - 1e-7))


@dataclass(frozen=True)
class PlattCalibration:
    """The line of the model as a run stores it: the probability is the sigmoid of ``scale`` × logit + ``offset``.

    The sigmoid of a logit alone ranks images, and is no probability: trained with most labels missing, a network gives
    0.3 to what is present in nine of ten images. ``classes`` says which are calibrated: with at least five known
    present labels. ``present`` and ``absent`` count their known labels, ``known`` is the share of these: below 1, the
    probability is an estimate, right where labels are missing at random.
    """

    scale: float
    offset: tuple[float, ...]
    classes: tuple[bool, ...]
    present: int
    absent: int
    known: float

    def probabilities(self, logits: NDArray[np.float32], *, every_class: bool = False) -> NDArray[np.float32]:
        """Return ``(N, K)``, NaN for a class that is not calibrated; of ``every_class`` what the others suggest."""
        chance = expit(self.scale * logits.astype(np.float64) + np.asarray(self.offset))
        return np.where(np.asarray(self.classes)[None, :] | every_class, chance, np.nan).astype(np.float32)

    def of_scores(self, scores: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return the probabilities of scores ``(N, K)``, the sigmoids of logits; of thresholds, too, which are some."""
        return self.probabilities(logit(np.clip(scores, _MIN_SCORE, 1 - _MIN_SCORE)))


def fit_platt_calibration(logits: NDArray[np.float32], labels: LabelTable | NDArray[np.int8]) -> dict[str, Any] | None:
    """Find the calibration of a run on unseen logits ``(N, K)``; None where higher ones are not more often present."""
    codes = format_labels(labels)
    present, absent = (np.count_nonzero(codes == state, axis=0) for state in (PRESENT, ABSENT))
    supported = present >= MIN_KNOWN_LABELS
    line = LabelModel.fit(logits, codes) if supported.any() and np.isfinite(logits).all() else None
    if line is None or not line.is_informative:
        return None
    counts = int(present[supported].sum()), int(absent[supported].sum())
    share = sum(counts) / (len(codes) * int(supported.sum()))
    return {
        "method": "platt",
        "scale": line.scale,
        "offset": line.offset.tolist(),
        "classes": supported.tolist(),
        "present": counts[0],
        "absent": counts[1],
        "known": share,
    }


def read_calibration(summary: Mapping[str, Any]) -> PlattCalibration | None:
    """Return the calibration in a run's summary; None for a run without one. Older runs have one offset for all."""
    stored = summary.get("calibration")
    if not stored:
        return None
    classes, offset = tuple(stored["classes"]), stored["offset"]
    offset = tuple(offset) if isinstance(offset, list) else (offset,) * len(classes)
    numbers = (stored[name] for name in ("present", "absent", "known"))
    return PlattCalibration(stored["scale"], offset, classes, *numbers)


@dataclass(frozen=True, eq=False)
class CorrectedPrecision:
    """Average precision of each class over all images, ``(K,)``, NaN without a known present; and of random scores."""

    values: Array
    chance: Array


def corrected_average_precision(scores: Scores, labels: Labels) -> CorrectedPrecision:
    r"""Average precision of each class over all images, estimated from the known labels.

    .. math:: \mathrm{AP} = \frac1P \sum_{i=1}^{P} \min\Bigl(1, \frac{\pi\, r_i}{q_i}\Bigr)

    at the :math:`P` known presents, where :math:`r` is the share of these, and :math:`q` that of all images, that score
    as high; :math:`\pi` is the share of *all* images in which the class is present, by the label model. Over the known
    labels alone, average precision depends on :math:`P / (P + A)`, which says how people label, not how often the class
    occurs: with 50 known presents and one known absent even random scores reach 0.98. No known absent is needed. On
    complete labels this is the plain average precision. For scores (logits, or what rises with them) that hardly rank
    nothing can tell presents from absents: :math:`\pi = P / (P + A)` then, and so is chance.
    """
    formatted, codes = format_pair(scores, labels)
    present, absent = (np.count_nonzero(codes == state, axis=0) for state in (PRESENT, ABSENT))
    images = len(codes)
    share = np.where(present > 0, present / np.maximum(present + absent, 1), np.nan)
    model = LabelModel.fit(formatted, codes) if (present + absent < images).any() else None
    if model is not None and model.is_informative:
        # errors are smaller without κ (3.2 points of mAP, not 4.3, on VOC): r is of labels known in the same way
        plain = replace(model, stopping=1.0)
        means = map_chunks(lambda part: plain.posterior(formatted, codes, part).mean(axis=0), *codes.shape[::-1])
        estimated = np.concatenate(means)
        share = np.where((present > 0) & (present + absent < images), estimated, share)

    def measure(chunk: slice) -> Array:
        rankings, states = to_rows(formatted.T[chunk]), to_rows(codes.T[chunk])
        cuts, taken = cuts_at_present(rankings, states), cuts_at_present(rankings, unknown_as_absent(states)).taken
        recall = cuts.hits / np.maximum(present[chunk], 1)[cuts.ranking]
        precision = np.minimum(share[chunk][cuts.ranking] * recall * images / taken, 1.0)
        total = np.bincount(cuts.ranking, weights=precision, minlength=len(states))
        return np.asarray(total / np.maximum(present[chunk], 1))

    values = np.concatenate(map_chunks(measure, *formatted.shape[::-1]))
    return CorrectedPrecision(np.where(present > 0, values, np.nan), share)
