r"""How many labels are present where some were answered: scores that answers shift, checked by random answers.

Let :math:`s` be the score of a label, :math:`y` an answer, and

.. math:: P(y = 1) = p = \sigma(\operatorname{logit} s + \delta_k + \delta)

*All answers* move the classes: :math:`\delta_k` is normal around a mean, which is normal around 0, and takes its most
probable value.

*Random answers* give an interval. Of class :math:`k` let :math:`S_k` be the answers on a random sample, :math:`n_k` of
them, and :math:`U_k` the undecided labels, :math:`m_k` of them. With the mean :math:`w` of :math:`m_k / n_k`,

.. math:: T(\delta) = \sum_k \frac{m_k}{n_k} \sum_{S_k} (y - p) - \frac{w \delta}{\tau^2}, \qquad
          V(\delta) = \sum_k \frac{m_k^2}{n_k^2} \sum_{S_k} p (1 - p) + \frac{w^2}{\tau^2}

the estimate is :math:`\sum_U p` at :math:`T = 0`, and its interval that of all :math:`\delta` with :math:`|T| \le 1.96
\sqrt V`, a score test. The terms with :math:`\tau` are the prior :math:`\delta \sim N(0, \tau^2)`: how wrong the
shifted scores may be about the labels that nobody has seen. A large sample outweighs it. Without it, and with the same
probability for all labels, the interval is Wilson's. The undecided labels vary themselves, which adds :math:`\sum_U p
(1 - p)` to the variance.

Reference: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit

__all__ = [
    "ALBUM_SPREAD",
    "CLASS_SPREAD",
    "SAMPLE_SPREAD",
    "ScoreCells",
    "class_shifts",
    "interval",
    "sample_shift",
    "to_log_odds",
]

ALBUM_SPREAD: Final = 0.7
"""Standard deviation of the mean shift of all classes."""
CLASS_SPREAD: Final = 0.7
"""Standard deviation of the shifts of the classes around it."""
SAMPLE_SPREAD: Final = 0.5
"""τ, the standard deviation of what the random answers add."""
_Z: Final = NormalDist().inv_cdf(0.975)
_MAX_LOG_ODDS: Final = 20.0

Counts = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScoreCells:
    """Labels of a class with about the same score in L cells, ``(L,)`` each: the log-odds, and counts.

    ``present`` and ``absent`` are answers; ``sampled`` and ``sampled_present`` those on random labels.
    """

    classes: int
    column: Counts
    log_odds: Array
    present: Array
    absent: Array
    sampled: Array
    sampled_present: Array
    undecided: Array

    def sums(self, values: Array) -> Array:
        """Return the sum over the cells of each class, ``(K,)``."""
        return np.bincount(self.column, weights=values, minlength=self.classes).astype(np.float64)

    def expected(self) -> Array:
        """Return how many of the undecided labels of each class are present, ``(K,)``."""
        return self.sums(self.undecided * expit(self.log_odds))

    def shifted(self, shift: Array | float) -> ScoreCells:
        """Return the cells with a number for each class, or for all, added to the log-odds."""
        return replace(self, log_odds=self.log_odds + np.broadcast_to(shift, self.classes)[self.column])


def to_log_odds(share: Array) -> Array:
    """Return the log-odds of probabilities, from -20 to 20."""
    values: Array = np.clip(logit(np.clip(share, 1e-9, 1 - 1e-9)), -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
    return values


def class_shifts(cells: ScoreCells, album_spread: float, class_spread: float = CLASS_SPREAD) -> Array:
    """Return the most probable shift of each class, ``(K,)``, given all answers."""
    used = (cells.present + cells.absent) > 0
    column, log_odds = cells.column[used], cells.log_odds[used]
    present, answers = cells.present[used], (cells.present + cells.absent)[used]

    def loss(values: Array) -> tuple[float, Array]:
        x = log_odds + album_spread * values[0] + class_spread * values[1:][column]
        error = np.bincount(column, weights=answers * expit(x) - present, minlength=cells.classes)
        gradient = values + np.concatenate([[album_spread * error.sum()], class_spread * error])
        return float(answers @ np.logaddexp(0, x) - present @ x + values @ values / 2), gradient

    found = minimize(loss, np.zeros(1 + cells.classes), jac=True, method="L-BFGS-B").x
    shift: Array = album_spread * found[0] + class_spread * found[1:]
    return shift


def sample_shift(
    cells: ScoreCells, weight: Array, group: Counts, groups: int, spread: float, bound: float = 0
) -> Array:
    """Return the shift of each group of classes that its random answers imply, ``(G,)``, or an end of its interval.

    Args:
        cells: with the shifts of the classes.
        weight: ``(K,)`` undecided labels per random answer; 0 to leave the answers of a class out.
        group: ``(K,)`` group of each class; -1 for none.
        groups: how many.
        spread: τ; inf for no prior.
        bound: standard deviations between the estimate and what is returned, with a sign.
    """
    inside, number = group >= 0, np.maximum(group, 0)

    def total(values: Array) -> Array:
        return np.bincount(number[inside], weights=values[inside], minlength=groups).astype(np.float64)

    answers = cells.sums(cells.sampled) * (weight > 0)
    mean_weight = np.where(total(answers) > 0, total(weight * answers) / np.maximum(total(answers), 1), 1.0)

    used = cells.sampled > 0
    column, log_odds, count, present = (
        values[used] for values in (cells.column, cells.log_odds, cells.sampled, cells.sampled_present)
    )
    by_cell, cell_group = weight[column] * inside[column], number[column]

    def excess(shift: Array) -> Array:
        p = expit(log_odds + shift[cell_group])
        residual, variance = by_cell * (present - count * p), by_cell**2 * count * p * (1 - p)
        sums = [np.bincount(cell_group, weights=values, minlength=groups) for values in (residual, variance)]
        deviation = np.sqrt(sums[1] + mean_weight**2 / spread**2)
        result: Array = sums[0] - mean_weight * shift / spread**2 + bound * deviation
        return result

    low, high = np.full(groups, -40.0), np.full(groups, 40.0)
    for _ in range(45):
        middle = (low + high) / 2
        above = excess(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return low


def interval(cells: ScoreCells, weight: Array, group: Counts, groups: int, spread: float) -> Array:
    """Return the ends of the number of present labels among the undecided of groups of classes, ``(2, G)``.

    The arguments are those of ``sample_shift``; the cells have its shift.
    """
    inside, number = group >= 0, np.maximum(group, 0)

    def total(values: Array) -> Array:
        return np.bincount(number[inside], weights=values[inside], minlength=groups).astype(np.float64)

    middle, ends = total(cells.expected()), []
    for sign in (-1, 1):
        moved = cells.shifted(sample_shift(cells, weight, group, groups, spread, sign * _Z)[number])
        p = expit(moved.log_odds)
        noise = total(moved.sums(moved.undecided * p * (1 - p)))
        ends.append(middle + sign * np.sqrt((total(moved.expected()) - middle) ** 2 + _Z**2 * noise))
    result: Array = np.maximum(np.stack(ends), 0)
    return result
