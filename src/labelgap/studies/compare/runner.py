"""``compare``: train every method on the same features, each at the setting that val selects."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import remove_partials
from labelgap.core.lock import lock_folder
from labelgap.core.text import pluralize
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.studies.compare.comparison import FILE, HEADS_FOLDER, Comparison, has_heads
from labelgap.studies.compare.cross_validation import FoldSettings, fold_configs, train_out_of_fold
from labelgap.studies.compare.evaluation import MethodHeads, MethodPlan, evaluate_methods, select_setting
from labelgap.studies.compare.features import compute_split_features
from labelgap.studies.compare.grid import Hyperparameters
from labelgap.studies.compare.heads import HeadTask, HeadTrainingSetup, Progress, train_or_load_heads
from labelgap.studies.compare.label_views import LabelView, LabelViews, label_view_for
from labelgap.studies.compare.results import SkippedMethod
from labelgap.studies.compare.settings import CompareSettings, check_settings
from labelgap.studies.compare.variants import GRID_SETTINGS, method_variants, variant_name
from labelgap.training.config.defaults import default_linear_backbone
from labelgap.training.config.request import TrainingRequest
from labelgap.training.config.resolve import resolve_config
from labelgap.training.config.schema import RunConfig
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.folds import fold_groups
from labelgap.training.heads import HeadPlan
from labelgap.training.progress import Reporter
from labelgap.training.protocols import FOLDS_REASON
from labelgap.training.selection import Selection, choose_selection

__all__ = ["compare"]


def compare(
    data: Dataset,
    methods: str | Iterable[str] = "all",
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
    hidden labels. The order of the batches is the same for all, unless ``shuffle``.

    Args:
        data: the data set; its table is used as it is, unless ``observe`` is given.
        methods: "all", or names of methods.
        out: folder; heads that are stored in it are not trained again.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: print nothing.
        reporter: shows messages and progress; a new one when None.
        **settings: seeds, observe, grid and so on: see ``CompareSettings``.
    """
    names, chosen = check_settings(methods, settings)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    reporter = reporter or Reporter(quiet)
    with lock_folder(folder, "comparing methods"), reporter.resumable(partial(has_heads, folder)):
        _check_folder(folder)
        comparison = _compare(data, names, chosen, folder, choose_device(device), workers, reporter)
        comparison.write()
    return comparison


def _compare(
    data: Dataset,
    names: Sequence[str],
    chosen: CompareSettings,
    folder: Path,
    on_device: torch.device,
    workers: int | None,
    reporter: Reporter,
) -> Comparison:
    """Train and evaluate in a folder that this process has locked."""
    started = time.perf_counter()
    chosen = replace(chosen, backbone=chosen.backbone or default_linear_backbone(data))
    views = LabelViews(data, chosen.seeds, chosen.observe, chosen.label_seed)
    request = chosen.request()
    shown = views.observed().datasets[0]
    config, selection, _ = resolve_config(shown, request, on_device)
    why = selection.why
    if config.folds:
        selection, why = choose_selection(shown.train.labels, None), FOLDS_REASON.format(folds=config.folds)
    plans, skipped = _plan_methods(names, views, request, chosen, selection, reporter)
    if not plans:
        raise InputError("; ".join(f"{each.method}: {each.reason}" for each in skipped) + ". Nothing was trained.")
    reporter.log(why)
    workers = choose_workers(workers, on_device)
    backbone = str(chosen.backbone)
    features, digest = compute_split_features(
        data, backbone, chosen.weights, on_device, workers, reporter, size=chosen.size
    )
    setup = HeadTrainingSetup(features, selection, chosen.epochs, on_device, digest)
    if config.folds:
        heads = _train_folds(plans, data, chosen, setup, folder, reporter)
    else:
        heads = _train_heads(plans, setup, folder, reporter, chosen)
    comparison = evaluate_methods(heads, features, data, selection, folder, reporter)
    return replace(
        comparison,
        metadata={**_metadata(data, chosen, on_device.type), "folds": config.folds},
        skipped=(*skipped, *comparison.skipped),
        seconds=time.perf_counter() - started,
    )


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a comparison, and remove what a killed one left."""
    other = any(not path.name.startswith(".") for path in folder.iterdir())
    if other and not ((folder / FILE).exists() or (folder / HEADS_FOLDER).is_dir()):
        raise RunError(f"{folder} holds something else than a comparison: choose another --out.")
    refuse_links(folder)
    remove_partials(folder)


def _metadata(data: Dataset, settings: CompareSettings, device: str) -> dict[str, Any]:
    return {
        "data": data.name,
        "recipe": dict(data.recipe),
        "images": {split.name: len(split) for split in data.splits},
        "classes": list(data.classes),
        "protocol": "linear",
        **{name: getattr(settings, name) for name in ("backbone", "weights", "epochs", "grid", "seeds")},
        "observe": None if settings.observe is None else dict(settings.observe),
        "label_seed": None if settings.observe is None else settings.label_seed,
        "device": device,
    }


def _plan_methods(
    names: Sequence[str],
    views: LabelViews,
    request: TrainingRequest,
    settings: CompareSettings,
    selection: Selection,
    reporter: Reporter,
) -> tuple[list[MethodPlan], list[SkippedMethod]]:
    """Return the labels and the grid of each method, and the methods that cannot run."""
    plans: list[MethodPlan] = []
    skipped: list[SkippedMethod] = []
    rows = [(name, variant) for name in names for variant in method_variants(name, settings.vary)]
    for name, variant in rows:
        view = label_view_for(name, views)
        if isinstance(view, SkippedMethod):
            skipped += [view] if view not in skipped else []
            continue
        fixed = settings.fixed_options(name, view, variant)
        try:
            config = _resolve_method(view, replace(request, method=name, options=fixed), reporter)
        except InputError as error:
            skipped.append(SkippedMethod(variant_name(name, variant), str(error)))
            continue
        grid = settings.for_variant(variant).hyperparameters(name, config.options, fixed)
        points = tuple(grid if selection.labels is not None else grid[:1])
        plans.append(MethodPlan(name, view, config, points, variant, settings.first_seed))
    return plans, skipped


def _resolve_method(view: LabelView, request: TrainingRequest, reporter: Reporter) -> RunConfig:
    """Return a method's configuration before any search; ``InputError`` where it cannot learn from its labels."""
    config, _, loss_fn = resolve_config(view.datasets[0], request)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss_fn.prepare(view.datasets[0].train.labels, epochs=config.epochs, seed=0)
    for warning in caught:
        reporter.log(f"{request.method}: {str(warning.message).removeprefix(f'{request.method}: ')}")
    return config


