"""A Lightning module around any loss, with every hook in its place. Needs ``pip install lightning``."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor, nn

import labelgap as lg


class PartialLabels(lightning.LightningModule):
    """Trains a network with a method of labelgap; batches are ``(index, inputs, labels)``.

    Args:
        network: from inputs to logits.
        table: the observed labels of the training set; ``index`` means its rows.
        method: one of ``lg.methods()``.
        epochs: how many will be trained.
        lr: learning rate.
        **options: of the method.
    """

    def __init__(
        self, network: nn.Module, table: lg.LabelTable, method: str, epochs: int, lr: float = 1e-3, **options: Any
    ) -> None:
        super().__init__()
        self.network = network
        self.loss_fn = lg.loss(method, **options)
        if self.loss_fn.needs & {"features", "scores"}:
            raise lg.InputError(f"'{method}' needs a pass over all images: use lg.fit.")
        self.loss_fn.prepare(table, epochs=epochs)
        self.lr = lr
        self.revisions = lg.Revisions()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give the parameters of the loss, if any, a learning rate of their own."""
        groups = [{"params": list(self.network.parameters())}, *self.loss_fn.parameter_groups(self.lr)]
        return torch.optim.Adam(groups, lr=self.lr)

    def on_train_epoch_start(self) -> None:
        """Set the epoch, counted from 1."""
        self.loss_fn.set_epoch(self.current_epoch + 1)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_index: int) -> Tensor:
        """Return the loss of a batch."""
        index, inputs, labels = batch
        loss: Tensor = self.loss_fn(self.network(inputs), labels, index=index)
        return loss + self.loss_fn.penalty(self.network.parameters())

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Take a step, and commit what it decided about labels: once per step, also with gradient accumulation."""
        super().optimizer_step(*args, **kwargs)
        self.loss_fn.after_step()

    def on_train_epoch_end(self) -> None:
        """Collect what the epoch decided about labels."""
        self.revisions = self.revisions + self.loss_fn.end_epoch()
