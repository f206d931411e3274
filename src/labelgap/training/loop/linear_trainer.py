"""The training of a linear head on fixed features: one head of the linear engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.errors import RunError
from labelgap.training.checkpoints.checkpoint import Stateful, TrainingState
from labelgap.training.heads import LinearEngine
from labelgap.training.loop.epoch_end import finish_epoch
from labelgap.training.loop.nan_guard import check_weights, divergence_message
from labelgap.training.loop.trainer import Trainer

__all__ = ["HeadTrainer", "head_logits"]


@dataclass(kw_only=True)
class HeadTrainer(Trainer):
    """Trains a linear head.

    Attributes:
        engine: with this one head.
        saved: what ``best.safetensors`` holds: "head", and "backbone" where its name does not reproduce it.
        val_features: of the val images, or None.
    """

    engine: LinearEngine
    saved: nn.ModuleDict
    val_features: Tensor | None

    @property
    def scored_network(self) -> nn.Module:
        """The head with the current weights of the engine."""
        weight, bias = self.engine.heads
        self.saved["head"].load_state_dict({"weight": weight[0], "bias": bias[0]})
        return self.saved

    @property
    def parts(self) -> Mapping[str, Stateful]:
        """What a checkpoint saves."""
        return {"engine": self.engine}

    def train_epoch(self, state: TrainingState, epoch: int) -> None:
        """Train on every row of the features once, score val, and write a checkpoint."""
        started = time.perf_counter()
        self.trace.start_epoch()
        loss = float(self.engine.train_epoch(epoch, self._recorder() if self.trace.active else None)[0])
        if not np.isfinite(loss):
            raise RunError(self._divergence(epoch))
        check_weights(self.engine.heads, epoch)
        revisions = self.engine.end_epoch()[0]
        score = None
        if self.val_features is not None:
            score = self.selection.score(head_logits(self.engine, self.val_features))
        record: dict[str, Any] = {"epoch": epoch, "loss": loss, "seconds": time.perf_counter() - started}
        finish_epoch(self, state, record, score, revisions)
        steps = -(-len(self.table) // self.batch_size)
        self.reporter.advance(steps, note=lambda: self.progress_note(epoch, loss, state))

    def _recorder(self) -> Callable[[Tensor, Tensor, Tensor, Callable[[], Tensor]], None]:
        def record(rows: Tensor, logits: Tensor, labels: Tensor, modified: Callable[[], Tensor]) -> None:
            self.trace.record(rows, logits[0], labels[0], modified()[0])

        return record

    def _divergence(self, epoch: int) -> str:
        """Return the message about the step whose loss was not finite."""
        step = int(self.engine.failed_step)
        rows = self.engine.order(epoch)[(step - 1) * self.batch_size : step * self.batch_size].tolist()
        remedy = "a lower learning rate (--linear-lr in linear-init, else --lr)"
        return divergence_message(step, epoch, [self.table.images[row] for row in rows], remedy)


def head_logits(engine: LinearEngine, features: Tensor) -> NDArray[np.float32]:
    """Return the ``(N, K)`` logits of the engine's only head."""
    return engine.logits(features)[0].float().cpu().numpy()
