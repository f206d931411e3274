"""References of Kobayashi 2023, the two-way loss and its peers: one row, one column and one pair at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.losses.reference import Answer, Batch, Matrix, reference, sigma

from labelgap.labels import ABSENT, PRESENT, UNKNOWN

TWO_WAY = {
    "options": [
        {},
        {"unknown": "negative"},
        {"temperature_pos": 1.0, "bias": 0.5},
        {"temperature_pos": 2.5, "temperature_neg": 0.3, "bias": -1.0, "unknown": "negative"},
    ],
    "heads": {"temperature_pos": [1.0, 4.0, 0.5], "temperature_neg": [1.0, 0.5, 3.0], "bias": [0.0, 1.0, -2.0]},
}


class Line(NamedTuple):
    """What the logits of a row or a column cost together, and the derivative in each of them."""

    value: float
    slopes: list[float]


def log_sum_exp(values: Sequence[float]) -> float:
    """ln Σ e^v; of nothing, −∞."""
    largest = max(values, default=-math.inf)
    return largest + math.log(sum(math.exp(v - largest) for v in values)) if values else -math.inf


def share(value: float, values: Sequence[float]) -> float:
    """The softmax of a value among values that it is one of."""
    return math.exp(value - log_sum_exp(values))


def is_negative(label: int, unknown: str) -> bool:
    return label == ABSENT or (label == UNKNOWN and unknown == "negative")


def contrast(xs: Sequence[float], ys: Sequence[int], t_pos: float, t_neg: float, bias: float, unknown: str) -> Line:
    """softplus(T_N·LSE_neg(x/T_N) + T_P·LSE_pos(−x/T_P) + ε) of one line; 0 where there is no pair."""
    positives = [-x / t_pos for x, y in zip(xs, ys, strict=True) if y == PRESENT]
    negatives = [x / t_neg for x, y in zip(xs, ys, strict=True) if is_negative(y, unknown)]
    if not positives or not negatives:
        return Line(0.0, [0.0] * len(xs))
    inside = t_neg * log_sum_exp(negatives) + t_pos * log_sum_exp(positives) + bias
    slopes = [0.0] * len(xs)
    for place, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y == PRESENT:
            slopes[place] = -sigma(inside) * share(-x / t_pos, positives)
        elif is_negative(y, unknown):
            slopes[place] = sigma(inside) * share(x / t_neg, negatives)
    return Line(max(inside, 0.0) + math.log1p(math.exp(-abs(inside))), slopes)


def mean_of_lines(
    logits: Matrix, labels: NDArray[np.int8], line: Callable[[list[float], list[int]], Line], *, positive_only: bool
) -> Answer:
    """The mean over rows, over those with a positive only if so wished; no row at all costs 0."""
    total, count, gradient = 0.0, 0, np.zeros(logits.shape)
    for row, (xs, ys) in enumerate(zip(logits.tolist(), labels.tolist(), strict=True)):
        if PRESENT in ys or not positive_only:
            found = line(xs, ys)
            total, count = total + found.value, count + 1
            gradient[row] = found.slopes
    return Answer(total / max(count, 1), gradient / max(count, 1))


@reference("two-way-sample", **TWO_WAY)
def over_classes(
    batch: Batch,
    *,
    temperature_pos: float = 4.0,
    temperature_neg: float = 1.0,
    bias: float = 0.0,
    unknown: str = "ignore",
) -> Answer:
    def line(xs: list[float], ys: list[int]) -> Line:
        return contrast(xs, ys, temperature_pos, temperature_neg, bias, unknown)

    return mean_of_lines(batch.logits, batch.labels, line, positive_only=True)


@reference("two-way-class", **TWO_WAY)
def over_samples(batch: Batch, **options: Any) -> Answer:
    turned = over_classes(replace(batch, logits=batch.logits.T, labels=batch.labels.T), **options)
    return Answer(turned.loss, turned.gradient.T)


@reference("two-way", **TWO_WAY)
def both_ways(batch: Batch, **options: Any) -> Answer:
    halves = [half(batch, **options) for half in (over_classes, over_samples)]
    return Answer(sum(half.loss for half in halves), sum((half.gradient for half in halves), np.zeros(())))


@reference("softmax", options=[{}, {"unknown": "ignore"}])
def softmax(batch: Batch, *, unknown: str = "negative") -> Answer:
    """−1/|P| Σ_p ln(e^x_p / Σ e^x) over positives and negatives; the derivative is the softmax minus 1/|P|."""

    def line(xs: list[float], ys: list[int]) -> Line:
        taking_part = [y == PRESENT or is_negative(y, unknown) for y in ys]
        among = [x for x, takes_part in zip(xs, taking_part, strict=True) if takes_part]
        positives = [x for x, y in zip(xs, ys, strict=True) if y == PRESENT]
        target = [1 / len(positives) if y == PRESENT else 0.0 for y in ys]
        slopes = [
            share(x, among) - mass if takes_part else 0.0
            for x, mass, takes_part in zip(xs, target, taking_part, strict=True)
        ]
        return Line(sum(log_sum_exp(among) - x for x in positives) / len(positives), slopes)

    return mean_of_lines(batch.logits, batch.labels, line, positive_only=True)


def harmonic(rank: int) -> float:
    """L(r) = 1 + 1/2 + … + 1/r."""
    return sum(1 / j for j in range(1, rank + 1))


def violations(x: float, negatives: Sequence[float]) -> int:
    """r_p: how many negatives are closer than 1 to a positive, or above it."""
    return sum(1 - x + other > 0 for other in negatives)


def ranked(batch: Batch, unknown: str, penalty: Callable[[float], tuple[float, float]], alone: float) -> Answer:
    """Σ_p L(r_p) Σ_n R(x_p − x_n), and ``alone`` × (Σ_p R(x_p) + Σ_n R(−x_n)); ``penalty`` gives R and its slope."""

    def line(xs: list[float], ys: list[int]) -> Line:
        positives = [place for place, y in enumerate(ys) if y == PRESENT]
        negatives = [place for place, y in enumerate(ys) if is_negative(y, unknown)]
        total, slopes = 0.0, [0.0] * len(xs)
        for place, sign in [(p, 1.0) for p in positives] + [(n, -1.0) for n in negatives]:
            value, slope = penalty(sign * xs[place])
            total += alone * value
            slopes[place] += alone * sign * slope
        for p in positives:
            weight = harmonic(violations(xs[p], [xs[n] for n in negatives]))
            for n in negatives:
                value, slope = penalty(xs[p] - xs[n])
                total += weight * value
                slopes[p] += weight * slope
                slopes[n] -= weight * slope
        return Line(total, slopes)

    return mean_of_lines(batch.logits, batch.labels, line, positive_only=False)


@reference("warp", options=[{}, {"unknown": "ignore"}])
def warp(batch: Batch, *, unknown: str = "negative") -> Answer:
    def hinge(z: float) -> tuple[float, float]:
        return max(0.0, 1 - z), -1.0 if z < 1 else 0.0

    return ranked(batch, unknown, hinge, 0.0)


@reference(
    "rml",
    options=[
        {},
        {"unknown": "ignore"},
        {"weight": 0.0, "beta": 0.5, "stop": -0.3},
        {"weight": 1.5, "beta": 0.0, "stop": 0.2, "unknown": "ignore"},
    ],
    heads={"weight": [0.0, 1.0, 5.0], "beta": [0.0, 0.9, 1.0], "stop": [-0.8, 0.0, -2.0]},
)
def robust_ranking(
    batch: Batch, *, weight: float = 5.0, beta: float = 0.9, stop: float = -0.8, unknown: str = "negative"
) -> Answer:
    def ramp(z: float) -> tuple[float, float]:
        value = max(0.0, 1 - z) - beta * max(0.0, stop - z)
        return value, (-1.0 if z < 1 else 0.0) + (beta if z < stop else 0.0)

    return ranked(batch, unknown, ramp, weight)
