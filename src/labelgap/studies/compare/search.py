"""The settings of every method of a comparison, searched side by side: on val or, without one, by cross-validation.

A round trains candidates of all methods together: first those that ``fit`` compares first, then those around the best
of each method, which also extends a grid whose edge is the best. On val a setting is chosen by its mean score over the
seeds. Without val the folds of the first seed choose it; then every seed has folds of its own, and a final head on all
images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.studies.compare.evaluation import DIVERGED, MethodHeads, MethodPlan
from labelgap.studies.compare.grid import Hyperparameters, hyperparameter_grid, option_combinations
from labelgap.studies.compare.heads import HeadTask, HeadTrainingSetup, StoredHead, train_or_load_heads
from labelgap.studies.compare.settings import CompareSettings
from labelgap.studies.compare.variants import GRID_SETTINGS
from labelgap.training.auto import SearchSpace, candidate_configs, neighbors
from labelgap.training.config import RunConfig
from labelgap.training.folds import FoldTask, assign_folds, out_of_fold_logits, select_rows
from labelgap.training.heads import HeadPlan
from labelgap.training.progress import Reporter
from labelgap.training.search import ROUNDS, quick_configs, searched_rows, selection_score
from labelgap.training.selection import Selection, choose_selection

BASELINE_C: Final = tuple(10.0**power for power in range(-4, 3))
"""The C of logistic regression that are compared first."""
BATCHES: Final = 4
MAX_BATCH: Final = 64
"""Adam has so many batches in an epoch at least, and images in a batch at most: its time is in the number of steps."""

Candidate = tuple[MethodPlan, RunConfig]


def with_candidates(plan: MethodPlan, settings: CompareSettings, width: int, *, measured: bool) -> MethodPlan:
    """Return a plan with the settings that are compared first.

    Args:
        plan: of the method.
        settings: of the comparison; what they give is not searched.
        width: number of features.
        measured: whether known labels can choose a setting; else there is one.
    """
    labels, config = plan.view.datasets[0].train.labels, plan.config
    own, fixed = settings.for_variant(plan.variant), settings.fixed_options(plan.method, plan.view, plan.variant)
    given: dict[str, Any] = {name: getattr(own, values) for name, values in GRID_SETTINGS.items()}
    left_open = {"decay": measured and given["weight_decay"] is None, "rate": measured and given["lr"] is None}
    if plan.baseline:
        left_open = {"decay": measured, "rate": False}
        decays = [1 / (c * len(labels) * len(labels.classes)) for c in (BASELINE_C if measured else (1.0,))]
        found = [config.model_copy(update={"weight_decay": float(f"{decay:.4g}")}) for decay in decays]
    elif settings.grid != "auto" and not config.folds:
        left_open = {"decay": False, "rate": False}
        given = {values: given[name] for name, values in GRID_SETTINGS.items()}
        points = hyperparameter_grid(
            plan.method, config.options, settings.grid, fixed=fixed, standardize=bool(settings.standardize), **given
        )
        found = [config.model_copy(update={**asdict(point), "epochs": settings.adam_epochs}) for point in points]
    else:
        if given["batch_size"] is None and config.optimizer != "newton":
            largest = 2 ** int(math.log2(max(len(labels) / BATCHES, config.batch_size)))
            config = config.model_copy(update={"batch_size": min(largest, MAX_BATCH)})
        found = candidate_configs(config, labels, width, SearchSpace((), left_open["decay"], left_open["rate"]))
        for name, values in given.items():
            if values is not None:
                found = [each.model_copy(update={name: value}) for each in found for value in values]
        found = [
            each.model_copy(update={"options": {**each.options, **options}})
            for options in option_combinations(plan.method, settings.grid, fixed)
            for each in found
        ]
    return replace(plan, candidates=found if measured else found[:1], left_open=left_open)


def head_tasks(plan: MethodPlan, config: RunConfig, *, shuffle: bool = False) -> list[HeadTask]:
    """Return a head for each seed of a method; under "newton" a seed changes nothing but the labels, if these."""
    newton = config.optimizer == "newton"
    return [
        HeadTask(
            HeadPlan(
                config.method,
                config.options,
                config.lr,
                data.train.labels,
                0 if newton else seed,
                config.weight_decay,
            ),
            config.epochs,
            config.batch_size,
            config.optimizer,
            config.standardize,
            order_seed=seed if shuffle and not newton else 0,
            last=plan.baseline,
        )
        for seed, data in enumerate(plan.view.datasets, plan.first_seed)
    ]


def search_on_val(
    plans: Sequence[MethodPlan], setup: HeadTrainingSetup, folder: Path, reporter: Reporter, *, shuffle: bool = False
) -> dict[MethodPlan, MethodHeads]:
    """Train every method at its candidates, with all seeds, and choose a setting of each by its mean score on val.

    Args:
        plans: with their candidates.
        setup: what all heads share.
        folder: of the comparison, where the heads are stored.
        reporter: shows the progress.
        shuffle: whether a seed determines the order of the batches.
    """
    grids: dict[MethodPlan, list[list[StoredHead]]] = {plan: [] for plan in plans}

    def score(candidates: Sequence[Candidate]) -> list[float]:
        tasks = [head_tasks(plan, config, shuffle=shuffle) for plan, config in candidates]
        heads = iter(train_or_load_heads([task for each in tasks for task in each], setup, folder, reporter))
        found = [[next(heads) for _ in each] for each in tasks]
        for (plan, _), seeds in zip(candidates, found, strict=True):
            grids[plan].append(seeds)
        return [
            math.nan if any(head.failed for head in seeds) else float(np.mean([head.score or 0.0 for head in seeds]))
            for seeds in found
        ]

    compared = _search(plans, score)
    return {plan: MethodHeads(grids[plan], _told(found), _best(scores)) for plan, (found, scores) in compared.items()}


def search_by_folds(
    plans: Sequence[MethodPlan],
    folds: int,
    groups: NDArray[np.int64],
    setup: HeadTrainingSetup,
    folder: Path,
    reporter: Reporter,
) -> dict[MethodPlan, MethodHeads]:
    """Cross-validate every method, and train its final heads.

    Args:
        plans: with their candidates.
        folds: how many.
        groups: ``(N,)`` integers, equal for images that share a fold.
        setup: what all heads share.
        folder: of the comparison, where the final heads are stored.
        reporter: shows the progress.
    """
    features, first = setup.features["train"], plans[0].first_seed
    tables = {plan: [data.train.labels for data in plan.view.datasets] for plan in plans}
    views = {id(table): table for each in tables.values() for table in each}
    most = max((plan.candidates for plan in plans), key=len)
    rows = searched_rows(tables[plans[0]][0], features.shape[1], most, seed=first)
    part, parts = select_rows(features, rows), {key: table.select(rows) for key, table in views.items()}
    judges = {key: choose_selection(table, None) for key, table in parts.items()}
    seeds = range(first, first + len(tables[plans[0]]))
    fold = {(seed, key): assign_folds(table, folds, seed, groups) for seed in seeds for key, table in views.items()}
    part_fold = {key: fold[first, key][rows] for key in views}

    def score(candidates: Sequence[Candidate]) -> list[float]:
        keys = [id(tables[plan][0]) for plan, _ in candidates]
        configs = [config.model_copy(update={"seed": first}) for _, config in candidates]
        configs = quick_configs(configs, part, views[keys[0]])
        tasks = [FoldTask(config, parts[key], part_fold[key]) for config, key in zip(configs, keys, strict=True)]
        logits = out_of_fold_logits(part, tasks, setup.device, images=len(groups))
        reporter.advance()
        return [selection_score(judges[key], each) for key, each in zip(keys, logits, strict=True)]

    started = time.perf_counter()
    with reporter.bar("cross-validation", ROUNDS + 1):
        compared = _search(plans, score)
        chosen = {
            plan: configs[best] for plan, (configs, scores) in compared.items() if (best := _best(scores)) is not None
        }
        tasks = [
            FoldTask(config.model_copy(update={"seed": seed}), table, fold[seed, id(table)])
            for plan, config in chosen.items()
            for seed, table in zip(seeds, tables[plan], strict=True)
        ]
        logits = iter(out_of_fold_logits(features, tasks, setup.device))
    spent = (time.perf_counter() - started) / max(len(tasks), 1)
    final = [task for plan, config in chosen.items() for task in head_tasks(plan, config)]
    found = train_or_load_heads(final, setup, folder, reporter)
    heads = (replace(head, seconds=head.seconds + spent) for head in found)
    return {plan: _with_final_heads(plan, *each, heads, logits, setup.selection) for plan, each in compared.items()}


def _with_final_heads(
    plan: MethodPlan,
    configs: Sequence[RunConfig],
    scores: Sequence[float],
    heads: Iterator[StoredHead],
    logits: Iterator[NDArray[np.float32]],
    selection: Selection,
) -> MethodHeads:
    """Return what was compared for a method; at the best setting its next final heads, with their own scores."""
    grid, best = [[_untrained(each, plan)] for each in scores], _best(scores)
    own: list[NDArray[np.float32]] = []
    if best is not None:
        own = [next(logits) for _ in plan.view.datasets]
        measures = [selection_score(selection, each) for each in own]
        grid[best] = [replace(next(heads), score=value if math.isfinite(value) else None) for value in measures]
        usable = all(head.failed is None for head in grid[best]) and all(np.isfinite(each).all() for each in own)
        best = best if usable else None
    return MethodHeads(grid, _told(configs), best, own)


def _search(
    plans: Sequence[MethodPlan], score: Callable[[Sequence[Candidate]], list[float]]
) -> dict[MethodPlan, tuple[list[RunConfig], list[float]]]:
    """Score the candidates of all methods, then those around the best of each; NaN is the score of a failure."""
    compared: dict[MethodPlan, tuple[list[RunConfig], list[float]]] = {plan: ([], []) for plan in plans}
    candidates = [(plan, config) for plan in plans for config in plan.candidates]
    for _ in range(ROUNDS):
        for (plan, config), value in zip(candidates, score(candidates), strict=True):
            compared[plan][0].append(config)
            compared[plan][1].append(value)
        candidates = [
            (plan, config)
            for plan, (configs, scores) in compared.items()
            for config in neighbors(configs, scores, SearchSpace((), *plan.left_open.values()))
        ]
        if not candidates:
            break
    return compared


def _best(scores: Sequence[float]) -> int | None:
    """Return the highest score, the first of equals; None where all are NaN."""
    return None if all(map(math.isnan, scores)) else int(np.nanargmax(scores))


def _told(configs: Sequence[RunConfig]) -> list[Hyperparameters]:
    return [Hyperparameters.of(config) for config in configs]


def _untrained(score: float, plan: MethodPlan) -> StoredHead:
    """Return a setting that was scored out of fold, and has no final head."""
    failed = DIVERGED if math.isnan(score) else None
    return StoredHead(Path(), (0, 0), plan.config.epochs, score if math.isfinite(score) else None, 0.0, failed)
