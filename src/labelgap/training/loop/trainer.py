"""What the trainers of a network and of a linear head share: the epochs of a run, from its checkpoint to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from labelgap.core.distributed import is_distributed, is_main_process
from labelgap.core.files import remove_file
from labelgap.core.seeds import derive_seed, seed_everything
from labelgap.data.dataset import Dataset
from labelgap.labels import Revisions
from labelgap.metrics import revision_quality
from labelgap.models import Classifier
from labelgap.training.checkpoint import (
    Stateful,
    TrainingState,
    load_checkpoint,
    report_saved_epochs,
    save_checkpoint,
    save_weights,
)
from labelgap.training.config import RunConfig
from labelgap.training.history import PriorRecord, write_history
from labelgap.training.loop.divergence import MAX_HALVINGS
from labelgap.training.loop.processes import barrier
from labelgap.training.loop.trace import Trace, remove_trace_parts
from labelgap.training.progress import Reporter
from labelgap.training.run_files import REVISIONS_FILE, TRACE_FILE
from labelgap.training.selection import EpochScore, Selection
from labelgap.training.signals import defer_interrupt

EpochCallback = Callable[[Sequence[Mapping[str, Any]]], None]
"""Called with the history of a run after every epoch: one record each, the last is of that epoch."""


@dataclass(frozen=True)
class TrainingContext:
    """What every phase of a run needs; ``folder`` is that of the run, or of its phase.

    ``data_changed`` is whether the run is resumed on other data: the trace of its first epochs is of other labels.
    ``on_epoch`` is called after every epoch; what it raises ends the training. ``prior`` is what was made of a prior,
    whose soft labels are on those of train.
    """

    folder: Path
    data: Dataset
    config: RunConfig
    selection: Selection
    network: Classifier
    device: torch.device
    workers: int
    reporter: Reporter
    data_changed: bool = False
    on_epoch: EpochCallback | None = None
    prior: PriorRecord | None = None


class Trainer(ABC):
    """Trains the epochs of a phase and writes its folder. Abstract: a trainer of a network, or of a head."""

    def __init__(self, context: TrainingContext) -> None:
        train, config = context.data.train, context.config
        self.context, self.config, self.table = context, config, train.labels
        self.trace = Trace(train.labels, train.truth, "off" if context.data_changed else config.trace, config.seed)
        if context.data_changed and is_main_process():
            remove_trace_parts(context.folder)
            remove_file(context.folder / TRACE_FILE)
        self.revisions = Revisions()

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

    def score_start(self, state: TrainingState) -> None:  # noqa: B027 (optional)
        """Add the epoch 0, the network before its first epoch, to the state if it can be the best; not by default."""

    def keep_best(self) -> None:  # noqa: B027 (optional)
        """Keep in memory what a restart from this epoch needs, the best one so far; nothing by default."""

    def save_position(self, state: TrainingState) -> None:  # noqa: B027 (optional)
        """Write a checkpoint within an epoch, where ``state.partial`` says how far it is; nothing by default."""

    def save_best(self, epoch: int) -> None:
        """Write the weights of the best epoch."""
        save_weights(self.context.folder, self.scored_network, epoch)

    def fit(self) -> TrainingState:
        """Train to the last epoch, from the checkpoint in the folder if there is one.

        Every epoch ends with a checkpoint. A Ctrl-C saves the position in the epoch and ends the training. Of several
        processes each may receive it at another point; there it ends the program, and the run can be resumed.
        """
        config, folder, reporter = self.config, self.context.folder, self.context.reporter
        fingerprint, device = config.fingerprint(), self.context.device
        state = load_checkpoint(folder, self.parts, device, fingerprint=fingerprint, log=reporter.log)
        if state.epoch and state.best_epoch == state.epoch and state.partial is None and is_main_process():
            self.save_best(state.epoch)
        self.trace.restore(folder, state.epoch)
        if (folder / REVISIONS_FILE).exists():
            self.revisions = Revisions.from_parquet(folder / REVISIONS_FILE).until(state.epoch)
        steps, done = -(-len(self.table) // config.batch_size), 0 if state.partial is None else state.partial.batches
        if done:
            reporter.log(f"resuming in epoch {state.epoch + 1}, after {done:,} of {steps:,} batches")
        with reporter.bar("training", config.epochs * steps, state.epoch * steps + done), report_saved_epochs(folder):
            try:
                if not state.epoch and state.partial is None:
                    self.score_start(state)
                    # whatever was drawn before: measuring the cost, or an earlier phase, may be skipped
                    seed_everything(derive_seed(config.seed, "training"))
                while state.epoch < config.epochs and not should_stop(state, config.stop_below):
                    self.train_epoch(state, state.epoch + 1)
                    if self.context.on_epoch is not None and state.history:  # none where the first one diverged
                        self.context.on_epoch(state.history)
            except KeyboardInterrupt:
                self.save_position(state)
                within = "" if state.partial is None else f" and {state.partial.batches:,} of {steps:,} batches"
                reporter.log(f"stopped after {state.epoch} of {config.epochs} epochs{within}")
                if is_distributed():
                    raise
        return state

    def record_start(self, state: TrainingState, score: EpochScore, seconds: float) -> None:
        """Add epoch 0 to the state as the best one so far, and write its weights and its score.

        There is no checkpoint of it: a run that is killed before the next one scores epoch 0 again.
        """
        with defer_interrupt():
            state.history.append({"epoch": 0, "loss": None, "seconds": seconds, **self._score_fields(score)})
            state.best_epoch, state.best_score = 0, score.value
            self.keep_best()
            if is_main_process():
                self.save_best(0)
                write_history(self.context.folder, state.history)
            barrier()

    def finish_epoch(
        self, state: TrainingState, record: dict[str, Any], score: EpochScore | None, revisions: Revisions
    ) -> None:
        """Add an epoch to the state and write its files; a Ctrl-C waits until all are written.

        The checkpoint decides what counts: a resumed run repeats or truncates what was written before it, and writes
        again what comes after it. Only the first process writes. An epoch that diverged (``restarted``) is never the
        best one; revisions after the best epoch are removed then.
        """
        record |= self._score_fields(score)
        if len(revisions):
            record["revisions"], truth = len(revisions), self.context.data.train.truth
            if truth is not None:
                record["revisions_precision"] = revision_quality(self.table, truth, revisions).precision
        with defer_interrupt():
            restarted = bool(record.get("restarted"))
            best = not restarted and (score is None or state.best_score is None or score.value > state.best_score)
            if score is not None and score.value == state.best_score and self.config.optimizer == "newton":
                best = True  # of equal epochs the one that has converged further
            state.epoch += 1
            state.history.append(record)
            self.revisions = self.revisions.until(state.best_epoch) if restarted else self.revisions + revisions
            if best:
                state.best_epoch, state.best_score = state.epoch, score.value if score is not None else None
                self.keep_best()
            if is_main_process():
                self._write(state, best, revised=restarted or bool(len(revisions)))
            barrier()

    def _write(self, state: TrainingState, best: bool, *, revised: bool) -> None:
        folder = self.context.folder
        if revised and len(self.revisions):
            self.revisions.to_parquet(folder / REVISIONS_FILE)
        elif revised:
            remove_file(folder / REVISIONS_FILE)
        self.trace.write(folder)
        save_checkpoint(folder, state, self.parts, self.context.device, fingerprint=self.config.fingerprint())
        if best:
            self.save_best(state.epoch)
        write_history(folder, state.history)

    def _score_fields(self, score: EpochScore | None) -> dict[str, Any]:
        if score is None:
            return {}
        return {"select": self.context.selection.rule, "score": score.value, "classes_counted": score.counted}

    def progress_note(self, epoch: int, loss: float, state: TrainingState) -> str:
        """Return the text beside the progress bar."""
        score = "" if state.best_score is None else f"  best val score {100 * state.best_score:.1f}"
        return f"epoch {epoch}/{self.config.epochs}  loss {loss:.4f}{score}"


def should_stop(state: TrainingState, stop_below: float | None) -> bool:
    """Return whether training ends before its last epoch.

    It does where the last score is more than ``stop_below`` below the best one of the trained epochs (early stopping of
    Kim 2022), unless training restarts after it, and where it diverges although the rates were halved ``MAX_HALVINGS``
    times.
    """
    if state.divergences > MAX_HALVINGS:
        return True
    trained = [record for record in state.history if record["epoch"] and "score" in record]
    if stop_below is None or not trained or state.history[-1].get("restarted"):
        return False
    return bool(trained[-1]["score"] < max(record["score"] for record in trained) - stop_below)
