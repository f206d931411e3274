"""The training loop of a network, top to bottom on one page: it calls every hook of the loss contract."""

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
from torch.optim.lr_scheduler import LRScheduler

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
from labelgap.training.loop.epoch_end import finish_epoch
from labelgap.training.loop.inputs import Inputs
from labelgap.training.loop.nan_guard import NanGuard, check_weights
from labelgap.training.loop.optimizers import MovingAverage
from labelgap.training.loop.trainer import Trainer

__all__ = ["NetworkTrainer", "RunningMean", "iterate_batches", "iterate_logits", "predict_logits"]

CHECK_EVERY = 200
"""Steps between two checks that the losses are finite; a check waits for the device."""


@dataclass(kw_only=True)
class NetworkTrainer(Trainer):
    """Trains a whole network.

    Attributes:
        network: from inputs to logits; with ``return_features`` also the features of its head.
        ddp_network: the network, wrapped where several processes train together.
        loss_fn: prepared.
        inputs: of the training images.
        val_inputs: of the val images, or None.
        optimizer: over the parameters of the network and of the loss.
        scheduler: of the learning rates; steps after every optimizer step.
        average: moving average of the weights, or None.
        accumulate: batches per optimizer step.
        clip: largest norm of the gradient, or None.
        bf16: whether the network computes in bfloat16 autocast.
    """

    network: nn.Module
    ddp_network: nn.Module
    loss_fn: Loss
    inputs: Inputs
    val_inputs: Inputs | None
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    average: MovingAverage | None = None
    accumulate: int = 1
    clip: float | None = None
    bf16: bool = False

    @property
    def scored_network(self) -> nn.Module:
        """The network that is scored and saved: the moving average, where there is one."""
        return self.network if self.average is None else self.average.module

    @property
    def parts(self) -> Mapping[str, Stateful]:
        """What a checkpoint saves."""
        parts: dict[str, Stateful] = {"network": self.network, "optimizer": self.optimizer, "loss_fn": self.loss_fn}
        average: dict[str, Stateful] = {} if self.average is None else {"average": self.average}
        return {**parts, "scheduler": self.scheduler, **average}

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context of the run's precision."""
        return torch.autocast(device.type, torch.bfloat16) if self.bf16 else nullcontext()

    def train_epoch(self, state: TrainingState, epoch: int) -> None:
        """Train on every image once, score val, and write a checkpoint."""
        started = time.perf_counter()
        self.network.train()
        self.loss_fn.set_epoch(epoch)
        self.trace.start_epoch()
        mean_loss = self._train_steps(state, epoch)
        check_weights(self.network.parameters(), epoch)
        broadcast_buffers(self.network)
        if self.average is not None:
            broadcast_buffers(self.average.module)
        needs_scores = "scores" in self.loss_fn.needs
        scores = (lambda: iterate_logits(self.network, self.inputs, trainer=self)) if needs_scores else None
        revisions = self.loss_fn.end_epoch(scores)
        score = None
        if self.val_inputs is not None:
            score = self.selection.score(predict_logits(self.scored_network, self.val_inputs, trainer=self))
        record: dict[str, Any] = {"epoch": epoch, "loss": mean_loss.value, "seconds": time.perf_counter() - started}
        finish_epoch(self, state, record, score, revisions)

    def _train_steps(self, state: TrainingState, epoch: int) -> RunningMean:
        """Take the steps of an epoch; ``accumulate`` batches make one."""
        order = numpy_generator(self.seed, "order", epoch).permutation(len(self.table))
        sizes = [min(self.batch_size, len(order) - start) for start in range(0, len(order), self.batch_size)]
        mean_loss, guard, group = RunningMean(), None, self.accumulate
        for number, (rows, inputs) in enumerate(iterate_batches(self.inputs, order, self.batch_size, epoch)):
            images_per_step = sum(sizes[number // group * group :][:group])
            last_of_epoch = number + 1 == len(sizes)
            steps = last_of_epoch or (number + 1) % group == 0
            with nullcontext() if steps else no_sync(self.ddp_network):
                loss, index = self._backward(rows, inputs, sizes[number] / images_per_step)
            guard = guard or NanGuard(self.table.images, self.batch_size, loss.device)
            guard.update(loss, index, number + 1)
            if steps:
                self._step(guard)
            mean_loss.add(loss, sizes[number])
            if last_of_epoch or (number + 1) % CHECK_EVERY == 0:
                guard.check(epoch)
            self.reporter.advance(note=lambda: self.progress_note(epoch, mean_loss.value, state))
        return mean_loss

    def _backward(self, rows: Tensor, inputs: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Add the gradient of a batch, a ``share`` of its step; return its loss and its rows on the device."""
        index, labels = rows.to(inputs.device), self.table.batch(rows).to(inputs.device)
        with self.autocast(inputs.device):
            logits, features = self.ddp_network(inputs, return_features=True)
        logits, features = logits[: len(index)], features[: len(index)]
        loss: Tensor = self.loss_fn(logits, labels, index=index, features=features)
        if self.trace.active:
            modified = self.loss_fn.modified(logits.detach(), labels, index)
            self.trace.record(*gather_all(index, logits.detach(), labels, modified))
        weight = 1.0 if self.loss_fn.reduction == "sum" else share
        cost = weight * loss + share * self.loss_fn.penalty(self.network.parameters())
        cost.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), index

    def _step(self, guard: NanGuard) -> None:
        """Take an optimizer step, which changes nothing after a loss that was not finite."""
        average_gradients(self.loss_fn.parameters())
        if self.clip is not None:
            clip_grad_norm_(self.network.parameters(), self.clip)
        guard.guard(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        self.loss_fn.after_step()
        if self.average is not None:
            self.average.update_parameters(self.network)


def iterate_batches(
    inputs: Inputs, rows: NDArray[np.int64], batch_size: int, epoch: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, inputs)`` of this process's part of every batch.

    All processes take the same number of steps: where the last batch is too small for all, ``index`` is empty and one
    row of inputs comes along for the network, whose output must not count.
    """
    own, size, padded = shard_batches(rows, batch_size)
    last = -(-len(own) // size)
    for number, (index, values) in enumerate(inputs.batches(own, batch_size=size, epoch=epoch), 1):
        yield (index[:0] if padded and number == last else index), values


def predict_logits(
    network: nn.Module, inputs: Inputs, batch_size: int = 256, *, trainer: NetworkTrainer | None = None
) -> NDArray[np.float32]:
    """Return the logits of every row, in eval mode and without augmentation."""
    batches = iterate_logits(network, inputs, batch_size, trainer=trainer)
    return np.concatenate([logits.float().cpu().numpy() for _, logits in batches])


def iterate_logits(
    network: nn.Module, inputs: Inputs, batch_size: int = 256, *, trainer: NetworkTrainer | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, logits)`` of every row once, in eval mode and without augmentation.

    Several processes share the work, and each gets the logits of all. A trainer sets the precision.
    """
    was_training = network.training
    network.eval()
    try:
        for index, values in iterate_batches(inputs, np.arange(len(inputs)), batch_size):
            with torch.no_grad(), trainer.autocast(values.device) if trainer is not None else nullcontext():
                logits = network(values)[: len(index)].float()
            index, logits = gather_all(index.to(logits.device), logits)
            yield index, logits
    finally:
        network.train(was_training)


class RunningMean:
    """The mean of losses, summed on the device; reading ``value`` waits for it."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.count = 0

    def add(self, loss: Tensor, count: int) -> None:
        """Add the mean loss of ``count`` images."""
        self.total = self.total + loss.detach().to(widest_float(loss.device)) * count
        self.count += count

    @property
    def value(self) -> float:
        """The mean so far."""
        return float(self.total) / max(self.count, 1)
