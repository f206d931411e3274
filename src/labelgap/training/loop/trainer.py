"""The training loop, top to bottom on one page: it calls every hook of the objective's contract."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from labelgap.core.seeds import numpy_generator
from labelgap.losses import Loss
from labelgap.training.checkpoints.checkpoint import Stateful, TrainingState
from labelgap.training.devices import widest_float
from labelgap.training.loop.distributed import (
    average_gradients,
    broadcast_buffers,
    gather_all,
    no_sync,
    shard_batches,
)
from labelgap.training.loop.epoch_end import Trainer, finish_epoch, note, run_epochs
from labelgap.training.loop.inputs import Inputs
from labelgap.training.loop.nan_guard import NanGuard, check_weights
from labelgap.training.loop.optimizers import LRSchedule, MovingAverage

__all__ = [
    "NetworkTrainer",
    "RunningMean",
    "iterate_batches",
    "iterate_logits",
    "predict_logits",
    "train",
    "train_epoch",
]

CHECK_EVERY = 200
"""Steps between two looks at whether the loss is still a number, which wait for the device."""


@dataclass(kw_only=True)
class NetworkTrainer(Trainer):
    """Everything the training of a network needs, put together by ``network_phase``.

    Attributes:
        network: from inputs to logits, and with ``return_features`` what its head saw as well.
        step: the network, wrapped where several processes train together.
        objective: prepared.
        inputs: of the training images.
        val_inputs: of the val images, or None.
        optimiser: over the network's and the objective's parameters.
        course: of its rates.
        average: moving average of the network's weights, or None.
        accumulate: batches per step.
        clip: largest norm of the gradient, or None.
        bf16: whether the network computes in bfloat16 where that is safe.
    """

    network: nn.Module
    step: nn.Module
    loss_fn: Loss
    inputs: Inputs
    val_inputs: Inputs | None
    optimizer: torch.optim.Optimizer
    course: LRSchedule
    average: MovingAverage | None = None
    accumulate: int = 1
    clip: float | None = None
    bf16: bool = False

    @property
    def scored(self) -> nn.Module:
        """The network that is scored and kept: the average, where there is one."""
        return self.network if self.average is None else self.average.network

    @property
    def parts(self) -> Mapping[str, Stateful]:
        """What a checkpoint keeps."""
        always: dict[str, Stateful] = {"network": self.network, "optimizer": self.optimizer}
        average: dict[str, Stateful] = {} if self.average is None else {"average": self.average}
        return {**always, "loss_fn": self.loss_fn, **average}

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Let the network compute in the run's precision."""
        return torch.autocast(device.type, torch.bfloat16) if self.bf16 else nullcontext()


def train(job: NetworkTrainer, device: torch.device) -> TrainingState:
    """Train to the last epoch; see ``run_epochs``."""
    return run_epochs(job, lambda state, epoch: train_epoch(job, state, epoch), device)


def train_epoch(job: NetworkTrainer, state: TrainingState, epoch: int) -> None:
    """One epoch: every training image once, then val, then a checkpoint."""
    started = time.perf_counter()
    job.network.train()
    job.loss_fn.set_epoch(epoch)
    job.trace.start_epoch()
    running = _train_steps(job, state, epoch)
    check_weights(job.network.parameters(), epoch)
    for network in (job.network, *([] if job.average is None else [job.average.network])):
        broadcast_buffers(network)
    scores = (lambda: iterate_logits(job.network, job.inputs, job=job)) if "scores" in job.loss_fn.needs else None
    revisions = job.loss_fn.end_epoch(scores)
    score = (
        job.selection.score(predict_logits(job.scored, job.val_inputs, job=job)) if job.val_inputs is not None else None
    )
    record: dict[str, Any] = {"epoch": epoch, "loss": running.value, "seconds": time.perf_counter() - started}
    finish_epoch(job, state, record, score, revisions)


