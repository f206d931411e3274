"""``compare``: train every method on the same features, each at the setting that val selects."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import torch

from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.core.files import remove_file, remove_partials
from labelgap.core.lock import lock_folder
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.losses import describe_method, loss, methods
from labelgap.studies.compare.comparison import FILE, HEADS_FOLDER, Comparison
from labelgap.studies.compare.evaluation import MethodPlan, evaluate_methods
from labelgap.studies.compare.features import compute_split_features, default_backbone
from labelgap.studies.compare.grid import hyperparameter_grid
from labelgap.studies.compare.heads import HeadTrainingSetup, Progress, StoredHead, train_or_load_heads
from labelgap.studies.compare.label_views import LabelView, LabelViews, label_view_for
from labelgap.studies.compare.results import SkippedMethod
from labelgap.training.config.check import check_request
from labelgap.training.config.resolve import TrainingRequest, resolve_config
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.heads import HeadPlan
from labelgap.training.progress import Reporter
from labelgap.training.selection import Selection

__all__ = ["CompareSettings", "check_settings", "compare", "method_names"]

SYNONYMS: Final = {"ls": "an-ls"}
"""Second names of methods, which "all" leaves out."""


@dataclass(frozen=True)
class CompareSettings:
    """How methods are compared.

    Attributes:
        seeds: how many, from 0.
        observe: labels to hide first, as ``Dataset.observe`` takes it: ``{"positives": 1, "negatives": 0}``.
        label_seed: of the first draw; seed s has ``label_seed + s``.
        grid: "small" or "full"; see ``studies.compare.grid``.
        options: method → options that are not searched, e.g. ``{"role": {"expected_positives": 1.5}}``.
        learning_rates: instead of the grid's.
        batch_sizes: instead of the grid's.
        epochs: of every head.
        backbone: name of the network that computes features; the default for the data when None.
        weights: file of its weights.
        select: the rule that selects epochs and settings; see ``training.selection``.
    """

    seeds: int = 3
    observe: Mapping[str, Any] | None = None
    label_seed: int = 1200
    grid: str = "small"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    learning_rates: Sequence[float] | None = None
    batch_sizes: Sequence[int] | None = None
    epochs: int = 25
    backbone: str | None = None
    weights: str | None = None
    select: str = "auto"

    @classmethod
    def checked(cls, **settings: Any) -> CompareSettings:
        """Return the settings; ``InputError`` where a name or a value is wrong."""
        known = [item.name for item in fields(cls)]
        for name in settings:
            if name not in known:
                raise UnknownNameError("setting of a comparison called", name, known)
        made = cls(**settings)
        if made.seeds < 1 or made.epochs < 1:
            raise InputError(f"seeds={made.seeds}, epochs={made.epochs}: at least one of each is needed.")
        return made

    def request(self) -> TrainingRequest:
        """Return what the heads of all methods share, as the arguments of ``fit``."""
        return TrainingRequest(
            method="an",
            backbone=self.backbone,
            weights=self.weights,
            protocol="linear",
            select=self.select,
            training={"epochs": self.epochs},
        )


def compare(
    data: Dataset,
    methods: str | Iterable[str] = "all",
    *,
    out: str | os.PathLike[str] = "runs/compare",
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Comparison:
    """Train a linear head with every method, setting of its grid and seed, and evaluate the selected heads.

    Val selects epochs and settings (one setting for all seeds, by its mean); test is evaluated once, for the selected
    heads. A seed changes the initial weights and the method's own draws; with ``observe`` also the hidden labels. The
    order of the batches is the same for all.

    Args:
        data: the data set; its table is used as it is, unless ``observe`` is given.
        methods: "all", or names of methods.
        out: folder; heads that are stored in it are not trained again.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: print nothing.
        **settings: seeds, observe, grid and so on: see ``CompareSettings``.
    """
    names, chosen = check_settings(methods, settings)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    with lock_folder(folder, "comparing methods"):
        _check_folder(folder)
        comparison = _compare(data, names, chosen, folder, choose_device(device), workers, Reporter(quiet))
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
    chosen = replace(chosen, backbone=chosen.backbone or default_backbone(data))
    views = LabelViews(data, chosen.seeds, chosen.observe, chosen.label_seed)
    request = chosen.request()
    _, selection, _ = resolve_config(views.observed().datasets[0], request, on_device)
    plans, skipped = _plan_methods(names, views, request, chosen, selection, reporter)
    if not plans:
        raise InputError("; ".join(f"{each.method}: {each.reason}" for each in skipped) + ". Nothing was trained.")
    reporter.log(selection.why)
    workers = choose_workers(workers, on_device)
    backbone = str(chosen.backbone)
    features, digest = compute_split_features(data, backbone, chosen.weights, on_device, workers, reporter)
    setup = HeadTrainingSetup(features, selection, chosen.epochs, on_device, digest)
    remove_file(folder / MANIFEST_FILE)  # it is not finished any more
    heads = _train_heads(plans, setup, folder, reporter)
    comparison = evaluate_methods(heads, features, data, selection, folder, reporter)
    return replace(
        comparison,
        metadata=_metadata(data, chosen, on_device.type),
        skipped=(*skipped, *comparison.skipped),
        seconds=time.perf_counter() - started,
    )


def method_names(names: str | Iterable[str] = "all") -> list[str]:
    """Return the methods of "all", or check the given names.

    Example:
        >>> "ls" in method_names(), method_names(["an", "em", "an"])
        (False, ['an', 'em'])
    """
    if names == "all":
        return [name for name in methods() if name not in SYNONYMS]
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        describe_method(name)
    if not chosen:
        raise InputError("name at least one method, or 'all'.")
    return list(dict.fromkeys(chosen))


def check_settings(methods: str | Iterable[str], settings: Mapping[str, Any]) -> tuple[list[str], CompareSettings]:
    """Return the methods and the settings; ``InputError`` for a name or value that is wrong whatever the data are."""
    chosen, names = CompareSettings.checked(**settings), method_names(methods)
    for name, options in chosen.options.items():
        loss(name, **options)
        if name not in names:
            raise InputError(f"options of '{name}' were given, but it is not among the methods to compare.")
    hyperparameter_grid("an", {}, chosen.grid, learning_rates=chosen.learning_rates, batch_sizes=chosen.batch_sizes)
    check_request(chosen.request())
    return names, chosen


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
    for name in names:
        view = label_view_for(name, views)
        if isinstance(view, SkippedMethod):
            skipped.append(view)
            continue
        fixed = {**(view.options or {}), **settings.options.get(name, {})}
        try:
            options = _resolve_options(view, replace(request, method=name, options=fixed), reporter)
        except InputError as error:
            skipped.append(SkippedMethod(name, str(error)))
            continue
        grid = hyperparameter_grid(
            name,
            options,
            settings.grid,
            fixed=fixed,
            learning_rates=settings.learning_rates,
            batch_sizes=settings.batch_sizes,
        )
        plans.append(MethodPlan(name, view, tuple(grid if selection.labels is not None else grid[:1])))
    return plans, skipped


def _resolve_options(view: LabelView, request: TrainingRequest, reporter: Reporter) -> dict[str, Any]:
    """Return the options of a method before any search; ``InputError`` where it cannot learn from its labels."""
    config, _, loss_fn = resolve_config(view.datasets[0], request)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss_fn.prepare(view.datasets[0].train.labels, epochs=config.epochs, seed=0)
    for warning in caught:
        reporter.log(f"{request.method}: {str(warning.message).removeprefix(f'{request.method}: ')}")
    return dict(config.options)


def _train_heads(
    plans: Sequence[MethodPlan], setup: HeadTrainingSetup, folder: Path, reporter: Reporter
) -> dict[MethodPlan, list[list[StoredHead]]]:
    """Train all heads, and return those of each plan: for each setting of its grid, one for each seed."""
    tasks = [
        (HeadPlan(plan.method, setting.options, setting.lr, data.train.labels, seed=seed), setting.batch_size)
        for plan in plans
        for setting in plan.grid
        for seed, data in enumerate(plan.view.datasets)
    ]
    seeds = range(len(plans[0].view.datasets))
    counts = f"{len(tasks):,} heads: {len(plans)} methods at {len(tasks) // len(seeds):,} settings in all"
    reporter.log(f"{counts}, with {len(seeds)} seed{'s' if len(seeds) > 1 else ''}")
    if setup.selection.labels is None:
        reporter.log("no labels of val select a setting: each method takes the first of its grid")
    with _group_progress(reporter, setup.epochs) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # logged once, by ``_resolve_options``
        try:
            heads = iter(train_or_load_heads(tasks, setup, folder, progress=progress, log=reporter.log))
        except KeyboardInterrupt:
            reporter.log(f"stopped: {folder} holds the finished heads, and the same command resumes from there")
            raise
    return {plan: [[next(heads) for _ in seeds] for _ in plan.grid] for plan in plans}


@contextmanager
def _group_progress(reporter: Reporter, epochs: int) -> Iterator[Progress]:
    """Show a bar for the group in training; without a terminal, log a line at its start."""
    with ExitStack() as stack:

        def progress(done: int, heads: int, text: str) -> None:
            if done == 0:
                stack.close()
                if not reporter.console.is_terminal:
                    reporter.log(f"training {heads} heads: {text}")
                stack.enter_context(reporter.bar(f"{heads} heads, {text}", epochs))
            else:
                reporter.advance()

        yield progress
