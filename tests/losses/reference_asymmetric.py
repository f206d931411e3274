"""References of the asymmetric losses (Ridnik 2021, Ben-Baruch 2022, Zhang 2021), one entry at a time."""

from __future__ import annotations

import math

from tests.losses.reference import NOTHING, Answer, Batch, Cost, absent, entry_by_entry, present, reference, sigma
from tests.losses.reference_assume_negative import EPS, by_state, pairs
from tests.losses.reference_entropy import focused, mirrored

from labelgap.labels import ABSENT, PRESENT, UNKNOWN


def constant_focus(x: float, gamma: float, eps: float) -> Cost:
    """−(1 − p)^γ ln(p + ε), with no derivative through the power."""
    return present(x, eps).times(math.pow(sigma(-x), gamma))


def shifted_absent(x: float, gamma: float, margin: float, detach_focus: bool, eps: float) -> Cost:
    """−s^γ ln(1 − s + ε), where s = max(p − m, 0) is what the margin leaves of p; dp/dx = p(1 − p)."""
    s, moving = max(sigma(x) - margin, 0.0), sigma(x) * sigma(-x) if sigma(x) > margin else 0.0
    plain = Cost(-math.log(1 - s + eps), moving / (1 - s + eps)) if margin else absent(x, eps)
    focus = math.pow(s, gamma)
    value, slope = focus * plain.value, focus * plain.slope
    if not detach_focus and gamma and s:
        slope += gamma * math.pow(s, gamma - 1) * moving * plain.value
    return Cost(value, slope)


@reference(
    "asl",
    options=[
        {},
        {"gamma_pos": 1.0, "gamma_neg": 4.0, "margin": 0.05, "eps": 1e-5},
        {"gamma_neg": 1.0, "margin": 0.0},
        {"detach_focus": True, "gamma_pos": 2.0},
        {"detach_focus": True, "gamma_neg": 0.0, "eps": 1e-5},
        {"gamma_pos": 0.5, "gamma_neg": 0.5, "margin": 0.0},
        {"gamma_pos": 0.5, "gamma_neg": 1.5},
        {"gamma_neg": 0.0},
        {"gamma_neg": 4.0, "margin": 1.0},
    ],
    heads={"gamma_pos": [0.0, 1.0, 0.5], "gamma_neg": [0.0, 1.0, 4.0], "margin": [0.0, 0.05, 0.2], **EPS},
    gradcheck=False,
)
def asymmetric(
    batch: Batch,
    *,
    gamma_pos: float = 0.0,
    gamma_neg: float = 2.0,
    margin: float = 0.2,
    detach_focus: bool = False,
    eps: float = 0.0,
) -> Answer:
    positive = constant_focus if detach_focus else focused

    def of_others(x: float) -> Cost:
        return shifted_absent(x, gamma_neg, margin, detach_focus, eps)

    return by_state(batch, lambda x: positive(x, gamma_pos, eps), of_others, of_others)


@reference(
    "csl",
    options=[
        {},
        {"mode": "ignore", "gamma_neg": 3.0},
        {"mode": "negative", "eps": 1e-5},
        {"likelihood_topk": 1, "gamma_pos": 1.0, "gamma_unknown": 2.5, "eps": 1e-5},
        {"likelihood_topk": 0, "gamma_unknown": 0.0},
        {"likelihood_topk": 1000},
    ],
    heads={
        "gamma_pos": [0.0, 1.0, 0.5],
        "gamma_neg": [1.0, 3.0, 0.0],
        "gamma_unknown": [4.0, 0.5, 2.0],
        "likelihood_topk": [0, 1, 5],
        "prior_threshold": [0.5, 0.2, 0.9],
        **EPS,
    },
    gradcheck=False,
)
def class_aware_selective(
    batch: Batch,
    *,
    mode: str = "selective",
    gamma_pos: float = 0.0,
    gamma_neg: float = 1.0,
    gamma_unknown: float = 4.0,
    likelihood_topk: int = 5,
    priors: list[float] | None = None,
    prior_threshold: float = 0.5,
    eps: float = 0.0,
) -> Answer:
    unknown = sorted((x for row in pairs(batch) for x, y in row if y == UNKNOWN), reverse=True)
    count = min(likelihood_topk * len(batch.logits), len(unknown))
    threshold = unknown[count - 1] if count else math.inf

    def left_out(x: float, column: int) -> bool:
        frequent = priors is not None and priors[column] > prior_threshold
        return mode == "ignore" or (mode == "selective" and (x >= threshold or frequent))

    def cost(x: float, y: int, column: int) -> Cost:
        if y == PRESENT:
            return constant_focus(x, gamma_pos, eps)
        if y == ABSENT:
            return mirrored(constant_focus(-x, gamma_neg, eps))
        return NOTHING if left_out(x, column) else mirrored(constant_focus(-x, gamma_unknown, eps))

    return entry_by_entry([[cost(x, y, column) for column, (x, y) in enumerate(row)] for row in pairs(batch)])


def hilly(x: float) -> Cost:
    """(1.5 − p)p²; the derivative in p is 3p(1 − p)."""
    p, q = sigma(x), sigma(-x)
    return Cost((1.5 - p) * p**2, 3 * p**2 * q**2)


@reference("hill", options=[{}, {"eps": 1e-5}], heads=EPS)
def hill(batch: Batch, *, eps: float = 0.0) -> Answer:
    return by_state(batch, lambda x: focused(x - 1, 2.0, eps), hilly, hilly)


@reference(
    "splc",
    options=[{}, {"tau": 0.8, "gamma": 1.0, "eps": 1e-5}, {"warmup": 4, "gamma": 0.0}, {"warmup": 0, "gamma": 0.5}],
    heads={"tau": [0.3, 0.6, 0.9], "gamma": [0.0, 0.7, 2.0], "warmup": [0, 1, 7], **EPS},
)
def self_paced_correction(
    batch: Batch, *, tau: float = 0.6, gamma: float = 2.0, warmup: int = 1, eps: float = 0.0
) -> Answer:
    def of_absent(x: float) -> Cost:
        return mirrored(focused(-x, gamma, eps))

    def of_unknown(x: float) -> Cost:
        return focused(x, gamma, eps) if batch.epoch > warmup and sigma(x) > tau else of_absent(x)

    return by_state(batch, lambda x: focused(x - 1, gamma, eps), of_absent, of_unknown)
