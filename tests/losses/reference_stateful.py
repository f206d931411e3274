"""References of the methods that remember something per image, one entry at a time: `role`, `ll-cp`, `em-apl`, …"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.losses.reference import NOTHING, Answer, Batch, Cost, absent, entry_by_entry, present, reference, sigma
from tests.losses.reference_assume_negative import EPS, known_cost, pairs, smoothed
from tests.losses.reference_entropy import entropy, fit_of, robust_unknown

from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable

Memory = Mapping[str, NDArray[Any]]


def remembered(batch: Batch, key: str) -> list[list[float]]:
    """What the state says of every entry of the batch."""
    state, rows = batch.state[key].tolist(), batch.index.tolist()
    return [state[row] for row in rows]


def some_estimates(table: LabelTable, random: np.random.Generator) -> Memory:
    """φ anywhere, some of it where a probability is 0 or 1."""
    phi = random.normal(0, 3, table.shape)
    return {"phi": np.where(random.random(table.shape) < 0.1, random.choice([-300.0, 300.0], table.shape), phi)}


def batch_regulariser(values: list[list[float]], expected: float) -> tuple[float, list[list[float]]]:
    """((mean_b Σ_k σ(v)) − κ)²/K² and its derivative in every v, which is 2(…)/(B·K²)·σ(v)σ(−v)."""
    rows, classes = len(values), len(values[0])
    excess = sum(sigma(value) for row in values for value in row) / rows - expected
    factor = 2 * excess / (rows * classes**2)
    return excess**2 / classes**2, [[factor * sigma(value) * sigma(-value) for value in row] for row in values]


@reference(
    "role",
    options=[{"expected_positives": 0.9}, {"expected_positives": 0.4, "eps": 1e-5}],
    heads={"expected_positives": [0.5, 1.0, 3.0], **EPS},
    memory=some_estimates,
    gradcheck=False,
)
def online_label_estimation(batch: Batch, *, expected_positives: float, eps: float = 0.0) -> Answer:
    """½{known(p) + known(q) + ce(q → p) + ce(p → q) + R(p) + R(q)}; a target of ce is a constant."""
    x, y, phi = batch.logits.tolist(), batch.labels.tolist(), remembered(batch, "phi")
    rows, classes = batch.labels.shape
    of_p, slopes_p = batch_regulariser(x, expected_positives)
    of_q, slopes_q = batch_regulariser(phi, expected_positives)
    entries, gradient = np.zeros((rows, classes)), np.zeros((rows, classes))
    learned = np.zeros(batch.table.shape)
    for b in range(rows):
        for k in range(classes):
            net = known_cost(x[b][k], y[b][k], eps).plus(smoothed(x[b][k], sigma(phi[b][k]), eps))
            own = known_cost(phi[b][k], y[b][k], eps).plus(smoothed(phi[b][k], sigma(x[b][k]), eps))
            entries[b, k] = 0.5 * (net.value + own.value + of_p + of_q)
            gradient[b, k] = 0.5 * (net.slope / entries.size + slopes_p[b][k])
            learned[batch.index[b], k] = 0.5 * (own.slope / entries.size + slopes_q[b][k])
    return Answer(float(entries.mean()), gradient, entries, {"phi": learned})


def some_teacher(table: LabelTable, random: np.random.Generator) -> Memory:
    """Soft labels of most entries, and how far they are trusted."""
    trust = random.random(table.shape) * (random.random(table.shape) < 0.7)
    return {"teacher": random.random(table.shape), "trust": trust}


@reference(
    "gpr",
    options=[
        {},
        {"expected_positives": 0.9, "expected_weight": 0.3, "limits": [0.1, 0.9], "eps": 1e-5},
        {"momentum": 0.5, "q2": 0.5, "q3": 0.3, "expected_positives": 1.5},
    ],
    heads={
        "expected_positives": [0.5, 1.0, 3.0],
        "expected_weight": [0.1, 0.0, 2.0],
        "momentum": [0.9, 0.5, 0.0],
        "q2": [0.01, 0.5, 1.0],
        "q3": [1.0, 0.2, 0.7],
        **EPS,
    },
    memory=some_teacher,
    gradcheck=False,
)
def generalised_prior_robust(
    batch: Batch,
    *,
    momentum: float = 0.9,
    limits: tuple[float, float] = (0.4, 0.7),
    expected_positives: float | None = None,
    expected_weight: float = 0.05,
    q2: float = 0.01,
    q3: float = 1.0,
    eps: float = 0.0,
) -> Answer:
    """`gr`, but (1 − s)·gr + s·clamp(1 − v)·(−ln p) where the teacher says at least ½, and κ positives expected."""
    alpha, beta = (0.5, 0.8, 2.0, 0.5), (0.0, 2.0, -2.0, -2.0)
    x, y = batch.logits.tolist(), batch.labels.tolist()
    teacher, trust = remembered(batch, "teacher"), remembered(batch, "trust")
    extra, slopes = (0.0, [[0.0] * len(row) for row in x])
    if expected_positives is not None:
        extra, slopes = batch_regulariser(x, expected_positives)
    entries, gradient = np.zeros(batch.logits.shape), np.zeros(batch.logits.shape)
    for b, row in enumerate(x):
        for k, value in enumerate(row):
            cost = known_cost(value, y[b][k], eps)
            if y[b][k] == UNKNOWN:
                cost, s = robust_unknown(batch, value, q2, q3, alpha, beta), trust[b][k]
                if teacher[b][k] >= 0.5 and s > 0:
                    weight = min(max(1 - fit_of(batch, sigma(value), alpha), limits[0]), limits[1])
                    cost = cost.times(1 - s).plus(present(value).times(s * weight))
            entries[b, k] = cost.value + expected_weight * extra
            gradient[b, k] = cost.slope / entries.size + expected_weight * slopes[b][k]
    return Answer(float(entries.mean()), gradient, entries)


def some_corrections(table: LabelTable, random: np.random.Generator) -> Memory:
    """A quarter of the unknown labels were found to be present in the first three epochs."""
    found = (table.to_dense() == UNKNOWN) & (random.random(table.shape) < 0.25)
    return {"corrected_in": np.where(found, random.integers(1, 4, table.shape), 0)}


def still_unknown(batch: Batch) -> list[list[bool]]:
    """Which entries nobody labelled and no earlier step corrected."""
    epochs, labels = remembered(batch, "corrected_in"), batch.labels.tolist()
    return [
        [y == UNKNOWN and not epoch for y, epoch in zip(ys, row, strict=True)]
        for ys, row in zip(labels, epochs, strict=True)
    ]


def corrected_costs(batch: Batch, threshold: float, *, included: bool, eps: float) -> Answer:
    """Present where observed, corrected before, or unknown with a logit above the threshold; else absent."""

    def cost(x: float, y: int, unknown: bool) -> Cost:
        large = x >= threshold if included else absent(x).value > threshold
        corrected = y == UNKNOWN and (not unknown or large)
        return present(x, eps) if y == PRESENT or corrected else absent(x, eps)

    return entry_by_entry(
        [cost(x, y, unknown) for (x, y), unknown in zip(row, free, strict=True)]
        for row, free in zip(pairs(batch), still_unknown(batch), strict=True)
    )


@reference(
    "ll-cp",
    options=[
        {},
        {"delta_rel": 7.3, "eps": 1e-5},
        {"delta_rel": 23.571113171923293, "base": "all"},
        {"delta_rel": 100, "base": "all"},
    ],
    heads={"delta_rel": [0.2, 4.5, 60.0], **EPS},
    memory=some_corrections,
)
def permanent_correction(batch: Batch, *, delta_rel: float = 0.2, base: str = "unknown", eps: float = 0.0) -> Answer:
    """From epoch 2 on the ⌈n·δ/100⌉ largest of the n labels still unknown; ties with the last are as large."""
    rows = zip(batch.logits.tolist(), still_unknown(batch), strict=True)
    free = sorted((x for xs, row in rows for x, unknown in zip(xs, row, strict=True) if unknown), reverse=True)
    entries = len(free) if base == "unknown" else batch.labels.size
    count = min(math.ceil(entries * Fraction(str(delta_rel)) / 100), len(free)) if batch.epoch >= 2 else 0
    threshold = free[count - 1] if count else math.inf
    return corrected_costs(batch, threshold, included=True, eps=eps)


@reference(
    "ll-cp-abs",
    options=[{}, {"r0": 1.0, "delta_abs": 0.09, "eps": 1e-5}, {"warmup": 2, "r0": 1.5}],
    heads={"r0": [1.0, 1.5, 2.0], "delta_abs": [0.05, 0.1, 0.15], "warmup": [0, 1, 7], **EPS},
    memory=some_corrections,
)
def absolute_permanent_correction(
    batch: Batch, *, r0: float = 2.0, delta_abs: float = 0.1, warmup: int = 0, eps: float = 0.0
) -> Answer:
    threshold = r0 - batch.epoch * delta_abs if batch.epoch > warmup else math.inf
    return corrected_costs(batch, threshold, included=False, eps=eps)


def some_targets(table: LabelTable, random: np.random.Generator) -> Memory:
    """A third of the unknown labels have a soft target, of any size."""
    chosen = (table.to_dense() == UNKNOWN) & (random.random(table.shape) < 0.35)
    targets = random.random(table.shape).astype(np.float32) * random.choice([0.0, 1e-6, 1.0], table.shape)
    return {"targets": np.where(chosen, targets, np.nan)}


@reference(
    "em-apl",
    options=[
        {"warmup": 1},
        {"warmup": 3, "alpha": 0.1, "beta": 0.9, "hard": True, "eps": 1e-5},
        {"alpha": 0.0, "beta": 1.0, "theta": 0.5, "positive_share": 0.1},
    ],
    heads={
        "alpha": [0.01, 0.1, 0.9],
        "beta": [0.02, 0.4, 1.0],
        "theta": [0.9, 0.5, 0.0],
        "warmup": [1, 5, 9],
        "positive_share": [0.0, 0.1, 1.0],
        **EPS,
    },
    memory=some_targets,
)
def entropy_and_pseudo_labels(
    batch: Batch,
    *,
    alpha: float = 0.2,
    beta: float = 0.02,
    theta: float = 0.9,
    warmup: int = 5,
    hard: bool = False,
    positive_share: float = 0.0,
    eps: float = 0.0,
) -> Answer:
    """`em`, and β(−s ln p − (1 − s) ln(1 − p)) where there is a target s; the rounds are tested by themselves."""

    def cost(x: float, y: int, target: float) -> Cost:
        if y != UNKNOWN:
            return known_cost(x, y, eps)
        return entropy(x, eps).times(-alpha) if math.isnan(target) else smoothed(x, target, eps).times(beta)

    return entry_by_entry(
        [cost(x, y, target) for (x, y), target in zip(row, targets, strict=True)]
        for row, targets in zip(pairs(batch), remembered(batch, "targets"), strict=True)
    )


def some_labels_given(table: LabelTable, random: np.random.Generator) -> Memory:
    """A third of the unknown labels were given by earlier rounds."""
    chosen = (table.to_dense() == UNKNOWN) & (random.random(table.shape) < 0.35)
    return {"added": np.where(chosen, random.choice([PRESENT, ABSENT], table.shape), UNKNOWN)}


@reference(
    "curriculum",
    options=[{}, {"strategy": "proportion", "eps": 1e-5}, {"strategy": "positives", "warmup": 2}],
    heads={"tau": [0.9, 0.7, 0.99], "theta": [0.1, 0.5, 1.0], "warmup": [1, 2, 9], **EPS},
    memory=some_labels_given,
)
def partial_cross_entropy(
    batch: Batch,
    *,
    strategy: str = "threshold",
    tau: float = 0.95,
    theta: float = 0.1,
    warmup: int = 1,
    eps: float = 0.0,
) -> Answer:
    """g(ρ)/K Σ_known BCE for every image, g(ρ) = −4.45ρ + 5.45; the rounds are tested by themselves."""
    classes = batch.labels.shape[1]
    rows = []
    for row, given in zip(pairs(batch), remembered(batch, "added"), strict=True):
        labels = [(x, y if y != UNKNOWN else own) for (x, y), own in zip(row, given, strict=True)]
        known = sum(y != UNKNOWN for _, y in labels)
        weight = -4.45 * known / classes + 5.45
        rows.append([NOTHING if y == UNKNOWN else known_cost(x, int(y), eps).times(weight) for x, y in labels])
    return entry_by_entry(rows)
