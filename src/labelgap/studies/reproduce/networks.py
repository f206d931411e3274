"""The cells of a table for which a whole network is trained: one run folder for each setting and seed.

Val chooses the setting with the first seed; the other seeds are trained at that setting only.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.data.dataset import Dataset
from labelgap.losses.base.published_settings import published_options
from labelgap.studies.compare.label_views import LabelView
from labelgap.studies.reproduce.results import ReproductionSettings
from labelgap.studies.reproduce.sources import data_digest, shown_labels
from labelgap.studies.reproduce.tables import Training
from labelgap.training import Run, fit
from labelgap.training.config.defaults import TrainingSettings
from labelgap.training.config.presets import preset
from labelgap.training.config.resolve import TrainingRequest
from labelgap.training.run_folder import is_run_folder

__all__ = ["NetworkRun", "network_runs", "select_run", "train_networks", "with_seed"]

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
    view = shown_labels(training, data)
    if not isinstance(view, LabelView):
        raise InputError(f"{training.method}: {view.reason}")
    stated = preset(training.preset, method=training.method, dataset=training.data, protocol=training.protocol)
    base = {name: stated[name] for name in TrainingSettings.__annotations__ if name in stated}
    base |= {name: settings.epochs for name in ("epochs", "linear_epochs") if name in base and settings.epochs}
    base |= {"size": settings.size or base["size"]}
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
                    trace="all" if training.traced else "off",
                    training={**base, **rates},  # type: ignore[typeddict-item]
                ),
                folder,
            ),
            training,
        )
        for searched, rates in _grid(training, settings)
    ]


def with_seed(run: NetworkRun, training: Training, seed: int) -> NetworkRun:
    """Return the run with another seed."""
    moved = replace(run, request=replace(run.request, seed=seed), folder=run.folder.parent.parent)
    return _with_folder(moved, training)


def _grid(training: Training, settings: ReproductionSettings) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield options and rates; both empty where the preset has the one setting."""
    if settings.grid == "preset":
        yield {}, {}
        return
    rates = {"lr": training.learning_rates, "batch_size": training.batch_sizes}
    searched = {name: values for name, values in rates.items() if values}
    for options in itertools.product(*training.search.values()):
        for values in itertools.product(*searched.values()):
            chosen: dict[str, Any] = dict(zip(searched, values, strict=True))
            if "lr" in chosen:
                chosen["backbone_lr"] = chosen["lr"]
            yield dict(zip(training.search, options, strict=True)), chosen


def _with_folder(run: NetworkRun, training: Training) -> NetworkRun:
    """Return the run with a folder named after all that determines it: equal runs of other tables are this one."""
    parts = {**asdict(run.request), "data": data_digest(run.data)}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]
    name = f"{training.data}-{training.method}-{training.protocol}-{run.request.seed}-{key}"
    return replace(run, folder=run.folder / FOLDER / name)


def train_networks(
    runs: Sequence[NetworkRun], *, jobs: int, device: str, workers: int | None, quiet: bool
) -> list[Run | LabelGapError]:
    """Train runs, or resume them, several at a time; a finished one is opened. One that fails gives its error.

    Raises:
        KeyboardInterrupt: a run was stopped by Ctrl-C; what is trained so far is in the folders.
    """
    options: dict[str, Any] = {"device": device, "workers": workers}
    if jobs == 1 or len(runs) == 1:
        return [_result(partial(_train, run, quiet=quiet, **options)) for run in runs]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(runs)), mp_context=context) as pool:
        futures = [pool.submit(_train, run, quiet=True, **options) for run in runs]
        try:
            return [_result(future.result) for future in futures]
        finally:
            for future in futures:
                future.cancel()


def _result(train: Callable[[], Path]) -> Run | LabelGapError:
    """Return the run that a training gives, or its error."""
    try:
        run = Run(train())
    except LabelGapError as error:
        return error
    except BrokenProcessPool:
        return RunError("a process ended without a result, perhaps for want of memory: resume with fewer --jobs.")
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


def select_run(runs: Sequence[Run | LabelGapError]) -> int | None:
    """Return the number of the run with the highest val score, the first of equals; None where all failed."""
    scores = {number: run.metrics["score"] or 0.0 for number, run in enumerate(runs) if isinstance(run, Run)}
    return max(scores, key=lambda number: scores[number]) if scores else None
