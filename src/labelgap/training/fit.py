"""``fit`` trains a run on a data set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from labelgap.core.distributed import is_distributed, is_main_process, single_process
from labelgap.core.errors import InputError, RunError
from labelgap.core.system import format_bytes
from labelgap.core.tensors import write_tensors
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.data.findings import ValidationHeldOut
from labelgap.data.identity import DataChanges, DataIdentity
from labelgap.labels import Revisions
from labelgap.losses import Loss, loss
from labelgap.models import Backbone
from labelgap.training.checkpoint import TrainingState
from labelgap.training.config.candidates import auto_methods, is_searched, open_settings
from labelgap.training.config.check import as_started
from labelgap.training.config.cost import CostEstimate, measure_cost, report_cost
from labelgap.training.config.defaults import TrainingSettings
from labelgap.training.config.presets import describe_missing_settings
from labelgap.training.config.request import TrainingRequest
from labelgap.training.config.resolve import describe_random_features, prepare_data, resolve_config
from labelgap.training.config.schema import INITIAL_WEIGHTS, RunConfig, read_config, write_config
from labelgap.training.data_file import check_data, write_data_identity
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.loggers import check_loggers, log_epochs
from labelgap.training.loop.distributed import check_batch_size
from labelgap.training.loop.processes import (
    barrier,
    broadcast_object,
    check_same,
    fail_together,
    init_distributed,
    lock_together,
)
from labelgap.training.loop.trainer import EpochCallback, TrainingContext
from labelgap.training.network import copy_backbone, initial_network
from labelgap.training.progress import Reporter
from labelgap.training.protocols import (
    FOLDS_REASON,
    PhaseResult,
    linear_features,
    linear_init_phase,
    linear_phase,
    network_phase,
)
from labelgap.training.results import write_results
from labelgap.training.reviewed_labels import handle_reviewed_absents
from labelgap.training.run import Run
from labelgap.training.run_folder import check_links, clean_folder, is_run_folder, prepare_folder, reopen_folder
from labelgap.training.search import Search, search_settings
from labelgap.training.selection import Selection


@dataclass(frozen=True)
class _Execution:
    """How a run is executed, which is not part of its configuration."""

    device: torch.device
    workers: int
    reporter: Reporter
    resume: bool
    accept_changes: bool
    on_epoch: EpochCallback | None
    log: tuple[str, ...]


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
    **training: Unpack[TrainingSettings],
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
        **training: epochs, rates, optimizer …, see ``TrainingSettings``.

    Returns:
        The run; finished, unless a Ctrl-C came before the end of the first epoch.
    """
    init_distributed(torch_device := choose_device(device))
    folder, workers, logs = Path(out), choose_workers(workers, torch_device), check_loggers(log)
    execution = _Execution(torch_device, workers, Reporter(quiet), resume, accept_changes, on_epoch, logs)
    with lock_together(folder, "training"):
        check_links(folder)
        source = copy_backbone(backbone, folder, training.get("size")) if isinstance(backbone, nn.Module) else backbone
        chosen = (method, options or {}, preset, source, _weights(weights, backbone, folder), protocol, head, seed)
        return _fit(data, TrainingRequest(*chosen, select, trace, allow_micro_batch, training), folder, execution)


def dry_run(
    data: Dataset, request: TrainingRequest, *, device: str = "auto", workers: int | None = None
) -> CostEstimate:
    """Resolve the configuration and estimate the cost of a run from a few batches; writes nothing but the cache."""
    torch_device = choose_device(device)
    data = prepare_data(data, request, torch_device)
    config, _, loss_fn = resolve_config(data, request, torch_device)
    loss_fn.to(torch_device).prepare(data.train.labels, epochs=config.epochs, seed=config.seed)
    network = initial_network(config, data, torch_device)
    return measure_cost(data, config, network, loss_fn, torch_device, choose_workers(workers, torch_device))


def _weights(weights: str | os.PathLike[str] | None, backbone: str | nn.Module | None, folder: Path) -> str | None:
    if isinstance(backbone, nn.Module):
        if weights is not None:
            raise InputError("the weights of a network that is given as an object are in the object: leave them out.")
        return str(folder / INITIAL_WEIGHTS)
    return None if weights is None else os.fspath(weights)


def _fit(data: Dataset, request: TrainingRequest, folder: Path, execution: _Execution) -> Run:
    device, reporter, resume = execution.device, execution.reporter, execution.resume
    data = replace(data, recipe=broadcast_object(data.recipe))  # another machine may have them at another path
    with fail_together():
        data, request, config, selection, loss_fn, identity, search = _prepare(data, request, folder, execution)
        run = Run(folder) if resume else None
        backbone = request.backbone if isinstance(request.backbone, Backbone) else None
    check_same({"settings": config.fingerprint(), "data": identity.digest()} if is_distributed() else {})
    if run is not None and run.finished and not run.metrics["interrupted"]:
        if is_main_process():
            clean_folder(folder, interrupted=False, older_than=0)
        reporter.log(f"{folder} is finished already")
        with log_epochs(execution.log, folder, reporter.log, resume=True):
            return run
    for line in _description(data, request, config, selection, loss_fn, device):
        reporter.log(line)
    if config.protocol != "end-to-end":
        loss_fn = loss(config.method, **config.options)  # the linear phase prepares its own: the state is kept once
    with fail_together():
        network = initial_network(config, data, device, backbone)
        report_cost(data, config, network, loss_fn, device, execution.workers, reporter)
        if is_main_process():
            reopen_folder(folder)
            if backbone is not None and run is None:
                write_tensors(folder / INITIAL_WEIGHTS, backbone.state_dict())
            write_data_identity(folder, identity, data, reporter)
            write_config(folder, config)
    with log_epochs(execution.log, folder, reporter.log, execution.on_epoch, resume=resume) as on_epoch:
        shared = (selection, network, device, execution.workers, reporter, identity.changed, on_epoch)
        context = TrainingContext(folder, data, config, *shared)
        if config.protocol != "linear":
            write_results(context, _train_network(context, loss_fn))
        else:
            features = linear_features(context)
            with fail_together(), single_process():
                if is_main_process():
                    _train_head(context, request, features, search)
    barrier()
    return Run(folder, backbone=backbone)


