r"""How wrong scores may be about labels that nobody has decided: what random answers say.

Let :math:`z` be the log-odds of a label by the audit, :math:`y` an answer, and

.. math:: P(y = 1) = \sigma(z + s_k), \qquad s_k = \lambda u + w t_k

with a common normal :math:`u`, and a heavy-tailed :math:`t_k` of each class (Student's, four degrees of freedom).
:math:`\lambda` and :math:`w` say how wrong scores usually are, before any answer.

*Random answers* give the posterior of :math:`s_k`. A random slot holds the first label of the random draw of its class
that is still open: a uniform draw from all labels that are open *at that moment*, in whatever order the others were
decided, and also when answers change that order. The same holds within a cell, i.e. among labels of a class with about
the same score. Of the :math:`R` labels of its cell that were open, let :math:`r` have been decided in ranked order
since, :math:`g` of them present. Then

.. math:: P(y = 1) = \Bigl(1 - \frac{r}{R}\Bigr) \sigma(z + s_k) + \frac{g}{R}

so an early answer says little about what is left where most of its cell is decided by now. Cells are fixed by the
audit's scores, before any answer.

*Ranked answers* are counted, and say nothing here: they are about the labels that looked most probable. On the digits
and on VOC, shifts that were fitted to them made the estimate of what is left worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from labelgap.review.estimates.labels import ReviewedLabels

COMMON_SPREAD: Final = 0.5
"""λ"""
OWN_SPREAD: Final = 0.7
"""w"""
FLAT_SPREAD: Final = 1.5
"""w of a class whose labels all have the same score: a guess."""
_FREEDOM: Final = 4.0
_CELL_WIDTH: Final = 0.5
_ZOOMS: Final = (10.0, 1.0, 0.1)
_NODES: Final = np.linspace(-3.2, 3.2, 65)
_COMMON_NODES: Final = np.linspace(-4.0, 4.0, 33)
_DRAWS: Final = 2000
_MAX_DRAWN: Final = 1_000_000
"""Shifts that are drawn at most, over all classes."""

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ShiftDraws:
    """Draws from the posterior of s: nodes ``(K, S)``, the number of the node of each draw ``(D, K)``, and medians."""

    nodes: Array
    index: Counts
    median: Array

    def pick(self, values: Array) -> Array:
        """Return values at the nodes, ``(K, S)``, for each draw, ``(D, K)``."""
        return values[np.arange(len(values)), self.index]


def to_log_odds(share: Array) -> Array:
    """Return the log-odds of probabilities, from -16 to 16 or so."""
    values: Array = logit(np.clip(share, 1e-7, 1 - 1e-7))
    return values


def draw_shifts(labels: ReviewedLabels, log_odds: Array, common_spread: float = COMMON_SPREAD) -> ShiftDraws:
    """Draw from the posterior of s that the random answers give; a function of its arguments alone."""
    likelihood, own = _likelihood(labels, log_odds), _own_spread(labels)[:, None]
    nodes, log_weight = _place_nodes(likelihood, np.hypot(common_spread, own))
    log_likelihood = likelihood(nodes) + log_weight

    def given(common: float) -> Array:
        result: Array = log_likelihood + _student((nodes - common_spread * common) / own)
        return result

    def weigh(common: Array) -> Array:
        log = np.array([_normalize(given(each))[1].sum() for each in common]) - common**2 / 2
        return _normalize(log)[0]

    weight = weigh(_COMMON_NODES)
    mean = float(weight @ _COMMON_NODES)
    deviation = max(math.sqrt(float(weight @ (_COMMON_NODES - mean) ** 2)), 0.05)
    common = mean + deviation * _COMMON_NODES
    draws = max(min(_DRAWS, _MAX_DRAWN // len(nodes)), 200)
    random = np.random.default_rng(0)
    at = np.searchsorted(np.cumsum(weigh(common)), (np.arange(draws) + 0.5) / draws)
    counts, parts = np.bincount(np.minimum(at, len(common) - 1), minlength=len(common)), []
    marginal = np.zeros_like(nodes)
    for each, count in zip(common[counts > 0], counts[counts > 0].tolist(), strict=True):
        density, _ = _normalize(given(each))
        marginal += density * count / draws
        cumulative = np.cumsum(density, axis=1)
        drawn = random.random((count, len(nodes))) * cumulative[:, -1]
        parts.append(np.stack([np.searchsorted(cumulative[k], drawn[:, k]) for k in range(len(nodes))], axis=1))
    middle = np.cumsum(marginal, axis=1) - marginal / 2
    median = np.array([np.interp(0.5, each, at) for each, at in zip(middle, nodes, strict=True)])
    return ShiftDraws(nodes, np.concatenate(parts), median)


def _normalize(log: Array) -> tuple[Array, Array]:
    """Return numbers that are given by their logarithms, divided by their sum over the last axis, and its logarithm."""
    largest = log.max(axis=-1, keepdims=True)
    values = np.exp(log - largest)
    total = values.sum(axis=-1, keepdims=True)
    return values / total, (largest + np.log(total))[..., 0]


def _student(x: Array) -> Array:
    """Return the logarithm of Student's density, without its constant."""
    result: Array = -(_FREEDOM + 1) / 2 * np.log1p(x * x / _FREEDOM)
    return result


