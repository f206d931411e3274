"""Train many heads and keep the best epoch of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.training.heads.engine import LinearEngine
from labelgap.training.heads.plans import HeadPlan, HeadResult
from labelgap.training.heads.scoring import ValScorer
from labelgap.training.selection import choose_selection

CONVERGED: Final = 1e-4
"""Share of its largest weight by which a head that has converged changes in an epoch at most."""
SMALL_STEP: Final = 1 << 25
"""Products of weights and images in a step, below which one thread computes it."""


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
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] = lambda done, epochs: None,
    **optimizer: Any,
) -> list[HeadResult]:
    """Train linear heads on fixed features, all at once, and keep the best epoch of each.

    Args:
        features: ``(N, D)`` of the training images, or ``(P, N, D)``: see ``LinearEngine``.
        plans: the heads.
        epochs: how many, counted from 1; a head that has converged under the optimizer "newton" stops before.
        batch_size: images per step; all heads see the same batches.
        order_seed: of the order of the images.
        val_features: of val; without them the last epoch is kept.
        val_labels: of val, a table or codes.
        select: "auto", "clean", "known", "observed" or "last": how the epoch is selected, see ``training.selection``.
        stop_below: a head whose score falls by more than this below its best stops; 0.03 in Kim et al.
        device: of the training.
        dtype: float32 or float64.
        progress: called with the number of epochs done and of all epochs.
        **optimizer: of ``LinearEngine``.

    Returns:
        a result for every plan, in their order.

    Example:
        >>> table = LabelTable.from_dense([[1, -1], [-1, 1], [1, -1], [-1, 1]])
        >>> features = torch.eye(4)[:, [0, 1, 0, 1]]
        >>> plans = [HeadPlan(method, {}, lr=0.1, labels=table) for method in ("an", "em")]
        >>> [len(result.history) for result in train_heads(features, plans, epochs=2, batch_size=2)]
        [2, 2]
    """
    if epochs < 1:
        raise InputError(f"epochs={epochs}: at least one is needed.")
    settings = {"order_seed": order_seed, "device": device, "dtype": dtype, **optimizer}
    engine = LinearEngine(features, plans, epochs=epochs, batch_size=batch_size, **settings)
    scorer = _val_scorer(engine, val_features, val_labels, select)
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
    return [head for head in engine.steady if small[head]]


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


def _val_scorer(
    engine: LinearEngine, features: Tensor | None, labels: LabelTable | ArrayLike | None, select: str
) -> ValScorer | None:
    if (features is None) != (labels is None):
        raise InputError("val needs both: its features and its labels.")
    if labels is not None and not isinstance(labels, LabelTable):
        labels = LabelTable.from_dense(labels, classes=engine.plans[0].labels.classes)
    selection = choose_selection(labels, None, select)
    return None if selection.labels is None or features is None else ValScorer(features, selection, engine)


class BestEpochs:
    """The best epoch of every head so far.

    Args:
        engine: of the heads.
        stop_below: see ``train_heads``.
    """

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
