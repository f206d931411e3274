"""The cells of a table for which a whole network is trained: one run folder for each setting and seed.

Where there are several settings, val chooses one with the first seed; the other seeds are trained at that one only.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.text import format_duration
from labelgap.data.dataset import Dataset
from labelgap.losses.base.registry import published_options
from labelgap.studies.compare.label_views import LabelView
from labelgap.studies.reproduce.processes import follow_parent, run_until_stopped
from labelgap.studies.reproduce.results import ReproductionSettings
from labelgap.studies.reproduce.sources import data_digest, shown_labels
from labelgap.studies.reproduce.tables import Training
from labelgap.training import Run
from labelgap.training.fit import fit
from labelgap.training.history import read_history, trained_epochs
from labelgap.training.plan import TrainingRequest
from labelgap.training.presets import PRESETS, preset
from labelgap.training.progress import Reporter
from labelgap.training.run_folder import is_run_folder
from labelgap.training.settings import KEYWORDS

FOLDER: Final = "runs"
_POLL_SECONDS: Final = 2.0
_ENDED: Final = "a process ended without a result, perhaps for want of memory: resume with fewer --jobs."


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

    @property
    def finished(self) -> bool:
        """Whether the folder has the whole run."""
        if not is_run_folder(self.folder):
            return False
        run = Run(self.folder)
        return run.finished and not run.metrics["interrupted"]


def network_runs(training: Training, data: Dataset, folder: Path, settings: ReproductionSettings) -> list[NetworkRun]:
    """Return the runs of the first seed, one for each setting that val chooses from."""
    view = shown_labels(training, data)
    if not isinstance(view, LabelView):
        raise InputError(f"{training.method}: {view.reason}")
    stated = preset(training.preset, method=training.method, dataset=training.data, protocol=training.protocol)
    base = {name: stated[name] for name in KEYWORDS if name in stated}
    base |= {name: settings.epochs for name in ("epochs", "linear_epochs") if name in base and settings.epochs}
    base |= {"size": settings.size or base["size"], "batch_size": settings.batch_size or base["batch_size"]}
    base |= {name: settings.lr for name in ("lr", "backbone_lr") if settings.lr}
    options = {**published_options(training.method, training.data), **(view.options or {}), **training.options}
    return [
        _with_folder(
            NetworkRun(
                view.datasets[0],
                TrainingRequest(
                    method=training.method,
                    options={**options, **searched},
                    preset=training.preset,
                    backbone=settings.backbone,
                    weights=settings.weights,
                    protocol=training.protocol,
                    training={**base, **rates},  # type: ignore[typeddict-item]
                ),
                folder,
            ),
            training,
        )
        for searched, rates in _grid(training, settings)
    ]


def _with_seed(run: NetworkRun, training: Training, seed: int) -> NetworkRun:
    """Return the run with another seed."""
    moved = replace(run, request=replace(run.request, seed=seed), folder=run.folder.parent.parent)
    return _with_folder(moved, training)


def _all_seeds(run: NetworkRun, training: Training, seeds: int) -> list[NetworkRun]:
    """Return the run of the first seed, and those of the others at its setting."""
    return [run, *(_with_seed(run, training, seed) for seed in range(1, seeds))]


def count_left(training: Training, runs: Sequence[NetworkRun], seeds: int) -> int:
    """Return how many networks are left to train: of further seeds all, until val can choose their setting."""
    chosen = runs[0]
    if len(runs) > 1:
        if left := sum(not run.finished for run in runs):
            return left + seeds - 1
        chosen = runs[_select([Run(run.folder) for run in runs]) or 0]
    return sum(not run.finished for run in _all_seeds(chosen, training, seeds))


def _grid(training: Training, settings: ReproductionSettings) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield options and rates; both empty where the preset has the one setting."""
    if settings.grid == "preset":
        yield {}, {}
        return
    rates = {"lr": training.learning_rates, "batch_size": training.batch_sizes}
    searched = {name: values for name, values in rates.items() if values and getattr(settings, name) is None}
    for options in itertools.product(*training.search.values()):
        for values in itertools.product(*searched.values()):
            chosen: dict[str, Any] = dict(zip(searched, values, strict=True))
            if "lr" in chosen:
                chosen["backbone_lr"] = chosen["lr"]
            yield dict(zip(training.search, options, strict=True)), chosen


