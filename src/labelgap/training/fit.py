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
from scipy.special import expit

from labelgap.core.distributed import is_main_process
from labelgap.core.seeds import derive_seed, seed_everything
from labelgap.core.system import format_bytes
from labelgap.data.dataset import Dataset
from labelgap.labels import Revisions
from labelgap.losses import Loss
from labelgap.metrics import Thresholds, choose_thresholds, revision_quality
from labelgap.metrics.calibration import fit_platt_calibration
from labelgap.training.checkpoints.checkpoint import TrainingState, remove_previous, report_saved_epochs
from labelgap.training.checkpoints.history import write_history
from labelgap.training.config.cost import CostEstimate, measure_cost, report_cost
from labelgap.training.config.defaults import TrainingSettings
from labelgap.training.config.resolve import TrainingRequest, is_run_folder, prepare_folder, resolve_config
from labelgap.training.config.schema import read_config, write_config
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.features.precomputed import build_classifier, feature_width
from labelgap.training.loop.distributed import barrier, check_batch_size, init_distributed, local_device
from labelgap.training.loop.trace import finish_trace
from labelgap.training.loop.trainer import should_stop
from labelgap.training.progress import Reporter
from labelgap.training.protocols import PhaseResult, TrainingContext, linear_init_phase, linear_phase, network_phase
from labelgap.training.run import Run, write_predictions

__all__ = ["dry_run", "fit"]


@dataclass(frozen=True)
class _Execution:
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
    wishes = TrainingRequest(
        method, dict(options or {}), preset, backbone, None if weights is None else os.fspath(weights)
    )
    wishes = replace(wishes, protocol=protocol, head=head, seed=seed, select=select, trace=trace, training=training)
    wishes = replace(wishes, allow_micro_batch=allow_micro_batch)
    where = local_device(choose_device(device))
    init_distributed(where)
    return _fit(data, wishes, Path(out), _Execution(where, choose_workers(workers, where), _reporter(quiet)), resume)


def dry_run(
    data: Dataset, wishes: TrainingRequest, *, device: str = "auto", workers: int | None = None
) -> CostEstimate:
    """Decide everything and measure what a run would cost, on a few batches; nothing is written but the cache."""
    where = choose_device(device)
    config, _, loss_fn = resolve_config(data, wishes, where)
    loss_fn.to(where).prepare(data.train.labels, epochs=config.epochs, seed=config.seed)
    network = build_classifier(config, feature_width(data)).to(where)
    return measure_cost(data, config, network, loss_fn, where, choose_workers(workers, where))


def _reporter(quiet: bool) -> Reporter:
    return Reporter(quiet or not is_main_process())


def _fit(data: Dataset, wishes: TrainingRequest, folder: Path, way: _Execution, resume: bool) -> Run:
    stored = read_config(folder) if resume and is_run_folder(folder) else None
    config, selection, loss_fn = resolve_config(data, wishes, way.device, stored)
    check_batch_size(config.batch_size)
    loss_fn.to(way.device).prepare(data.train.labels, epochs=config.epochs, seed=config.seed)
    prepare_folder(folder, config, resume)
    barrier()
    if resume and (done := Run(folder)).finished and not done.metrics["interrupted"]:
        way.reporter.log(f"{folder} is finished already")
        return done
    way.reporter.log(f"{config.method}: {config.why}; {config.protocol}, {config.backbone}, {config.epochs} epochs")
    way.reporter.log(selection.why)
    if loss_fn.state_bytes:
        way.reporter.log(f"{loss_fn.name} keeps {format_bytes(loss_fn.state_bytes)} for the training images")
    seed_everything(derive_seed(config.seed, "initialisation"))
    network = build_classifier(config, feature_width(data)).to(way.device)
    report_cost(data, config, network, loss_fn, way.device, way.workers, way.reporter)
    if is_main_process():
        write_config(folder, config)
    phase = TrainingContext(folder, data, config, selection, network, way.device, way.workers, way.reporter)
    outcome = _train(phase, loss_fn)
    if outcome.state.epoch:
        with report_saved_epochs(folder):
            _finish(phase, outcome)
    barrier()
    return Run(folder)


def _train(phase: TrainingContext, loss_fn: Loss) -> PhaseResult:
    """Go through the protocol's one phase or two."""
    config = phase.config
    if config.protocol == "linear":
        return linear_phase(phase)
    if config.protocol == "end-to-end":
        return network_phase(phase, loss_fn)
    start = linear_init_phase(phase)
    if start is None:
        return PhaseResult(
            TrainingState(), Revisions(), lambda split: np.zeros((0, len(config.classes)), dtype=np.float32)
        )
    return network_phase(phase, loss_fn, start)


def _finish(phase: TrainingContext, outcome: PhaseResult) -> None:
    """Measure the best epoch, and write what the run came to."""
    data, config, state = phase.data, phase.config, outcome.state
    logits = {split.name: outcome.logits(split.name) for split in data.splits}
    chosen = _thresholds(data, logits)
    calibration = None if data.val is None else fit_platt_calibration(logits["val"], data.val.labels)
    summary: dict[str, Any] = {
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "interrupted": state.epoch < config.epochs and not should_stop(state, config.stop_below),
        "seconds": sum(record["seconds"] for record in state.history) + outcome.seconds_before,
        "select": config.select,
        "score": state.best_score,
        "weights": {"source": phase.network.backbone.source, "license": phase.network.backbone.license},
        "calibration": calibration,
        "thresholds": {"values": chosen.values.tolist(), "marks": list(chosen.marks)},
    }
    for split in data.splits:
        if split.name != "train" or split.truth is not None:
            summary[split.name] = evaluate_scores(logits[split.name], split.evaluation_labels, chosen)
    truth = data.train.truth
    if len(outcome.revisions) and truth is not None:
        summary["revisions"] = asdict(revision_quality(data.train.labels, truth, outcome.revisions))
    if not is_main_process():
        return
    held_out = {split.name: (split.labels.images, logits[split.name]) for split in data.splits if split.name != "train"}
    write_predictions(phase.folder, held_out, config.classes)
    finish_trace(phase.folder, state.epoch)
    write_history(phase.folder, state, summary)
    if not summary["interrupted"]:
        remove_previous(phase.folder)


def _thresholds(data: Dataset, logits: dict[str, NDArray[np.float32]]) -> Thresholds:
    """Choose a threshold per class on val; without one, 0.5 for all."""
    if data.val is None:
        return Thresholds.default(len(data.classes))
    return choose_thresholds(expit(logits["val"]), data.val.labels.to_dense())
