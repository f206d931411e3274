"""The linear phase: one head of the linear engine, kept in a folder like every training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.errors import RunError
from labelgap.losses.role import OnlineLabelEstimation
from labelgap.training.checkpoints.checkpoint import Stateful, TrainingState
from labelgap.training.heads import LinearEngine
from labelgap.training.loop.epoch_end import Trainer, finish_epoch, note, run_epochs
from labelgap.training.loop.nan_guard import check_weights, divergence_message

__all__ = ["FrozenBackboneClassifier", "HeadTrainer", "estimate_of", "head_logits", "train_head"]


class FrozenBackboneClassifier(nn.Module):
    """What ``best.safetensors`` keeps where the backbone was not trained: the head.

    Args:
        head: of the run's network.
        backbone: its backbone, where nobody could make the same again: one that started at random, or from a file.
    """

    def __init__(self, head: nn.Module, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.head = head
        if backbone is not None:
            self.backbone = backbone

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of features."""
        logits: Tensor = self.head(features)
        return logits


@dataclass(kw_only=True)
class HeadTrainer(Trainer):
    """Everything the training of a head needs.

    Attributes:
        engine: with this one head.
        probe: the head of the run's network; it has the engine's weights whenever they are asked for.
        val_features: of the val images, or None.
    """

    engine: LinearEngine
    probe: FrozenBackboneClassifier
    val_features: Tensor | None

    @property
    def scored(self) -> nn.Module:
        """The head with the weights it has now."""
        weight, bias = self.engine.heads
        self.probe.head.load_state_dict({"weight": weight[0], "bias": bias[0]})
        return self.probe

    @property
    def parts(self) -> Mapping[str, Stateful]:
        """The engine knows all that a head goes on from."""
        return {"engine": self.engine}


def train_head(job: HeadTrainer, device: torch.device) -> TrainingState:
    """Train to the last epoch; see ``run_epochs``."""
    return run_epochs(job, lambda state, epoch: _train_epoch(job, state, epoch), device)


def _train_epoch(job: HeadTrainer, state: TrainingState, epoch: int) -> None:
    """One epoch: every row of the features once, then val, then a checkpoint."""
    started = time.perf_counter()
    job.trace.start_epoch()
    loss = float(job.engine.train_epoch(epoch, _recorder(job) if job.trace.active else None)[0])
    if not np.isfinite(loss):
        raise RunError(_diverged(job, epoch))
    check_weights(job.engine.heads, epoch)
    revisions = job.engine.end_epoch()[0]
    score = None
    if job.val_features is not None:
        score = job.selection.score(head_logits(job.engine, job.val_features))
    record: dict[str, Any] = {"epoch": epoch, "loss": loss, "seconds": time.perf_counter() - started}
    finish_epoch(job, state, record, score, revisions)
    steps = -(-len(job.table) // job.batch_size)
    job.reporter.advance(steps, note=lambda: note(epoch, job.epochs, loss, state))


def head_logits(engine: LinearEngine, features: Tensor) -> NDArray[np.float32]:
    """Return the ``(N, K)`` logits of the engine's one head."""
    return engine.scores(features)[0].float().cpu().numpy()


def estimate_of(engine: LinearEngine) -> Tensor | None:
    """Return what ROLE takes the labels to be, ``(N, K)`` probabilities; None for other methods."""
    made = engine.members[0].group.loss_fn
    return made.estimate().view(len(engine.features), -1) if isinstance(made, OnlineLabelEstimation) else None


def _recorder(job: HeadTrainer) -> Callable[[Tensor, Tensor, Tensor, Callable[[], Tensor]], None]:
    def record(rows: Tensor, logits: Tensor, labels: Tensor, modified: Callable[[], Tensor]) -> None:
        job.trace.record(rows, logits[0], labels[0], modified()[0])

    return record


def _diverged(job: HeadTrainer, epoch: int) -> str:
    """Say in which step the loss was no number, on which images, and what is kept."""
    step = int(job.engine.failed_step)
    rows = job.engine.order(epoch)[(step - 1) * job.batch_size : step * job.batch_size].tolist()
    way_out = "a lower learning rate (--linear-lr in linear-init, else --lr)"
    return divergence_message(step, epoch, [job.table.images[row] for row in rows], way_out)
