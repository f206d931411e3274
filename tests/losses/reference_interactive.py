"""Reference of Huynh & Elhamifar 2020: the equation image by image, atoms and coefficients by numpy's least squares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.losses.reference import Answer, Batch, Matrix, reference
from tests.losses.reference_assume_negative import EPS, known_cost

from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable

Vector = NDArray[np.float64]


def some_dictionary(table: LabelTable, random: np.random.Generator) -> Mapping[str, NDArray[Any]]:
    """Any graph, and of four images in five what the network once made of them; six features an image."""
    images, classes = table.shape
    return {
        "graph": random.random((classes, classes)) * (random.random((classes, classes)) < 0.5),
        "atom_logits": random.normal(0, 2, (images, classes)),
        "atom_features": random.normal(0, 1, (images, 6)),
        "seen": random.random(images) < 0.8,
    }


def soft_label(x: float, y: int, c: float) -> tuple[float, float]:
    """(e^v − e^−v/c)/(e^v + e^−v) with v = x + ½ ln(1/c), and its slope 2(1 + 1/c)/(e^v + e^−v)²; 0 where known.

    Both fractions are written so that no exponent is positive.
    """
    if y != UNKNOWN:
        return (1.0 if y == PRESENT else -1 / c), 0.0
    v = x + 0.5 * math.log(1 / c)
    small = math.exp(-2 * abs(v))
    top = 1 - small / c if v >= 0 else small - 1 / c
    return top / (1 + small), 2 * (1 + 1 / c) * small / (1 + small) ** 2


def soft_labels(x: Any, y: Any, c: float) -> tuple[Matrix, Matrix]:
    pairs = [[soft_label(*pair, c) for pair in zip(xs, ys, strict=True)] for xs, ys in zip(x, y, strict=True)]
    values = np.array(pairs, dtype=np.float64).reshape(len(pairs), -1, 2)
    return values[..., 0], values[..., 1]


def combine(target: Vector, atoms: Matrix, chosen: list[int]) -> tuple[Vector, Vector]:
    """The coefficients of least squares, 0 for an atom that lies in the span of earlier ones, and what is left over."""
    kept: list[int] = []
    lengths = np.linalg.norm(atoms, axis=1)
    for atom in chosen:
        if lengths[atom] > 0:
            span = (atoms[kept] / lengths[kept, None]).T
            unit = atoms[atom] / lengths[atom]
            away = unit - span @ np.linalg.lstsq(span, unit, rcond=None)[0] if kept else unit
            kept += [atom] if np.linalg.norm(away) > 1e-4 else []
    coefficients = np.zeros(len(atoms))
    if kept:
        coefficients[kept] = np.linalg.lstsq(atoms[kept].T, target, rcond=None)[0]
    return coefficients, target - coefficients @ atoms


def likeness(left: Vector, target: Vector, atom: Vector) -> float:
    length = float(np.linalg.norm(target) * np.linalg.norm(atom))
    return abs(float(left @ atom)) / length if length else 0.0


def pursue(
    y: Vector, f: Vector, labels: Matrix, features: Matrix, allowed: list[int], shares: tuple[float, float], most: int,
    threshold: float,
) -> list[int]:  # fmt: skip
    """Orthogonal matching pursuit on the weighted sum of both correlations; the first of those equal to 1e-5."""
    chosen: list[int] = []
    while len(chosen) < most:
        left_y, left_f = combine(y, labels, chosen)[1], combine(f, features, chosen)[1]
        scores = {
            atom: shares[0] * likeness(left_y, y, labels[atom]) + shares[1] * likeness(left_f, f, features[atom])
            for atom in allowed
            if atom not in chosen
        }
        best = max(scores.values(), default=0.0)
        if best <= threshold:
            break
        chosen.append(next(atom for atom, score in scores.items() if score >= best - 1e-5))
    return chosen


@reference(
    "imcl",
    options=[
        {},
        {"lambda_features": 0.0, "eps": 1e-5},
        {"atoms": 1, "threshold": 0.4, "asymmetry": 1.0, "lambda_features": 2.0},
        {"atoms": 5, "lambda_labels": 0.2, "asymmetry": 3.5},
    ],
    heads={
        "lambda_labels": [1.0, 0.3, 2.0],
        "lambda_features": [0.5, 1.5, 0.0],
        "asymmetry": [2.0, 1.0, 4.0],
        "atoms": [1, 2, 3],
        "threshold": [1e-3, 0.3, 0.5],
        **EPS,
    },
    memory=some_dictionary,
)
def interactive_learning(
    batch: Batch,
    *,
    lambda_labels: float = 1.0,
    lambda_features: float = 0.5,
    asymmetry: float = 2.0,
    atoms: int = 3,
    threshold: float = 1e-3,
    eps: float = 0.0,
) -> Answer:
    """Known BCE + λ_L‖y − Σ a_i Y_i‖² + λ_F‖f − Σ b_i F_i‖² of every image; the dictionary is the whole table."""
    rows, classes = batch.logits.shape
    state = {key: np.asarray(value, dtype=np.float64) for key, value in batch.state.items()}
    observed = batch.table.to_dense()
    thought = soft_labels(state["atom_logits"].tolist(), observed.tolist(), asymmetry)[0]
    theirs = np.where(observed == PRESENT, 1.0, np.where(observed == ABSENT, -1 / asymmetry, thought @ state["graph"]))
    mine, slopes = soft_labels(batch.logits.tolist(), batch.labels.tolist(), asymmetry)
    both = lambda_labels + lambda_features
    shares = (lambda_labels / both, lambda_features / both)
    entries, gradient, learned = np.zeros((rows, classes)), np.zeros((rows, classes)), np.zeros((classes, classes))
    for b in range(rows):
        for k, (x, y) in enumerate(zip(batch.logits[b].tolist(), batch.labels[b].tolist(), strict=True)):
            entries[b, k], gradient[b, k] = known_cost(x, y, eps)
        allowed = [atom for atom in range(len(theirs)) if state["seen"][atom] and atom != batch.index[b]]
        features = state["atom_features"]
        chosen = pursue(mine[b], batch.features[b], theirs, features, allowed, shares, atoms, threshold)
        if not chosen:
            continue
        a, left = combine(mine[b], theirs, chosen)
        strange = combine(batch.features[b], features, chosen)[1]
        entries[b] += lambda_labels * left**2 + lambda_features * float(strange @ strange) / classes
        gradient[b] += 2 * lambda_labels * left * slopes[b]
        for atom in chosen:
            told = left * (observed[atom] == UNKNOWN)
            learned -= 2 * lambda_labels * a[atom] * np.outer(thought[atom], told)
    size = entries.size
    return Answer(float(entries.mean()), gradient / size, entries, {"graph": learned / size})
