r"""Heads that learn from a person's decisions, on top of the scores of an audit.

For a label of image :math:`i` and class :math:`k`, an audit gives the log-odds :math:`z_{ik}` of being present. The
decisions correct them by

.. math:: s_{ik} = (1 + a)\, z_{ik} + b + b_k + w_k \cdot \tilde{x}_i

with centered features :math:`\tilde{x}` of mean squared length 1: one slope and one offset for all classes, and an
offset and a linear head for each class. They minimize the logistic loss of the decided labels, plus half of
:math:`a^2 / \sigma_a^2 + b^2 / \sigma_b^2 + \sum_k (b_k^2 / \sigma_k^2 + \lVert v_k \rVert^2 / \sigma_w^2)`: without
decisions the scores are those of the audit.

The heads are :math:`w_k = B v_k`: column j of :math:`B` is a principal direction of the features, divided by
:math:`s_j^\gamma`, their standard deviation along it (:math:`\gamma = 0` would be the features as they are, 1 whitened
ones), and by one number for all, such that :math:`B^\top \tilde{x}` has mean squared length 1. A few directions hold
most of the variance, but not most of what tells classes apart; this lets a few hundred decisions use the others.

Nothing leaks: :math:`z` is out-of-fold, a decided label is never ranked again, and no head learns that an open label is
absent. People decide the highest-scoring labels first, which does not bias the fit: given the features, the answer does
not depend on having been asked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from labelgap.audit.candidates import CandidateList
from labelgap.core.errors import InputError
from labelgap.core.special import expit
from labelgap.labels import PRESENT, UNKNOWN
from labelgap.metrics.label_model import to_log_odds

SLOPE_SPREAD, OFFSET_SPREAD, CLASS_SPREAD, WEIGHT_SPREAD = 0.5, 0.5, 0.5, 2.0
"""Standard deviations of the parameters before any decision; docs/results/review.md has the evidence."""
FLATTENING: Final = 0.4  # the exponent gamma
MAX_DIRECTIONS: Final = 512
MAX_SAMPLED: Final = 8192  # images from which the principal directions are computed
MAX_ITERATIONS: Final = 60
_BLOCK: Final = 4096  # candidates whose features are read at a time

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FeatureScale:
    """Centers features ``(N, D)``, memory-mapped or not, and scales them to mean squared length 1."""

    features: NDArray[Any]
    mean: NDArray[np.float32]
    length: float

    @classmethod
    def of(cls, features: NDArray[Any]) -> FeatureScale:
        """Compute mean and length in one pass; do it once, and pass the result to every ranking."""
        total, squares = np.zeros(features.shape[1]), 0.0
        for start in range(0, len(features), _BLOCK):
            block = np.asarray(features[start : start + _BLOCK], dtype=np.float64)
            total += block.sum(axis=0)
            squares += float((block * block).sum())
        mean = total / max(len(features), 1)
        variance = squares / max(len(features), 1) - float(mean @ mean)
        return cls(features, mean.astype(np.float32), float(np.sqrt(variance)) if variance > 1e-12 else 1.0)

    def rows(self, rows: Rows) -> NDArray[np.float32]:
        """Return the scaled features of some images."""
        return np.asarray((self.features[rows].astype(np.float32) - self.mean) / np.float32(self.length))

    @cached_property
    def directions(self) -> NDArray[np.float32]:
        """The matrix B, ``(D, at most MAX_DIRECTIONS)``, from evenly spaced images: the same for the same features."""
        count, width = self.features.shape
        sample = self.rows(np.unique(np.linspace(0, count - 1, min(count, MAX_SAMPLED)).astype(np.int64)))
        largest = [max(width - MAX_DIRECTIONS, 0), width - 1]
        variance, found = eigh((sample.T @ sample / len(sample)).astype(np.float64), subset_by_index=largest)
        is_used = variance > 1e-6 * max(float(variance[-1]), 1e-6)
        variance, found = variance[is_used], found[:, is_used] / variance[is_used] ** (FLATTENING / 2)
        return np.asarray(found / np.sqrt((variance ** (1 - FLATTENING)).sum()), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class DecisionHeads:
    """What was learned from decisions: :math:`1 + a`, :math:`b + b_k` ``(K,)``, and :math:`w_k` ``(K, D)``.

    The weights are of the scaled features, and 0 for a class without decisions.
    """

    slope: float
    offset: NDArray[np.float32]
    weight: NDArray[np.float32]

    @property
    def digest(self) -> str:
        """A hash of every parameter."""
        parts = (np.float64(self.slope), self.offset, self.weight)
        return hashlib.blake2b(b"".join(part.tobytes() for part in parts), digest_size=16).hexdigest()

    def log_odds(
        self, scale: FeatureScale, rows: Rows, columns: NDArray[np.integer[Any]], audited: NDArray[np.floating[Any]]
    ) -> Floats:
        """Return the corrected log-odds ``(C,)`` of labels."""
        odds = self.slope * audited + self.offset[columns]
        learned = np.flatnonzero(np.asarray(self.weight.any(axis=1))[columns])
        order = learned[np.argsort(rows[learned], kind="stable")]
        for start in range(0, len(order), _BLOCK):
            part = order[start : start + _BLOCK]
            images, at = np.unique(rows[part], return_inverse=True)
            odds[part] += np.einsum("cd,cd->c", scale.rows(images)[at], self.weight[columns[part]])
        return np.asarray(odds, dtype=np.float64)


def fit_decisions(
    scale: FeatureScale,
    rows: Rows,
    columns: NDArray[np.integer[Any]],
    audited: NDArray[np.floating[Any]],
    present: NDArray[np.bool_],
    classes: int,
) -> DecisionHeads:
    """Fit the heads to decided labels ``(M,)``, of these alone; ``audited`` are their out-of-fold log-odds."""
    offset, weight = np.zeros(classes, dtype=np.float32), np.zeros((classes, len(scale.mean)), dtype=np.float32)
    if not len(rows):
        return DecisionHeads(1.0, offset, weight)
    order = np.lexsort((rows, columns))
    inputs, odds = scale.rows(rows[order]) @ scale.directions, audited[order].astype(np.float64)
    signs = np.where(present[order], 1.0, -1.0)
    decided, starts, group = np.unique(columns[order], return_index=True, return_inverse=True)
    parts = [slice(*ends) for ends in zip(starts, [*starts[1:], len(order)], strict=True)]  # of each decided class
    count = len(parts)

    def problem(values: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient; parameters are in units of their standard deviations."""
        slope, common, own, heads = values[0], values[1], values[2 : 2 + count], values[2 + count :].reshape(count, -1)
        corrected = (1 + SLOPE_SPREAD * slope) * odds + OFFSET_SPREAD * common + CLASS_SPREAD * own[group]
        narrow = (WEIGHT_SPREAD * heads).astype(np.float32)
        for number, part in enumerate(parts):
            corrected[part] += inputs[part] @ narrow[number]
        cost = float(np.logaddexp(0, -signs * corrected).sum()) + 0.5 * float(values @ values)
        residual = -signs * expit(-signs * corrected)
        gradient = values.copy()
        gradient[0] += SLOPE_SPREAD * float(residual @ odds)
        gradient[1] += OFFSET_SPREAD * float(residual.sum())
        gradient[2 : 2 + count] += CLASS_SPREAD * np.bincount(group, residual)
        by_head, single = gradient[2 + count :].reshape(count, -1), residual.astype(np.float32)
        for number, part in enumerate(parts):
            by_head[number] += WEIGHT_SPREAD * (single[part] @ inputs[part])
        return cost, gradient

    from scipy.optimize import minimize  # it takes a quarter of a second

    options, start = {"maxiter": MAX_ITERATIONS, "ftol": 1e-7}, np.zeros(2 + count * (1 + inputs.shape[1]))
    found = minimize(problem, start, jac=True, method="L-BFGS-B", options=options).x
    offset += np.float32(float(found[1]) * OFFSET_SPREAD)
    offset[decided] += (found[2 : 2 + count] * CLASS_SPREAD).astype(np.float32)
    learned = (found[2 + count :].reshape(count, -1) * WEIGHT_SPREAD).astype(np.float32)
    weight[decided] = learned @ scale.directions.T
    return DecisionHeads(1.0 + float(found[0]) * SLOPE_SPREAD, offset, weight)


