"""Train trials: linear heads many at once, networks one after the other, as runs that are stopped when behind."""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import LabelGapError
from labelgap.core.tensors import read_tensors
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.losses import method_options
from labelgap.studies.compare.evaluation import DIVERGED
from labelgap.studies.sweep.plan import SweepPlan, with_values
from labelgap.studies.sweep.results import State, SweepTrial
from labelgap.training.config import RunConfig
from labelgap.training.fit import fit
from labelgap.training.folds import FoldTask, assign_folds, fold_groups, out_of_fold_logits
from labelgap.training.heads import HeadPlan, train_heads
from labelgap.training.loop.trainer import EpochCallback, TrainingContext
from labelgap.training.network import initial_network
from labelgap.training.plan import TrainingRequest
from labelgap.training.progress import Reporter
from labelgap.training.protocols import linear_features
from labelgap.training.run import Run
from labelgap.training.run_folder import is_run_folder
from labelgap.training.search import SEARCH_FILE, selection_score

if TYPE_CHECKING:
    from optuna import Trial

_SHARED: Final = ("batch_size", "epochs", "optimizer", "momentum", "nesterov", "standardize", "stop_below", "seed")
"""Settings that heads must have in common to be trained at once."""
_NOT_OF_NEWTON: Final = {"lr", "batch_size"}
"""Settings that say nothing beside those of another optimizer."""
_OF_FEATURES: Final = ("size", "average_flips")
"""Settings of the linear protocol that change the features."""


class TrialStoppedError(Exception):
    """A trial is behind the others."""


def is_head(plan: SweepPlan) -> bool:
    """Return whether trials are heads on the same features, which can be trained many at once."""
    config = plan.config
    same = not any(parameter.name in _OF_FEATURES for parameter in plan.space)
    return same and config.protocol == "linear" and config.head == "linear" and not config.average_flips


class HeadInputs(NamedTuple):
    """What heads are trained on: the features of each split and, without val, the fold of every training image."""

    features: Mapping[str, Tensor]
    fold: NDArray[np.int64] | None


def load_inputs(plan: SweepPlan, device: torch.device, workers: int, reporter: Reporter) -> HeadInputs:
    """Return the features of train and val, or the folds of train, as ``fit`` computes them."""
    network = initial_network(plan.config, plan.data, device)
    shared = (plan.config, plan.selection, network, device, workers, reporter)
    features = linear_features(TrainingContext(Path(), plan.data, *shared))
    if not plan.config.folds:
        return HeadInputs(features, None)
    groups = fold_groups(plan.data, "train", features["train"].cpu().numpy())
    return HeadInputs(features, assign_folds(plan.data.train.labels, plan.config.folds, plan.config.seed, groups))


def train_head_trials(
    trials: Mapping[int, Trial], plan: SweepPlan, inputs: HeadInputs, device: torch.device, reporter: Reporter
) -> Iterator[SweepTrial]:
    """Train heads at once, as far as they have batches and epochs in common; each ends as ``fit`` alone ends it.

    Args:
        trials: by their numbers.
        plan: of the sweep.
        inputs: what they are trained on.
        device: where.
        reporter: of the progress.
    """
    groups: dict[tuple[Any, ...], dict[int, RunConfig]] = {}
    for number, trial in trials.items():
        try:
            config = plan.resolve(trial.params, device)
        except LabelGapError as error:
            yield SweepTrial(number, dict(trial.params), "failed", reason=str(error))
            continue
        groups.setdefault(tuple(getattr(config, name) for name in _SHARED), {})[number] = config
    train = _train_heads if inputs.fold is None else _cross_validate
    for configs in groups.values():
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about single settings of the space
            results = train(list(configs.values()), plan, inputs, device, reporter)
        seconds = (time.perf_counter() - started) / len(configs)
        for number, (score, epoch, epochs, failed) in zip(configs, results, strict=True):
            state: State = "failed" if failed else "complete"
            yield SweepTrial(number, dict(trials[number].params), state, score, epoch, epochs, seconds, failed)


_Result = tuple[float | None, int, int, str]
"""The score of a head, its best epoch, how many it was trained, and why it failed."""


def _train_heads(
    configs: Sequence[RunConfig], plan: SweepPlan, inputs: HeadInputs, device: torch.device, reporter: Reporter
) -> list[_Result]:
    """Train heads of one group on train, and score each in its best epoch on val."""
    settings = {name: getattr(configs[0], name) for name in _SHARED}
    seed, labels = settings.pop("seed"), plan.data.train.labels
    heads = [
        HeadPlan(config.method, config.options, config.lr, labels, seed, config.weight_decay) for config in configs
    ]
    results = train_heads(
        inputs.features["train"],
        heads,
        **settings,
        order_seed=seed,
        val_features=inputs.features["val"],
        val_labels=plan.selection.labels,
        select=plan.selection.rule,
        device=device,
        progress=partial(_report, reporter, pluralize(len(heads), "head"), "epoch"),
    )
    return [(each.best_score, each.best_epoch, len(each.history), each.failed or "") for each in results]


