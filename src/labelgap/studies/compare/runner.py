"""``compare``: train every method on the same features, each at the setting that val or a cross-validation selects.

On val a setting is chosen by its mean score over the seeds. Without val the folds of the first seed choose it; then
every seed has folds of its own, and a final head on all images.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.text import format_duration, pluralize
from labelgap.data.dataset import Dataset
from labelgap.studies.compare.heads import (
    HeadTask,
    HeadTrainingSetup,
    StoredHead,
    compute_split_features,
    head_paths,
    train_or_load_heads,
    training_seconds,
)
from labelgap.studies.compare.results import BASELINE, HEADS_FOLDER, Comparison, SkippedMethod, has_heads, variant_name
from labelgap.studies.compare.settings import (
    GRID_SETTINGS,
    CompareSettings,
    LabelView,
    LabelViews,
    check_settings,
    hyperparameter_grid,
    label_view_for,
    method_names,
    method_variants,
    option_combinations,
    refuse_prior,
)
from labelgap.studies.compare.statistics import DIVERGED, MethodHeads, MethodPlan, evaluate_methods
from labelgap.studies.study import study_folder
from labelgap.training import search
from labelgap.training.auto import SearchSpace, candidate_configs
from labelgap.training.config import RunConfig
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.folds import FoldTask, assign_folds, fold_groups, out_of_fold_logits, select_rows
from labelgap.training.heads import HeadPlan
from labelgap.training.history import finite
from labelgap.training.plan import FOLDS_REASON, TrainingRequest, default_linear_backbone, plan_training
from labelgap.training.progress import Reporter
from labelgap.training.selection import choose_selection

BASELINE_TRAINING: Final = {"optimizer": "newton", "standardize": True, "epochs": 30}
"""How logistic regression is trained: to convergence, as a test compares with scikit-learn."""
BASELINE_C: Final = tuple(10.0**power for power in range(-4, 3))  # the C of logistic regression that are compared first
BATCHES: Final = 4
MAX_BATCH: Final = 64
"""Adam has so many batches in an epoch at least, and images in a batch at most: its time is in the number of steps."""
FURTHER: Final = 1.5  # how long the settings around the best ones take, relative to the first ones

Candidate = tuple[MethodPlan, RunConfig]


def compare(
    data: Dataset,
    methods: str | Iterable[str] = "short",
    *,
    out: str | os.PathLike[str] = "runs/compare",
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    reporter: Reporter | None = None,
    **settings: Any,
) -> Comparison:
    """Train a linear head with every method, setting of its grid and seed, and evaluate the selected heads.

    Val selects epochs and settings (one setting for all seeds, by its mean). Without val, cross-validation over all
    training images selects the setting, and final heads are trained on all of them. Test is evaluated once, for the
    selected heads. A seed changes the initial weights, the method's own draws and the folds; with ``observe`` also the
    hidden labels. Heads that the folder has are not trained again.

    Args:
        data: the data set; its table is used as it is, unless ``observe`` is given.
        methods: "short", a list of eight or nine that are worth a try; "all"; or names of methods.
        **settings: seeds, observe, grid and so on: see ``CompareSettings``. All others are as for ``fit``.
    """
    methods = methods if isinstance(methods, str) else list(methods)
    chosen, folder, reporter = check_settings(methods, settings), Path(out), reporter or Reporter(quiet)
    with (
        study_folder(folder, "comparing methods", Comparison.KIND, (Comparison.FILE, HEADS_FOLDER)),
        reporter.resumable(partial(has_heads, folder)),
    ):
        started = time.perf_counter()
        prepared = _prepare(data, methods, chosen, folder, choose_device(device), workers, reporter)
        chosen, plans, skipped, setup, folds = prepared
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # logged once, by ``_resolve_method``
            if not reporter.silent:
                reporter.log(_describe(plans, _estimate_seconds(prepared)))
            if folds:
                groups = fold_groups(data, "train", setup.features["train"].cpu().numpy())
                heads = _search_by_folds(plans, folds, groups, setup)
            else:
                heads = _search_on_val(plans, setup, shuffle=chosen.shuffle)
        found = evaluate_methods(heads, data, setup)
        about = {"metadata": _metadata(data, chosen, setup, folds), "skipped": (*skipped, *found.skipped)}
        comparison = replace(found, **about, seconds=time.perf_counter() - started)  # type: ignore[arg-type]
        comparison.write()
    return comparison


class _Prepared(NamedTuple):
    """A comparison before its training."""

    settings: CompareSettings
    plans: list[MethodPlan]
    skipped: list[SkippedMethod]
    setup: HeadTrainingSetup
    folds: int


def _prepare(
    data: Dataset,
    methods: str | Sequence[str],
    chosen: CompareSettings,
    folder: Path,
    on_device: torch.device,
    workers: int | None,
    reporter: Reporter,
) -> _Prepared:
    chosen = replace(chosen, backbone=chosen.backbone or default_linear_backbone(data))
    refuse_prior(data)
    views = LabelViews(data, chosen.seeds, chosen.observe, chosen.label_seed)
    shown = views.observed().datasets[0]
    plan = plan_training(shown, chosen.request(), on_device)
    selection, why, folds = plan.selection, plan.selection.why, plan.config.folds
    if folds:
        selection, why = choose_selection(shown.train.labels, None), FOLDS_REASON.format(folds=folds)
    plans, skipped = _plan_methods(method_names(methods, shown.train.labels), views, chosen, reporter)
    if all(plan.baseline for plan in plans):
        raise InputError("; ".join(f"{each.method}: {each.reason}" for each in skipped) + ". Nothing was trained.")
    reporter.log(why)
    network = (str(chosen.backbone), chosen.weights, on_device, choose_workers(workers, on_device), reporter)
    features, digest = compute_split_features(data, *network, size=chosen.size)
    width, measured = features["train"].shape[1], selection.labels is not None
    if not measured:
        reporter.log("no known labels can choose a setting: each method has one")
    plans = [_with_candidates(plan, chosen, width, measured=measured) for plan in plans]
    setup = HeadTrainingSetup(features, selection, on_device, digest, folder, reporter)
    return _Prepared(chosen, plans, skipped, setup, folds)


def estimate_comparison(
    data: Dataset, methods: Sequence[str], *, out: Path, device: str, workers: int | None, **settings: Any
) -> float:
    """Return about how many seconds ``compare`` trains, without what the folder has; a few steps are measured."""
    chosen, quiet = check_settings(methods, settings), Reporter(quiet=True)
    return _estimate_seconds(_prepare(data, methods, chosen, out, choose_device(device), workers, quiet))


def _metadata(data: Dataset, settings: CompareSettings, setup: HeadTrainingSetup, folds: int) -> dict[str, Any]:
    hidden = settings.observe is not None
    return {
        "data": data.name,
        "recipe": dict(data.recipe),
        "images": {split.name: len(split) for split in data.splits},
        "classes": list(data.classes),
        "protocol": "linear",
        **{name: getattr(settings, name) for name in ("backbone", "weights", "grid", "seeds")},
        "epochs": settings.adam_epochs,
        "observe": dict(settings.observe or {}) if hidden else None,
        "label_seed": settings.label_seed if hidden else None,
        "device": setup.device.type,
        "folds": folds,
    }


def _plan_methods(
    names: Sequence[str], views: LabelViews, settings: CompareSettings, reporter: Reporter
) -> tuple[list[MethodPlan], list[SkippedMethod]]:
    """Return the labels and the configuration of each method, and the methods that cannot run."""
    plans, skipped = list[MethodPlan](), list[SkippedMethod]()
    rows = [(name, variant) for name in names for variant in method_variants(name, settings.vary)]
    for name, variant in rows:
        view = label_view_for(name, views)
        if isinstance(view, SkippedMethod):
            skipped += [view] if view not in skipped else []
            continue
        fixed = settings.fixed_options(name, view, variant)
        request = replace(settings.for_variant(variant).request(), method=name, options=fixed)
        try:
            config = _resolve_method(view, request, reporter)
            plans.append(MethodPlan(name, view, config, variant, settings.first_seed))
        except InputError as error:
            skipped.append(SkippedMethod(variant_name(name, variant), str(error)))
    if settings.baseline:
        request = replace(settings.request(), training=BASELINE_TRAINING)  # type: ignore[arg-type]
        try:
            config = plan_training(views.observed().datasets[0], request).config
            plans.append(MethodPlan("an", views.observed(), config, {}, settings.first_seed, baseline=True))
        except InputError as error:
            skipped.append(SkippedMethod(BASELINE, str(error)))
    return plans, skipped


def _resolve_method(view: LabelView, request: TrainingRequest, reporter: Reporter) -> RunConfig:
    """Return a method's configuration before any search; ``InputError`` where it cannot learn from its labels."""
    plan = plan_training(view.datasets[0], request)
    config, loss_fn = plan.config, plan.loss
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss_fn.prepare(view.datasets[0].train.labels, epochs=config.epochs, seed=0)
    if loss_fn.initialized:
        reporter.log(f"{request.method}: {loss_fn.initialized}")
    for warning in caught:
        reporter.log(f"{request.method}: {str(warning.message).removeprefix(f'{request.method}: ')}")
    return config


