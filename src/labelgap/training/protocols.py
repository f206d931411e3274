"""The phases of the protocols: a linear head on fixed features, or the whole network.

"linear" is the first, "end-to-end" the second, "linear-init" the first and then the second.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.distributed import is_distributed, is_main_process, single_process
from labelgap.core.files import make_folder
from labelgap.core.tensors import read_tensors
from labelgap.labels import Revisions
from labelgap.losses import Loss
from labelgap.models.batch_norm import synchronize_batch_norm
from labelgap.training.checkpoint import TrainingState, load_weights, remove_previous
from labelgap.training.features import split_features
from labelgap.training.loop.inputs import ImageInputs, Inputs, predict_logits
from labelgap.training.loop.linear_trainer import HANDOFF_FILE, LinearTrainer, head_logits
from labelgap.training.loop.network_trainer import NetworkTrainer
from labelgap.training.loop.processes import broadcast_object, fail_together
from labelgap.training.loop.trainer import TrainingContext

LINEAR_FOLDER = "linear"
"""The folder of linear-init's first phase, in the folder of the run."""


@dataclass(frozen=True)
class PhaseResult:
    """The result of a phase."""

    state: TrainingState  # after the last epoch
    revisions: Revisions  # of the loss
    logits: Callable[[str], NDArray[np.float32]]  # of a split by its name, with the weights of the best epoch
    seconds_before: float = 0.0  # duration of an earlier phase
    loss_state: dict[str, Tensor] = field(default_factory=dict)  # what the loss passes to the next phase


@dataclass(frozen=True)
class Handoff:
    """What the linear phase passes to the next one: its duration, and the ``handoff_state`` of its loss."""

    seconds: float
    loss_state: dict[str, Tensor]


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
    shared = broadcast_object(handoff and (handoff.seconds, bool(handoff.loss_state)))
    if is_main_process() or shared is None:
        return handoff
    seconds, has_state = shared
    return Handoff(seconds, read_tensors(first.folder / HANDOFF_FILE)[0] if has_state else {})


def _linear_init(context: TrainingContext, first: TrainingContext, features: dict[str, Tensor]) -> Handoff | None:
    make_folder(first.folder)
    result = linear_phase(first, features, handoff=True)
    state = result.state
    if state.epoch < first.config.epochs:
        return None
    score = "" if state.best_score is None else f", val score {100 * state.best_score:.1f}"
    context.reporter.log(f"linear phase complete: best epoch {state.best_epoch} of {state.epoch}{score}")
    remove_previous(first.folder)
    handoff = Handoff(sum(record["seconds"] for record in state.history), result.loss_state)
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
        loss_fn.load_handoff_state(handoff.loss_state)
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
        0.0 if handoff is None else handoff.seconds,
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
