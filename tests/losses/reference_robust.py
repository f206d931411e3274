"""Reference of Chen et al. 2024, the generalised robust loss, one entry at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.losses.reference import Answer, Batch, Cost, absent, present, reference, sigma
from tests.losses.reference_assume_negative import EPS
from tests.losses.reference_entropy import unknown_costs


def robust(minus_log: float, power: float) -> float:
    """(1 − p^q)/q of −ln p."""
    return -math.expm1(-power * minus_log) / power


@reference(
    "gr",
    options=[
        {},
        {"q2": 0.5, "q3": 0.3, "eps": 1e-5},
        {"q2": 1.0, "q3": 0.05, "alpha": [0.4, 0.9, 1.0, 0.3]},
        {"q3": 1.5, "beta": [0.0, 10.0, -2.0, -8.0]},
    ],
    heads={"q2": [0.01, 0.5, 1.0], "q3": [1.0, 0.2, 0.7], **EPS},
    known_as_bce=True,
    gradcheck=False,
)
def generalised_robust(
    batch: Batch,
    *,
    q2: float = 0.01,
    q3: float = 1.0,
    alpha: Sequence[float] = (0.5, 0.8, 2.0, 0.5),
    beta: Sequence[float] = (0.0, 2.0, -2.0, -2.0),
    eps: float = 0.0,
) -> Answer:
    """v·[k(1 − p^q2)/q2 + (1 − k)(1 − (1 − p)^q3)/q3], with k and v as constants of the derivative."""
    done, started = batch.epoch / batch.epochs, (batch.epoch - 1) / batch.epochs
    center, width = (first * (1 - done) + last * done for first, last in (alpha[:2], alpha[2:]))
    w, b = (first * (1 - started) + last * started for first, last in (beta[:2], beta[2:]))

    def unknown(x: float) -> Cost:
        p, q = sigma(x), sigma(-x)
        k, v = sigma(w * p + b), math.exp(-(((p - center) / width) ** 2) / 2)
        here, away = present(x).value, absent(x).value
        value = k * robust(here, q2) + (1 - k) * robust(away, q3)
        slope = -k * math.exp(-q2 * here) * q + (1 - k) * math.exp(-q3 * away) * p
        return Cost(v * value, v * slope)

    return unknown_costs(batch, eps, unknown)
