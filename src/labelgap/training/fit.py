"""``fit``: from a data set to a finished run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.machine import in_words
from labelgap.core.processes import is_main
from labelgap.core.seeds import derive, seed_everything
from labelgap.data.dataset import Dataset
from labelgap.labels import Revisions
from labelgap.metrics import Thresholds, revision_quality, thresholds
from labelgap.objectives import Objective
from labelgap.training.card import FILE as CARD
from labelgap.training.card import write_card
from labelgap.training.checkpoint import State, remove_previous, saying_what_is_kept
from labelgap.training.config import read_config, write_config
from labelgap.training.cost import Cost, announce, measure
from labelgap.training.defaults import TrainingSettings
from labelgap.training.devices import choose_device, use_workers
from labelgap.training.evaluation import evaluate_scores, probabilities
from labelgap.training.history import write_history
from labelgap.training.keeping import stopped_early
from labelgap.training.parallel import check_batch, join, local_device, wait
from labelgap.training.phases import Outcome, Phase, linear_phase, linear_start, network_phase
from labelgap.training.prediction_calibration import calibration_of
from labelgap.training.progress import Reporter
from labelgap.training.run import Run, write_predictions
from labelgap.training.settings import Wishes, decide, holds_run, open_folder
from labelgap.training.traces import finish_trace
from labelgap.training.vectors import build_network, vector_width

__all__ = ["dry_run", "fit"]


@dataclass(frozen=True)
class _Way:
    """How a run goes on its way: not what it does, and so not in its configuration."""

    device: torch.device
    workers: int
    reporter: Reporter


def fit(
    data: Dataset,
    method: str = "auto",
    options: Mapping[str, Any] | None = None,
    backbone: str | None = None,
    protocol: str | None = None,
    out: str | os.PathLike[str] = "runs/latest",
    *,
    preset: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    head: str = "linear",
    seed: int = 0,
    select: str = "auto",
    trace: str | int = "auto",
    allow_micro_batch: bool = False,
    device: str = "auto",
    workers: int | None = None,
    resume: bool = False,
    quiet: bool = False,
    **training: Unpack[TrainingSettings],
) -> Run:
    """Train a classifier on a data set and write a run folder.

    Args:
        data: what to learn from.
        method: one of ``methods()``, or "auto" to have it chosen from the labels' states; said at the start.
        options: of the method.
        backbone: name of the network; the one that suits the data when not given.
        protocol: "linear", "end-to-end" or "linear-init"; when not given, what suits the data and the device.
        out: the run's folder; it must not hold a run yet, unless ``resume``.
        preset: a paper whose settings count where nothing else is said: one of ``PRESETS``.
        weights: a file of weights for the backbone, instead of its usual ones; "none" to start at random.
        head: "linear", or "boostlu", which amplifies what a class activation map is sure of and needs end-to-end.
        seed: of initialisation, order and augmentation.
        select: how the epoch is chosen: "auto", "clean", "known", "observed" or "last".
        trace: how many training labels to record per epoch, or "auto", "all", "off".
        allow_micro_batch: let a method that looks across the batch see the parts that ``accumulate`` makes.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images; as many as are of use when not given.
        resume: go on where the run in ``out`` was stopped; it ends with the numbers of an unbroken run.
        quiet: say nothing.
        **training: epochs, rates, optimiser …, see ``TrainingSettings``; what suits the protocol when not given.

    Returns:
        The run; finished, unless a Ctrl-C came before the first epoch was done.
    """
    wishes = Wishes(method, dict(options or {}), preset, backbone, None if weights is None else os.fspath(weights))
    wishes = replace(wishes, protocol=protocol, head=head, seed=seed, select=select, trace=trace, training=training)
    wishes = replace(wishes, allow_micro_batch=allow_micro_batch)
    where = local_device(choose_device(device))
    join(where)
    return _fit(data, wishes, Path(out), _Way(where, use_workers(workers, where), _reporter(quiet)), resume)


def dry_run(data: Dataset, wishes: Wishes, *, device: str = "auto", workers: int | None = None) -> Cost:
    """Decide everything and measure what a run would cost, on a few batches; nothing is written but the cache."""
    where = choose_device(device)
    config, _, objective = decide(data, wishes, where)
    objective.to(where).prepare(data.train.labels, epochs=config.epochs, seed=config.seed)
    network = build_network(config, vector_width(data)).to(where)
    return measure(data, config, network, objective, where, use_workers(workers, where))


def _reporter(quiet: bool) -> Reporter:
    return Reporter(quiet or not is_main())


def _fit(data: Dataset, wishes: Wishes, folder: Path, way: _Way, resume: bool) -> Run:
    stored = read_config(folder) if resume and holds_run(folder) else None
    config, selection, objective = decide(data, wishes, way.device, stored)
    check_batch(config.batch_size)
    objective.to(way.device).prepare(data.train.labels, epochs=config.epochs, seed=config.seed)
    open_folder(folder, config, resume)
    wait()
    if resume and (done := Run(folder)).finished and not done.metrics["interrupted"]:
        way.reporter.say(f"{folder} is finished already")
        if is_main() and not (folder / CARD).exists():
            write_card(done, data)
        return done
    way.reporter.say(f"{config.method}: {config.why}; {config.protocol}, {config.backbone}, {config.epochs} epochs")
    way.reporter.say(selection.why)
    if objective.state_bytes:
        way.reporter.say(f"{objective.name} keeps {in_words(objective.state_bytes)} for the training images")
    seed_everything(derive(config.seed, "initialisation"))
    network = build_network(config, vector_width(data)).to(way.device)
    announce(data, config, network, objective, way.device, way.workers, way.reporter)
    if is_main():
        write_config(folder, config)
    phase = Phase(folder, data, config, selection, network, way.device, way.workers, way.reporter)
    outcome = _train(phase, objective)
    if outcome.state.epoch:
        with saying_what_is_kept(folder):
            _finish(phase, outcome)
    wait()
    return Run(folder)


def _train(phase: Phase, objective: Objective) -> Outcome:
    """Go through the protocol's one phase or two."""
    config = phase.config
    if config.protocol == "linear":
        return linear_phase(phase)
    if config.protocol == "end-to-end":
        return network_phase(phase, objective)
    start = linear_start(phase)
    if start is None:
        return Outcome(State(), Revisions(), lambda split: np.zeros((0, len(config.classes)), dtype=np.float32))
    return network_phase(phase, objective, start)