def _with_folder(run: NetworkRun, training: Training) -> NetworkRun:
    """Return the run with its folder: that of an equal one, whichever table it was trained for, if there is one."""
    equal = [_named(replace(run, request=request), training) for request in _equal_requests(run, training)]
    return next((each for each in equal if is_run_folder(each.folder)), equal[0])


def _equal_requests(run: NetworkRun, training: Training) -> Iterator[TrainingRequest]:
    """Yield the request of a training, then others that train the same network.

    These have another preset that resolves to the same settings, or record losses, which does not change the training.
    """
    about: dict[str, Any] = {"method": training.method, "dataset": run.data.recipe.get("name")}

    def resolved(name: str) -> dict[str, Any]:
        own = {"backbone": run.request.backbone} if run.request.backbone else {}
        return {**preset(name, protocol=training.protocol, **about), **run.request.training, **own}

    same = [name for name in PRESETS if name != training.preset and resolved(name) == resolved(training.preset)]
    for name in (training.preset, *same):
        for trace in ("all",) if training.traced else ("off", "all"):
            yield replace(run.request, preset=name, trace=trace)


def _named(run: NetworkRun, training: Training) -> NetworkRun:
    """Return the run with a folder named after its request and its data."""
    parts = {**asdict(run.request), "data": data_digest(run.data)}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]
    name = f"{training.data}-{training.method}-{training.protocol}-{run.request.seed}-{key}"
    return replace(run, folder=run.folder / FOLDER / name)


@dataclass(frozen=True, eq=False)
class TrainedNetworks:
    """What a training has given.

    Attributes:
        training: of the table.
        tried: the runs of all settings with the first seed; an error where one failed.
        chosen: the setting that val chose; None where all failed.
        seeds: the runs of all seeds at that setting, or their errors; those of ``tried`` where all failed.
    """

    training: Training
    tried: Sequence[Run | LabelGapError]
    chosen: NetworkRun | None
    seeds: Sequence[Run | LabelGapError]

    @property
    def seconds(self) -> float:
        """The time of all its networks."""
        return sum(float(run.metrics["seconds"]) for run in (*self.tried, *self.seeds[1:]) if isinstance(run, Run))


def train_networks(
    grids: Mapping[Training, Sequence[NetworkRun]],
    seeds: int,
    *,
    jobs: int,
    device: str,
    workers: int | None,
    quiet: bool,
) -> Iterator[TrainedNetworks]:
    """Train runs, or resume them, several at a time; yield each training as soon as its last network has ended.

    A finished run is opened. The other seeds of a training are next in turn once its setting is chosen; where there is
    one setting, nothing waits for it.

    Args:
        grids: the runs of the first seed, of each training.
        seeds: how many.
        jobs: networks to train at a time.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: print nothing.

    Raises:
        KeyboardInterrupt: a run was stopped by Ctrl-C; what is trained so far is in the folders.
    """
    reporter, ended = Reporter(quiet), dict[Path, Run | LabelGapError]()
    needed = {
        training: _all_seeds(grid[0], training, seeds) if len(grid) == 1 else list(grid)
        for training, grid in grids.items()
    }
    queued = {run.folder: run for runs in needed.values() for run in runs}  # two trainings may share a run
    queue = deque(queued.values())
    total = len(queue) + sum(len(grid) > 1 for grid in grids.values()) * (seeds - 1)
    execution: dict[str, Any] = {"device": device, "workers": workers}
    if min(jobs, total) > 1:
        results = _train_in_processes(queue, min(jobs, total), total, reporter, **execution)
    else:
        results = ((run, _result(partial(_train, run, quiet=quiet, **execution))) for run in _pop_each(queue))
    for run, result in _say_how_to_resume(results, reporter):
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


