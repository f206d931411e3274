"""``fit`` trains a run on a data set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from labelgap.core.distributed import is_distributed, is_main_process, single_process
from labelgap.core.errors import InputError, RunError
from labelgap.core.tensors import write_tensors
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataChanges, DataIdentity
from labelgap.labels import Revisions
from labelgap.losses import Loss, loss
from labelgap.training.checkpoint import TrainingState
from labelgap.training.config import INITIAL_WEIGHTS, read_config, write_config
from labelgap.training.cost import CostEstimate, measure_cost, report_cost
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.keywords import TrainingKeywords
from labelgap.training.loggers import check_loggers, log_epochs
from labelgap.training.loop.processes import (
    barrier,
    broadcast_object,
    check_batch_size,
    check_same,
    fail_together,
    init_distributed,
    lock_together,
)
from labelgap.training.loop.trainer import EpochCallback, TrainingContext
from labelgap.training.network import copy_backbone, initial_network
from labelgap.training.plan import TrainingPlan, TrainingRequest, plan_training, prepare_data
from labelgap.training.progress import Reporter
from labelgap.training.protocols import (
    PhaseResult,
    linear_features,
    linear_init_phase,
    linear_phase,
    network_phase,
)
from labelgap.training.run import Run
from labelgap.training.run_folder import (
    check_data,
    check_links,
    clean_folder,
    is_run_folder,
    prepare_folder,
    reopen_folder,
    write_data_identity,
    write_results,
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
        out: the run folder; it must not hold a run yet, unless ``resume``.
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
    folder, workers, logs = Path(out), choose_workers(workers, torch_device), check_loggers(log)
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
    prepare_folder(folder, chosen, execution.resume, config)
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
            reopen_folder(folder)
            if plan.backbone is not None and run is None:
                write_tensors(folder / INITIAL_WEIGHTS, plan.backbone.state_dict())
            write_data_identity(folder, identity, data, reporter)
            write_config(folder, config)
    with log_epochs(execution.log, folder, reporter.log, execution.on_epoch, resume=resume) as on_epoch:
        shared = (plan.selection, network, device, execution.workers, reporter, identity.changed, on_epoch)
        context = TrainingContext(folder, data, config, *shared)
        if config.protocol != "linear":
            write_results(context, _train_network(context, plan.loss))
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
    write_results(context, linear_phase(context, features), search)


def _train_network(context: TrainingContext, loss_fn: Loss) -> PhaseResult:
    """Train the whole network, in linear-init after its head."""
    if context.config.protocol == "end-to-end":
        return network_phase(context, loss_fn)
    handoff = linear_init_phase(context)
    if handoff is not None:
        return network_phase(context, loss_fn, handoff)
    return PhaseResult(TrainingState(), Revisions(), lambda split: np.zeros((0, 0), dtype=np.float32))
