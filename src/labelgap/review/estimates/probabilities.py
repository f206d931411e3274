r"""How probable the candidates are that come next, given all answers.

All answers of a class move its scores: with the log-odds :math:`z` by the audit,

.. math:: P(y = 1) = \sigma(z + \delta + e_k)

where :math:`\delta` and :math:`e_k` are normal and take their most probable values. Answers count by how near their
:math:`z` is to that of the most probable open candidate of the class, since scores are often too sure where they are
high. Labels that score far below are not like those that come next: there the random answers decide (``shifts``), and
between the two the shift changes linearly with :math:`z`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from labelgap.review.estimates.labels import ReviewedLabels

ALBUM_SPREAD: Final = 0.3
"""Standard deviation of δ."""
CLASS_SPREAD: Final = 0.7
"""Standard deviation of e."""
NEARNESS: Final = 0.7
"""Difference of log-odds at which an answer has lost two fifths of its weight."""
LOCAL_SPREAD: Final = 0.5
"""How wrong the shift may be for the candidates that follow the answered ones."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AnswerFit:
    """What all answers say of candidates like those that were answered.

    Attributes:
        shift: ``(K,)`` δ + e.
        spread: ``(K,)`` standard deviation of what it is for the next ones.
        likeness: ``(C,)`` how much each candidate is like the answered ones of its class, from 0 to 1.
    """

    shift: Array
    spread: Array
    likeness: Array


def fit_answers(labels: ReviewedLabels, log_odds: Array, typical: Array) -> AnswerFit:
    """Fit the shifts to all sure answers on candidates with a score.

    Args:
        labels: with the answers.
        log_odds: ``(C,)`` by the audit.
        typical: ``(K,)`` log-odds of the mean score of a class, where the likeness is 0.
    """
    classes = len(labels.unknown)
    used = labels.sure & ~np.isnan(labels.score)
    column, odds, present = labels.class_number[used], log_odds[used], labels.present[used].astype(np.float64)
    front, is_open = np.full(classes, -np.inf), ~labels.decided & ~np.isnan(labels.score)
    np.maximum.at(front, labels.class_number[is_open], log_odds[is_open])
    front = np.where(np.isfinite(front), front, typical)
    near = np.exp(-(((odds - front[column]) / NEARNESS) ** 2) / 2)

    def loss(values: Array) -> tuple[float, Array]:
        x = odds + ALBUM_SPREAD * values[0] + CLASS_SPREAD * values[1:][column]
        error = np.bincount(column, weights=near * (expit(x) - present), minlength=classes)
        gradient = values + np.concatenate([[ALBUM_SPREAD * error.sum()], CLASS_SPREAD * error])
        return float(near @ np.logaddexp(0, x) - (near * present) @ x + values @ values / 2), gradient

    found = minimize(loss, np.zeros(1 + classes), jac=True, method="L-BFGS-B").x
    shift: Array = ALBUM_SPREAD * found[0] + CLASS_SPREAD * found[1:]
    p = expit(odds + shift[column])
    information = np.bincount(column, weights=near * p * (1 - p), minlength=classes)
    above = np.maximum(front - typical, 1.0)
    likeness = np.clip((log_odds - typical[labels.class_number]) / above[labels.class_number], 0, 1)
    variance = 1 / (information + 1 / (ALBUM_SPREAD**2 + CLASS_SPREAD**2))
    return AnswerFit(shift, np.sqrt(variance + LOCAL_SPREAD**2), likeness)
