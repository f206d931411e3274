"""A comparison on data without val: settings and scores by cross-validation over all training images.

The first seed chooses the setting of a method, as ``fit`` does without val. Every seed has folds of its own, and a
final head on all images with the chosen setting.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import RunError
from labelgap.studies.compare.evaluation import MethodHeads, MethodPlan
from labelgap.studies.compare.grid import Hyperparameters, option_combinations
from labelgap.studies.compare.heads import HeadTask, HeadTrainingSetup, StoredHead, train_or_load_heads
from labelgap.training.config.candidates import candidate_configs
from labelgap.training.config.schema import RunConfig
from labelgap.training.folds import assign_folds, out_of_fold_logits
from labelgap.training.heads import HeadPlan
from labelgap.training.search import search_by_folds, selection_score

__all__ = ["FoldSettings", "fold_configs", "train_out_of_fold"]


@dataclass(frozen=True)
class FoldSettings:
    """How methods are cross-validated.

    Attributes:
        folds: how many.
        groups: ``(N,)`` integers, equal for images that share a fold.
        configs: the settings that are compared, for each plan.
    """

    folds: int
    groups: NDArray[np.int64]
    configs: Mapping[MethodPlan, Sequence[RunConfig]]


def fold_configs(
    plan: MethodPlan,
    width: int,
    *,
    grid: str,
    fixed: Sequence[str],
    given: Mapping[str, Sequence[float] | None],
) -> list[RunConfig]:
    """Return the settings of a method that are compared.

    Args:
        plan: of the method.
        width: number of features.
        grid: "small", or "full", which searches the options of the method too.
        fixed: options that are not searched.
        given: "lr", "batch_size" and "weight_decay" → the values to compare, where they are given.
    """
    labels = plan.view.datasets[0].train.labels
    left_open = {"decay": given["weight_decay"] is None, "rate": given["lr"] is None}
    configs = candidate_configs(plan.config, labels, width, decay=left_open["decay"], rate=left_open["rate"])
    for name, values in given.items():
        if values is not None:
            configs = [each.model_copy(update={name: value}) for each in configs for value in values]
    combinations = option_combinations(plan.method, grid, fixed)
    return [
        each.model_copy(update={"options": {**each.options, **options}}) for options in combinations for each in configs
    ]


def train_out_of_fold(plan: MethodPlan, settings: FoldSettings, setup: HeadTrainingSetup, folder: Path) -> MethodHeads:
    """Cross-validate a method, and train its final heads."""
    features, started = setup.features["train"], time.perf_counter()
    configs = [each.model_copy(update={"seed": plan.first_seed}) for each in settings.configs[plan]]
    tables = [data.train.labels for data in plan.view.datasets]
    numbered = list(enumerate(tables, plan.first_seed))
    folds = [assign_folds(table, settings.folds, seed, settings.groups) for seed, table in numbered]
    try:
        found = search_by_folds(features, tables[0], configs, folds[0], device=setup.device)
    except RunError as error:
        failed = _untrained(None, setup.epochs)
        return MethodHeads([[replace(failed, failed=str(error))]], None)
    scores = [line["score"] for line in found.compared]
    best = max(range(len(scores)), key=lambda number: -1.0 if scores[number] is None else scores[number])
    assert found.logits is not None
    logits = [found.logits]
    for seed in range(1, len(tables)):
        config = configs[best].model_copy(update={"seed": plan.first_seed + seed})
        logits += out_of_fold_logits(features, tables[seed], [config], folds[seed], setup.device)
    spent = (time.perf_counter() - started) / len(tables)
    chosen = Hyperparameters.of(configs[best])
    tasks = [
        HeadTask(
            HeadPlan(plan.method, chosen.options, chosen.lr, table, seed, chosen.weight_decay),
            chosen.batch_size,
            chosen.optimizer,
            chosen.standardize,
        )
        for seed, table in numbered
    ]
    heads = train_or_load_heads(tasks, setup, folder)
    grid = [[_untrained(score, setup.epochs)] for score in scores]
    grid[best] = [
        replace(head, score=_score(setup, each), seconds=head.seconds + spent)
        for head, each in zip(heads, logits, strict=True)
    ]
    usable = all(head.failed is None for head in heads) and all(np.isfinite(each).all() for each in logits)
    return MethodHeads(grid, best if usable else None, logits)


def _score(setup: HeadTrainingSetup, logits: NDArray[np.float32]) -> float | None:
    """Return the out-of-fold score of a seed; None where nothing can be ranked."""
    value = selection_score(setup.selection, logits)
    return value if np.isfinite(value) else None


def _untrained(score: Any, epochs: int) -> StoredHead:
    """Return a setting that was scored out of fold, and has no final head."""
    return StoredHead(Path(), (0, 0), epochs, score, 0.0)
