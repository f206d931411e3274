"""The training of a network, top to bottom: an epoch, its steps, and the way of one step.

    inputs → forward → loss → backward → (every ``accumulate`` batches) optimizer step → hooks of the loss

Beside the way are the speed-ups (``cuda_graphs``, ``inputs``) and what follows a divergence (``divergence``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from labelgap.core.distributed import is_distributed, is_main_process
from labelgap.core.errors import RunError
from labelgap.core.seeds import numpy_generator
from labelgap.data.images import shuffle_rows
from labelgap.labels import Revisions
from labelgap.losses import Loss
from labelgap.models.batch_norm import freeze_batch_norm, no_statistics
from labelgap.training.checkpoint import PartialEpoch, Stateful, TrainingState, load_weights, save_checkpoint
from labelgap.training.cuda_graphs import GraphedStep, StepResult, why_not_captured
from labelgap.training.heads.engine import LabelTables
from labelgap.training.loop.divergence import (
    MAX_HALVINGS,
    DivergenceError,
    NanGuard,
    RestartPoint,
    are_finite,
    check_finite,
    describe_divergence,
    describe_restart,
    halve_rates,
)
from labelgap.training.loop.inputs import (
    ImageInputs,
    Inputs,
    iterate_batches,
    iterate_logits,
    predict_logits,
    to_device,
)
from labelgap.training.loop.optimizers import MovingAverage, build_optimizer, build_scheduler
from labelgap.training.loop.processes import average_gradients, broadcast_buffers, gather_all
from labelgap.training.loop.trainer import Trainer, TrainingContext
from labelgap.training.selection import EpochScore
from labelgap.training.signals import defer_interrupt

CHECK_EVERY = 200
"""Steps between two checks that the losses are finite; a check waits for the device."""
MAX_LABELS = 2**30
"""Labels of a training, known or not, up to which all are on the GPU; else every batch is copied there."""
MAX_LABELS_ON_HOST = 2**24
"""Labels up to which a batch is taken from all of them without a GPU, not from the known ones alone."""


class NetworkTrainer(Trainer):
    """Trains a whole network with a prepared loss, on the inputs of every split."""

    def __init__(self, context: TrainingContext, loss_fn: Loss, inputs: Mapping[str, Inputs]) -> None:
        super().__init__(context)
        config, device = context.config, context.device
        self.network, self.loss_fn, self.inputs = context.network, loss_fn, inputs
        self.ddp_network = DistributedDataParallel(self.network) if is_distributed() else self.network
        groups = [
            {"params": list(self.network.head.parameters()), "lr": config.lr},
            {"params": list(self.network.backbone.parameters()), "lr": config.backbone_lr},
            *({**group, "weight_decay": 0.0} for group in loss_fn.parameter_groups(config.lr)),
        ]
        self.optimizer = build_optimizer(groups, config)
        self.steps_per_epoch = -(-len(self.table) // (config.batch_size * config.accumulate))
        self.scheduler = build_scheduler(self.optimizer, config, self.steps_per_epoch)
        self.average = None if config.ema is None else MovingAverage(self.network, config.ema)
        self.restart_point = RestartPoint(loss_fn, self.network)
        self.guard = NanGuard(self.table.images, config.batch_size, device)
        self.saved_at = time.monotonic()
        dense = np.prod(self.table.shape) <= (MAX_LABELS if device.type == "cuda" else MAX_LABELS_ON_HOST)
        self.labels = LabelTables([self.table], device).dense if dense else None
        decoded = all(isinstance(each, ImageInputs) and each.pixels is not None for each in inputs.values())
        own_loss = "index" not in loss_fn.needs and type(loss_fn).__module__.startswith("labelgap.losses.")
        self.graphed_step = GraphedStep(
            [self.network, loss_fn],
            device,
            batch_size=config.batch_size,
            disabled=why_not_captured(loss_fn, device, config.accumulate),
            lasting=own_loss and decoded,
            log=context.reporter.log,
        )

    @property
    def scored_network(self) -> nn.Module:
        """The network that is scored and saved: the moving average, where there is one."""
        return self.network if self.average is None else self.average.module

    @property
    def parts(self) -> Mapping[str, Stateful]:
        """What a checkpoint saves."""
        parts: dict[str, Stateful] = {"network": self.network, "optimizer": self.optimizer, "loss_fn": self.loss_fn}
        average: dict[str, Stateful] = {} if self.average is None else {"average": self.average}
        return {**parts, "scheduler": self.scheduler, "restart_point": self.restart_point, **average}

    def fit(self) -> TrainingState:
        """Train to the last epoch, and free what only training needs."""
        try:
            return super().fit()
        finally:
            self.graphed_step.release()

    def score_start(self, state: TrainingState) -> None:
        """Let the linear head that linear-init starts with compete as epoch 0, where val is scored."""
        started = time.perf_counter()
        if self.config.protocol == "linear-init" and (score := self._score_val(0)) is not None:
            self.record_start(state, score, time.perf_counter() - started)
            flips = ", averaged with mirror images" if self.config.average_flips else ""
            self.context.reporter.log(
                f"epoch 0, the linear head: val score {100 * score.value:.1f}{flips}; kept unless an epoch is better"
            )

    def train_epoch(self, state: TrainingState, epoch: int) -> None:
        """Train on every image once, score val, and write a checkpoint; restart from the best epoch on divergence."""
        partial = state.partial = state.partial or PartialEpoch()
        record: dict[str, Any] = {"epoch": epoch, "loss": None, "seconds": 0.0}
        if state.divergences:
            record["lr_factor"] = 0.5**state.divergences
        if state.history:
            self.restart_point.weights = None  # a file has those of the best epoch
        score, revisions, diverged = None, Revisions(), None
        try:
            record["loss"] = self._train(state, epoch)
            score = self._score_val(epoch)
            diverged = describe_divergence(state, epoch, record["loss"], score)
        except DivergenceError as error:
            diverged = error.problem
            if not state.history and state.divergences == MAX_HALVINGS:
                raise RunError(f"{error} Halving the rates {MAX_HALVINGS} times did not help.") from None
        state.partial = None
        if diverged is None:
            revisions = self._revise_labels()
        else:
            self._restart(state, epoch, diverged)
            if not state.history:
                return  # there is no epoch to restart from: the first one is trained again
            record["restarted"] = True
        record["seconds"] = partial.elapsed
        self.finish_epoch(state, record, score, revisions)

    def _train(self, state: TrainingState, epoch: int) -> float:
        """Train on every image once, or on those that are left of a partial epoch; return the mean loss of all."""
        partial = state.partial = state.partial or PartialEpoch()
        self.network.train()
        if self.config.batchnorm == "frozen":
            freeze_batch_norm(self.network)
        self.loss_fn.set_epoch(epoch)
        self.trace.start_epoch(partial.trace)
        try:
            self._train_steps(state, epoch)
        finally:
            self.graphed_step.end_epoch()
        check_finite("the weights", are_finite(self.network.parameters()), epoch)
        broadcast_buffers(self.network)
        if self.average is not None:
            broadcast_buffers(self.average.module)
        return partial.mean_loss

    def _train_steps(self, state: TrainingState, epoch: int) -> None:
        """Take the steps of an epoch after those of ``state.partial``; ``accumulate`` batches make one.

        In between, a checkpoint is written where one is due. A Ctrl-C waits for the end of a step, with one process.
        """
        batch_size, group = self.config.batch_size, self.config.accumulate
        order = shuffle_rows(self.context.data.train.images, numpy_generator(self.config.seed, "order", epoch))
        sizes = [min(batch_size, len(order) - start) for start in range(0, len(order), batch_size)]
        guard = self.guard = NanGuard(self.table.images, batch_size, self.context.device)
        partial = state.partial or PartialEpoch()
        done, self.saved_at = partial.batches, time.monotonic()
        if done >= len(sizes):  # only val is left to score
            return
        batches = iterate_batches(self.inputs["train"], order[done * batch_size :], batch_size, epoch)
        deferred: AbstractContextManager[list[int]] = nullcontext([]) if is_distributed() else defer_interrupt()
        with deferred as interrupts:
            for number, (rows, inputs) in enumerate(batches, done):
                state.partial = None
                images_per_step = sum(sizes[number // group * group :][:group])
                last_of_epoch = number + 1 == len(sizes)
                steps = last_of_epoch or (number + 1) % group == 0
                ddp = self.ddp_network  # processes average gradients in the last batch of a step
                with ddp.no_sync() if isinstance(ddp, DistributedDataParallel) and not steps else nullcontext():
                    loss, index = self._backward(rows, inputs, sizes[number] / images_per_step)
                guard.update(loss, index, number + 1)
                partial.add(loss, sizes[number])
                if steps:
                    self._step(guard)
                    partial.batches, state.partial = number + 1, partial
                if last_of_epoch or (number + 1) % CHECK_EVERY == 0:
                    guard.check(epoch)
                position = (epoch - 1) * len(sizes) + number + 1
                self.context.reporter.move_to(position, lambda: self.progress_note(epoch, partial.mean_loss, state))
                if steps and interrupts:
                    break
                if steps and 0 < 60 * self.config.checkpoint_minutes <= time.monotonic() - self.saved_at:
                    self.save_position(state)
        if interrupts and partial.batches < len(sizes):  # what handles the signal has returned: training continues
            guard.check(epoch)
            self._train_steps(state, epoch)

    def _backward(self, rows: Tensor, inputs: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Add the gradient of a batch, a ``share`` of its step; return its loss and its rows on the device."""
        index = to_device(rows, inputs.device)
        labels = to_device(self.table.batch(rows), inputs.device) if self.labels is None else self.labels[0, index]
        if share == 1:
            loss, logits = self.graphed_step(self._compute, inputs, labels, index)
        else:
            loss, logits = self._compute(inputs, labels, index, share)
        if self.trace.active:
            modified = self.loss_fn.modified(logits, labels, index)
            self.trace.record(*gather_all(index, logits, labels, modified))
        return loss, index

    def _compute(self, inputs: Tensor, labels: Tensor, index: Tensor, share: float = 1.0) -> StepResult:
        """Forward, loss and backward of a batch; return its loss and its logits."""
        with self.autocast(inputs.device), nullcontext() if len(index) else no_statistics():
            both = "features" in self.loss_fn.needs
            found = self.ddp_network(inputs, return_features=both)
        logits, features = (each[: len(index)] for each in found) if both else (found[: len(index)], None)
        loss: Tensor = self.loss_fn(logits, labels, index=index, features=features)
        cost = loss if share == 1 or self.loss_fn.reduction == "sum" else share * loss
        penalty = self.loss_fn.penalty(self.network.parameters())
        if isinstance(penalty, Tensor) or penalty:
            cost = cost + share * penalty
        cost.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), logits.detach()

    def _step(self, guard: NanGuard) -> None:
        """Take an optimizer step, which changes nothing after a loss that was not finite."""
        average_gradients(self.loss_fn.parameters())
        if self.config.clip is not None:
            clip_grad_norm_(self.network.parameters(), self.config.clip)
        guard.guard(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        self.loss_fn.after_step()
        if self.average is not None:
            self.average.update_parameters(self.network)

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context of the run's precision."""
        if self.config.precision != "bf16":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=device.type != "cuda")

    def _score_val(self, epoch: int) -> EpochScore | None:
        """Return the val score of the network, or None where epochs have none."""
        if "val" not in self.inputs or self.context.selection.labels is None:
            return None
        logits = predict_logits(self.scored_network, self.inputs["val"], autocast=self.autocast)
        check_finite("the scores of val", bool(np.isfinite(logits).all()), epoch)
        return self.context.selection.score(logits)

    def _revise_labels(self) -> Revisions:
        """End the epoch of the loss; return its revisions."""
        scores = partial(iterate_logits, self.network, self.inputs["train"], autocast=self.autocast)
        return self.loss_fn.end_epoch(scores if "scores" in self.loss_fn.needs else None)

    def keep_best(self) -> None:
        """Keep the state of the loss."""
        self.restart_point.update(self.loss_fn)

    def _restart(self, state: TrainingState, epoch: int, reason: str) -> None:
        """Halve the rates, and return to the weights and the loss of the best epoch; the schedule continues."""
        state.divergences += 1
        self.context.reporter.log(f"{reason}: {describe_restart(state, last=epoch == self.config.epochs)}")
        point = self.restart_point
        if point.weights is None:
            load_weights(self.context.folder, self.network)
        else:
            self.network.load_state_dict(point.weights)
        if self.average is not None:
            self.average = MovingAverage(self.network, self.average.decay)
        self.loss_fn.skip_step()
        self.loss_fn.load_state_dict(point.loss_state)
        halve_rates(self.optimizer, self.scheduler, epoch * self.steps_per_epoch if state.history else 0)

    def save_position(self, state: TrainingState) -> None:
        """Write a checkpoint within an epoch: not while a step is computed, nor after numbers that are not finite."""
        if state.partial is not None and (bool(self.guard.failed) or not are_finite(self.network.parameters())):
            state.partial = None
        if state.partial is not None and is_main_process():
            state.partial.trace = self.trace.recorded()
            folder, fingerprint = self.context.folder, self.config.fingerprint()
            with defer_interrupt():
                save_checkpoint(folder, state, self.parts, self.context.device, fingerprint=fingerprint)
        self.saved_at = time.monotonic()
