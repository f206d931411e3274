"""The phases that a protocol is made of: a head on fixed features, or the whole network."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.distributed import is_main_process, single_process
from labelgap.core.files import make_folder
from labelgap.data.dataset import Dataset
from labelgap.labels import Revisions
from labelgap.losses import Loss
from labelgap.losses.role import OnlineLabelEstimation
from labelgap.models import Classifier
from labelgap.training.checkpoints.checkpoint import TrainingState, load_weights, remove_previous
from labelgap.training.config.schema import LinearPhase, RunConfig
from labelgap.training.features.extract import extract_features
from labelgap.training.features.precomputed import feature_inputs, saves_backbone
from labelgap.training.heads import HeadPlan, LinearEngine
from labelgap.training.loop.distributed import barrier, wrap_distributed
from labelgap.training.loop.inputs import ImageInputs, Inputs
from labelgap.training.loop.linear_trainer import (
    FrozenBackboneClassifier,
    HeadTrainer,
    estimate_of,
    head_logits,
    train_head,
)
from labelgap.training.loop.optimizers import LRSchedule, MovingAverage, build_optimizer
from labelgap.training.loop.trace import Trace
from labelgap.training.loop.trainer import NetworkTrainer, predict_logits, train
from labelgap.training.progress import Reporter
from labelgap.training.selection import Selection

__all__ = ["Handoff", "PhaseResult", "TrainingContext", "linear_init_phase", "linear_phase", "network_phase"]

LINEAR_FOLDER = "linear"
"""The folder of linear-init's first phase, below the run's."""
_OF_A_NETWORK = (
    *("optimizer", "momentum", "nesterov", "weight_decay", "schedule", "warmup"),
    *("clip", "ema", "accumulate", "stop_below", "transform"),
)
"""Settings of the second phase alone."""


@dataclass(frozen=True)
class TrainingContext:
    """What every phase of a run has: where it writes, what it learns from, how, and who is told."""

    folder: Path
    data: Dataset
    config: RunConfig
    selection: Selection
    network: Classifier
    device: torch.device
    workers: int
    reporter: Reporter


@dataclass(frozen=True)
class PhaseResult:
    """What a phase came to.

    Attributes:
        state: where training ended.
        revisions: what the method changed.
        logits: gives the logits of a split by its name, under the weights of the best epoch.
        seconds_before: how long an earlier phase took.
        estimate: what ROLE takes the labels to be, ``(N, K)``.
    """

    state: TrainingState
    revisions: Revisions
    logits: Callable[[str], NDArray[np.float32]]
    seconds_before: float = 0.0
    estimate: Tensor | None = None


@dataclass(frozen=True)
class Handoff:
    """What the linear phase hands to the next: its seconds and, for ROLE, what it takes the labels to be."""

    seconds: float
    estimate: Tensor | None


def linear_init_phase(phase: TrainingContext) -> Handoff | None:
    """Train the head on fixed features, and leave it in the network with the weights of its best epoch.

    Epochs are counted from 1 in each phase, and revisions start afresh in the next (Cole 2021, Kim 2022). None where a
    Ctrl-C came before the phase was done.
    """
    config = phase.config
    assert config.linear is not None
    first = replace(phase, folder=phase.folder / LINEAR_FOLDER, config=_first_phase(config, config.linear))
    make_folder(first.folder)
    outcome = linear_phase(first)
    if outcome.state.epoch < first.config.epochs:
        return None
    score = "" if outcome.state.best_score is None else f", val score {100 * outcome.state.best_score:.1f}"
    phase.reporter.log(f"linear phase done: epoch {outcome.state.best_epoch} of {outcome.state.epoch} kept{score}")
    if is_main_process():
        remove_previous(first.folder)
    start = Handoff(sum(record["seconds"] for record in outcome.state.history), outcome.estimate)
    del outcome
    gc.collect()  # what the engine had captured on a GPU must be gone before loader processes are forked
    return start


def _first_phase(config: RunConfig, settings: LinearPhase) -> RunConfig:
    """Return the configuration of linear-init's first phase: its own epochs, rate and batch, and nothing special."""
    fields = RunConfig.model_fields
    plain = {name: fields[name].default for name in (*_OF_A_NETWORK, "linear")}
    own = {**settings.model_dump(), "backbone_lr": settings.lr, "protocol": "linear", "trace": "off"}
    return config.model_copy(update={**plain, **own})


