"""References of Zhou et al. 2022, the baselines it was compared with, and the generalised robust loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.losses.reference import Answer, Batch, Cost, absent, present, reference, sigma
from tests.losses.reference_assume_negative import EPS, by_state, known_as_bce, one_number, smoothed


def entropy(x: float, eps: float) -> Cost:
    """H = −p ln(p + ε) − (1 − p) ln(1 − p + ε); without ε its derivative is −x·p(1 − p)."""
    p, q = sigma(x), sigma(-x)
    here, away = present(x, eps), absent(x, eps)
    value = p * here.value + q * away.value
    if not eps:
        return Cost(value, -x * p * q)
    return Cost(value, p * q * (here.value - away.value - p / (p + eps) + q / (q + eps)))


@reference("em", **one_number("alpha", 0.9, [0.01, 0.1, 0.9]))
def entropy_maximisation(batch: Batch, *, alpha: float = 0.2, eps: float = 0.0) -> Answer:
    return known_as_bce(batch, eps, lambda x: entropy(x, eps).times(-alpha))


@reference("entmin", **one_number("weight", 0.9, [0.01, 0.4, 0.9]))
def entropy_minimisation(batch: Batch, *, weight: float = 0.01, eps: float = 0.0) -> Answer:
    return known_as_bce(batch, eps, lambda x: entropy(x, eps).times(weight))


@reference("dw", **one_number("weight", 0.4, [0.0, 0.02, 0.9]))
def down_weighting(batch: Batch, *, weight: float = 0.1, eps: float = 0.0) -> Answer:
    return known_as_bce(batch, eps, lambda x: absent(x, eps).times(weight))


@reference("n-ls", **one_number("smoothing", 0.3, [0.0, 0.1, 0.3]))
def smoothed_unknown(batch: Batch, *, smoothing: float = 0.1, eps: float = 0.0) -> Answer:
    return known_as_bce(batch, eps, lambda x: smoothed(x, smoothing, eps))


def focused(x: float, gamma: float, eps: float = 0.0) -> Cost:
    """−(1 − p)^γ ln(p + ε); the derivative is γ p (1 − p)^γ ln(p + ε) − (1 − p)^γ p(1 − p)/(p + ε)."""
    plain, focus = present(x, eps), math.pow(sigma(-x), gamma)
    return Cost(focus * plain.value, -gamma * sigma(x) * focus * plain.value + focus * plain.slope)


def mirrored(cost: Cost) -> Cost:
    """What a cost of −x is in x."""
    return Cost(cost.value, -cost.slope)


@reference(
    "focal",
    options=[
        {},
        {"gamma": 1.0, "alpha": 0.25, "eps": 1e-5},
        {"gamma": 0.5, "alpha": 0.5},
        {"gamma": 0.0},
        {"gamma": 3.7, "alpha": 1.0},
    ],
    heads={"gamma": [0.0, 0.7, 2.0], "alpha": [0.25, 0.5, 0.75], **EPS},
)
def focal(batch: Batch, *, gamma: float = 2.0, alpha: float = 0.75, eps: float = 0.0) -> Answer:
    def of_others(x: float) -> Cost:
        return mirrored(focused(-x, gamma, eps)).times(1 - alpha)

    return by_state(batch, lambda x: focused(x, gamma, eps).times(alpha), of_others, of_others)


def robust(minus_log: float, power: float) -> float:
    """Chen et al. 2024: (1 − p^q)/q of −ln p."""
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
    return known_as_bce(batch, eps, lambda x: robust_unknown(batch, x, q2, q3, alpha, beta))


def fit_of(batch: Batch, p: float, alpha: Sequence[float]) -> float:
    """v, which says how near p is to what the epoch expects."""
    done = batch.epoch / batch.epochs
    center, width = (first * (1 - done) + last * done for first, last in (alpha[:2], alpha[2:]))
    return math.exp(-(((p - center) / width) ** 2) / 2)


def robust_unknown(batch: Batch, x: float, q2: float, q3: float, alpha: Sequence[float], beta: Sequence[float]) -> Cost:
    """What an unknown label costs in `gr`."""
    started = (batch.epoch - 1) / batch.epochs
    w, b = (first * (1 - started) + last * started for first, last in (beta[:2], beta[2:]))
    p, q = sigma(x), sigma(-x)
    k, v = sigma(w * p + b), fit_of(batch, p, alpha)
    here, away = present(x).value, absent(x).value
    value = k * robust(here, q2) + (1 - k) * robust(away, q3)
    slope = -k * math.exp(-q2 * here) * q + (1 - k) * math.exp(-q3 * away) * p
    return Cost(v * value, v * slope)