def _own_spread(labels: ReviewedLabels) -> Array:
    """Return w of each class, ``(K,)``."""
    scored, classes = ~np.isnan(labels.score), len(labels.unknown)
    low, high = np.full(classes, np.inf), np.full(classes, -np.inf)
    np.minimum.at(low, labels.class_number[scored], labels.score[scored])
    np.maximum.at(high, labels.class_number[scored], labels.score[scored])
    return np.where(high > low, OWN_SPREAD, FLAT_SPREAD)


def _place_nodes(likelihood: Callable[[Array], Array], scale: Array) -> tuple[Array, Array]:
    """Return nodes ``(K, S)`` that are dense where the posterior of each class is high, and their log-weights."""

    def posterior(shift: Array) -> Array:
        result: Array = likelihood(shift) + _student(shift / scale)
        return result

    center = np.zeros_like(scale)
    for half in _ZOOMS:
        grid = center + np.linspace(-half, half, 21)
        center = np.take_along_axis(grid, posterior(grid).argmax(axis=1)[:, None], axis=1)
    beside = posterior(center + np.array([-0.1, 0.0, 0.1]))
    curvature = (2 * beside[:, 1] - beside[:, 0] - beside[:, 2])[:, None] / 0.1**2
    deviation = 1 / np.sqrt(np.maximum(curvature, scale**-2 / 2))
    return center + deviation * np.sinh(_NODES), np.log(deviation * np.cosh(_NODES))


def _likelihood(labels: ReviewedLabels, log_odds: Array) -> Callable[[Array], Array]:
    """Return a function of shifts ``(K, S)``: the log-likelihood of the random answers of each class, ``(K, S)``."""
    rows, share, known = _random_answers(labels)
    column, odds, present = labels.class_number[rows], log_odds[rows], labels.present[rows]
    used, starts = np.unique(column, return_index=True)

    def likelihood(shift: Array) -> Array:
        result = np.zeros_like(shift)
        if len(rows):
            p = share[:, None] * expit(odds[:, None] + shift[column]) + known[:, None]
            p = np.clip(np.where(present[:, None], p, 1 - p), 1e-12, 1)
            result[used] = np.add.reduceat(np.log(p), starts, axis=0)
        return result

    return likelihood


def _random_answers(labels: ReviewedLabels) -> tuple[Counts, Array, Array]:
    """Return which candidates have sure random answers, by class, and for each :math:`1 - r / R` and :math:`g / R`."""
    scored = np.flatnonzero(~np.isnan(labels.score))
    bins = np.floor(to_log_odds(labels.score[scored].astype(np.float64)) / _CELL_WIDTH).astype(np.int64)
    cell = labels.class_number[scored].astype(np.int64) * 100 + bins + 50
    when = np.where(labels.decided, labels.order, np.iinfo(np.int64).max)[scored]
    order = np.lexsort((when, cell))
    rows, cell = scored[order], cell[order]
    last = np.searchsorted(cell, cell, side="right")
    ranked = labels.decided[rows] & ~labels.random[rows]

    def later(mask: NDArray[np.bool_]) -> Array:
        total = np.concatenate([[0], np.cumsum(mask)])
        return np.asarray(total[last] - total[1:], dtype=np.float64)

    open_then = last - np.arange(len(rows))
    since, found = later(ranked), later(ranked & labels.present[rows])
    chosen = (labels.sure & labels.random)[rows]
    share, known = 1 - (since / open_then)[chosen], (found / open_then)[chosen]
    by_class = np.argsort(labels.class_number[rows[chosen]], kind="stable")
    return rows[chosen][by_class], share[by_class], known[by_class]
