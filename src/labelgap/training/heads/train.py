"""Train many heads from their first weights to the epoch that is best for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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

__all__ = ["train_heads"]


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
    progress: Callable[[int, int], None] | None = None,
    **optimizer: Any,
) -> list[HeadResult]:
    """Train linear heads on fixed features, all at once, and keep the best epoch of each.

    Args:
        features: ``(N, D)`` of the training images.
        plans: the heads.
        epochs: how many, counted from 1.
        batch_size: images per step; all heads see the same batches.
        order_seed: of the order of the images.
        val_features: of val; none to keep the last epoch.
        val_labels: of val, a table or codes.
        select: "auto", "clean", "known", "observed" or "last": how an epoch is chosen, see ``training.selection``.
        stop_below: a head whose score falls by more than this below its best stops; 0.03 in Kim et al.
        device: where to train.
        dtype: float32 or float64.
        progress: called with the epochs done and all of them.
        **optimiser: of ``LinearEngine``.

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
    judge = _judge(engine, val_features, val_labels, select)
    best = BestEpochs(engine, stop_below)
    for epoch in range(1, epochs + 1):
        losses = engine.train_epoch(epoch)
        engine.end_epoch(tell=False)
        best.take(epoch, losses, None if judge is None else judge.scores())
        if progress is not None:
            progress(epoch, epochs)
        if not bool(engine.active.any()):
            break
    return best.results()


def _judge(
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
        engine: whose heads they are.
        stop_below: see ``train_heads``.
    """

    def __init__(self, engine: LinearEngine, stop_below: float | None) -> None:
        self.engine, self.stop_below = engine, stop_below
        self.weight, self.bias = engine.heads
        self.epoch = [0] * len(engine.plans)
        self.score: list[float | None] = [None] * len(engine.plans)
        self.history: list[list[dict[str, Any]]] = [[] for _ in engine.plans]
        self.stopped: list[int | None] = [None] * len(engine.plans)
        self.failed: list[str | None] = [None] * len(engine.plans)

    def take(self, epoch: int, losses: NDArray[np.float64], scores: NDArray[np.float64] | None) -> None:
        """Take in an epoch: note it, keep the weights of heads that have become better, stop those that fell."""
        better: list[int] = []
        for head, failed in enumerate(self.engine.failed):
            if self.stopped[head] is not None or self.failed[head] is not None:
                continue
            score = None if scores is None else float(scores[head])
            if failed is not None or (score is not None and not np.isfinite(score)):
                self.failed[head] = f"its loss was not a finite number in epoch {epoch}: try a lower learning rate"
                continue
            self.history[head].append({"epoch": epoch, "loss": float(losses[head]), "score": score})
            known = self.score[head]
            if score is None or known is None or score > known:
                self.epoch[head], self.score[head] = epoch, score
                better.append(head)
            elif self.stop_below is not None and score < known - self.stop_below:
                self.stopped[head] = epoch
        self._keep(better)
        out = [head for head in range(len(self.epoch)) if self.stopped[head] == epoch]
        if out:
            self.engine.stop(out)

    def _keep(self, heads: Sequence[int]) -> None:
        if heads:
            weight, bias = self.engine.heads
            here = torch.tensor(heads, device=weight.device)
            self.weight.index_copy_(0, here, weight.index_select(0, here))
            self.bias.index_copy_(0, here, bias.index_select(0, here))

    def results(self) -> list[HeadResult]:
        """Return what came of all heads."""
        weight, bias = self.weight.cpu().numpy(), self.bias.cpu().numpy()
        return [
            HeadResult(
                plan,
                weight[head],
                bias[head],
                self.epoch[head],
                self.score[head],
                self.history[head],
                self.stopped[head],
                self.failed[head],
            )
            for head, plan in enumerate(self.engine.plans)
        ]