def _with_candidates(plan: MethodPlan, settings: CompareSettings, width: int, *, measured: bool) -> MethodPlan:
    """Return a plan with the settings that are compared first: one, unless known labels can choose (``measured``)."""
    labels, config = plan.view.datasets[0].train.labels, plan.config
    own, fixed = settings.for_variant(plan.variant), settings.fixed_options(plan.method, plan.view, plan.variant)
    left_open = SearchSpace((), measured and own.weight_decays is None, measured and own.learning_rates is None)
    if plan.baseline:
        left_open = SearchSpace((), measured, rate=False)
        decays = [1 / (c * len(labels) * len(labels.classes)) for c in (BASELINE_C if measured else (1.0,))]
        found = [config.model_copy(update={"weight_decay": float(f"{decay:.4g}")}) for decay in decays]
    elif settings.grid != "auto" and not config.folds:
        left_open = SearchSpace()
        points = hyperparameter_grid(plan.method, own, config.options, fixed)
        found = [config.model_copy(update=point) for point in points]
    else:
        if own.batch_sizes is None and config.optimizer != "newton":
            largest = 2 ** int(math.log2(max(len(labels) / BATCHES, config.batch_size)))
            config = config.model_copy(update={"batch_size": min(largest, MAX_BATCH)})
        found = candidate_configs(config, labels, width, left_open)
        for name, setting in GRID_SETTINGS.items():
            if (values := getattr(own, setting)) is not None:
                found = [each.model_copy(update={name: value}) for each in found for value in values]
        found = [
            each.model_copy(update={"options": {**each.options, **options}})
            for options in option_combinations(plan.method, settings.grid, fixed)
            for each in found
        ]
    return replace(plan, candidates=found if measured else found[:1], left_open=left_open)