def _train_steps(job: NetworkTrainer, state: TrainingState, epoch: int) -> RunningMean:
    """Take the steps of an epoch; ``accumulate`` batches make one."""
    order = numpy_generator(job.seed, "order", epoch).permutation(len(job.table))
    sizes = [min(job.batch_size, len(order) - start) for start in range(0, len(order), job.batch_size)]
    running, watch, group = RunningMean(), None, job.accumulate
    for number, (rows, inputs) in enumerate(iterate_batches(job.inputs, order, job.batch_size, epoch)):
        together = sum(sizes[number // group * group :][:group])
        last = (number + 1) % group == 0 or number + 1 == len(sizes)
        with nullcontext() if last else no_sync(job.step):
            loss, index = _backward(job, rows, inputs, sizes[number] / together)
        watch = watch or NanGuard(job.table.images, job.batch_size, loss.device)
        watch.look(loss, index, number + 1)
        if last:
            _step(job, watch, (epoch - 1) * -(-len(sizes) // group) + number // group)
        job.loss_fn.after_step()
        running.add(loss, sizes[number])
        if (number + 1) % CHECK_EVERY == 0 or number + 1 == len(sizes):
            watch.check(epoch)
        job.reporter.advance(note=lambda: note(epoch, job.epochs, running.value, state))
    return running


def _backward(job: NetworkTrainer, rows: Tensor, inputs: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Add the gradient of a batch, which is a ``share`` of its step; return its loss and its rows on the device."""
    index, labels = rows.to(inputs.device), job.table.batch(rows).to(inputs.device)
    with job.autocast(inputs.device):
        logits, features = job.step(inputs, return_features=True)
    logits, features = logits[: len(index)], features[: len(index)]
    loss: Tensor = job.loss_fn(logits, labels, index=index, features=features)
    if job.trace.active:
        modified = job.loss_fn.modified(logits.detach(), labels, index)
        job.trace.record(*gather_all(index, logits.detach(), labels, modified))
    weight = 1.0 if getattr(job.loss_fn, "reduction", "mean") == "sum" else share
    cost = weight * loss + share * job.loss_fn.penalty(job.network.parameters())
    cost.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), index


def _step(job: NetworkTrainer, watch: NanGuard, number: int) -> None:
    """Let the optimiser take step ``number`` of the run, counted from 0, unless a loss was not a number."""
    average_gradients(job.loss_fn.parameters())
    if job.clip is not None:
        clip_grad_norm_(job.network.parameters(), job.clip)
    job.course.set_rates(job.optimizer, number)
    watch.guard(job.optimizer)
    job.optimizer.step()
    job.optimizer.zero_grad(set_to_none=True)
    if job.average is not None:
        job.average.update(job.network)


def iterate_batches(
    inputs: Inputs, rows: NDArray[np.int64], batch_size: int, epoch: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, inputs)`` of this process's part of every batch.

    All processes take the same number of steps: where the last batch is too small for all, ``index`` is empty and one
    row of inputs comes along for the network, whose output must not count.
    """
    own, size, spare = shard_batches(rows, batch_size)
    last = -(-len(own) // size)
    for number, (index, values) in enumerate(inputs.batches(own, batch_size=size, epoch=epoch), 1):
        yield (index[:0] if spare and number == last else index), values


def predict_logits(
    network: nn.Module, inputs: Inputs, batch_size: int = 256, *, job: NetworkTrainer | None = None
) -> NDArray[np.float32]:
    """Return the logits of every row, in eval mode and without augmentation."""
    found = iterate_logits(network, inputs, batch_size, job=job)
    return np.concatenate([logits.float().cpu().numpy() for _, logits in found])


def iterate_logits(
    network: nn.Module, inputs: Inputs, batch_size: int = 256, *, job: NetworkTrainer | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, logits)`` of every row once, in eval mode and without augmentation.

    Several processes share the work, and every one of them gets everything. A job lends its precision.
    """
    was_training = network.training
    network.eval()
    try:
        for index, values in iterate_batches(inputs, np.arange(len(inputs)), batch_size):
            with torch.no_grad(), job.autocast(values.device) if job is not None else nullcontext():
                logits = network(values)[: len(index)].float()
            index, logits = gather_all(index.to(logits.device), logits)
            yield index, logits
    finally:
        network.train(was_training)


class RunningMean:
    """The mean of losses, summed on the device: reading ``value`` is what waits for it."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.count = 0

    def add(self, loss: Tensor, count: int) -> None:
        """Take in the mean loss of ``count`` images."""
        self.total = self.total + loss.detach().to(widest_float(loss.device)) * count
        self.count += count

    @property
    def value(self) -> float:
        """The mean so far."""
        return float(self.total) / max(self.count, 1)