def _prepare(
    data: Dataset, request: TrainingRequest, folder: Path, execution: _Execution
) -> tuple[Dataset, TrainingRequest, RunConfig, Selection, Loss, DataIdentity, Search | None]:
    """Resolve everything before anything is written, and make the folder."""
    device, log, resume = execution.device, execution.reporter.log, execution.resume
    stored = read_config(folder) if resume and is_run_folder(folder) else None
    data = prepare_data(data, request, device, stored)
    identity = DataIdentity.of(data)
    data, request = handle_reviewed_absents(data, request, log)
    changes = DataChanges()
    if stored is not None and Run(folder).metrics.get("interrupted", True):
        identity, changes = check_data(folder, identity, accept_changes=execution.accept_changes, log=log)
        request = as_started(request, stored) if changes else request
    config, selection, loss_fn = resolve_config(data, request, device, stored)
    if changes and config.folds:
        raise RunError(f"the folds of a cross-validation are of other data: {changes}. Train into a new folder.")
    if changes.rows and "index" in loss_fn.needs:
        raise RunError(f"{loss_fn.name} keeps state for every image, and {changes}: train into a new folder.")
    search, started = None, config
    if resume and _searches(data, config, request):
        methods = auto_methods(data) if request.method == "auto" else (config.method,)
        search = Search.load(folder, config.fingerprint(), data.train.labels, methods)
    if search is not None:
        config = config.model_copy(update=dict(search.settings))
    if config.protocol != "linear":
        check_batch_size(config.batch_size)
    loss_fn.to(device).prepare(data.train.labels, epochs=config.epochs, seed=config.seed)
    prepare_folder(folder, config, resume, started)
    return data, request, started, selection, loss_fn, identity, search


def _description(
    data: Dataset,
    request: TrainingRequest,
    config: RunConfig,
    selection: Selection,
    loss_fn: Loss,
    device: torch.device,
) -> Iterator[str]:
    """Yield what a user should know before the training."""
    reason = "" if config.why is None else f" ({config.why})"
    method = "auto" if request.method == "auto" and _searches(data, config, request) else config.method
    yield f"{method}{reason}; {config.protocol}, {config.backbone}, {pluralize(config.epochs, 'epoch')}"
    if untrained := describe_random_features(config):
        yield untrained
    if config.preset and (missing := describe_missing_settings(config.preset, data.recipe.get("name"))):
        yield missing
    yield from (str(finding) for finding in data.findings if isinstance(finding, ValidationHeldOut))
    yield selection.why if not config.folds else FOLDS_REASON.format(folds=config.folds)
    if config.trace == "off" and request.trace == "auto" and device.type == "cuda":
        yield "single labels are not traced on a GPU; --trace all does"
    if loss_fn.initialized:
        yield f"{loss_fn.name}: {loss_fn.initialized}"
    if loss_fn.state_bytes:
        yield f"{loss_fn.name} stores {format_bytes(loss_fn.state_bytes)} for the training images{loss_fn.state_form}"


def _searches(data: Dataset, config: RunConfig, request: TrainingRequest) -> bool:
    """Return whether settings are searched before the training; folds are trained for their scores in any case."""
    left = open_settings(request)
    left_open = request.method == "auto" or left["decay"] or (left["rate"] and config.optimizer != "newton")
    return config.folds > 0 or (left_open and is_searched(data, request, config.protocol, config.folds))


def _with_chosen_settings(context: TrainingContext, search: Search, fingerprint: str) -> TrainingContext:
    """Store a search and the settings that it chose; return the context with them."""
    config = context.config.model_copy(update={**search.settings, "why": search.reason})
    if search.reason is not None:
        context.reporter.log(f"{config.method}: {search.reason}")
    if is_main_process():
        search.save(context.folder, fingerprint)
        write_config(context.folder, config)
    return replace(context, config=config)


def _train_head(
    context: TrainingContext, request: TrainingRequest, features: dict[str, Tensor], search: Search | None
) -> None:
    """Train a head on fixed features, in one process, after a search for the settings that are open."""
    if _searches(context.data, context.config, request):
        fingerprint = context.config.fingerprint()
        if search is None:
            search = search_settings(
                context.data,
                context.config,
                request,
                features,
                context.selection,
                device=context.device,
                reporter=context.reporter,
            )
        context = _with_chosen_settings(context, search, fingerprint)
    write_results(context, linear_phase(context, features), search)


def _train_network(context: TrainingContext, loss_fn: Loss) -> PhaseResult:
    """Train the whole network, in linear-init after its head."""
    if context.config.protocol == "end-to-end":
        return network_phase(context, loss_fn)
    handoff = linear_init_phase(context)
    if handoff is not None:
        return network_phase(context, loss_fn, handoff)
    return PhaseResult(TrainingState(), Revisions(), lambda split: np.zeros((0, 0), dtype=np.float32))
