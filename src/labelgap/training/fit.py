"""``fit`` trains a run on a data set: it plans the training, trains its phases, and measures and writes the result.

The phases of the protocols: "linear" trains a head on fixed features, "end-to-end" the whole network, "linear-init"
first the one and then the other.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn

from labelgap.core.distributed import is_distributed, is_main_process, single_process
from labelgap.core.errors import InputError, RunError
from labelgap.core.files import make_folder, remove_file
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataChanges, DataIdentity
from labelgap.labels import Revisions
from labelgap.labels.table import group_numbers
from labelgap.losses import Loss, loss
from labelgap.metrics import Thresholds, choose_thresholds, revision_quality
from labelgap.metrics.label_model import fit_platt_calibration
from labelgap.models.batch_norm import synchronize_batch_norm
from labelgap.training.checkpoint import TrainingState, load_weights, remove_previous, report_saved_epochs
from labelgap.training.config import INITIAL_WEIGHTS, read_config, write_config
from labelgap.training.cost import CostEstimate, measure_cost, report_cost
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.features import split_features
from labelgap.training.history import write_history
from labelgap.training.keywords import TrainingKeywords
from labelgap.training.loggers import check_loggers, log_epochs
from labelgap.training.loop.inputs import ImageInputs, Inputs, predict_logits
from labelgap.training.loop.linear_trainer import HANDOFF_FILE, LinearTrainer, head_logits
from labelgap.training.loop.network_trainer import NetworkTrainer
from labelgap.training.loop.processes import (
    barrier,
    broadcast_object,
    check_batch_size,
    check_same,
    fail_together,
    init_distributed,
    lock_together,
)
from labelgap.training.loop.trace import merge_trace
from labelgap.training.loop.trainer import EpochCallback, TrainingContext, should_stop
from labelgap.training.network import copy_backbone, initial_network
from labelgap.training.plan import TrainingPlan, TrainingRequest, plan_training, prepare_data
from labelgap.training.progress import Reporter
from labelgap.training.run import Run
from labelgap.training.run_folder import (
    LINEAR_FOLDER,
    check_data,
    check_links,
    check_started,
    clean_folder,
    default_folder,
    finish_folder,
    is_run_folder,
    write_data_identity,
    write_predictions,
)
from labelgap.training.search import Search, search_settings


@dataclass(frozen=True)
class _Execution:
    """How a plan is executed: where, with what, and what the run to resume has found already."""

    folder: Path
    device: torch.device
    workers: int
    reporter: Reporter
    resume: bool
    accept_changes: bool
    on_epoch: EpochCallback | None
    log: tuple[str, ...]
    identity: DataIdentity | None = None
    found: Search | None = None


def fit(
    data: Dataset,
    method: str | Loss = "auto",
    options: Mapping[str, Any] | None = None,
    backbone: str | nn.Module | None = None,
    protocol: str | None = None,
    out: str | os.PathLike[str] | None = None,
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
    accept_changes: bool = False,
    quiet: bool = False,
    on_epoch: EpochCallback | None = None,
    log: str | Sequence[str] = (),
    **training: Unpack[TrainingKeywords],
) -> Run:
    """Train a classifier on a data set and write a run folder.

    Args:
        data: the data set.
        method: one of ``methods()``; "auto", by the label states; or a loss object, which is copied (docs/extending).
        options: of the method.
        backbone: a name, or a module that returns features; by default the data's, for linear heads a pretrained one.
        protocol: "linear", "end-to-end" or "linear-init"; by default that of the data and the device.
        out: the run folder; it must not hold a run yet, unless ``resume``. By default the first free one of
            runs/latest, runs/latest-2, …; to resume, the last of these.
        preset: a paper whose settings replace the defaults: one of ``PRESETS``.
        weights: a file of weights of the backbone; "none" for random ones.
        head: "linear"; "boostlu", which amplifies class activations; "zero-shot", linear, from the class names.
        seed: of initialization, order and augmentation.
        select: how the epoch is chosen: "auto", "clean", "known", "observed" or "last".
        trace: how many training labels to record per epoch, or "auto", "all", "off".
        allow_micro_batch: allow ``accumulate`` for a loss that depends on the whole batch.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        resume: continue the stopped run in ``out``, to the numbers of an unbroken one.
        accept_changes: resume although images, splits or labels have changed since.
        quiet: print nothing.
        on_epoch: called with the history after every epoch (in linear-init of the network); what it raises ends it.
        log: live logs: "csv", "tensorboard", "wandb", "mlflow" or several of them (docs/live-logs).
        **training: epochs, rates, optimizer …, see ``TrainingKeywords``.

    Returns:
        The run; finished, unless a Ctrl-C came before the end of the first epoch.
    """
    init_distributed(torch_device := choose_device(device))
    folder = Path(broadcast_object(os.fspath(out or default_folder(resume=resume))))
    workers, logs = choose_workers(workers, torch_device), check_loggers(log)
    execution = _Execution(folder, torch_device, workers, Reporter(quiet), resume, accept_changes, on_epoch, logs)
    with lock_together(folder, "training"):
        check_links(folder)
        source = copy_backbone(backbone, folder, training.get("size")) if isinstance(backbone, nn.Module) else backbone
        chosen = (method, options or {}, preset, source, _weights(weights, backbone, folder), protocol, head, seed)
        request = TrainingRequest(*chosen, select, trace, allow_micro_batch, training)
        data = replace(data, recipe=broadcast_object(data.recipe))  # another machine may have them at another path
        with fail_together():
            plan, execution = _start(data, request, execution)
        return run_training(plan, execution)


def dry_run(
    data: Dataset, request: TrainingRequest, *, device: str = "auto", workers: int | None = None
) -> CostEstimate:
    """Plan a training, and estimate its cost from a few batches; writes nothing but the cache."""
    torch_device = choose_device(device)
    plan = plan_training(data, request, torch_device)
    plan.loss.to(torch_device).prepare(plan.data.train.labels, epochs=plan.config.epochs, seed=plan.config.seed)
    network = initial_network(plan.config, plan.data, torch_device)
    return measure_cost(plan, network, torch_device, choose_workers(workers, torch_device))


def _weights(weights: str | os.PathLike[str] | None, backbone: str | nn.Module | None, folder: Path) -> str | None:
    if isinstance(backbone, nn.Module):
        if weights is not None:
            raise InputError("the weights of a network that is given as an object are in the object: leave them out.")
        return str(folder / INITIAL_WEIGHTS)
    return None if weights is None else os.fspath(weights)


def _start(data: Dataset, request: TrainingRequest, execution: _Execution) -> tuple[TrainingPlan, _Execution]:
    """Plan a training, or the rest of the run to resume, and make its folder."""
    folder, device, log = execution.folder, execution.device, execution.reporter.log
    stored = read_config(folder) if execution.resume and is_run_folder(folder) else None
    data = prepare_data(data, request, device, stored)
    identity, changes = DataIdentity.of(data), DataChanges()
    if stored is not None and Run(folder).metrics.get("interrupted", True):
        identity, changes = check_data(folder, identity, accept_changes=execution.accept_changes, log=log)
        request = request.as_started(stored) if changes else request
    plan = plan_training(data, request, device, stored)
    config = plan.config
    if changes and config.folds:
        raise RunError(f"the folds of a cross-validation are of other data: {changes}. Train into a new folder.")
    if changes.rows and "index" in plan.loss.needs:
        raise RunError(f"{plan.loss.name} keeps state for every image, and {changes}: train into a new folder.")
    search = None
    if execution.resume and plan.search is not None:
        methods = plan.search.methods or (config.method,)
        search = Search.load(folder, config.fingerprint(), plan.data.train.labels, methods)
    chosen = config if search is None else config.model_copy(update=dict(search.settings))
    if config.protocol != "linear":
        check_batch_size(config.batch_size)
    plan.loss.to(device).prepare(plan.data.train.labels, epochs=chosen.epochs, seed=config.seed)
    check_started(folder, chosen, execution.resume, config)
    plan = replace(plan, notes=tuple(plan.lines()))
    if config.protocol != "end-to-end":  # the linear phase prepares its own: the state is kept once
        plan = replace(plan, loss=loss(config.method, **config.options))
    return plan, replace(execution, identity=identity, found=search)


def run_training(plan: TrainingPlan, execution: _Execution) -> Run:
    """Train by a plan, in one process or several, and write the run."""
    folder, device, reporter, resume = execution.folder, execution.device, execution.reporter, execution.resume
    config, data, identity = plan.config, plan.data, execution.identity
    assert identity is not None
    check_same({"settings": config.fingerprint(), "data": identity.digest()} if is_distributed() else {})
    run = Run(folder) if resume else None
    if run is not None and run.finished and not run.metrics["interrupted"]:
        if is_main_process():
            clean_folder(folder, interrupted=False, older_than=0)
        reporter.log(f"{folder} is finished already")
        with log_epochs(execution.log, folder, reporter.log, resume=True):
            return run
    for line in plan.notes:
        reporter.log(line)
    with fail_together():
        network = initial_network(config, data, device, plan.backbone)
        report_cost(plan, network, device, execution.workers, reporter)
        if is_main_process():
            remove_file(folder / MANIFEST_FILE)  # not valid any more
            if plan.backbone is not None and run is None:
                write_tensors(folder / INITIAL_WEIGHTS, plan.backbone.state_dict())
            write_data_identity(folder, identity, data, reporter)
            write_config(folder, config)
    with log_epochs(execution.log, folder, reporter.log, execution.on_epoch, resume=resume) as on_epoch:
        shared = (plan.selection, network, device, execution.workers, reporter, identity.changed, on_epoch)
        context = TrainingContext(folder, data, config, *shared)
        if config.protocol != "linear":
            _train_network(context, plan.loss)
        else:
            features = linear_features(context)
            with fail_together(), single_process():
                if is_main_process():
                    _train_head(context, plan, features, execution.found)
    barrier()
    return Run(folder, backbone=plan.backbone)


def _train_head(
    context: TrainingContext, plan: TrainingPlan, features: dict[str, Tensor], search: Search | None
) -> None:
    """Train a head on fixed features, in one process, after a search for the settings that are open."""
    if plan.search is not None:
        search = search or search_settings(plan, features, device=context.device, reporter=context.reporter)
        config = plan.config.model_copy(update={**search.settings, "why": search.reason})
        if search.reason is not None:
            context.reporter.log(f"{config.method}: {search.reason}")
        search.save(context.folder, plan.config.fingerprint())
        write_config(context.folder, config)
        context = replace(context, config=config)
    _write_results(context, linear_phase(context, features), search)


def _train_network(context: TrainingContext, loss_fn: Loss) -> None:
    """Train the whole network, in linear-init after its head, unless that was interrupted."""
    handoff = None
    if context.config.protocol == "linear-init" and (handoff := linear_init_phase(context)) is None:
        return
    _write_results(context, network_phase(context, loss_fn, handoff))


@dataclass(frozen=True)
class PhaseResult:
    """The result of a phase."""

    state: TrainingState  # after the last epoch
    revisions: Revisions  # of the loss
    logits: Callable[[str], NDArray[np.float32]]  # of a split by its name, with the weights of the best epoch
    seconds_before: float = 0.0  # duration of an earlier phase
    loss_state: dict[str, Tensor] = field(default_factory=dict)  # what the loss passes to the next phase


Handoff = tuple[float, dict[str, Tensor]]
"""What the linear phase passes to the next one: its duration, and the ``handoff_state`` of its loss."""


def linear_init_phase(context: TrainingContext) -> Handoff | None:
    """Train the head on fixed features, and leave the weights of its best epoch in the network.

    One process does so, and ``DistributedDataParallel`` copies the weights to the others. Epochs are counted from 1 in
    each phase, and the next phase starts without revisions (Cole 2021, Kim 2022). None if a Ctrl-C came before the
    phase was complete. The network as it is then is epoch 0 of the next phase.
    """
    folder = context.folder / LINEAR_FOLDER
    first = replace(context, folder=folder, config=context.config.linear_phase(), on_epoch=None)
    features, handoff = linear_features(first), None
    with fail_together(), single_process():
        if is_main_process():
            handoff = _linear_init(context, first, features)
    shared = broadcast_object(handoff and (handoff[0], bool(handoff[1])))
    if is_main_process() or shared is None:
        return handoff
    return shared[0], read_tensors(first.folder / HANDOFF_FILE)[0] if shared[1] else {}


def _linear_init(context: TrainingContext, first: TrainingContext, features: dict[str, Tensor]) -> Handoff | None:
    make_folder(first.folder)
    result = linear_phase(first, features, handoff=True)
    state = result.state
    if state.epoch < first.config.epochs:
        return None
    score = "" if state.best_score is None else f", val score {100 * state.best_score:.1f}"
    context.reporter.log(f"linear phase complete: best epoch {state.best_epoch} of {state.epoch}{score}")
    remove_previous(first.folder)
    handoff = sum(record["seconds"] for record in state.history), result.loss_state
    del result
    gc.collect()  # a CUDA graph of the engine must be freed before loader processes are forked
    return handoff


def linear_phase(context: TrainingContext, features: dict[str, Tensor], *, handoff: bool = False) -> PhaseResult:
    """Train a head on the fixed features of every split, in one process.

    With ``handoff``, another phase follows, which continues from the loss of the best epoch.
    """
    trainer = LinearTrainer(context, features, handoff=handoff)
    state = trainer.fit()
    engine, head = trainer.engine, context.network.head
    if state.epoch:
        load_weights(context.folder, trainer.saved)
        engine.set_heads(head.weight[None], head.bias[None])
    loss_state = trainer.handoff_state(state.best_epoch) if state.epoch == context.config.epochs else {}
    return PhaseResult(
        state, trainer.revisions, lambda split: head_logits(engine, features[split]), loss_state=loss_state
    )


def network_phase(context: TrainingContext, loss_fn: Loss, handoff: Handoff | None = None) -> PhaseResult:
    """Train the whole network, with the head of the linear phase if there was one."""
    config, network = context.config, context.network
    if context.device.type == "cuda":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if handoff is not None:
        loss_fn.to(context.device).prepare(context.data.train.labels, epochs=config.epochs, seed=config.seed)
        loss_fn.load_handoff_state(handoff[1])
    inputs: dict[str, Inputs] = {
        split.name: ImageInputs(
            split.images, network.backbone, context.device, config.flip, config.seed, context.workers, config.transform
        ).in_memory()
        for split in context.data.splits
    }
    if config.batchnorm == "sync" and is_distributed():
        synchronize_batch_norm(network)
    trainer = NetworkTrainer(context, loss_fn, inputs)
    state = trainer.fit()
    if state.epoch:
        load_weights(context.folder, network)
    return PhaseResult(
        state,
        trainer.revisions,
        lambda split: predict_logits(network, inputs[split], autocast=trainer.autocast),
        0.0 if handoff is None else handoff[0],
    )


def linear_features(context: TrainingContext) -> dict[str, Tensor]:
    """Return the features of every split: those of the data, or those that the backbone computes.

    Several processes divide the work. The first gets all features, the others get none.
    """
    features = split_features(
        context.data,
        [split.name for split in context.data.splits],
        lambda: context.network.backbone,
        context.device,
        context.workers,
        context.reporter,
        everywhere=False,
        average_flips=context.config.average_flips,
        precision=context.config.feature_precision,
    )
    return {name: torch.from_numpy(found).to(context.device, torch.float32) for name, found in features.items()}


def _write_results(context: TrainingContext, result: PhaseResult, search: Search | None = None) -> None:
    """Measure the best epoch, and write predictions, trace and summary; nothing where no epoch is complete.

    With a cross-validation the training images are measured as well, by their out-of-fold scores.
    """
    data, config, state = context.data, context.config, result.state
    if not state.epoch:
        return
    unseen = None if search is None else search.logits
    measured = [
        split for split in data.splits if split.name != "train" or split.truth is not None or unseen is not None
    ]
    logits = {split.name: result.logits(split.name) for split in measured if split.name != "train" or unseen is None}
    if unseen is not None:
        logits["train"] = unseen
    chosen_on, backbone = data.val if unseen is None else data.train, context.network.backbone
    cuts, calibration = Thresholds.default(len(data.classes)), None
    if chosen_on is not None:
        cuts = choose_thresholds(expit(logits[chosen_on.name]), chosen_on.labels.to_dense())
        calibration = fit_platt_calibration(logits[chosen_on.name], chosen_on.labels)
    groups, truth = group_numbers(data.train.labels), data.train.truth
    summary: dict[str, Any] = {
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "divergences": state.divergences,
        "interrupted": state.epoch < config.epochs and not should_stop(state, config.stop_below),
        "seconds": sum(record["seconds"] for record in state.history) + result.seconds_before,
        "select": config.select,
        "score": state.best_score,
        "weights": {"source": backbone.source, "license": backbone.license, "size": backbone.input_spec.size},
        "calibration": calibration,
        "thresholds": {"values": cuts.values.tolist(), "marks": list(cuts.marks)},
        "class_groups": groups,
    }
    for split in measured:
        summary[split.name] = evaluate_scores(logits[split.name], split.evaluation_labels, cuts, groups=groups)
    if len(result.revisions) and truth is not None:
        summary["revisions"] = asdict(revision_quality(data.train.labels, truth, result.revisions))
    if not is_main_process():
        return
    if search is not None and unseen is None:
        summary["search"] = {"compared": list(search.compared)}
    elif search is not None:
        summary["cross_validation"] = {"folds": config.folds, "compared": list(search.compared)}
    scored = [split for split in measured if split.name != "train" or unseen is not None]
    held_out = {split.name: (split.labels.images, logits[split.name]) for split in scored}
    with report_saved_epochs(context.folder):
        write_predictions(context.folder, held_out, config.classes)
        merge_trace(context.folder)
        write_history(context.folder, state.history, summary)
        finish_folder(context.folder, interrupted=summary["interrupted"])
