"""What is kept of an epoch: the checkpoint, the best weights, the revisions, the history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from labelgap.core.distributed import is_main_process
from labelgap.core.seeds import derive_seed, seed_everything
from labelgap.labels import LabelTable, Revisions
from labelgap.metrics import revision_quality
from labelgap.training.checkpoints.checkpoint import (
    Stateful,
    TrainingState,
    load_checkpoint,
    report_saved_epochs,
    save_checkpoint,
    save_weights,
)
from labelgap.training.checkpoints.history import write_history
from labelgap.training.checkpoints.signals import defer_interrupt
from labelgap.training.loop.distributed import barrier, is_distributed
from labelgap.training.loop.trace import Trace
from labelgap.training.progress import Reporter
from labelgap.training.selection import EpochScore, Selection

__all__ = ["REVISIONS_FILE", "Trainer", "finish_epoch", "note", "run_epochs", "should_stop", "stored_revisions"]

REVISIONS_FILE = "revisions.parquet"


@dataclass(kw_only=True)
class Trainer(ABC):
    """A training that is kept in a folder, epoch by epoch. Abstract: it is that of a network, or of a head.

    Attributes:
        folder: the run's, or that of its phase.
        fingerprint: of the configuration; a checkpoint of another is refused.
        table: observed labels of the training images.
        truth: their full labels where known, for measuring revisions only.
        selection: how the epoch is chosen.
        epochs: how many.
        batch_size: images per batch.
        seed: of the order.
        stop_below: how far below the best score training goes on, or None.
        trace: recorder of training entries.
        reporter: what the person sees.
        revisions: what the objective has revised so far.
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
    def scored(self) -> nn.Module:
        """What is scored and kept."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Stateful]:
        """What a checkpoint keeps."""


def run_epochs(job: Trainer, train_epoch: Callable[[TrainingState, int], None], device: torch.device) -> TrainingState:
    """Train to the last epoch, from wherever the folder says training had come to.

    Every epoch ends with a checkpoint. A Ctrl-C ends the training after the last whole epoch, with what there is; of
    several processes each may hear it elsewhere, so there it ends the program, and the run can be resumed.
    """
    state = load_checkpoint(job.folder, job.parts, device, fingerprint=job.fingerprint, log=job.reporter.log)
    if state.epoch and state.best_epoch == state.epoch and is_main_process():
        save_weights(job.folder, job.scored, state.epoch)
    job.trace.restore(job.folder, state.epoch)
    job.revisions = stored_revisions(job.folder, state.epoch)
    if not state.epoch:  # whatever was drawn before, in measuring the cost or an earlier phase, which may be skipped
        seed_everything(derive_seed(job.seed, "training"))
    steps = -(-len(job.table) // job.batch_size)
    bar = job.reporter.bar("training", job.epochs * steps, state.epoch * steps)
    with bar, report_saved_epochs(job.folder):
        try:
            while state.epoch < job.epochs and not should_stop(state, job.stop_below):
                train_epoch(state, state.epoch + 1)
        except KeyboardInterrupt:
            job.reporter.log(f"stopped after {state.epoch} of {job.epochs} epochs; --resume goes on from there")
            if is_distributed():
                raise
    return state


def finish_epoch(
    job: Trainer, state: TrainingState, record: dict[str, Any], score: EpochScore | None, revisions: Revisions
) -> None:
    """Keep an epoch whole: a Ctrl-C waits until it is done."""
    if score is not None:
        record |= {"select": job.selection.rule, "score": score.value, "classes_counted": score.counted}
    with defer_interrupt():
        _keep(job, state, {**record, **_quality(job, revisions)}, score, revisions)


def _keep(
    job: Trainer, state: TrainingState, record: dict[str, Any], score: EpochScore | None, revisions: Revisions
) -> None:
    """Take an epoch into the state and onto the disk; only the first process writes.

    The checkpoint decides what counts: what lies before it in time is made again or cut off by a resumed run, and what
    comes after it can be made from it.
    """
    better = score is None or state.best_score is None or score.value > state.best_score
    state.epoch += 1
    state.history.append(record)
    job.revisions = job.revisions + revisions
    if better:
        state.best_epoch, state.best_score = state.epoch, score.value if score is not None else None
    if is_main_process():
        if len(revisions):
            job.revisions.to_parquet(job.folder / REVISIONS_FILE)
        job.trace.write(job.folder)
        save_checkpoint(job.folder, state, job.parts, fingerprint=job.fingerprint)
        if better:
            save_weights(job.folder, job.scored, state.epoch)
        write_history(job.folder, state)
    barrier()


def _quality(job: Trainer, revisions: Revisions) -> dict[str, Any]:
    """Say how many labels an epoch revised and, where the truth is known, how many of them rightly."""
    if not len(revisions):
        return {}
    if job.truth is None:
        return {"revisions": len(revisions)}
    measured = revision_quality(job.table, job.truth, revisions)
    return {"revisions": len(revisions), "revisions_precision": measured.precision}


def stored_revisions(folder: Path, epochs: int) -> Revisions:
    """Return the revisions of the first epochs that a run had written before it was stopped."""
    path = folder / REVISIONS_FILE
    return Revisions.from_parquet(path).until(epochs) if path.exists() else Revisions()


def should_stop(state: TrainingState, stop_below: float | None) -> bool:
    """Return whether the last epoch's score has fallen so far below the best that training ends (Kim 2022)."""
    if stop_below is None or state.best_score is None:
        return False
    return bool(state.history[-1]["score"] < state.best_score - stop_below)


def note(epoch: int, epochs: int, loss: float, state: TrainingState) -> str:
    """Return what stands beside the progress bar."""
    score = "" if state.best_score is None else f"  best val score {100 * state.best_score:.1f}"
    return f"epoch {epoch}/{epochs}  loss {loss:.4f}{score}"
