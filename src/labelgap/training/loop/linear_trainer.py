"""The training of a linear head on fixed features: one head of the linear engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.errors import RunError
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.labels import PRESENT, LabelTable
from labelgap.metrics.label_model import platt_scaling
from labelgap.models.open_clip import standardize_head, zero_shot_classifier
from labelgap.training.checkpoint import Stateful, TrainingState
from labelgap.training.heads import HeadPlan, LinearEngine
from labelgap.training.loop.divergence import DivergenceError, are_finite, check_finite, describe_step
from labelgap.training.loop.trainer import Trainer, TrainingContext
from labelgap.training.run_files import HANDOFF_FILE

"""What the loss of the best epoch passes to the next phase of linear-init."""
_MAX_ENTRIES: Final = 2_000_000
"""The line of ``zero_shot_head`` is fitted on images at regular distances, with at most so many labels."""


class LinearTrainer(Trainer):
    """Trains a linear head on the features of every split; its engine has this one head.

    With ``handoff`` the best epoch also writes the ``handoff_state`` of its loss.
    """

    def __init__(self, context: TrainingContext, features: Mapping[str, Tensor], *, handoff: bool = False) -> None:
        super().__init__(context)
        config, self.features, self.handoff = context.config, features, handoff
        self.engine = LinearEngine(
            features["train"],
            [HeadPlan(config.method, config.options, config.lr, self.table, config.seed, config.weight_decay)],
            epochs=config.epochs,
            batch_size=config.batch_size,
            order_seed=config.seed,
            device=context.device,
            optimizer=config.optimizer,
            momentum=config.momentum,
            nesterov=config.nesterov,
            standardize=config.standardize,
        )
        if config.head == "zero-shot":
            head = zero_shot_head(config.backbone, config.weights, features["train"], self.table)
            self.engine.set_heads(*(values[None] for values in head))
        self.saved = nn.ModuleDict({"head": context.network.head})  # in best.safetensors
        if not context.network.backbone.reproducible:
            self.saved["backbone"] = context.network.backbone

    @property
    def scored_network(self) -> nn.Module:
        """The head with the current weights of the engine."""
        weight, bias = self.engine.heads
        self.saved["head"].load_state_dict({"weight": weight[0], "bias": bias[0]})
        return self.saved

    def save_best(self, epoch: int) -> None:
        """Write the weights of the best epoch, and what its loss passes to the next phase."""
        super().save_best(epoch)
        if self.handoff and (state := self.engine.groups[0].loss_fn.handoff_state()):
            write_tensors(self.context.folder / HANDOFF_FILE, state, {"epoch": str(epoch)})

    def handoff_state(self, best_epoch: int) -> dict[str, Tensor]:
        """Return what the loss of the best epoch passes to the next phase."""
        if not self.handoff or not self.engine.groups[0].loss_fn.handoff_state():
            return {}
        path = self.context.folder / HANDOFF_FILE
        state, metadata = read_tensors(path, remedy="Train into a new folder.")
        if metadata.get("epoch") != str(best_epoch):
            raise RunError(f"{path} is of epoch {metadata.get('epoch')}, not of {best_epoch}: train into a new folder.")
        return state

    @property
    def parts(self) -> Mapping[str, Stateful]:
        """What a checkpoint saves."""
        return {"engine": self.engine}

    def train_epoch(self, state: TrainingState, epoch: int) -> None:
        """Train on every row of the features once, score val, and write a checkpoint."""
        started = time.perf_counter()
        self.trace.start_epoch()
        loss = float(self.engine.train_epoch(epoch, self._record if self.trace.active else None)[0])
        if not np.isfinite(loss):
            step, size = int(self.engine.failed_step), self.config.batch_size
            images = [self.table.images[row] for row in self.engine.order(epoch)[(step - 1) * size : step * size]]
            remedy = "a lower learning rate (--linear-lr in linear-init, else --lr)"
            raise DivergenceError(describe_step(step, epoch, images), epoch, remedy)
        check_finite("the weights", are_finite(self.engine.heads), epoch)
        revisions = self.engine.end_epoch()[0]
        score = None
        if "val" in self.features:
            score = self.context.selection.score(head_logits(self.engine, self.features["val"]))
        record: dict[str, Any] = {"epoch": epoch, "loss": loss, "seconds": time.perf_counter() - started}
        self.finish_epoch(state, record, score, revisions)
        steps = -(-len(self.table) // self.config.batch_size)
        self.context.reporter.advance(steps, note=lambda: self.progress_note(epoch, loss, state))

    def _record(self, rows: Tensor, logits: Tensor, labels: Tensor, modified: Callable[[], Tensor]) -> None:
        self.trace.record(rows, logits[0], labels[0], modified()[0])


def head_logits(engine: LinearEngine, features: Tensor) -> NDArray[np.float32]:
    """Return the ``(N, K)`` logits of the engine's only head."""
    return engine.logits(features)[0].float().cpu().numpy()


def zero_shot_head(
    name: str, weights: str | os.PathLike[str] | None, features: Tensor, labels: LabelTable
) -> tuple[Tensor, Tensor]:
    r"""Return weights ``(K, D)`` and biases ``(K,)`` that say of every label what the model says of its class's name.

    Zero-shot logits are standardized for each class over the training images, :math:`z`, and one line for all classes
    makes log-odds of them that a label is known to be present (Platt):

    .. math:: P_{ik} = \sigma(\beta z_{ik} + \gamma), \qquad \beta \ge 0

    This prior is linear in the features of the image tower, so it is a head, and training starts there instead of at
    random weights. Unknown labels stay unknown, and the loss decides how far they move.

    ``name`` is ``open_clip:MODEL/TAG``, and ``weights`` a file of weights of the whole model instead of those of the
    tag; the features ``(N, D)`` of the training images are by the image tower of that model.
    """
    vectors = features.detach().cpu().float().numpy()
    weight, bias = standardize_head([vectors], zero_shot_classifier(name, labels.classes, weights=weights).weight)
    rows = np.arange(0, len(vectors), max(1, -(-len(vectors) * len(weight) // _MAX_ENTRIES)))
    present = (labels.select(rows).to_dense() == PRESENT).ravel()
    scores = (vectors[rows] @ weight.T + bias).ravel()
    slope, intercept = 1.0, 0.0
    if present.any() and not present.all():
        slope, intercept = platt_scaling(scores, present, min_slope=0.0)
    return torch.from_numpy(slope * weight).float(), torch.from_numpy(slope * bias + intercept).float()