def _estimate_seconds(prepared: _Prepared) -> float:
    """Return about how many seconds the heads that a comparison has not stored take to train, and those of folds."""
    _, plans, _, setup, folds = prepared
    first = [task for plan in plans for config in plan.candidates for task in _head_tasks(plan, config)]
    rounds = 1 + (FURTHER if any(plan.left_open.decay or plan.left_open.rate for plan in plans) else 0.0)
    if folds:
        final = [task for plan in plans for task in _head_tasks(plan, plan.candidates[0])]
        one_seed = first[:: len(plans[0].view.datasets)]
        return rounds * training_seconds(one_seed * folds, setup) + training_seconds(final * (folds + 1), setup)
    by_path = dict(zip(head_paths(first, setup), first, strict=True))
    return rounds * training_seconds([task for path, task in by_path.items() if not path.exists()], setup)


def _describe(plans: Sequence[MethodPlan], seconds: float) -> str:
    methods = pluralize(len({plan.label for plan in plans if not plan.baseline}), "method")
    beside = f" and {BASELINE}" if any(plan.baseline for plan in plans) else ""
    settings = pluralize(sum(len(plan.candidates) for plan in plans), "setting")
    searched = any(plan.left_open.decay or plan.left_open.rate for plan in plans)
    further = ", then around the best of each" if searched else ""
    seeds = pluralize(len(plans[0].view.datasets), "seed")
    about = f"training takes about {format_duration(seconds)}"
    return f"{about}: {methods}{beside} at {settings} in all{further}, with {seeds}"


def _head_tasks(plan: MethodPlan, config: RunConfig, *, shuffle: bool = False) -> list[HeadTask]:
    """Return a head for each seed of a method; under "newton" a seed changes nothing but the labels, if these."""
    newton, method = config.optimizer == "newton", (config.method, config.options, config.lr)
    shared = (config.epochs, config.batch_size, config.optimizer, config.standardize)
    return [
        HeadTask(
            HeadPlan(*method, data.train.labels, 0 if newton else seed, config.weight_decay),
            *shared,
            order_seed=seed if shuffle and not newton else 0,
            last=plan.baseline,
        )
        for seed, data in enumerate(plan.view.datasets, plan.first_seed)
    ]