def _finish(phase: Phase, outcome: Outcome) -> None:
    """Measure the best epoch, and write what the run came to."""
    data, config, state = phase.data, phase.config, outcome.state
    logits = {split.name: outcome.logits(split.name) for split in data.splits}
    chosen = _thresholds(data, logits)
    calibration = None if data.val is None else calibration_of(logits["val"], data.val.labels)
    summary: dict[str, Any] = {
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "interrupted": state.epoch < config.epochs and not stopped_early(state, config.stop_below),
        "seconds": sum(record["seconds"] for record in state.history) + outcome.seconds_before,
        "select": config.select,
        "score": state.best_score,
        "weights": {"source": phase.network.backbone.source, "licence": phase.network.backbone.licence},
        "calibration": calibration,
        "thresholds": {"values": chosen.values.tolist(), "marks": list(chosen.marks)},
    }
    for split in data.splits:
        if split.name != "train" or split.truth is not None:
            summary[split.name] = evaluate_scores(logits[split.name], split.best_labels, chosen)
    truth = data.train.truth
    if len(outcome.revisions) and truth is not None:
        summary["revisions"] = asdict(revision_quality(data.train.labels, truth, outcome.revisions))
    if not is_main():
        return
    held_out = {split.name: (split.labels.images, logits[split.name]) for split in data.splits if split.name != "train"}
    write_predictions(phase.folder, held_out, config.classes)
    finish_trace(phase.folder, state.epoch)
    write_history(phase.folder, state, summary)
    if not summary["interrupted"]:
        remove_previous(phase.folder)
    write_card(Run(phase.folder), data)


def _thresholds(data: Dataset, logits: dict[str, NDArray[np.float32]]) -> Thresholds:
    """Choose a threshold per class on val; without one, 0.5 for all."""
    if data.val is None:
        return Thresholds.default(len(data.classes))
    return thresholds(probabilities(logits["val"]), data.val.labels.to_dense())