Aim = Literal["missing", "classifier", "random"]
AIMS: Final[tuple[Aim, ...]] = get_args(Aim)
POOL: Final = 4  # of so many uncertain candidates of a class, one is chosen for the aim "classifier"
DIVERSE_LIMIT: Final = 200  # are ranked for the aim "classifier" where no limit is given


@dataclass(frozen=True, eq=False)
class Decisions:
    """Candidates that a person decided, with the audit's scores: PRESENT, ABSENT, or UNKNOWN where unsure."""

    candidates: CandidateList
    values: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class LiveRanking:
    """Open candidates in the order in which to decide them, with probabilities; ``model`` is a digest of the heads."""

    aim: Aim
    model: str
    decisions: int
    candidates: CandidateList


def rank_open(
    features: FeatureScale,
    candidates: CandidateList,
    decisions: Decisions,
    classes: int,
    aim: Aim = "missing",
    *,
    limit: int | None = None,
) -> LiveRanking:
    """Learn from the decisions, and rank the candidates that are still open: a function of the arguments alone.

    Observed labels, and decided ones that look wrong, are not learned from. The aim is "missing", the most probable
    first; "classifier", uncertain ones that differ from each other, every class in turn; or "random", the draw as it
    is.
    """
    if aim not in AIMS:
        raise InputError(f"aim {aim!r}: it must be {', '.join(AIMS[:-1])} or {AIMS[-1]}.")
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit}: at least one candidate.")
    positions = candidates.rows * classes + candidates.columns
    decided = decisions.candidates
    is_open = ~np.isin(positions, decided.rows * classes + decided.columns)
    rows, columns = candidates.rows[is_open], candidates.columns[is_open]
    if aim == "random":
        unchanged = rows[:limit], columns[:limit], candidates.scores[is_open][:limit]
        return LiveRanking(aim, "", 0, CandidateList.of_unknown(*unchanged))
    learned = (decisions.values != UNKNOWN) & (decided.observed == UNKNOWN)
    labels = decided.select(np.flatnonzero(learned))
    present = decisions.values[learned] == PRESENT
    heads = fit_decisions(features, labels.rows, labels.columns, to_log_odds(labels.scores), present, classes)
    odds = heads.log_odds(features, rows, columns, to_log_odds(candidates.scores[is_open]))
    if aim == "missing":
        order = np.lexsort((columns, rows, -odds))[:limit]
    else:
        order = _diverse_order(features, rows, columns, odds, limit or DIVERSE_LIMIT)
    ranked = CandidateList.of_unknown(rows[order], columns[order], expit(odds[order]).astype(np.float32))
    return LiveRanking(aim, heads.digest, int(learned.sum()), ranked)