def _say_how_to_resume(
    results: Iterable[tuple[NetworkRun, Run | LabelGapError]], reporter: Reporter
) -> Iterator[tuple[NetworkRun, Run | LabelGapError]]:
    with reporter.resumable():
        yield from results


def _pop_each(queue: deque[NetworkRun]) -> Iterator[NetworkRun]:
    while queue:
        yield queue.popleft()


def _train_in_processes(
    queue: deque[NetworkRun], jobs: int, total: int, reporter: Reporter, **execution: Any
) -> Iterator[tuple[NetworkRun, Run | LabelGapError]]:
    """Yield each run of a queue as it ends; more can be added to the queue in between.

    Where this process is interrupted, it stops the others: each stores its position, and ends.
    """
    context, running = multiprocessing.get_context("spawn"), dict[Future[Path], NetworkRun]()
    ended, (stop, stopper) = 0, context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=follow_parent, initargs=(stop,))
    with stop, stopper, pool:
        try:
            while queue or running:
                for run in itertools.islice(_pop_each(queue), jobs - len(running)):
                    try:
                        running[pool.submit(run_until_stopped, _train, run, quiet=True, **execution)] = run
                    except BrokenProcessPool:
                        yield run, RunError(_ENDED)
                with reporter.bar("networks", total, ended):
                    while not (done := wait(running, _POLL_SECONDS, FIRST_COMPLETED).done) and running:
                        reporter.advance(0, note=lambda: _describe_running(running.values()))
                for future in done:
                    ended += 1
                    yield running.pop(future), _result(future.result)
        finally:
            if running:
                stopper.send_bytes(b"stop")


def _describe_running(runs: Iterable[NetworkRun]) -> str:
    """Return how many epochs of each run have ended."""
    ended = (f"{_ended_epochs(run)}/{run.request.training['epochs']}" for run in runs)
    return f"in training, epochs: {', '.join(ended)}"


def _ended_epochs(run: NetworkRun) -> int:
    """Return how many epochs of a run have ended; none where they cannot be read, which its own process reports."""
    with suppress(LabelGapError):
        return trained_epochs(read_history(run.folder, run.data.classes)[0])
    return 0


def _describe(run: NetworkRun, result: Run | LabelGapError, number: int, total: int) -> str:
    if not isinstance(result, Run):
        return f"{run.folder.name}: {result} ({number} of {total})"
    metrics = result.metrics
    score = "no val score" if metrics["score"] is None else f"val {100 * metrics['score']:.2f}"
    scores = f"{score} in epoch {metrics['best_epoch']}"
    return f"{run.folder.name}: {scores}, {format_duration(metrics['seconds'])} ({number} of {total})"


def _result(train: Callable[[], Path]) -> Run | LabelGapError:
    """Return the run that a training gives, or its error."""
    try:
        run = Run(train())
    except LabelGapError as error:
        return error
    except BrokenProcessPool:
        return RunError(_ENDED)
    if not run.finished or run.metrics["interrupted"]:
        raise KeyboardInterrupt
    return run


def _train(run: NetworkRun, **execution: Any) -> Path:
    """Train a run in this process, and return its folder."""
    request = run.request
    training: Mapping[str, Any] = request.training
    names = ("preset", "weights", "seed", "select", "trace")
    fit(
        run.data,
        request.method,
        request.options,
        request.backbone,
        request.protocol,
        out=run.folder,
        resume=is_run_folder(run.folder),
        **{name: getattr(request, name) for name in names},
        **training,
        **execution,
    )
    return run.folder


def _select(runs: Sequence[Run | LabelGapError]) -> int | None:
    """Return the number of the run with the highest val score, the first of equals; None where all failed."""
    scores = {number: run.metrics["score"] or 0.0 for number, run in enumerate(runs) if isinstance(run, Run)}
    return max(scores, key=lambda number: scores[number]) if scores else None
