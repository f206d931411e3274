"""Train many heads, score all of them on val after every epoch, and keep the best epoch of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.metrics.average_precision import average_precision_of_rankings, average_precision_on_device
from labelgap.metrics.validation import unknown_as_absent
from labelgap.training.heads.engine import CHUNK, LinearEngine
from labelgap.training.heads.grouping import HeadPlan
from labelgap.training.selection import Selection, choose_selection

CONVERGED: Final = 1e-4
"""Share of its largest weight by which a head that has converged changes in an epoch at most."""
SMALL_STEP: Final = 1 << 25
"""Products of weights and images in a step, below which one thread computes it."""


@dataclass(eq=False)
class HeadResult:
    """A trained head, with the weights ``(K, D)`` of its best epoch."""

    plan: HeadPlan
    weight: NDArray[np.floating[Any]] = field(default_factory=lambda: np.empty((0, 0)))
    bias: NDArray[np.floating[Any]] = field(default_factory=lambda: np.empty(0))
    best_epoch: int = 0  # 0 where no epoch was finished, and the weights are the initial ones
    best_score: float | None = None  # None under "last"
    history: list[dict[str, Any]] = field(default_factory=list)  # "epoch", "loss" and "score" of every epoch
    stopped: int | None = None  # the epoch after which it stopped early
    failed: str | None = None  # why it failed


def train_heads(
    features: Tensor,
    plans: Sequence[HeadPlan],
    *,
    epochs: int,
    batch_size: int,
    order_seed: int = 0,
    val_features: Tensor | None = None,
    val_labels: LabelTable | ArrayLike | None = None,
    select: str = "auto",
    stop_below: float | None = None,
    progress: Callable[[int, int], None] = lambda done, epochs: None,
    **engine_settings: Any,
) -> list[HeadResult]:
    """Train linear heads on fixed features, all at once; return a result for every plan, with its best epoch.

    A head that has converged under the optimizer "newton" stops early.

    Args:
        features, plans, epochs, batch_size, order_seed: the arguments of ``LinearEngine``.
        val_features, val_labels: the val images, as a table or codes; without them the last epoch is kept.
        select: "auto", "clean", "known", "observed" or "last": how the epoch is selected, see ``training.selection``.
        stop_below: a head whose score falls by more than this below its best stops; 0.03 in Kim et al.
        progress: called with the number of epochs done and of all epochs.
        **engine_settings: of ``LinearEngine``: device, dtype, optimizer and so on.
    """
    engine = LinearEngine(
        features, plans, epochs=epochs, batch_size=batch_size, order_seed=order_seed, **engine_settings
    )
    if val_labels is not None and not isinstance(val_labels, LabelTable):
        val_labels = LabelTable.from_dense(val_labels, classes=plans[0].labels.classes)
    selection = choose_selection(val_labels, None, select)
    scorer = None if val_features is None or selection.labels is None else ValScorer(val_features, selection, engine)
    best = BestEpochs(engine, stop_below)
    with few_threads(engine):
        for epoch in range(1, epochs + 1):
            before = engine.weight.clone()
            losses = engine.train_epoch(epoch)
            engine.end_epoch(list_revisions=False)
            best.update(epoch, losses, None if scorer is None else scorer.scores())
            best.stop(epoch, _converged(engine, before))
            progress(epoch, epochs)
            if not bool(engine.active.any()):
                break
    return best.results()


def _converged(engine: LinearEngine, before: Tensor) -> list[int]:
    """Return the heads that can converge whose weights an epoch has changed by a small share of the largest one."""
    if not engine.full_batch:
        return []
    shape = len(engine.plans), -1
    change, size = ((values.abs().view(shape)).amax(dim=1) for values in (engine.weight - before, engine.weight))
    small = (change <= CONVERGED * size).index_select(0, engine.row_of_plan).tolist()
    groups = (group for group in engine.groups if not group.loss_fn.epoch_dependent)
    return [head for group in groups for head in group.plans if small[head]]


@contextmanager
def few_threads(engine: LinearEngine) -> Iterator[None]:
    """Use one thread for small steps: several would wait for one another, on a busy machine ten times as long."""
    before = torch.get_num_threads()
    if engine.weight.numel() * engine.batch_size < SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ValScorer:
    """Scores heads on the features ``(N, D)`` of val as ``Selection.score`` scores one run, all of them at once."""

    def __init__(self, features: Tensor, selection: Selection, engine: LinearEngine) -> None:
        assert selection.labels is not None
        if features.ndim != 2 or features.shape != (len(selection.labels), engine.width):
            raise InputError(
                f"features of val have shape {tuple(features.shape)}; labels of {len(selection.labels):,} images were "
                f"given, and the training images have {engine.width:,} features."
            )
        codes = selection.labels.to_dense().T
        self.codes = np.ascontiguousarray(unknown_as_absent(codes) if selection.rule == "observed" else codes)
        present, absent = (np.count_nonzero(self.codes == state, axis=1) for state in (PRESENT, ABSENT))
        self.counted = (present > 0) & (absent > 0)
        self.engine, self.features = engine, engine.coordinates(features)
        self.on_device = torch.from_numpy(self.codes).to(engine.device) if engine.device.type == "cuda" else None

    @torch.no_grad()
    def scores(self) -> NDArray[np.float64]:
        """Return the mean average precision of every plan's head, ``(M,)``; NaN where its logits are not finite."""
        classes, engine = self.codes.shape[0], self.engine
        found = np.full(len(engine.plans), np.nan)
        step = max(1, CHUNK // max(self.codes.size, 1))
        for first in range(0, len(found), step):
            part = slice(first * classes, (first + step) * classes)
            logits = torch.addmm(engine.bias[part, None], engine.weight[part], self.features.t())
            heads = logits.view(-1, classes, len(self.features))
            good = heads.isfinite().all(dim=2).all(dim=1).cpu().numpy()
            values = self._precision(heads[torch.from_numpy(good).to(heads.device)])
            found[first : first + len(good)][good] = values[:, self.counted].mean(axis=1)
        by_plan: NDArray[np.float64] = found[engine.row_of_plan.cpu().numpy()]
        return by_plan

    def _precision(self, logits: Tensor) -> NDArray[np.float64]:
        """Return the average precision of heads and classes, ``(m, K)``."""
        if self.on_device is not None:
            ranked: NDArray[np.float64] = average_precision_on_device(logits, self.on_device).cpu().numpy()
            return ranked
        codes = np.broadcast_to(self.codes, logits.shape).reshape(-1, logits.shape[-1])
        return average_precision_of_rankings(logits.flatten(0, 1).cpu().numpy(), codes).reshape(logits.shape[:2])


class BestEpochs:
    """The best epoch of every head so far; ``stop_below`` is that of ``train_heads``."""

    def __init__(self, engine: LinearEngine, stop_below: float | None) -> None:
        self.engine, self.stop_below = engine, stop_below
        self.weight, self.bias = engine.heads
        self._results = [HeadResult(plan) for plan in engine.plans]

    def update(self, epoch: int, losses: NDArray[np.float64], scores: NDArray[np.float64] | None) -> None:
        """Record an epoch, copy the weights of heads that improved, and stop heads whose score fell."""
        improved: list[int] = []
        stopped: list[int] = []
        for head, (result, failed) in enumerate(zip(self._results, self.engine.failed, strict=True)):
            if result.stopped is not None or result.failed is not None:
                continue
            score = None if scores is None else float(scores[head])
            if failed is not None or (score is not None and not np.isfinite(score)):
                result.failed = f"its loss was not finite in epoch {epoch}: try a lower learning rate"
                continue
            result.history.append({"epoch": epoch, "loss": float(losses[head]), "score": score})
            best = result.best_score
            if score is None or best is None or score > best or (self.engine.full_batch and score == best):
                result.best_epoch, result.best_score = epoch, score
                improved.append(head)
            elif self.stop_below is not None and score < best - self.stop_below:
                stopped.append(head)
        if improved:
            weight, bias = self.engine.heads
            heads = torch.tensor(improved, device=weight.device)
            self.weight.index_copy_(0, heads, weight.index_select(0, heads))
            self.bias.index_copy_(0, heads, bias.index_select(0, heads))
        self.stop(epoch, stopped)

    def stop(self, epoch: int, heads: Sequence[int]) -> None:
        """Train some heads no further."""
        new = [head for head in heads if self._results[head].stopped is None]
        for head in new:
            self._results[head].stopped = epoch
        if new:
            self.engine.freeze(new)

    def results(self) -> list[HeadResult]:
        """Return the result of every head."""
        for result, weight, bias in zip(self._results, self.weight.cpu().numpy(), self.bias.cpu().numpy(), strict=True):
            result.weight, result.bias = weight, bias
        return self._results
