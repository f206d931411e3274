"""Train trials: linear heads many at once, networks one after the other, as runs that are stopped when behind."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from labelgap.core.errors import LabelGapError
from labelgap.core.text import pluralize
from labelgap.studies.sweep.plan import SweepPlan, with_values
from labelgap.studies.sweep.results import SweepTrial
from labelgap.training.config.request import TrainingRequest
from labelgap.training.config.schema import RunConfig
from labelgap.training.features.precomputed import initial_network
from labelgap.training.fit import fit
from labelgap.training.heads import HeadPlan, train_heads
from labelgap.training.loop.trainer import TrainingContext
from labelgap.training.progress import Reporter
from labelgap.training.protocols import linear_features
from labelgap.training.run_folder import is_run_folder

if TYPE_CHECKING:
    from optuna import Trial

__all__ = ["fit_arguments", "is_head", "load_features", "train_head_trials", "train_network_trial"]

_SHARED: Final = ("batch_size", "epochs", "optimizer", "momentum", "nesterov", "standardize", "stop_below", "seed")
"""Settings that heads must have in common to be trained at once."""
_OF_FEATURES: Final = ("size", "average_flips")
"""Settings of the linear protocol that change the features."""


class TrialStoppedError(Exception):
    """A trial is behind the others."""


def is_head(plan: SweepPlan) -> bool:
    """Return whether trials are heads on the same features, which can be trained many at once."""
    config = plan.config
    same = not any(parameter.name in _OF_FEATURES for parameter in plan.space)
    return same and config.protocol == "linear" and config.head == "linear" and not config.average_flips


def load_features(plan: SweepPlan, device: torch.device, workers: int, reporter: Reporter) -> dict[str, Tensor]:
    """Return the features of train and val, as ``fit`` computes them."""
    network = initial_network(plan.config, plan.data, device)
    shared = (plan.config, plan.selection, network, device, workers, reporter)
    return linear_features(TrainingContext(Path(), plan.data, *shared))


def train_head_trials(
    trials: Mapping[int, Trial],
    plan: SweepPlan,
    features: Mapping[str, Tensor],
    device: torch.device,
    reporter: Reporter,
) -> Iterator[SweepTrial]:
    """Train heads at once, as far as they have batches and epochs in common; each ends as ``fit`` alone ends it."""
    groups: dict[tuple[Any, ...], dict[int, RunConfig]] = {}
    for number, trial in trials.items():
        try:
            config = plan.resolve(trial.params, device)
        except LabelGapError as error:
            yield SweepTrial(number, dict(trial.params), "failed", reason=str(error))
            continue
        groups.setdefault(tuple(getattr(config, name) for name in _SHARED), {})[number] = config
    for shared, configs in groups.items():
        started = time.perf_counter()
        settings = dict(zip(_SHARED, shared, strict=True))
        seed, labels = settings.pop("seed"), plan.data.train.labels
        heads = [
            HeadPlan(config.method, config.options, config.lr, labels, seed, config.weight_decay)
            for config in configs.values()
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about single settings of the space
            results = train_heads(
                features["train"],
                heads,
                **settings,
                order_seed=seed,
                val_features=features["val"],
                val_labels=plan.selection.labels,
                select=plan.selection.rule,
                device=device,
                progress=partial(_report_epoch, reporter, pluralize(len(heads), "head")),
            )
        seconds = (time.perf_counter() - started) / len(configs)
        for number, result in zip(configs, results, strict=True):
            about = (result.best_score, result.best_epoch, len(result.history), seconds, result.failed or "")
            yield SweepTrial(number, dict(trials[number].params), "failed" if result.failed else "complete", *about)


def _report_epoch(reporter: Reporter, trained: str, epoch: int, epochs: int) -> None:
    """Say which epoch of the trials in training has ended."""
    reporter.advance(0, note=lambda: f"{trained}: epoch {epoch}/{epochs}")


def train_network_trial(
    trial: Trial, plan: SweepPlan, folder: Path, device: str, workers: int | None, reporter: Reporter
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
        _report_epoch(reporter, f"trial {trial.number}", records[-1]["epoch"], plan.config.epochs)
        if trial.should_prune():
            raise TrialStoppedError

    arguments = fit_arguments(with_values(plan.request, values))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            resume = is_run_folder(folder)
            run = fit(
                plan.data,
                **arguments,
                out=folder,
                device=device,
                workers=workers,
                resume=resume,
                quiet=True,
                on_epoch=report,
            )
        if not run.finished or run.metrics["interrupted"]:
            raise KeyboardInterrupt
        measured = run.metrics
        ended = SweepTrial(trial.number, values, "complete", measured["score"], measured["best_epoch"])
        history[:] = run.history
    except TrialStoppedError:
        scores = {record["epoch"]: record["score"] for record in history if "score" in record}
        best = max(scores, key=lambda epoch: scores[epoch])
        ended = SweepTrial(trial.number, values, "pruned", scores[best], best)
    except LabelGapError as error:
        ended = SweepTrial(trial.number, values, "failed", reason=str(error))
    shutil.rmtree(folder, ignore_errors=True)
    trained = [record for record in history if record["epoch"]]
    seconds = float(sum(record["seconds"] for record in trained))
    return SweepTrial(**{**vars(ended), "epochs": len(trained), "seconds": seconds})


def fit_arguments(request: TrainingRequest) -> dict[str, Any]:
    """Return a request as arguments of ``fit``."""
    return {**{name: value for name, value in vars(request).items() if name != "training"}, **request.training}
