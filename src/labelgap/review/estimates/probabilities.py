r"""How probable the candidates are that come next, given all answers.

All answers of a class move its scores: with the log-odds :math:`z` by the audit,

.. math:: P(y = 1) = \sigma(z + \delta + e_k)

where :math:`\delta` and :math:`e_k` are normal and take their most probable values. This is about candidates that score
like those that were answered. Labels that score far below are not like them: there the random answers decide
(``shifts``), and between the two the shift changes linearly with :math:`z`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from labelgap.review.estimates.labels import ReviewedLabels

__all__ = ["AnswerFit", "fit_answers"]

ALBUM_SPREAD: Final = 0.3
"""Standard deviation of δ."""
CLASS_SPREAD: Final = 0.7
"""Standard deviation of e."""
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

    def loss(values: Array) -> tuple[float, Array]:
        x = odds + ALBUM_SPREAD * values[0] + CLASS_SPREAD * values[1:][column]
        error = np.bincount(column, weights=expit(x) - present, minlength=classes)
        gradient = values + np.concatenate([[ALBUM_SPREAD * error.sum()], CLASS_SPREAD * error])
        return float(np.logaddexp(0, x).sum() - present @ x + values @ values / 2), gradient

    found = minimize(loss, np.zeros(1 + classes), jac=True, method="L-BFGS-B").x
    shift: Array = ALBUM_SPREAD * found[0] + CLASS_SPREAD * found[1:]
    p = expit(odds + shift[column])
    information = np.bincount(column, weights=p * (1 - p), minlength=classes)
    answered = np.bincount(column, minlength=classes)
    middle = np.bincount(column, weights=odds, minlength=classes) / np.maximum(answered, 1)
    above = np.maximum(np.where(answered > 0, middle, 0.0) - typical, 1.0)
    likeness = np.clip((log_odds - typical[labels.class_number]) / above[labels.class_number], 0, 1)
    variance = 1 / (information + 1 / (ALBUM_SPREAD**2 + CLASS_SPREAD**2))
    return AnswerFit(shift, np.sqrt(variance + LOCAL_SPREAD**2), likeness)
