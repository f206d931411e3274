"""What the next candidates are expected to hold: whether it is worth going on."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.metrics.label_model import to_log_odds
from labelgap.review.estimates.labels import ReviewEstimate

NEXT: Final = 50
"""Candidates that a page speaks of."""

_ENDS: Final = (0.025, 0.975)
_DRAWS: Final = 500
_BLOCK: Final = 1000


class ExpectedPresent(NamedTuple):
    """How many of the next candidates are present: the expected number, and the ends of a 95 % interval."""

    candidates: int
    present: float
    low: int
    high: int


def expect_next(
    estimate: ReviewEstimate,
    candidates: NDArray[np.integer[Any]],
    probability: NDArray[np.floating[Any]] | None = None,
) -> ExpectedPresent | None:
    """Return how many of some open candidates are expected to be present; None without a model.

    Args:
        estimate: of the review.
        candidates: their numbers, e.g. the next 50 in the order in which they are shown, or all that are left.
        probability: of each of these by a live ranking; else that of the estimate.

    The interval holds what is uncertain of the probabilities, and chance: labels vary themselves.
    """
    p = (estimate.probability[candidates] if probability is None else probability).astype(np.float64)
    if np.isnan(p).any():
        return None
    column, odds, like = estimate.class_number[candidates], to_log_odds(p), estimate.likeness[candidates]
    random = np.random.default_rng(0)
    low_scoring = estimate.shifts[:: max(len(estimate.shifts) // _DRAWS, 1)]
    answered = estimate.spread * random.standard_normal(low_scoring.shape)
    number = np.zeros(len(low_scoring), dtype=np.int64)
    for first in range(0, len(p), _BLOCK):
        part = slice(first, first + _BLOCK)
        shift = like[part] * answered[:, column[part]] + (1 - like[part]) * low_scoring[:, column[part]]
        number += (random.random(shift.shape) < expit(odds[part] + shift)).sum(axis=1)
    low, high = np.quantile(number, _ENDS, method="nearest") if len(p) else (0, 0)
    return ExpectedPresent(len(p), float(p.sum()), int(low), int(high))
