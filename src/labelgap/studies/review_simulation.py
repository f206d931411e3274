"""Train, audit, review, train again: what reviewing so many labels is worth, with a reviewer who knows the truth.

Of data whose full labels are known, most are hidden. In each round a head is trained and measured, unknown labels are
ranked by an audit (or drawn at random, for comparison), and the first of them are "reviewed": their true state becomes
known, present or absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.fold_heads import FoldTrainingSetup, HeadConfig, train_folds
from labelgap.audit.folds import assign_folds, equal_row_groups
from labelgap.audit.ranking import CandidateLimits, rank_candidates
from labelgap.audit.sampling import draw_unknown
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.readers.features import FeatureVectors
from labelgap.labels import PRESENT, LabelTable, Revisions
from labelgap.metrics import average_precision
from labelgap.training.heads import HeadPlan, HeadResult, train_heads
from labelgap.training.selection import Selection, choose_selection

__all__ = ["SimulationPoint", "reviews_needed", "simulate_review", "train_and_measure"]

Order = Literal["audit", "random"]


@dataclass(frozen=True)
class SimulationPoint:
    """Where a loop stands.

    Attributes:
        reviewed: labels that were reviewed so far.
        found: those of them that are present.
        val: mAP on val, from 0 to 1, by which the settings were chosen.
        test: mAP on test.
        settings: those that were best on val.
    """

    reviewed: int
    found: int
    val: float
    test: float
    settings: HeadConfig


class _Parts(NamedTuple):
    """What a loop works on."""

    features: Mapping[str, NDArray[Any]]
    selection: Selection
    test: LabelTable
    device: torch.device


def simulate_review(
    data: Dataset,
    settings: Sequence[HeadConfig],
    reviews: Sequence[int],
    order: Order = "audit",
    *,
    folds: int = 5,
    seed: int = 0,
    device: str = "cpu",
    told: Callable[[SimulationPoint], None] = lambda point: None,
) -> list[SimulationPoint]:
    """Review labels in rounds, and measure a head after each.

    Args:
        data: features, with the truth of train known and val and test fully labelled.
        settings: to choose from on val, in every round anew; all with the same epochs and batch size.
        reviews: how many labels are reviewed after each round, rising.
        order: "audit", the most probable ones first, or "random".
        folds: of an audit.
        seed: of folds, order and draws.
        device: where to train.
        told: called with each point.

    Returns:
        A point before any review, and one after each round.
    """
    parts, truth = _parts(data, device), data.train.truth
    if truth is None:
        raise InputError(f"{data.name}: a simulated review needs the full labels of train.")
    if list(reviews) != sorted(set(reviews)) or (len(reviews) and reviews[0] < 1):
        raise InputError(f"reviews {list(reviews)}: so many in all after each round, rising from 1 on.")
    if max(reviews, default=0) > data.train.labels.counts().total[2]:
        raise InputError(f"reviews {list(reviews)}: {data.train.labels.counts().total[2]:,} labels are unknown.")
    labels, found, points = data.train.labels, 0, list[SimulationPoint]()
    for reviewed in (0, *reviews):
        if points:
            count = reviewed - points[-1].reviewed
            chosen = _first(parts, labels, points[-1].settings, order, count, folds, seed + len(points))
            answers = truth.codes_at(*chosen)
            found += int((answers == PRESENT).sum())
            made = Revisions.from_arrays(labels, *chosen, values=answers, source="review", epoch=len(points))
            labels = labels.revised(made)
        points.append(_measured(parts, labels, settings, reviewed, found, seed))
        told(points[-1])
    return points


def train_and_measure(
    data: Dataset, settings: Sequence[HeadConfig], labels: LabelTable, *, seed: int = 0, device: str = "cpu"
) -> SimulationPoint:
    """Train on labels as they are, choose the settings on val, and measure: the ceiling, with the full labels."""
    return _measured(_parts(data, device), labels, settings, 0, 0, seed)


def reviews_needed(points: Sequence[SimulationPoint], test: float) -> float | None:
    """Return how many reviewed labels bring the test mAP to a value, on straight lines between points; None if none do.

    Example:
        >>> made = HeadConfig("an", {}, 0.1, 1, 1)
        >>> points = [SimulationPoint(0, 0, 0.5, 0.8, made), SimulationPoint(100, 60, 0.5, 0.84, made)]
        >>> reviews_needed(points, 0.83), reviews_needed(points, 0.9)
        (75.0, None)
    """
    before: SimulationPoint | None = None
    for point in points:
        if point.test >= test:
            if before is None:
                return float(point.reviewed)
            part = (test - before.test) / (point.test - before.test)
            return round(before.reviewed + part * (point.reviewed - before.reviewed), 6)
        before = point
    return None


def _parts(data: Dataset, device: str) -> _Parts:
    if data.val is None or data.test is None:
        raise InputError(f"{data.name}: a simulated review needs val, to choose on, and test, to measure on.")
    features = {split.name: _vectors(data, split) for split in data.splits}
    selection = choose_selection(data.val.labels, data.val.truth, "clean")
    return _Parts(features, selection, data.test.evaluation_labels, torch.device(device))


def _vectors(data: Dataset, split: Split) -> NDArray[Any]:
    if not isinstance(split.images, FeatureVectors):
        raise InputError(f"{data.name} has images: a simulated review trains heads on features.")
    return split.images.vectors


def _first(
    parts: _Parts, labels: LabelTable, settings: HeadConfig, order: Order, count: int, folds: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and class numbers of the unknown labels that are reviewed next."""
    if order == "random":
        return draw_unknown([labels], count, seed)
    fold = assign_folds(labels, folds, seed, equal_row_groups(parts.features["train"]))
    learning = FoldTrainingSetup(parts.features, labels, fold, parts.selection, parts.device, seed)
    ranking = rank_candidates(
        {"train": labels}, train_folds(learning, [settings]), CandidateLimits(2 * count, 2 * count, 0.0), seed
    )
    return ranking.missing.rows[:count], ranking.missing.columns[:count].astype(np.int64)


def _measured(
    parts: _Parts, labels: LabelTable, settings: Sequence[HeadConfig], reviewed: int, found: int, seed: int
) -> SimulationPoint:
    first = settings[0]
    if len({each.alike() for each in settings}) > 1:
        raise InputError("settings to choose from differ in epochs, batch size or optimiser: give them the same.")
    results = train_heads(
        torch.from_numpy(np.asarray(parts.features["train"], dtype=np.float32)),
        [HeadPlan(each.method, each.options, each.lr, labels, seed=each.seed) for each in settings],
        epochs=first.epochs,
        batch_size=first.batch_size,
        order_seed=seed,
        val_features=torch.from_numpy(np.asarray(parts.features["val"], dtype=np.float32)),
        val_labels=parts.selection.labels,
        select=parts.selection.rule,
        stop_below=first.stop_below,
        device=parts.device,
        **dict(first.optimizer),
    )
    best = max(range(len(results)), key=lambda number: results[number].best_score or 0.0)
    return SimulationPoint(reviewed, found, results[best].best_score or 0.0, _map(results[best], parts), settings[best])


def _map(result: HeadResult, parts: _Parts) -> float:
    logits = np.asarray(parts.features["test"], dtype=np.float32) @ result.weight.T + result.bias
    return float(average_precision(logits, parts.test))
