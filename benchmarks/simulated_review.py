"""Simulated reviews: what reviewing labels is worth, with a reviewer who knows the truth.

Of data with full labels, most labels are hidden. In each round a head is trained and measured, an audit ranks the
unknown labels (or they are drawn at random, for comparison), and the first of them are reviewed: their true state,
present or absent, becomes known.

``simulate_decisions`` compares orders without training between decisions: that of one audit ("fixed"), the same audit
with heads that learn from the decisions ("live", "classifier": see ``audit.live``), and random order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.candidates import CandidateLimits, CandidateRanking, draw_unknown, rank_candidates
from labelgap.audit.live import Aim, Decisions, FeatureScale, rank_open
from labelgap.audit.scorers import train_head_scorers
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FEATURES, FeatureVectors
from labelgap.labels import PRESENT, LabelTable, Revisions
from labelgap.metrics import average_precision
from labelgap.training.config import RunConfig
from labelgap.training.folds import assign_folds, equal_row_groups, train_configs
from labelgap.training.heads import HeadPlan, HeadResult, train_heads
from labelgap.training.selection import Selection, choose_selection

Order = Literal["audit", "random"]
DecisionOrder = Literal["fixed", "live", "classifier", "random"]


@dataclass(frozen=True)
class SimulationPoint:
    """The state after a round."""

    reviewed: int  # labels so far
    found: int  # those of them that are present
    val: float  # mAP, from 0 to 1, by which the configuration was chosen
    test: float  # mAP
    config: RunConfig  # the best on val


@dataclass(frozen=True, eq=False)
class SimulatedDecisions:
    """Decided labels in their order; each array is ``(M,)``."""

    rows: NDArray[np.int64]  # image numbers of train
    columns: NDArray[np.int64]  # class numbers
    values: NDArray[np.int8]  # PRESENT or ABSENT, from the truth

    @property
    def found(self) -> NDArray[np.int64]:
        """How many of the first 1, 2, … decided labels are present."""
        return np.asarray(np.cumsum(self.values == PRESENT))

    def labels(self, observed: LabelTable, count: int) -> LabelTable:
        """Return the labels that are known after so many decisions."""
        first = (self.rows[:count], self.columns[:count])
        return observed.revised(
            Revisions.from_arrays(observed, *first, values=self.values[:count], source="review", epoch=None)
        )


def linear_config(
    method: str, options: Mapping[str, Any], lr: float, *, epochs: int, batch_size: int, seed: int = 0
) -> RunConfig:
    """Return the settings of a linear head that is trained by Adam, for a simulation."""
    about: Any = {"data": {}, "classes": ("any",), "backbone": FEATURES, "protocol": "linear", "backbone_lr": lr}
    about |= {"flip": False, "select": "clean", "trace": "off", "options": dict(options)}
    return RunConfig.checked(method=method, lr=lr, epochs=epochs, batch_size=batch_size, seed=seed, **about)


class _Inputs(NamedTuple):
    features: Mapping[str, NDArray[Any]]
    selection: Selection
    test: LabelTable
    device: torch.device


def simulate_review(
    data: Dataset,
    configs: Sequence[RunConfig],
    reviews: Sequence[int],
    order: Order = "audit",
    *,
    folds: int = 5,
    seed: int = 0,
    device: str = "cpu",
    callback: Callable[[SimulationPoint], None] = lambda point: None,
) -> list[SimulationPoint]:
    """Return a point before any review, and one after each round; ``reviews`` are the totals, rising.

    The data are features, with the truth of train and complete labels of val and test. Val chooses one of the
    configurations in every round. The order is that of an audit, the most probable labels first, or random.
    """
    inputs, truth = _inputs(data, device), _truth(data)
    labels, found, points = data.train.labels, 0, list[SimulationPoint]()
    for reviewed in (0, *reviews):
        if points:
            count = reviewed - points[-1].reviewed
            chosen = _next_labels(inputs, labels, points[-1].config, order, count, folds, seed + len(points))
            answers = truth.codes_at(*chosen)
            found += int((answers == PRESENT).sum())
            labels = labels.revised(
                Revisions.from_arrays(labels, *chosen, values=answers, source="review", epoch=len(points))
            )
        points.append(_measure(inputs, labels, configs, reviewed, found, seed))
        callback(points[-1])
    return points


def audit_once(
    data: Dataset,
    config: RunConfig,
    limits: CandidateLimits | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
    device: str = "cpu",
) -> CandidateRanking:
    """Rank the unknown labels of train by out-of-fold heads, as an audit of a linear run does."""
    inputs, labels = _inputs(data, device), data.train.labels
    return _audit(inputs, labels, config, limits or CandidateLimits(), folds, seed)


def informed_order(
    data: Dataset, audit: CandidateRanking, config: RunConfig, *, folds: int = 5, seed: int = 0, device: str = "cpu"
) -> CandidateRanking:
    """Return the audit with its missing labels ordered by heads that have learned the truth of all other images.

    What such heads know of an image once every other one is reviewed: a yardstick, and no bound for other models.
    """
    inputs, missing = _inputs(data, device), audit.missing
    train = _truth(data)
    fold = assign_folds(train, folds, seed, equal_row_groups(inputs.features["train"]))
    scorers = train_head_scorers(inputs.features, train, fold, inputs.selection, [config], device=inputs.device)
    logits = scorers[0].logits("train", slice(None))
    order = np.argsort(-logits[missing.rows, missing.columns], kind="stable")
    return replace(audit, missing=missing.select(order))


def simulate_decisions(
    data: Dataset,
    audit: CandidateRanking,
    count: int,
    order: DecisionOrder,
    *,
    every: int = 50,
    features: FeatureScale | None = None,
) -> SimulatedDecisions:
    """Decide labels one after the other, in an order that may learn from the decisions, so many at most.

    "fixed" is the order of the audit, "random" that of its random labels; "live" and "classifier" are ranked again
    after ``every`` so many decisions, for the aims "missing" and "classifier". Scaled ``features`` of train can be
    shared between simulations.
    """
    truth, classes = _truth(data), len(data.classes)
    pool = audit.random if order == "random" else audit.missing
    if order in ("fixed", "random"):
        rows, columns = pool.rows[:count], pool.columns[:count].astype(np.int64)
        return SimulatedDecisions(rows, columns, truth.codes_at(rows, columns))
    scale = features or FeatureScale.of(_vectors(data.train))
    aim: Aim = "missing" if order == "live" else "classifier"
    places = np.sort(positions := pool.rows * classes + pool.columns)
    by_place, decided = np.argsort(positions), np.empty(0, dtype=np.int64)
    while len(decided) < min(count, len(pool)):
        chosen, answers = pool.select(decided), truth.codes_at(pool.rows[decided], pool.columns[decided])
        step = min(every, count - len(decided))
        best = rank_open(scale, pool, Decisions(chosen, answers), classes, aim, limit=step).candidates
        at = np.searchsorted(places, best.rows * classes + best.columns)
        decided = np.concatenate([decided, by_place[at]])
    rows, columns = pool.rows[decided], pool.columns[decided].astype(np.int64)
    return SimulatedDecisions(rows, columns, truth.codes_at(rows, columns))


def measure_labels(
    data: Dataset, tables: Sequence[LabelTable], config: RunConfig, *, seed: int = 0, device: str = "cpu"
) -> list[float]:
    """Train a head on each of several tables of train, all at once, and return their mAP on test, from 0 to 1."""
    inputs = _inputs(data, device)
    results = train_heads(
        torch.from_numpy(np.asarray(inputs.features["train"], dtype=np.float32)),
        [HeadPlan(config.method, config.options, config.lr, table, config.seed) for table in tables],
        epochs=config.epochs,
        batch_size=config.batch_size,
        order_seed=seed,
        val_features=torch.from_numpy(np.asarray(inputs.features["val"], dtype=np.float32)),
        val_labels=inputs.selection.labels,
        select=inputs.selection.rule,
        device=inputs.device,
    )
    return [_test_map(inputs, result) for result in results]


def train_and_measure(
    data: Dataset, configs: Sequence[RunConfig], labels: LabelTable, *, seed: int = 0, device: str = "cpu"
) -> SimulationPoint:
    """Train on given labels, choose the configuration on val, and measure; with the full labels: the upper bound."""
    return _measure(_inputs(data, device), labels, configs, 0, 0, seed)


def _inputs(data: Dataset, device: str) -> _Inputs:
    assert data.val is not None and data.test is not None
    features = {split.name: _vectors(split) for split in data.splits}
    selection = choose_selection(data.val.labels, data.val.truth, "clean")
    return _Inputs(features, selection, data.test.evaluation_labels, torch.device(device))


def _truth(data: Dataset) -> LabelTable:
    assert data.train.truth is not None
    return data.train.truth


def _vectors(split: Split) -> NDArray[Any]:
    assert isinstance(split.images, FeatureVectors)
    return split.images.vectors


def _next_labels(
    inputs: _Inputs, labels: LabelTable, config: RunConfig, order: Order, count: int, folds: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and class numbers of the unknown labels to review next."""
    if order == "random":
        return draw_unknown([labels], count, seed)
    missing = _audit(inputs, labels, config, CandidateLimits(2 * count, 2 * count, 0.0), folds, seed).missing
    return missing.rows[:count], missing.columns[:count].astype(np.int64)


def _audit(
    inputs: _Inputs, labels: LabelTable, config: RunConfig, limits: CandidateLimits, folds: int, seed: int
) -> CandidateRanking:
    fold = assign_folds(labels, folds, seed, equal_row_groups(inputs.features["train"]))
    scorers = train_head_scorers(inputs.features, labels, fold, inputs.selection, [config], device=inputs.device)
    return rank_candidates({"train": labels}, scorers, limits, seed)


def _measure(
    inputs: _Inputs, labels: LabelTable, configs: Sequence[RunConfig], reviewed: int, found: int, seed: int
) -> SimulationPoint:
    results = train_configs(inputs.features, labels, configs, inputs.selection, order_seed=seed, device=inputs.device)
    best = max(range(len(results)), key=lambda number: results[number].best_score or 0.0)
    score, test = results[best].best_score or 0.0, _test_map(inputs, results[best])
    return SimulationPoint(reviewed, found, score, test, configs[best])


def _test_map(inputs: _Inputs, head: HeadResult) -> float:
    logits = np.asarray(inputs.features["test"], dtype=np.float32) @ head.weight.T + head.bias
    return float(average_precision(logits, inputs.test))
