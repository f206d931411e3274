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
from labelgap.training.heads.engine import LinearEngine
from labelgap.training.heads.grouping import HeadPlan
from labelgap.training.heads.stack import CHUNK, HeadStack
from labelgap.training.selection import Selection, choose_selection

CONVERGED: Final = 1e-4
"""Share of its largest weight by which a head that has converged changes in an epoch at most."""
SMALL_STEP: Final = 1 << 25
"""Products of weights and images in a step, below which one thread computes it."""


@dataclass(eq=False)
class HeadResult:
    """A trained head.

    Attributes:
        plan: of the head.
        weight: ``(K, D)`` of the best epoch.
        bias: ``(K,)``
        best_epoch: the selected epoch; 0 where none was finished, and the weights are the initial ones.
        best_score: its score; None under "last".
        history: an entry for each epoch, with "epoch", "loss" and "score".
        stopped: the epoch after which it stopped early; None where it did not.
        failed: why it failed; None where it did not.
    """

    plan: HeadPlan
    weight: NDArray[np.floating[Any]] = field(default_factory=lambda: np.empty((0, 0)))
    bias: NDArray[np.floating[Any]] = field(default_factory=lambda: np.empty(0))
    best_epoch: int = 0
    best_score: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: int | None = None
    failed: str | None = None


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
        progress: called with the number of epochs done and of all epochs.
        **engine_settings: of ``LinearEngine``: device, dtype, optimizer and so on.

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
    engine = LinearEngine(
        features, plans, epochs=epochs, batch_size=batch_size, order_seed=order_seed, **engine_settings
    )
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


class ValScorer:
    """Scores heads as ``Selection.score`` scores one run: all heads and classes at once.

    Args:
        features: ``(N, D)`` of val.
        selection: the rule, and the labels it uses.
        stack: the heads.
    """

    def __init__(self, features: Tensor, selection: Selection, stack: HeadStack) -> None:
        assert selection.labels is not None
        if features.ndim != 2 or features.shape != (len(selection.labels), stack.width):
            raise InputError(
                f"features of val have shape {tuple(features.shape)}; labels of {len(selection.labels):,} images were "
                f"given, and the training images have {stack.width:,} features."
            )
        if selection.labels.classes != stack.plans[0].labels.classes:
            raise InputError("the labels of val have other classes than those of the training images.")
        codes = selection.labels.to_dense().T
        self.codes = np.ascontiguousarray(unknown_as_absent(codes) if selection.rule == "observed" else codes)
        present, absent = (np.count_nonzero(self.codes == state, axis=1) for state in (PRESENT, ABSENT))
        self.counted = (present > 0) & (absent > 0)
        self.stack, self.features = stack, stack.coordinates(features)
        self.on_device = torch.from_numpy(self.codes).to(stack.device) if stack.device.type == "cuda" else None

    @torch.no_grad()
    def scores(self) -> NDArray[np.float64]:
        """Return the mean average precision of every plan's head, ``(M,)``; NaN where its logits are not finite."""
        classes, stack = self.codes.shape[0], self.stack
        found = np.full(len(stack.plans), np.nan)
        step = max(1, CHUNK // max(self.codes.size, 1))
        for first in range(0, len(found), step):
            part = slice(first * classes, (first + step) * classes)
            logits = torch.addmm(stack.bias[part, None], stack.weight[part], self.features.t())
            heads = logits.view(-1, classes, len(self.features))
            good = heads.isfinite().all(dim=2).all(dim=1).cpu().numpy()
            values = self._precision(heads[torch.from_numpy(good).to(heads.device)])
            found[first : first + len(good)][good] = values[:, self.counted].mean(axis=1)
        by_plan: NDArray[np.float64] = found[stack.row_of_plan.cpu().numpy()]
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
