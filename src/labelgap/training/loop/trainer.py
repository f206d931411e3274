"""What the trainers of a network and of a linear head share: the epochs of a run, from its checkpoint to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from labelgap.core.distributed import is_main_process
from labelgap.core.seeds import derive_seed, seed_everything
from labelgap.labels import LabelTable, Revisions
from labelgap.training.checkpoints.checkpoint import (
    Stateful,
    TrainingState,
    load_checkpoint,
    report_saved_epochs,
    save_weights,
)
from labelgap.training.loop.distributed import is_distributed
from labelgap.training.loop.trace import Trace
from labelgap.training.progress import Reporter
from labelgap.training.selection import Selection

__all__ = ["REVISIONS_FILE", "Trainer", "should_stop"]

REVISIONS_FILE = "revisions.parquet"


@dataclass(kw_only=True)
class Trainer(ABC):
    """A training that writes a folder epoch by epoch. Abstract: a trainer of a network, or of a head.

    Attributes:
        folder: of the run, or of its phase.
        fingerprint: of the configuration; a checkpoint of another one is refused.
        table: observed labels of the training images.
        truth: their full labels where known; used only to measure revisions.
        selection: how the epoch is chosen.
        epochs: how many.
        batch_size: images per batch.
        seed: of the order.
        stop_below: how far the score may fall below the best one, or None.
        trace: recorder of training entries.
        reporter: of messages and progress.
        revisions: what the loss has revised so far.
    """

    folder: Path
    fingerprint: str
    table: LabelTable
    truth: LabelTable | None
    selection: Selection
    epochs: int
    batch_size: int
    seed: int
    stop_below: float | None
    trace: Trace
    reporter: Reporter
    revisions: Revisions = field(default_factory=Revisions)

    @property
    @abstractmethod
    def scored_network(self) -> nn.Module:
        """The network that is scored and saved."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Stateful]:
        """What a checkpoint saves."""

    @abstractmethod
    def train_epoch(self, state: TrainingState, epoch: int) -> None:
        """Train one epoch, counted from 1, and end with ``finish_epoch``."""

    def fit(self, device: torch.device) -> TrainingState:
        """Train to the last epoch, from the checkpoint in the folder if there is one.

        Every epoch ends with a checkpoint. A Ctrl-C ends the training after the last complete epoch. Of several
        processes each may receive it at another point; there it ends the program, and the run can be resumed.
        """
        state = load_checkpoint(self.folder, self.parts, device, fingerprint=self.fingerprint, log=self.reporter.log)
        if state.epoch and state.best_epoch == state.epoch and is_main_process():
            save_weights(self.folder, self.scored_network, state.epoch)
        self.trace.restore(self.folder, state.epoch)
        path = self.folder / REVISIONS_FILE
        self.revisions = Revisions.from_parquet(path).until(state.epoch) if path.exists() else Revisions()
        if not state.epoch:  # whatever was drawn before: measuring the cost, or an earlier phase, may be skipped
            seed_everything(derive_seed(self.seed, "training"))
        steps = -(-len(self.table) // self.batch_size)
        bar = self.reporter.bar("training", self.epochs * steps, state.epoch * steps)
        with bar, report_saved_epochs(self.folder):
            try:
                while state.epoch < self.epochs and not should_stop(state, self.stop_below):
                    self.train_epoch(state, state.epoch + 1)
            except KeyboardInterrupt:
                self.reporter.log(f"stopped after {state.epoch} of {self.epochs} epochs; --resume continues from there")
                if is_distributed():
                    raise
        return state

    def progress_note(self, epoch: int, loss: float, state: TrainingState) -> str:
        """Return the text beside the progress bar."""
        score = "" if state.best_score is None else f"  best val score {100 * state.best_score:.1f}"
        return f"epoch {epoch}/{self.epochs}  loss {loss:.4f}{score}"


def should_stop(state: TrainingState, stop_below: float | None) -> bool:
    """Return whether the last score is more than ``stop_below`` below the best one (early stopping of Kim 2022)."""
    if stop_below is None or state.best_score is None:
        return False
    return bool(state.history[-1]["score"] < state.best_score - stop_below)