def _cross_validate(
    configs: Sequence[RunConfig], plan: SweepPlan, inputs: HeadInputs, device: torch.device, reporter: Reporter
) -> list[_Result]:
    """Train heads of one group in every fold, and score all training images by the heads that have not seen them."""
    assert inputs.fold is not None
    trained = f"{pluralize(len(configs), 'head')} in {plan.config.folds} folds"
    reporter.advance(0, note=lambda: trained)
    tasks = [FoldTask(config, plan.data.train.labels, inputs.fold) for config in configs]
    found = out_of_fold_logits(inputs.features["train"], tasks, device)
    scores = [selection_score(plan.selection, logits) for logits in found]
    epochs = configs[0].epochs
    return [(score, epochs, epochs, "") if math.isfinite(score) else (None, 0, epochs, DIVERGED) for score in scores]


def _report(reporter: Reporter, trained: str, part: str, done: int, total: int) -> None:
    """Say which epoch or fold of the trials in training has ended."""
    reporter.advance(0, note=lambda: f"{trained}: {part} {done}/{total}")


def train_network_trial(
    number: int, trial: Trial, plan: SweepPlan, folder: Path, device: str, workers: int | None, reporter: Reporter
) -> SweepTrial:
    """Train a network as a run in a folder, which is removed when it has ended.

    The score of each epoch is reported to optuna, which may stop the training. Where a killed process has left the
    folder, the run is resumed.
    """
    values, history = dict(trial.params), list[Mapping[str, Any]]()

    def report(records: Sequence[Mapping[str, Any]]) -> None:
        for record in records[len(history) :]:
            history.append(record)
            if record["epoch"] and "score" in record:
                trial.report(record["score"], record["epoch"])
        _report(reporter, f"trial {number}", "epoch", records[-1]["epoch"], plan.config.epochs)
        if trial.should_prune():
            raise TrialStoppedError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            run = train_run(plan.data, with_values(plan.request, values), folder, device, workers, report)
        ended = SweepTrial(number, values, "complete", run_score(run, plan), run.metrics["best_epoch"])
        history[:] = run.history
    except TrialStoppedError:
        scores = {record["epoch"]: record["score"] for record in history if "score" in record}
        best = max(scores, key=lambda epoch: scores[epoch])
        ended = SweepTrial(number, values, "pruned", scores[best], best)
    except LabelGapError as error:
        ended = SweepTrial(number, values, "failed", reason=str(error))
    shutil.rmtree(folder, ignore_errors=True)
    trained = [record for record in history if record["epoch"]]
    seconds = float(sum(record["seconds"] for record in trained))
    return replace(ended, epochs=len(trained), seconds=seconds)


def train_auto(data: Dataset, plan: SweepPlan, folder: Path, device: str, workers: int | None) -> SweepTrial:
    """Train what ``fit`` does without a method and settings, as a run that is kept, and score it as the trials are."""
    started = time.perf_counter()
    try:
        run = train_run(data, plan.auto_request, folder, device, workers)
    except LabelGapError as error:
        return SweepTrial(0, {}, "failed", reason=str(error))
    config, measured = run.config, run.metrics
    options = {**method_options(config.method), **config.options} if config.method == plan.config.method else {}
    settings = {**config.model_dump(exclude=_NOT_OF_NEWTON if config.optimizer == "newton" else None), **options}
    names = [each.name for each in plan.space if settings.get(each.name) is not None]
    values = {"method": config.method, **{name: settings[name] for name in names}}
    about = (run_score(run, plan), measured["best_epoch"], measured["epochs"], time.perf_counter() - started)
    return SweepTrial(0, values, "complete", *about)


def train_run(
    data: Dataset,
    request: TrainingRequest,
    folder: Path,
    device: str,
    workers: int | None,
    on_epoch: EpochCallback | None = None,
) -> Run:
    """Train a run in a folder, or resume the one that is there; a Ctrl-C that stops it stops the sweep."""
    execution: dict[str, Any] = {"device": device, "workers": workers, "resume": is_run_folder(folder), "quiet": True}
    run = fit(data, **fit_arguments(request), out=folder, on_epoch=on_epoch, **execution)
    if not is_trained(run):
        raise KeyboardInterrupt
    return run


def is_trained(run: Run) -> bool:
    """Return whether a run has all its epochs."""
    return run.finished and not run.metrics["interrupted"]


def run_score(run: Run, plan: SweepPlan) -> float | None:
    """Return the score of a run by which it is compared with the trials; None where it has none."""
    if not run.config.folds:
        score: float | None = run.metrics["score"]
        return score
    tensors, _ = read_tensors(run.path / SEARCH_FILE)
    value = selection_score(plan.selection, tensors["logits"].numpy())
    return value if math.isfinite(value) else None


def fit_arguments(request: TrainingRequest) -> dict[str, Any]:
    """Return a request as arguments of ``fit``."""
    return {**{name: value for name, value in vars(request).items() if name != "training"}, **request.training}
