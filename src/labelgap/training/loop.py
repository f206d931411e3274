"""The training loop, top to bottom on one page: it calls every hook of the objective's contract."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.seeds import generator
from labelgap.labels import LabelTable, Revisions
from labelgap.objectives import Objective
from labelgap.training.checkpoint import State, read_last, save_weights, write_last
from labelgap.training.history import write_history
from labelgap.training.inputs import Inputs
from labelgap.training.progress import Reporter
from labelgap.training.selection import Score, Selection
from labelgap.training.traces import Trace

__all__ = [
    "Job",
    "REVISIONS",
    "RunningMean",
    "keep",
    "logits_of",
    "note",
    "score_all",
    "stored_revisions",
    "train",
    "train_epoch",
]

REVISIONS = "revisions.parquet"


@dataclass
class Job:
    """Everything a training needs, put together by ``fit``.

    Attributes:
        folder: the run's.
        network: from inputs to logits, and with ``return_features`` what its head saw as well.
        objective: prepared by ``train``.
        table: observed labels of the training images.
        inputs: of the training images.
        val_inputs: of the val images, or None.
        selection: how the epoch is chosen.
        optimiser: over the network's and the objective's parameters.
        epochs: how many.
        batch_size: images per step.
        seed: of the order.
        trace: recorder of training entries.
        reporter: what the person sees.
        revisions: what the objective has revised so far.
    """

    folder: Path
    network: nn.Module
    objective: Objective
    table: LabelTable
    inputs: Inputs
    val_inputs: Inputs | None
    selection: Selection
    optimiser: torch.optim.Optimizer
    epochs: int
    batch_size: int
    seed: int
    trace: Trace
    reporter: Reporter
    revisions: Revisions = field(default_factory=Revisions)


def train(job: Job, device: torch.device) -> State:
    """Train to the last epoch, from wherever the folder says training had come to.

    Every epoch ends with a checkpoint. A Ctrl-C ends the training after the last whole epoch, with what there is.
    """
    state = read_last(job.folder, job.network, job.optimiser, job.objective, device)
    job.trace.restore(job.folder, state.epoch)
    job.revisions = stored_revisions(job.folder, state.epoch)
    steps = -(-len(job.table) // job.batch_size)
    with job.reporter.bar("training", job.epochs * steps, state.epoch * steps):
        try:
            for epoch in range(state.epoch + 1, job.epochs + 1):
                train_epoch(job, state, epoch)
        except KeyboardInterrupt:
            job.reporter.say(f"stopped after {state.epoch} of {job.epochs} epochs; --resume goes on from there")
    return state


def stored_revisions(folder: Path, epochs: int) -> Revisions:
    """Return the revisions of the first epochs that a run had written before it was stopped."""
    path = folder / REVISIONS
    return Revisions.from_parquet(path).until(epochs) if path.exists() else Revisions()


def train_epoch(job: Job, state: State, epoch: int) -> None:
    """One epoch: every training image once, then val, then a checkpoint."""
    started = time.perf_counter()
    job.network.train()
    job.objective.set_epoch(epoch)
    job.trace.start_epoch()
    running = RunningMean()
    order = generator(job.seed, "order", epoch).permutation(len(job.table))
    for index, inputs in job.inputs.batches(order, batch_size=job.batch_size, epoch=epoch):
        labels = job.table.batch(index).to(inputs.device)
        logits, features = job.network(inputs, return_features=True)
        loss = job.objective(logits, labels, index=index, features=features)
        if job.trace.active:
            job.trace.record(index, logits.detach(), labels, job.objective.modified(logits.detach(), labels, index))
        cost = loss + job.objective.penalty(job.network.parameters())
        job.optimiser.zero_grad(set_to_none=True)
        cost.backward()
        job.optimiser.step()
        job.objective.after_step()
        running.add(loss, len(index))
        job.reporter.advance(note=lambda: note(epoch, job.epochs, running.value, state))
    scores = (lambda: logits_of(job.network, job.inputs)) if "scores" in job.objective.needs else None
    revisions = job.objective.end_epoch(scores)
    score = job.selection.score(score_all(job.network, job.val_inputs)) if job.val_inputs is not None else None
    record: dict[str, Any] = {"epoch": epoch, "loss": running.value, "seconds": time.perf_counter() - started}
    if score is not None:
        record |= {"select": job.selection.rule, "score": score.value, "classes_counted": score.counted}
    keep(job, state, record, score, revisions)


def keep(job: Job, state: State, record: dict[str, Any], score: Score | None, revisions: Revisions) -> None:
    """Take an epoch into the state and onto the disk, the checkpoint last."""
    state.epoch += 1
    state.history.append({**record, "revisions": len(revisions)} if len(revisions) else record)
    if score is None or state.best_score is None or score.value > state.best_score:
        state.best_epoch, state.best_score = state.epoch, score.value if score is not None else None
        save_weights(job.folder, job.network)
    if len(revisions):
        job.revisions += revisions
        job.revisions.to_parquet(job.folder / REVISIONS)
    job.trace.write(job.folder)
    write_last(job.folder, state, job.network, job.optimiser, job.objective)
    write_history(job.folder, state)


def score_all(network: nn.Module, inputs: Inputs, batch_size: int = 256) -> NDArray[np.float32]:
    """Return the logits of every row, in eval mode and without augmentation."""
    return np.concatenate([logits.float().cpu().numpy() for _, logits in logits_of(network, inputs, batch_size)])


def logits_of(network: nn.Module, inputs: Inputs, batch_size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, logits)`` of every row once, in eval mode and without augmentation."""
    was_training = network.training
    network.eval()
    try:
        for index, values in inputs.batches(batch_size=batch_size):
            with torch.no_grad():
                logits = network(values)
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
        self.total = self.total + loss.detach().double() * count
        self.count += count

    @property
    def value(self) -> float:
        """The mean so far."""
        return float(self.total) / max(self.count, 1)


def note(epoch: int, epochs: int, loss: float, state: State) -> str:
    """Return what stands beside the progress bar."""
    score = "" if state.best_score is None else f"  best val score {100 * state.best_score:.1f}"
    return f"epoch {epoch}/{epochs}  loss {loss:.4f}{score}"