def _search_on_val(
    plans: Sequence[MethodPlan], setup: HeadTrainingSetup, *, shuffle: bool
) -> dict[MethodPlan, MethodHeads]:
    """Train every method at its candidates, with all seeds, and choose a setting of each by its mean score on val."""
    grids: dict[MethodPlan, list[list[StoredHead]]] = {plan: [] for plan in plans}

    def score(candidates: Sequence[Candidate]) -> list[float]:
        tasks = [_head_tasks(plan, config, shuffle=shuffle) for plan, config in candidates]
        heads, scores = iter(train_or_load_heads([task for each in tasks for task in each], setup)), list[float]()
        for (plan, _), each in zip(candidates, tasks, strict=True):
            seeds = [next(heads) for _ in each]
            grids[plan].append(seeds)
            failed = any(head.failed for head in seeds)
            scores.append(math.nan if failed else float(np.mean([head.score or 0.0 for head in seeds])))
        return scores

    compared = search.search_rounds({plan: (plan.candidates, plan.left_open) for plan in plans}, score)
    return {plan: MethodHeads(grids[plan], found, search.best_of(scores)) for plan, (found, scores) in compared.items()}


def _search_by_folds(
    plans: Sequence[MethodPlan], folds: int, groups: NDArray[np.int64], setup: HeadTrainingSetup
) -> dict[MethodPlan, MethodHeads]:
    """Cross-validate every method, and train its final heads; images with equal ``groups`` share a fold."""
    features, first = setup.features["train"], plans[0].first_seed
    tables = {plan: [data.train.labels for data in plan.view.datasets] for plan in plans}
    views = {id(table): table for each in tables.values() for table in each}
    most = max((plan.candidates for plan in plans), key=len)
    rows = search.searched_rows(tables[plans[0]][0], features.shape[1], most, seed=first)
    part, parts = select_rows(features, rows), {key: table.select(rows) for key, table in views.items()}
    seeds = range(first, first + len(tables[plans[0]]))
    fold = {(seed, key): assign_folds(table, folds, seed, groups) for seed in seeds for key, table in views.items()}
    part_fold = {key: fold[first, key][rows] for key in views}  # tasks share features by the array of their folds

    def score(candidates: Sequence[Candidate]) -> list[float]:
        keys = [id(tables[plan][0]) for plan, _ in candidates]
        configs = [config.model_copy(update={"seed": first}) for _, config in candidates]
        configs = search.quick_configs(configs, part, views[keys[0]])
        tasks = [FoldTask(config, parts[key], part_fold[key]) for config, key in zip(configs, keys, strict=True)]
        scores, _ = search.score_folds(part, tasks, setup.device, images=len(groups))
        setup.reporter.advance()
        return scores

    started = time.perf_counter()
    with setup.reporter.bar("cross-validation", search.ROUNDS + 1):
        compared = search.search_rounds({plan: (plan.candidates, plan.left_open) for plan in plans}, score)
        best = {plan: search.best_of(scores) for plan, (_, scores) in compared.items()}
        chosen = {plan: compared[plan][0][number] for plan, number in best.items() if number is not None}
        tasks = [
            FoldTask(config.model_copy(update={"seed": seed}), table, fold[seed, id(table)])
            for plan, config in chosen.items()
            for seed, table in zip(seeds, tables[plan], strict=True)
        ]
        logits = iter(out_of_fold_logits(features, tasks, setup.device))
    spent = (time.perf_counter() - started) / max(len(tasks), 1)
    heads = iter(train_or_load_heads([task for each in chosen.items() for task in _head_tasks(*each)], setup))
    made: dict[MethodPlan, MethodHeads] = {}
    for plan, (configs, scores) in compared.items():
        number, own = best[plan], list[NDArray[np.float32]]()
        failed = [DIVERGED if math.isnan(each) else None for each in scores]
        untrained = (Path(), plan.config.epochs)  # a setting that was scored out of fold has no final head
        grid = [[StoredHead(*untrained, finite(each), 0.0, why)] for each, why in zip(scores, failed, strict=True)]
        if number is not None:
            own, trained = [next(logits) for _ in seeds], [next(heads) for _ in seeds]
            grid[number] = [
                replace(head, seconds=head.seconds + spent, score=finite(search.selection_score(setup.selection, each)))
                for head, each in zip(trained, own, strict=True)
            ]
            usable = all(head.failed is None for head in trained) and all(np.isfinite(each).all() for each in own)
            number = number if usable else None
        made[plan] = MethodHeads(grid, configs, number, own)
    return made
