"""``compare``: every method on the same features, side by side, each at the setting that val chose for it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.core.files import make_folder
from labelgap.data.dataset import Dataset
from labelgap.losses import describe_method, loss, methods
from labelgap.studies.compare.comparison import FILE, Comparison, SkippedMethod
from labelgap.studies.compare.features import compute_split_features, default_backbone
from labelgap.studies.compare.grid import hyperparameter_grid
from labelgap.studies.compare.heads import FOLDER, HeadTask, HeadTrainingSetup, StoredHead, train_or_load_heads
from labelgap.studies.compare.label_views import LabelView, LabelViews, Refusal, label_view_for
from labelgap.studies.compare.method_selection import MethodPlan, evaluate_methods
from labelgap.training.config.resolve import TrainingRequest, resolve_config
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.progress import Reporter
from labelgap.training.selection import Selection

__all__ = ["CompareSettings", "compare", "method_names"]

SAME: Final = {"ls": "an-ls"}
"""Names that two papers gave to one method; "all" has it once."""


@dataclass(frozen=True)
class CompareSettings:
    """How methods are compared.

    Attributes:
        seeds: how many, from 0.
        observe: labels to hide first, as ``Dataset.observe`` takes it: ``{"positives": 1, "negatives": 0}``.
        label_seed: of the first draw; seed s has ``label_seed + s``.
        grid: "small" or "full"; see ``compare_grid``.
        options: method → options that are not searched, e.g. ``{"role": {"expected_positives": 1.5}}``.
        rates: learning rates, instead of the grid's.
        batches: batch sizes, instead of the grid's.
        epochs: of every head.
        backbone: name of the network that computes features; what suits the data when not given.
        weights: file of its weights.
        select: how epochs and settings are chosen; see ``training.selection``.
    """

    seeds: int = 3
    observe: Mapping[str, Any] | None = None
    label_seed: int = 1200
    grid: str = "small"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rates: Sequence[float] | None = None
    batches: Sequence[int] | None = None
    epochs: int = 25
    backbone: str | None = None
    weights: str | None = None
    select: str = "auto"

    @classmethod
    def checked(cls, **settings: Any) -> CompareSettings:
        """Make a plan; what is wrong in it is an ``InputError``."""
        known = [item.name for item in fields(cls)]
        for name in settings:
            if name not in known:
                raise UnknownNameError("setting of a comparison called", name, known)
        plan = cls(**settings)
        if plan.seeds < 1 or plan.epochs < 1:
            raise InputError(f"seeds={plan.seeds}, epochs={plan.epochs}: at least one of each is needed.")
        return plan


def compare(
    data: Dataset,
    names: str | Iterable[str] = "all",
    *,
    out: str | os.PathLike[str] = "runs/compare",
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Comparison:
    """Train a linear head by every method, at every setting of its grid and with every seed, and measure the chosen.

    Epochs and settings are chosen on val (one setting for all seeds, by its mean); test is looked at once, for the
    chosen heads. A seed moves the first weights and what a method draws; where ``observe`` hides labels it moves the
    draw as well. The order of the batches is the same for all.

    Args:
        data: what to compare on; its table is used as it is, unless ``observe`` is given.
        names: "all", or names of methods.
        out: folder; what was trained in it before is not trained again.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: say nothing.
        **settings: seeds, observe, grid and so on: see ``CompareSettings``.
    """
    started, reporter, where = time.perf_counter(), Reporter(quiet), choose_device(device)
    plan, chosen, folder = CompareSettings.checked(**settings), method_names(names), _folder(Path(out))
    plan = replace(plan, backbone=plan.backbone or default_backbone(data))
    views = LabelViews(data, plan.seeds, plan.observe, plan.label_seed)
    wishes = TrainingRequest(
        method="an",
        backbone=plan.backbone,
        weights=plan.weights,
        protocol="linear",
        select=plan.select,
        training={"epochs": plan.epochs},
    )
    _, selection, _ = resolve_config(views.plain().data[0], wishes, where)
    entrants, not_run = _enter(chosen, views, wishes, plan, selection, reporter)
    if not entrants:
        raise InputError("; ".join(f"{each.method}: {each.reason}" for each in not_run) + ". Nothing was trained.")
    reporter.log(selection.why)
    found = compute_split_features(
        data, str(plan.backbone), plan.weights, where, choose_workers(workers, where), reporter
    )
    lesson = HeadTrainingSetup(
        found.splits["train"], found.splits.get("val"), selection, plan.epochs, where, found.fingerprint
    )
    heads = _train(entrants, lesson, folder, reporter)
    made = evaluate_methods(entrants, heads, found, data, selection, folder, reporter)
    made = replace(made, about=_about(data, plan, where.type), not_run=(*not_run, *made.not_run))
    made = replace(made, seconds=time.perf_counter() - started)
    made.write()
    return made


def method_names(names: str | Iterable[str] = "all") -> list[str]:
    """Return the methods of "all", or check those that were named.

    Example:
        >>> "ls" in method_names(), method_names(["an", "em", "an"])
        (False, ['an', 'em'])
    """
    if names == "all":
        return [name for name in methods() if name not in SAME]
    given = [names] if isinstance(names, str) else list(names)
    for name in given:
        describe_method(name)
    if not given:
        raise InputError("name at least one method, or 'all'.")
    return list(dict.fromkeys(given))


def _folder(folder: Path) -> Path:
    """Make the folder, or go on in one that holds a comparison and nothing else."""
    there = folder.exists()
    if there and not ((folder / FILE).exists() or (folder / FOLDER).is_dir() or not any(folder.iterdir())):
        raise RunError(f"{folder} holds something else than a comparison: choose another --out.")
    make_folder(folder)
    return folder


def _about(data: Dataset, plan: CompareSettings, device: str) -> dict[str, Any]:
    """Return what a reader must know to do it again."""
    hidden = plan.observe is not None
    return {
        "data": data.name,
        "recipe": dict(data.recipe),
        "images": {split.name: len(split) for split in data.splits},
        "classes": list(data.classes),
        "backbone": plan.backbone,
        "weights": plan.weights,
        "protocol": "linear",
        "epochs": plan.epochs,
        "grid": plan.grid,
        "seeds": plan.seeds,
        "observe": dict(plan.observe) if plan.observe is not None else None,
        "label_seed": plan.label_seed if hidden else None,
        "device": device,
    }


def _enter(
    names: Sequence[str],
    views: LabelViews,
    wishes: TrainingRequest,
    plan: CompareSettings,
    selection: Selection,
    reporter: Reporter,
) -> tuple[list[MethodPlan], list[SkippedMethod]]:
    """Find out what each method sees and which settings it tries, and which cannot run."""
    for name, given in plan.options.items():
        loss(name, **given)
        if name not in names:
            raise InputError(f"options of '{name}' were given, but it is not among the methods to compare.")
    entrants: list[MethodPlan] = []
    not_run: list[SkippedMethod] = []
    for name in names:
        shown, fixed = label_view_for(name, views), plan.options.get(name, {})
        if isinstance(shown, Refusal):
            not_run.append(SkippedMethod(name, shown.reason))
            continue
        try:
            taken = _options(
                name, shown, replace(wishes, method=name, options={**(shown.options or {}), **fixed}), reporter
            )
        except InputError as error:
            not_run.append(SkippedMethod(name, str(error)))
            continue
        fixed = {**(shown.options or {}), **fixed}
        tried = hyperparameter_grid(name, taken, plan.grid, fixed=fixed, rates=plan.rates, batches=plan.batches)
        entrants.append(MethodPlan(name, shown, tuple(tried if selection.labels is not None else tried[:1])))
    return entrants, not_run


def _options(name: str, shown: LabelView, wishes: TrainingRequest, reporter: Reporter) -> dict[str, Any]:
    """Return the options a method takes where nothing is searched; an error where it cannot learn from its labels."""
    config, _, made = resolve_config(shown.data[0], wishes)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made.prepare(shown.data[0].train.labels, epochs=config.epochs, seed=0)
    for warning in said:
        reporter.log(f"{name}: {str(warning.message).removeprefix(f'{name}: ')}")
    return dict(config.options)


def _train(
    entrants: Sequence[MethodPlan], lesson: HeadTrainingSetup, folder: Path, reporter: Reporter
) -> dict[MethodPlan, list[StoredHead]]:
    """Train all heads; of each entrant they come back setting by setting, all seeds of one before the next."""
    tasks, owners = [], []
    for entrant in entrants:
        for setting in entrant.settings:
            for seed, data in enumerate(entrant.shown.data):
                tasks.append(HeadTask(entrant.method, setting, seed, data.train.labels))
                owners.append(entrant)
    seeds = len(entrants[0].shown.data)
    told = f"{len(tasks):,} heads: {len(entrants)} methods at {len(tasks) // seeds:,} settings in all"
    reporter.log(f"{told}, with {seeds} seed{'s' if seeds > 1 else ''}")
    if lesson.selection.labels is None:
        reporter.log("nothing can choose between settings: each method takes the first of its grid")
    with _progress(reporter, lesson.epochs) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said by ``_options``, once
        try:
            trained = train_or_load_heads(tasks, lesson, folder, told=progress)
        except KeyboardInterrupt:
            reporter.log(f"stopped: the heads in {folder} are kept, and the same command goes on from there")
            raise
    heads: dict[MethodPlan, list[StoredHead]] = {entrant: [] for entrant in entrants}
    for owner, head in zip(owners, trained, strict=True):
        heads[owner].append(head)
    return heads


@contextmanager
def _progress(reporter: Reporter, epochs: int) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar for the group that is trained; without a terminal, a line when it begins."""
    with ExitStack() as stack:

        def told(done: int, heads: int, words: str) -> None:
            if done == 0:
                stack.close()
                if not reporter.console.is_terminal:
                    reporter.log(f"training {heads} heads: {words}")
                stack.enter_context(reporter.bar(f"{heads} heads, {words}", epochs))
            else:
                reporter.advance()

        yield told