def _train_heads(
    plans: Sequence[MethodPlan], setup: HeadTrainingSetup, folder: Path, reporter: Reporter, settings: CompareSettings
) -> dict[MethodPlan, MethodHeads]:
    """Train all heads, and return those of each plan: for each setting of its grid, one for each seed."""
    tasks = [
        HeadTask(
            HeadPlan(plan.method, setting.options, setting.lr, data.train.labels, seed, setting.weight_decay),
            setting.batch_size,
            standardize=setting.standardize,
            order_seed=seed if settings.shuffle else 0,
        )
        for plan in plans
        for setting in plan.grid
        for seed, data in enumerate(plan.view.datasets, plan.first_seed)
    ]
    seeds = range(len(plans[0].view.datasets))
    methods = pluralize(len({plan.method for plan in plans}), "method")
    in_all = pluralize(len(tasks) // len(seeds), "setting")
    counts = f"{pluralize(len(tasks), 'head')}: {methods} at {in_all} in all"
    reporter.log(f"{counts}, with {pluralize(len(seeds), 'seed')}")
    if setup.selection.labels is None:
        reporter.log("no labels of val select a setting: each method takes the first of its grid")
    with _group_progress(reporter, setup.epochs) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # logged once, by ``_resolve_method``
        heads = iter(train_or_load_heads(tasks, setup, folder, progress=progress, log=reporter.log))
    grids = {plan: [[next(heads) for _ in seeds] for _ in plan.grid] for plan in plans}
    return {plan: MethodHeads(grid, select_setting(grid)) for plan, grid in grids.items()}


def _train_folds(
    plans: Sequence[MethodPlan],
    data: Dataset,
    settings: CompareSettings,
    setup: HeadTrainingSetup,
    folder: Path,
    reporter: Reporter,
) -> dict[MethodPlan, MethodHeads]:
    """Cross-validate every method, and train its final heads."""
    train = setup.features["train"]
    configs = {}
    for plan in plans:
        fixed = list(settings.fixed_options(plan.method, plan.view, plan.variant))
        own = settings.for_variant(plan.variant)
        given = {name: getattr(own, values) for name, values in GRID_SETTINGS.items()}
        found = fold_configs(plan, train.shape[1], grid=settings.grid, fixed=fixed, given=given)
        configs[replace(plan, grid=tuple(map(Hyperparameters.of, found)))] = found
    folds = FoldSettings(plans[0].config.folds, fold_groups(data, "train", train.cpu().numpy()), configs)
    heads = {}
    with reporter.bar("cross-validation", len(configs)), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # logged once, by ``_resolve_method``
        for plan in configs:
            heads[plan] = train_out_of_fold(plan, folds, setup, folder)
            reporter.advance()
    return heads


@contextmanager
def _group_progress(reporter: Reporter, epochs: int) -> Iterator[Progress]:
    """Show a bar for the group in training; without a terminal, log a line at its start."""
    with ExitStack() as stack:

        def progress(done: int, heads: int, text: str) -> None:
            if done == 0:
                stack.close()
                if not reporter.draws_bars:
                    reporter.log(f"training {pluralize(heads, 'head')}: {text}")
                stack.enter_context(reporter.bar(f"{pluralize(heads, 'head')}, {text}", epochs))
            else:
                reporter.advance()

        yield progress
