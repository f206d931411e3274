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

from labelgap.core.processes import is_main
from labelgap.core.seeds import generator
from labelgap.labels import LabelTable, Revisions
from labelgap.metrics import revision_quality
from labelgap.objectives import Objective
from labelgap.training.checkpoint import State, read_last, save_weights, write_last
from labelgap.training.history import write_history
from labelgap.training.inputs import Inputs
from labelgap.training.interrupts import uninterrupted
from labelgap.training.parallel import average_gradients, distributed, gathered, own_part, share_buffers, wait
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
    "quality",
    "score_all",
    "steps_of",
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
        step: the network, wrapped where several processes train together.
        objective: prepared by ``train``.
        table: observed labels of the training images.
        truth: their full labels where known, for measuring revisions only.
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
    step: nn.Module
    objective: Objective
    table: LabelTable
    truth: LabelTable | None
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

    Every epoch ends with a checkpoint. A Ctrl-C ends the training after the last whole epoch, with what there is; of
    several processes each may hear it elsewhere, so there it ends the program, and the run can be resumed.
    """
    state = read_last(job.folder, job.network, job.optimiser, job.objective, device)
    if state.epoch and state.best_epoch == state.epoch and is_main():
        save_weights(job.folder, job.network)
    job.trace.restore(job.folder, state.epoch)
    job.revisions = stored_revisions(job.folder, state.epoch)
    steps = -(-len(job.table) // job.batch_size)
    with job.reporter.bar("training", job.epochs * steps, state.epoch * steps):
        try:
            for epoch in range(state.epoch + 1, job.epochs + 1):
                train_epoch(job, state, epoch)
        except KeyboardInterrupt:
            job.reporter.say(f"stopped after {state.epoch} of {job.epochs} epochs; --resume goes on from there")
            if distributed():
                raise
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
    for number, (rows, inputs) in enumerate(steps_of(job.inputs, order, job.batch_size, epoch)):
        index, labels = rows.to(inputs.device), job.table.batch(rows).to(inputs.device)
        logits, features = job.step(inputs, return_features=True)
        logits, features = logits[: len(index)], features[: len(index)]
        loss = job.objective(logits, labels, index=index, features=features)
        if job.trace.active:
            modified = job.objective.modified(logits.detach(), labels, index)
            job.trace.record(*gathered(index, logits.detach(), labels, modified))
        cost = loss + job.objective.penalty(job.network.parameters())
        job.optimiser.zero_grad(set_to_none=True)
        cost.backward()
        average_gradients(job.objective.parameters())
        job.optimiser.step()
        job.objective.after_step()
        running.add(loss, min(job.batch_size, len(order) - number * job.batch_size))
        job.reporter.advance(note=lambda: note(epoch, job.epochs, running.value, state))
    share_buffers(job.network)
    scores = (lambda: logits_of(job.network, job.inputs)) if "scores" in job.objective.needs else None
    revisions = job.objective.end_epoch(scores)
    score = job.selection.score(score_all(job.network, job.val_inputs)) if job.val_inputs is not None else None
    record: dict[str, Any] = {"epoch": epoch, "loss": running.value, "seconds": time.perf_counter() - started}
    if score is not None:
        record |= {"select": job.selection.rule, "score": score.value, "classes_counted": score.counted}
    with uninterrupted():
        keep(job, state, {**record, **quality(job, revisions)}, score, revisions)


def quality(job: Job, revisions: Revisions) -> dict[str, Any]:
    """Say how many labels an epoch revised and, where the truth is known, how many of them rightly."""
    if not len(revisions):
        return {}
    if job.truth is None:
        return {"revisions": len(revisions)}
    measured = revision_quality(job.table, job.truth, revisions)
    return {"revisions": len(revisions), "revisions_precision": measured.precision}


def keep(job: Job, state: State, record: dict[str, Any], score: Score | None, revisions: Revisions) -> None:
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
    if is_main():
        if len(revisions):
            job.revisions.to_parquet(job.folder / REVISIONS)
        job.trace.write(job.folder)
        write_last(job.folder, state, job.network, job.optimiser, job.objective)
        if better:
            save_weights(job.folder, job.network)
        write_history(job.folder, state)
    wait()


def steps_of(
    inputs: Inputs, rows: NDArray[np.int64], batch_size: int, epoch: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, inputs)`` of this process's part of every batch.

    All processes take the same number of steps: where the last batch is too small for all, ``index`` is empty and one
    row of inputs comes along for the network, whose output must not count.
    """
    own, size, spare = own_part(rows, batch_size)
    last = -(-len(own) // size)
    for number, (index, values) in enumerate(inputs.batches(own, batch_size=size, epoch=epoch), 1):
        yield (index[:0] if spare and number == last else index), values


def score_all(network: nn.Module, inputs: Inputs, batch_size: int = 256) -> NDArray[np.float32]:
    """Return the logits of every row, in eval mode and without augmentation."""
    return np.concatenate([logits.float().cpu().numpy() for _, logits in logits_of(network, inputs, batch_size)])


def logits_of(network: nn.Module, inputs: Inputs, batch_size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(index, logits)`` of every row once, in eval mode and without augmentation.

    Several processes share the work, and every one of them gets everything.
    """
    was_training = network.training
    network.eval()
    try:
        for index, values in steps_of(inputs, np.arange(len(inputs)), batch_size):
            with torch.no_grad():
                logits = network(values)[: len(index)]
                index, logits = gathered(index.to(logits.device), logits)
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
