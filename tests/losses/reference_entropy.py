"""References of Zhou et al. 2022: entropy on unknown labels, and the baselines it was compared with."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.losses.reference import Answer, Batch, Cost, absent, entry_by_entry, present, reference, sigma
from tests.losses.reference_assume_negative import (
    EPS,
    assume_negative,
    known_cost,
    pairs,
    smoothed,
    smoothed_assume_negative,
)

from labelgap.labels import PRESENT, UNKNOWN


def entropy(x: float, eps: float) -> Cost:
    """H = −p ln(p + ε) − (1 − p) ln(1 − p + ε); without ε its derivative is −x·p(1 − p)."""
    p, q = sigma(x), sigma(-x)
    here, away = present(x, eps), absent(x, eps)
    value = p * here.value + q * away.value
    if not eps:
        return Cost(value, -x * p * q)
    return Cost(value, p * q * (here.value - away.value - p / (p + eps) + q / (q + eps)))


def unknown_costs(batch: Batch, eps: float, unknown: Callable[[float], Cost]) -> Answer:
    """Binary cross-entropy of known labels, and something else for unknown ones."""
    return entry_by_entry(
        [[unknown(x) if y == UNKNOWN else known_cost(x, y, eps) for x, y in row] for row in pairs(batch)]
    )


@reference(
    "em",
    options=[{}, {"alpha": 0.9, "eps": 1e-5}, {"alpha": 0.0}],
    heads={"alpha": [0.01, 0.1, 0.9], **EPS},
    known_as_bce=True,
)
def entropy_maximisation(batch: Batch, *, alpha: float = 0.2, eps: float = 0.0) -> Answer:
    return unknown_costs(batch, eps, lambda x: entropy(x, eps).times(-alpha))


@reference(
    "entmin",
    options=[{}, {"weight": 0.9, "eps": 1e-5}, {"weight": 0.0}],
    heads={"weight": [0.01, 0.4, 0.9], **EPS},
    known_as_bce=True,
)
def entropy_minimisation(batch: Batch, *, weight: float = 0.01, eps: float = 0.0) -> Answer:
    return unknown_costs(batch, eps, lambda x: entropy(x, eps).times(weight))


@reference(
    "dw",
    options=[{}, {"weight": 0.4, "eps": 1e-5}, {"weight": 0.0}],
    heads={"weight": [0.0, 0.02, 0.9], **EPS},
    known_as_bce=True,
)
def down_weighting(batch: Batch, *, weight: float = 0.1, eps: float = 0.0) -> Answer:
    return unknown_costs(batch, eps, lambda x: absent(x, eps).times(weight))


@reference(
    "n-ls",
    options=[{}, {"smoothing": 0.3, "eps": 1e-5}, {"smoothing": 0.0}],
    heads={"smoothing": [0.0, 0.1, 0.3], **EPS},
    known_as_bce=True,
)
def smoothed_unknown(batch: Batch, *, smoothing: float = 0.1, eps: float = 0.0) -> Answer:
    return unknown_costs(batch, eps, lambda x: smoothed(x, smoothing, eps))


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
    def cost(x: float, y: int) -> Cost:
        if y == PRESENT:
            return focused(x, gamma, eps).times(alpha)
        return mirrored(focused(-x, gamma, eps)).times(1 - alpha)

    return entry_by_entry([[cost(x, y) for x, y in row] for row in pairs(batch)])


@reference(
    "l1r",
    "l2r",
    options=[{}, {"weight": 1e-3, "eps": 1e-5}],
    heads={"weight": [0.0, 1e-7, 1e-3], **EPS},
    known_as_bce=True,
)
def assume_negative_and_a_penalty(batch: Batch, *, weight: float = 1e-6, eps: float = 0.0) -> Answer:
    """The penalty looks at the network, not at the batch: it is tested by itself."""
    return assume_negative(batch, eps=eps)


@reference(
    "ls",
    options=[{}, {"smoothing": 0.3, "eps": 1e-5}, {"smoothing": 0.0}],
    heads={"smoothing": [0.0, 0.1, 0.25], **EPS},
)
def label_smoothing(batch: Batch, *, smoothing: float = 0.1, eps: float = 0.0) -> Answer:
    return smoothed_assume_negative(batch, smoothing=smoothing, eps=eps)
