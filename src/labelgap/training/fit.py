"""``fit`` trains a run on a data set: it plans the training, trains its phases, and measures and writes the result."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.distributed import is_distributed, is_main_process, single_process
from labelgap.core.errors import RunError
from labelgap.core.files import make_folder, remove_file
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.core.special import expit
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataChanges, DataIdentity
from labelgap.labels.table import group_numbers
from labelgap.losses import Loss, describe_method, loss
from labelgap.metrics import Thresholds, choose_thresholds, revision_quality
from labelgap.metrics.label_model import fit_platt_calibration
from labelgap.models.batch_norm import synchronize_batch_norm
from labelgap.training.checkpoint import TrainingState, load_weights, remove_previous, report_saved_epochs
from labelgap.training.config import INITIAL_WEIGHTS, write_config
from labelgap.training.cost import CostEstimate, measure_cost, report_cost
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.features import split_features
from labelgap.training.history import write_history
from labelgap.training.keywords import TrainingKeywords
from labelgap.training.loggers import check_loggers, log_epochs
from labelgap.training.loop.inputs import ImageInputs, Inputs, predict_logits
from labelgap.training.loop.linear_trainer import LinearTrainer, head_logits
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
from labelgap.training.loop.trainer import EpochCallback, Trainer, TrainingContext, should_stop
from labelgap.training.network import copy_backbone, initial_network
from labelgap.training.plan import TrainingPlan, TrainingRequest, plan_training, prepare_data
from labelgap.training.prior import EVERY, CalibratedPrior, ignores_unknown, lay_prior
from labelgap.training.progress import Reporter
from labelgap.training.run import Run
from labelgap.training.run_files import HANDOFF_FILE, LINEAR_FOLDER, PRIOR_FILE
from labelgap.training.run_folder import (
    check_config,
    check_data,
    check_folder,
    check_links,
    clean_folder,
    default_folder,
    finish_folder,
    write_data_identity,
    write_predictions,
)
from labelgap.training.search import Search, search_settings
from labelgap.training.teacher import follow_teacher


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
    head: str = "auto",
    seed: int = 0,
    select: str = "auto",
    trace: str | int = "auto",
    allow_micro_batch: bool = False,
    teacher: str | os.PathLike[str] | None = None,
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
        options: the options of the method.
        backbone: a name, or a module that returns features; by default the data's, for linear heads a pretrained one.
        protocol: "linear", "end-to-end" or "linear-init"; by default that of the data and the device.
        out: the run folder; it must not hold a run yet, unless ``resume``. By default the first free one of
            runs/latest, runs/latest-2, …; to resume, the last of these.
        preset: a paper whose settings replace the defaults: one of ``PRESETS``.
        weights: a file of weights of the backbone; "none" for random ones.
        head: "linear"; "attention", which pools also by the maximum; "boostlu", which amplifies class activations;
            "zero-shot", linear, from the class names; "auto": attention for a whole pretrained network, else linear.
        seed: the seed of initialization, order and augmentation.
        select: how the epoch is chosen: "auto", "clean", "known", "observed" or "last".
        trace: how many training labels to record per epoch, or "auto", "all", "off".
        allow_micro_batch: allow ``accumulate`` for a loss that depends on the whole batch.
        teacher: a finished run, whose calibrated probabilities are the targets of unknown labels.
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
    workers, logs, reporter = choose_workers(workers, torch_device), check_loggers(log), Reporter(quiet)
    with lock_together(folder, "training"):
        check_links(folder)
        if isinstance(backbone, nn.Module):
            backbone, weights = copy_backbone(backbone, weights, folder, training.get("size"))
        file, guide = (None if path is None else os.fspath(path) for path in (weights, teacher))
        chosen = (method, options or {}, preset, backbone, file, protocol, head, seed, select, trace)
        request = TrainingRequest(*chosen, allow_micro_batch, guide, training)
        data = replace(data, recipe=broadcast_object(data.recipe))  # another machine may have them at another path
        with fail_together():
            check_folder(folder, resume)
            started = Run(folder) if resume else None
            plan = _plan_run(data, request, torch_device, started, accept_changes, reporter)
        return run_training(plan, folder, workers, reporter, started=started, log=logs, on_epoch=on_epoch)


def dry_run(
    data: Dataset, request: TrainingRequest, *, device: str = "auto", workers: int | None = None
) -> CostEstimate:
    """Plan a training, and estimate its cost from a few batches; writes nothing but the cache."""
    plan = plan_training(data, request, choose_device(device))
    plan.loss.to(plan.device).prepare(plan.data.train.labels, epochs=plan.config.epochs, seed=plan.config.seed)
    network = initial_network(plan.config, plan.data, plan.device)
    return measure_cost(plan, network, choose_workers(workers, plan.device))


def _plan_run(
    data: Dataset,
    request: TrainingRequest,
    device: torch.device,
    started: Run | None,
    accept_changes: bool,
    reporter: Reporter,
) -> TrainingPlan:
    """Plan a training, or the rest of the run that was started, on data that may have changed since."""
    stored = None if started is None else started.config
    data = prepare_data(data, request, device, stored)
    identity, changes = DataIdentity.of(data), DataChanges()
    if started is not None and started.metrics.get("interrupted", True):
        identity, changes = check_data(started.path, data, identity, accept_changes=accept_changes, reporter=reporter)
        request = request.as_started(started.config) if changes else request
    plan = plan_training(data, request, device, stored)
    if changes and plan.config.folds:
        raise RunError(f"the folds of a cross-validation are of other data: {changes}. Train into a new folder.")
    if changes.rows and "index" in plan.loss.needs:
        raise RunError(f"{plan.loss.name} keeps state for every image, and {changes}: train into a new folder.")
    if plan.config.protocol != "linear":
        check_batch_size(plan.config.batch_size)
    plan.loss.to(device).prepare(plan.data.train.labels, epochs=plan.config.epochs, seed=plan.config.seed)
    plan = replace(plan, notes=tuple(plan.lines()), identity=identity)
    if plan.config.protocol == "end-to-end":
        return plan
    # the linear phase prepares its own: the state is kept once
    return replace(plan, loss=loss(plan.config.method, **plan.config.options))


def run_training(
    plan: TrainingPlan,
    folder: Path,
    workers: int,
    reporter: Reporter,
    *,
    started: Run | None = None,
    log: Sequence[str] = (),
    on_epoch: EpochCallback | None = None,
) -> Run:
    """Train by a plan, in one process or several, and write the run; ``started`` is the one to resume."""
    config, data, identity, resume = plan.config, plan.data, plan.identity, started is not None
    assert identity is not None
    with fail_together():
        found = None if started is None else _resumed_search(plan, started)
    check_same({"settings": config.fingerprint(), "data": identity.digest()} if is_distributed() else {})
    if started is not None and not started.metrics.get("interrupted", True):
        if is_main_process():
            clean_folder(folder, interrupted=False, older_than=0)
        reporter.log(f"{folder} is finished already")
        with log_epochs(log, folder, reporter.log, resume=True):
            return started
    for line in plan.notes:
        reporter.log(line)
    with fail_together():
        network = initial_network(config, data, plan.device, plan.backbone)
        if config.average_sizes:
            times = f"{network.evaluation_cost:.1f} times the time of one pass"
            reporter.log(f"the results average over {' and '.join(map(str, config.average_sizes))} px: {times}")
        report_cost(plan, network, workers, reporter)
        if is_main_process():
            remove_file(folder / MANIFEST_FILE)  # not valid any more
            if plan.backbone is not None and not resume:
                write_tensors(folder / INITIAL_WEIGHTS, plan.backbone.state_dict())
            write_data_identity(folder, identity, data, reporter)
            write_config(folder, config)
    if config.teacher is not None:
        labels = follow_teacher(config.teacher, data.train, folder, plan.device.type, workers, reporter)
        data = replace(data, train=replace(data.train, labels=labels))
        plan = replace(plan, data=data)
    with log_epochs(log, folder, reporter.log, on_epoch, resume=resume) as on_epoch:
        shared = (plan.selection, network, plan.device, workers, reporter, identity.changed, on_epoch)
        context = TrainingContext(folder, data, config, *shared)
        features = linear_features(context) if config.protocol == "linear" or data.prior is not None else {}
        if data.prior is not None:
            context, plan = _lay_prior(context, plan, features)
        if config.protocol == "linear":
            with fail_together(), single_process():
                if is_main_process():
                    _train_head(context, plan, features, found)
        elif config.protocol == "end-to-end":
            _train_network(context, plan.loss)
        elif (handoff := _train_initial_head(context)) is not None:
            _train_network(context, plan.loss, *handoff)
    barrier()
    return Run(folder, backbone=plan.backbone)


def _resumed_search(plan: TrainingPlan, started: Run) -> Search | None:
    """Return what the run to resume has searched already; an error if it was started with other settings."""
    config, search = plan.config, None
    if plan.search is not None:
        methods = (*plan.search.methods, EVERY) if plan.search.methods else (config.method,)
        search = Search.load(started.path, config.fingerprint(), plan.data.train.labels, methods)
    chosen = config if search is None else config.model_copy(update=dict(search.settings))
    check_config(started.path, started.config, chosen, config)
    return search


def _lay_prior(
    context: TrainingContext, plan: TrainingPlan, features: dict[str, Tensor]
) -> tuple[TrainingContext, TrainingPlan]:
    """Calibrate the prior of the data in one process, or read what a run to resume has made of it.

    Known labels out of fold do not tell whether a method with a prior is better than one without, where presents alone
    are known: a search by them compares only methods that take it, if it is used.
    """
    data, folder = context.data, context.folder
    assert data.prior is not None
    digest, labels = data.prior.digest(), data.train.labels
    with fail_together(), single_process():
        if is_main_process() and not (folder / PRIOR_FILE).exists():
            optional = plan.search.methods != () if plan.search is not None else context.config.why is not None
            lay_prior(data, context.config, features, context.device, optional=optional).save(folder, digest)
    barrier()
    found = CalibratedPrior.load(folder, digest, labels)
    assert found is not None
    context.reporter.log(str(found))
    data, search = replace(data, train=replace(data.train, labels=labels.with_soft(found.soft))), plan.search
    if search is not None and search.methods and found.soft is not None:
        methods, every = [*search.methods], [EVERY] if found.record.every else []
        if found.record.judge == "train":
            takes = [name for name in methods if describe_method(name).loss_class.takes_soft]
            methods = [] if every else [name for name in takes if not ignores_unknown(name)]
        search = replace(search, methods=tuple(dict.fromkeys([*methods, *every])))
    return replace(context, data=data, prior=found.record), replace(plan, data=data, search=search)


def _train_head(
    context: TrainingContext, plan: TrainingPlan, features: dict[str, Tensor], search: Search | None
) -> None:
    """Train a head on fixed features, in one process, after a search for the settings that are open."""
    if plan.search is not None:
        search = search or search_settings(plan, features, context.reporter)
        config = plan.config.model_copy(update={**search.settings, "why": search.reason or plan.config.why})
        if search.reason is not None:
            context.reporter.log(f"{config.method}: {search.reason}")
        search.save(context.folder, plan.config.fingerprint())
        write_config(context.folder, config)
        context = replace(context, config=config)
        if context.prior is not None and context.prior.used and not loss(config.method, **config.options).takes_soft:
            context.reporter.log(f"the prior is not used after all: {config.method} takes none, and val prefers it")
            context = replace(context, prior=context.prior.model_copy(update={"used": False}))
    trainer, state = _fit_head(context, features)
    _write_results(context, trainer, state, lambda split: head_logits(trainer.engine, features[split]), search=search)


def _train_initial_head(context: TrainingContext) -> tuple[float, dict[str, Tensor]] | None:
    """Train the head on fixed features in one process, and leave the weights of its best epoch in the network.

    The result is the duration and the ``handoff_state`` of the loss; None if a Ctrl-C came before the phase was
    complete.
    """
    folder = context.folder / LINEAR_FOLDER
    context = replace(context, folder=folder, config=context.config.linear_phase(), on_epoch=None)
    features, seconds, handoff = linear_features(context), None, dict[str, Tensor]()
    with fail_together(), single_process():
        if is_main_process():
            make_folder(folder)
            trainer, state = _fit_head(context, features, handoff=True)
            if state.epoch == context.config.epochs:
                score = "" if state.best_score is None else f", val score {100 * state.best_score:.1f}"
                epochs = f"best epoch {state.best_epoch} of {state.epoch}"
                context.reporter.log(f"linear phase complete: {epochs}{score}")
                remove_previous(folder)
                seconds = sum(record["seconds"] for record in state.history)
                handoff = trainer.handoff_state(state.best_epoch)
            del trainer
            gc.collect()  # a CUDA graph of the engine must be freed before loader processes are forked
    seconds, stored = broadcast_object((seconds, bool(handoff)))
    if seconds is None:
        return None
    return seconds, handoff if is_main_process() or not stored else read_tensors(folder / HANDOFF_FILE)[0]


def _fit_head(
    context: TrainingContext, features: dict[str, Tensor], *, handoff: bool = False
) -> tuple[LinearTrainer, TrainingState]:
    """Train a head on the fixed features of every split, in one process; its engine has the best weights then."""
    trainer = LinearTrainer(context, features, handoff=handoff)
    state, head = trainer.fit(), context.network.head
    if state.epoch:
        load_weights(context.folder, trainer.saved)
        trainer.engine.set_heads(head.weight[None], head.bias[None])
    return trainer, state


def _train_network(
    context: TrainingContext, loss_fn: Loss, seconds: float = 0.0, handoff: dict[str, Tensor] | None = None
) -> None:
    """Train the whole network; a linear phase before took so many seconds, and its loss left a ``handoff``."""
    config, network, data = context.config, context.network, context.data
    if context.device.type == "cuda":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if handoff is not None or data.train.labels.soft is not None:
        loss_fn.to(context.device).prepare(data.train.labels, epochs=config.epochs, seed=config.seed)
    if handoff is not None:
        loss_fn.load_handoff_state(handoff)
    how = (network.backbone, context.device, config.flip, config.seed, context.workers, config.transform)
    inputs: dict[str, Inputs] = {split.name: ImageInputs(split.images, *how).in_memory() for split in data.splits}
    if config.batchnorm == "sync" and is_distributed():
        synchronize_batch_norm(network)
    network.average_sizes = ()  # epochs are compared at one size
    trainer = NetworkTrainer(context, loss_fn, inputs)
    state = trainer.fit()
    if state.epoch:
        load_weights(context.folder, network)

    def best_logits(split: str, sizes: Sequence[int] = ()) -> NDArray[np.float32]:
        network.average_sizes = tuple(sizes)
        return predict_logits(network, inputs[split], autocast=trainer.autocast)

    _write_results(context, trainer, state, best_logits, seconds)


def linear_features(context: TrainingContext) -> dict[str, Tensor]:
    """Return the features of every split; several processes divide the work, and the first gets all features."""
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


def _write_results(
    context: TrainingContext,
    trainer: Trainer,
    state: TrainingState,
    best_logits: Callable[..., NDArray[np.float32]],
    seconds_before: float = 0.0,
    search: Search | None = None,
) -> None:
    """Measure the best epoch, and write predictions, trace and summary; nothing where no epoch is complete."""
    data, config, revisions = context.data, context.config, trainer.revisions
    if not state.epoch:
        return
    unseen, truth = None if search is None else search.logits, data.train.truth
    logits = dict[str, NDArray[np.float32]]()
    for split in data.splits:
        if split.name == "train" and unseen is not None:
            logits["train"] = unseen
        elif split.name != "train" or truth is not None:
            sizes = [config.average_sizes] if config.average_sizes else []
            logits[split.name] = best_logits(split.name, *sizes)
    measured = [split for split in data.splits if split.name in logits]
    chosen_on, backbone = data.val if unseen is None else data.train, context.network.backbone
    cuts, calibration = Thresholds.default(len(data.classes)), None
    if chosen_on is not None:
        cuts = choose_thresholds(expit(logits[chosen_on.name]), chosen_on.labels.to_dense())
        calibration = fit_platt_calibration(logits[chosen_on.name], chosen_on.labels)
    groups = group_numbers(data.train.labels)
    summary: dict[str, Any] = {
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "divergences": state.divergences,
        "interrupted": state.epoch < config.epochs and not should_stop(state, config.stop_below),
        "seconds": sum(record["seconds"] for record in state.history) + seconds_before,
        "select": config.select,
        "score": state.best_score,
        "weights": {"source": backbone.source, "license": backbone.license, "size": backbone.input_spec.size},
        "calibration": calibration,
        "thresholds": {"values": cuts.values.tolist(), "marks": list(cuts.marks)},
        "class_groups": groups,
        "prior": None if context.prior is None else context.prior.model_dump(),
    }
    for split in measured:
        summary[split.name] = evaluate_scores(logits[split.name], split.evaluation_labels, cuts, groups=groups)
        if config.average_sizes:
            one = evaluate_scores(best_logits(split.name), split.evaluation_labels, cuts)
            summary[split.name]["map_one_size"] = one["map"]
    if len(revisions) and truth is not None:
        summary["revisions"] = asdict(revision_quality(data.train.labels, truth, revisions))
    if search is not None:
        compared = {"compared": list(search.compared)}
        summary |= {"search": compared} if unseen is None else {"cross_validation": {"folds": config.folds, **compared}}
    if not is_main_process():
        return
    scored = [split for split in measured if split.name != "train" or unseen is not None]
    with report_saved_epochs(context.folder):
        names = {split.name: (split.labels.images, logits[split.name]) for split in scored}
        write_predictions(context.folder, names, config.classes)
        merge_trace(context.folder)
        write_history(context.folder, state.history, summary)
        finish_folder(context.folder, interrupted=summary["interrupted"])
