"""``compare``: train every method on the same features, each at the setting that val selects."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import remove_partials
from labelgap.core.lock import lock_folder
from labelgap.core.text import format_duration, pluralize
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.studies.compare.comparison import FILE, HEADS_FOLDER, Comparison, has_heads
from labelgap.studies.compare.cost import estimate_seconds
from labelgap.studies.compare.evaluation import MethodHeads, MethodPlan, evaluate_methods
from labelgap.studies.compare.features import compute_split_features
from labelgap.studies.compare.heads import HeadTrainingSetup
from labelgap.studies.compare.label_views import LabelView, LabelViews, label_view_for
from labelgap.studies.compare.results import BASELINE, SkippedMethod
from labelgap.studies.compare.search import search_by_folds, search_on_val, with_candidates
from labelgap.studies.compare.settings import CompareSettings, check_settings, method_names
from labelgap.studies.compare.variants import method_variants, variant_name
from labelgap.training.config import RunConfig
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.folds import fold_groups
from labelgap.training.plan import FOLDS_REASON, TrainingRequest, default_linear_backbone, plan_training
from labelgap.training.progress import Reporter
from labelgap.training.selection import choose_selection

BASELINE_TRAINING: Final = {"optimizer": "newton", "standardize": True, "epochs": 30}
"""How logistic regression is trained: to convergence, as a test compares with scikit-learn."""


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
    hidden labels. The order of the batches is the same for all, unless ``shuffle``. Plain logistic regression, with
    unknown labels as absent, is compared in any case.

    Args:
        data: the data set; its table is used as it is, unless ``observe`` is given.
        methods: "short", a list of eight or nine that are worth a try; "all"; or names of methods.
        out: folder; heads that are stored in it are not trained again.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: print nothing.
        reporter: shows messages and progress; a new one when None.
        **settings: seeds, observe, grid and so on: see ``CompareSettings``.
    """
    methods = methods if isinstance(methods, str) else list(methods)
    chosen = check_settings(methods, settings)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    reporter = reporter or Reporter(quiet)
    with lock_folder(folder, "comparing methods"), reporter.resumable(partial(has_heads, folder)):
        _check_folder(folder)
        comparison = _compare(data, methods, chosen, folder, choose_device(device), workers, reporter)
        comparison.write()
    return comparison


def _compare(
    data: Dataset,
    methods: str | Sequence[str],
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
    shown = views.observed().datasets[0]
    names = method_names(methods, shown.train.labels)
    plan = plan_training(shown, chosen.request(), on_device)
    config, selection, why = plan.config, plan.selection, plan.selection.why
    if config.folds:
        selection, why = choose_selection(shown.train.labels, None), FOLDS_REASON.format(folds=config.folds)
    plans, skipped = _plan_methods(names, views, chosen, reporter)
    if all(plan.baseline for plan in plans):
        raise InputError("; ".join(f"{each.method}: {each.reason}" for each in skipped) + ". Nothing was trained.")
    reporter.log(why)
    workers = choose_workers(workers, on_device)
    backbone = str(chosen.backbone)
    features, digest = compute_split_features(
        data, backbone, chosen.weights, on_device, workers, reporter, size=chosen.size
    )
    setup = HeadTrainingSetup(features, selection, on_device, digest)
    width, measured = features["train"].shape[1], selection.labels is not None
    plans = [with_candidates(plan, chosen, width, measured=measured) for plan in plans]
    if not measured:
        reporter.log("no known labels can choose a setting: each method has one")
    heads = _train(plans, data, config.folds, setup, folder, reporter, shuffle=chosen.shuffle)
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
        **{name: getattr(settings, name) for name in ("backbone", "weights", "grid", "seeds")},
        "epochs": settings.adam_epochs,
        "observe": None if settings.observe is None else dict(settings.observe),
        "label_seed": None if settings.observe is None else settings.label_seed,
        "device": device,
    }


def _plan_methods(
    names: Sequence[str], views: LabelViews, settings: CompareSettings, reporter: Reporter
) -> tuple[list[MethodPlan], list[SkippedMethod]]:
    """Return the labels and the configuration of each method, and the methods that cannot run."""
    plans: list[MethodPlan] = []
    skipped: list[SkippedMethod] = []
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
        except InputError as error:
            skipped.append(SkippedMethod(variant_name(name, variant), str(error)))
            continue
        plans.append(MethodPlan(name, view, config, variant, settings.first_seed))
    if settings.baseline:
        request = replace(settings.request(), training=BASELINE_TRAINING)  # type: ignore[arg-type]
        try:
            config = plan_training(views.observed().datasets[0], request).config
        except InputError as error:
            skipped.append(SkippedMethod(BASELINE, str(error)))
        else:
            plans.append(MethodPlan("an", views.observed(), config, {}, settings.first_seed, baseline=True))
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


def _train(
    plans: Sequence[MethodPlan],
    data: Dataset,
    folds: int,
    setup: HeadTrainingSetup,
    folder: Path,
    reporter: Reporter,
    *,
    shuffle: bool,
) -> dict[MethodPlan, MethodHeads]:
    """Say how long it will take, and train all heads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # logged once, by ``_resolve_method``
        if not reporter.silent:
            reporter.log(_describe(plans, format_duration(estimate_seconds(plans, setup, folds, folder))))
        if not folds:
            return search_on_val(plans, setup, folder, reporter, shuffle=shuffle)
        groups = fold_groups(data, "train", setup.features["train"].cpu().numpy())
        return search_by_folds(plans, folds, groups, setup, folder, reporter)


def _describe(plans: Sequence[MethodPlan], duration: str) -> str:
    """Return what will be trained, and how long it takes."""
    methods = pluralize(len({plan.label for plan in plans if not plan.baseline}), "method")
    beside = f" and {BASELINE}" if any(plan.baseline for plan in plans) else ""
    settings = pluralize(sum(len(plan.candidates) for plan in plans), "setting")
    further = ", then around the best of each" if any(any(plan.left_open.values()) for plan in plans) else ""
    seeds = pluralize(len(plans[0].view.datasets), "seed")
    return f"training takes about {duration}: {methods}{beside} at {settings} in all{further}, with {seeds}"