def linear_phase(phase: TrainingContext) -> PhaseResult:
    """Train a head on features that are computed once; of several processes each trains the same one for itself."""
    config, split = phase.config, phase.data.train
    features = _features(phase)
    with single_process():
        plan = HeadPlan(config.method, config.options, config.lr, split.labels, config.seed)
        engine = LinearEngine(
            features["train"],
            [plan],
            epochs=config.epochs,
            batch_size=config.batch_size,
            order_seed=config.seed,
            device=phase.device,
            optimizer=config.optimizer,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
        backbone = phase.network.backbone
        probe = FrozenBackboneClassifier(phase.network.head, backbone if saves_backbone(config, backbone) else None)
        job = HeadTrainer(engine=engine, probe=probe, val_features=features.get("val"), **_kept(phase))
        state = train_head(job, phase.device)
    barrier()
    if state.epoch:
        load_weights(phase.folder, probe)
        engine.set_heads(phase.network.head.weight[None], phase.network.head.bias[None])
    return PhaseResult(
        state, job.revisions, lambda name: head_logits(engine, features[name]), estimate=estimate_of(engine)
    )


def network_phase(phase: TrainingContext, made: Loss, start: Handoff | None = None) -> PhaseResult:
    """Train the whole network, from where the linear phase has left its head if there was one."""
    config, network = phase.config, phase.network
    if phase.device.type == "cuda":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if start is not None:
        made.to(phase.device).prepare(phase.data.train.labels, epochs=config.epochs, seed=config.seed)
        if isinstance(made, OnlineLabelEstimation) and start.estimate is not None:
            made.start_from(start.estimate)
    inputs: dict[str, Inputs] = {
        split.name: ImageInputs(
            split.images, network.backbone, phase.device, config.flip, config.seed, phase.workers, config.transform
        ).in_memory()
        for split in phase.data.splits
    }
    job = _job(phase, made, inputs)
    state = train(job, phase.device)
    if state.epoch:
        load_weights(phase.folder, network)
    before = start.seconds if start is not None else 0.0
    return PhaseResult(state, job.revisions, lambda split: predict_logits(network, inputs[split], job=job), before)


def _features(phase: TrainingContext) -> dict[str, Tensor]:
    """Return the features of every split: those that the data are, or those that the backbone computes."""
    data, network = phase.data, phase.network
    made = {
        split.name: given.features
        for split in data.splits
        if (given := feature_inputs(split.images, network, phase.device)) is not None
    }
    if made:
        return made
    if not is_main_process():
        barrier()  # the first process computes the features, the others find them in the cache
    with phase.reporter.bar("features", sum(len(split) for split in data.splits)):
        for split in data.splits:
            features = extract_features(
                split.images,
                network.backbone,
                device=phase.device,
                workers=phase.workers,
                advance=phase.reporter.advance,
                say=phase.reporter.log,
            )
            made[split.name] = torch.from_numpy(np.array(features)).to(phase.device)
    if is_main_process():
        barrier()
    return made


def _kept(phase: TrainingContext) -> dict[str, Any]:
    """Return what the trainings of a head and of a network have in common."""
    config, split = phase.config, phase.data.train
    return {
        "folder": phase.folder,
        "fingerprint": config.fingerprint(),
        "table": split.labels,
        "truth": split.truth,
        "selection": phase.selection,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "stop_below": config.stop_below,
        "trace": Trace(split.labels, split.truth, config.trace, config.seed),
        "reporter": phase.reporter,
    }


def _job(phase: TrainingContext, made: Loss, inputs: dict[str, Inputs]) -> NetworkTrainer:
    """Put the training of the whole network together."""
    config, network = phase.config, phase.network
    steps = -(-len(phase.data.train) // (config.batch_size * config.accumulate))
    groups = [
        {"params": list(network.head.parameters()), "lr": config.lr},
        {"params": list(network.backbone.parameters()), "lr": config.backbone_lr},
        *({**group, "weight_decay": 0.0} for group in made.parameter_groups(config.lr)),
    ]
    return NetworkTrainer(
        network=network,
        step=wrap_distributed(network),
        loss_fn=made,
        inputs=inputs["train"],
        val_inputs=inputs.get("val"),
        optimizer=build_optimizer(groups, config),
        course=LRSchedule.of(config, steps),
        average=None if config.ema is None else MovingAverage(network, config.ema),
        accumulate=config.accumulate,
        clip=config.clip,
        bf16=config.precision == "bf16",
        **_kept(phase),
    )