def learning_value(odds: NDArray[np.floating[Any]]) -> Floats:
    r"""Return what an answer teaches, by the log-odds of being present: :math:`p \sqrt{1-p}`, the most at 2/3.

    The variance :math:`p(1-p)` teaches heads about as much, and finds fewer missing labels on the way: on VOC a fifth.
    """
    return np.asarray(expit(odds) * np.sqrt(expit(-odds)), dtype=np.float64)


def _diverse_order(
    features: FeatureScale,
    rows: NDArray[np.int64],
    columns: NDArray[np.integer[Any]],
    odds: NDArray[np.float64],
    limit: int,
) -> NDArray[np.int64]:
    """Return positions: one candidate of every class in turn, each uncertain and unlike those before of its class."""
    value = learning_value(odds)
    order = np.lexsort((columns, rows, -value, columns))
    parts = np.split(order, np.flatnonzero(np.diff(columns[order])) + 1)
    each = -(-limit // len(parts))
    chosen: list[tuple[int, float, int]] = []  # turn, minus the key, position
    for part in parts:
        pool = part[: POOL * each]
        inputs, distance = features.rows(rows[pool]), np.ones(len(pool))
        for turn in range(min(each, len(pool))):
            key = value[pool] * distance
            best = int(key.argmax())
            chosen.append((turn, -float(key[best]), int(pool[best])))
            apart = ((inputs - inputs[best]) ** 2).sum(axis=1, dtype=np.float64)
            distance = apart if turn == 0 else np.minimum(distance, apart)
            distance[best] = -1.0  # never again
    return np.array([position for *_, position in sorted(chosen)[:limit]], dtype=np.int64)
