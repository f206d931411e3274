"""The cells of a table for which a whole network is trained: one run folder for each setting and seed."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.text import format_duration
from labelgap.data.dataset import Dataset
from labelgap.losses.base.registry import published_options
from labelgap.studies.compare.settings import LabelView
from labelgap.studies.jobs import is_trained, run_jobs, train_run
from labelgap.studies.reproduce.results import ReproductionSettings
from labelgap.studies.reproduce.tables import Training, data_digest, shown_images, shown_labels
from labelgap.training import Run
from labelgap.training.history import read_history, trained_epochs
from labelgap.training.plan import TrainingRequest
from labelgap.training.presets import PRESETS, preset
from labelgap.training.progress import Reporter
from labelgap.training.run_folder import is_run_folder
from labelgap.training.settings import KEYWORDS

FOLDER: Final = "runs"


@dataclass(frozen=True, eq=False)
class NetworkRun:
    """A run to train: its data with the labels that it sees, and the arguments of ``fit``."""

    data: Dataset
    request: TrainingRequest
    folder: Path

    @property
    def setting(self) -> dict[str, Any]:
        """Learning rate, batch size and options, for the report."""
        rates = {name: value for name, value in self.request.training.items() if name in ("lr", "batch_size")}
        return {**rates, "options": dict(self.request.options)}


def network_runs(training: Training, data: Dataset, folder: Path, settings: ReproductionSettings) -> list[NetworkRun]:
    """Return the runs of the first seed, one for each setting that val chooses from."""
    view = shown_labels(training.method, training.labels, data)
    if not isinstance(view, LabelView):
        raise InputError(f"{training.method}: {view.reason}")
    stated = preset(training.preset, method=training.method, dataset=training.data, protocol=training.protocol)
    base: dict[str, Any] = {name: stated[name] for name in KEYWORDS if name in stated}
    base |= {name: settings.epochs for name in ("epochs", "linear_epochs") if name in base and settings.epochs}
    base |= {"size": settings.size or base["size"], "batch_size": settings.batch_size or base["batch_size"]}
    base |= {name: settings.lr for name in ("lr", "backbone_lr") if settings.lr}
    options = {**published_options(training.method, training.data), **(view.options or {}), **training.options}
    same = {name: getattr(training, name) for name in ("method", "preset", "protocol")}
    request = TrainingRequest(**same, backbone=settings.backbone, weights=settings.weights, head=training.head)
    search: dict[str, Sequence[Any]] = {}
    if settings.grid != "preset":
        rates = {"lr": training.learning_rates, "batch_size": training.batch_sizes}
        search = {**training.search, **rates, **(training.searched if settings.grid == "paper" else {})}
        search = {name: values for name, values in search.items() if values and getattr(settings, name, None) is None}
    head_factor = round(stated["lr"] / stated["backbone_lr"], 6)  # the rates of the papers are those of the backbone
    shown = shown_images(view.datasets[0], training.train_share)
    runs = list[NetworkRun]()
    for values in itertools.product(*search.values()):
        searched = dict(zip(search, values, strict=True))
        chosen: dict[str, Any] = {name: searched.pop(name) for name in ("lr", "batch_size") if name in searched}
        if "lr" in chosen:
            chosen |= {"backbone_lr": chosen["lr"], "lr": head_factor * chosen["lr"]}
        own = replace(request, options={**options, **searched}, training=cast(Any, {**base, **chosen}))
        runs.append(_with_folder(NetworkRun(shown, own, folder / FOLDER / "_"), training))
    return runs


def _with_folder(run: NetworkRun, training: Training) -> NetworkRun:
    """Return the run with its folder: that of an equal one, whichever table it was trained for, if there is one."""
    about: dict[str, Any] = {"method": training.method, "dataset": run.data.recipe.get("name")}

    def resolved(name: str) -> dict[str, Any]:
        own = {"backbone": run.request.backbone} if run.request.backbone else {}
        return {**preset(name, protocol=training.protocol, **about), **run.request.training, **own}

    def named(preset_name: str, trace: str) -> NetworkRun:
        request = replace(run.request, preset=preset_name, trace=trace)
        parts = {**asdict(request), "data": data_digest(run.data)}
        key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]
        name = f"{training.data}-{training.method}-{training.protocol}-{request.seed}-{key}"
        return replace(run, request=request, folder=run.folder.with_name(name))

    same = [name for name in PRESETS if name != training.preset and resolved(name) == resolved(training.preset)]
    traces = ("all",) if training.traced else ("off", "all")
    equal = [named(name, trace) for name in (training.preset, *same) for trace in traces]
    return next((each for each in equal if is_run_folder(each.folder)), equal[0])


def _all_seeds(run: NetworkRun, training: Training, seeds: int) -> list[NetworkRun]:
    """Return the run of the first seed, and those of the others at its setting."""
    others = (replace(run, request=replace(run.request, seed=seed)) for seed in range(1, seeds))
    return [run, *(_with_folder(other, training) for other in others)]


def count_left(training: Training, runs: Sequence[NetworkRun], seeds: int) -> int:
    """Return how many networks are left to train: of further seeds all, until val can choose their setting."""
    chosen = runs[0]
    if len(runs) > 1:
        if left := sum(not is_trained(run.folder) for run in runs):
            return left + seeds - 1
        chosen = runs[_select([Run(run.folder) for run in runs]) or 0]
    return sum(not is_trained(run.folder) for run in _all_seeds(chosen, training, seeds))


@dataclass(frozen=True, eq=False)
class TrainedNetworks:
    """What a training has given."""

    training: Training
    tried: Sequence[Run | LabelGapError]  # the runs of all settings with the first seed, or their errors
    chosen: NetworkRun | None  # the setting that val chose; None where all failed
    seeds: Sequence[Run | LabelGapError]  # those of all seeds at that setting; of ``tried`` where all failed

    @property
    def seconds(self) -> float:
        """The time of all its networks."""
        return sum(float(run.metrics["seconds"]) for run in (*self.tried, *self.seeds[1:]) if isinstance(run, Run))


def train_networks(
    grids: Mapping[Training, Sequence[NetworkRun]], seeds: int, *, jobs: int, quiet: bool, **execution: Any
) -> Iterator[TrainedNetworks]:
    """Train runs, or resume them, several at a time; yield each training as soon as its last network has ended.

    ``grids`` are the runs of the first seed; the others of a training follow once its setting is chosen.
    """
    reporter, ended = Reporter(quiet), dict[Path, Run | LabelGapError]()
    needed = {each: list(grid) if len(grid) > 1 else _all_seeds(grid[0], each, seeds) for each, grid in grids.items()}
    queued = {run.folder: run for runs in needed.values() for run in runs}  # two trainings may share a run
    queue = deque(queued.values())
    total = len(queue) + sum(len(grid) > 1 for grid in grids.values()) * (seeds - 1)
    train = partial(_train, **execution)
    with reporter.resumable():
        for run, result in run_jobs(queue, train, min(jobs, max(total, 1)), reporter, total, _describe_running):
            ended[run.folder] = result
            reporter.log(_describe(run, result, len(ended), total))
            for training in [each for each, runs in needed.items() if all(one.folder in ended for one in runs)]:
                first = [ended[each.folder] for each in grids[training]]
                number = _select(first)
                chosen = None if number is None else grids[training][number]
                at_chosen = [] if chosen is None else _all_seeds(chosen, training, seeds)
                if all(each.folder in ended for each in at_chosen):
                    del needed[training]
                    yield TrainedNetworks(training, first, chosen, [ended[each.folder] for each in at_chosen] or first)
                else:
                    needed[training] = at_chosen
                    queue.extendleft(each for each in reversed(at_chosen) if each.folder not in queued)
                    queued |= {each.folder: each for each in at_chosen}


def _train(run: NetworkRun, **execution: Any) -> Path:
    return train_run(run.data, run.request, run.folder, **execution).path


def _select(runs: Sequence[Run | LabelGapError]) -> int | None:
    """Return the number of the run with the highest val score, the first of equals; None where all failed."""
    scores = {number: run.metrics["score"] or 0.0 for number, run in enumerate(runs) if isinstance(run, Run)}
    return max(scores, key=lambda number: scores[number]) if scores else None


def _describe_running(runs: Iterable[NetworkRun]) -> str:
    ended = list[str]()
    for run in runs:
        count = 0
        with suppress(LabelGapError):
            count = trained_epochs(read_history(run.folder, run.data.classes)[0])
        ended.append(f"{count}/{run.request.training['epochs']}")
    return f"in training, epochs: {', '.join(ended)}"


def _describe(run: NetworkRun, result: Run | LabelGapError, number: int, total: int) -> str:
    if not isinstance(result, Run):
        return f"{run.folder.name}: {result} ({number} of {total})"
    metrics = result.metrics
    score = "no val score" if metrics["score"] is None else f"val {100 * metrics['score']:.2f}"
    scores = f"{score} in epoch {metrics['best_epoch']}"
    return f"{run.folder.name}: {scores}, {format_duration(metrics['seconds'])} ({number} of {total})"
