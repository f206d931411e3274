"""Batches of every kind that a loss may meet, and how one is run on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.losses.reference import Batch, Matrix, reference_of
from torch import Tensor

from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import Loss, MultiHead, TrainingScores, loss, method_options

EPOCHS = (1, 2, 5, 10)
LABELS = ("full", "partial", "single")
LOGITS = ("moderate", "tied", "extreme")
SMALL = ((8, 20), (1, 1))
LARGE = ((16, 80), (4, 312))
SPARE = 3
"""Rows of the table that are not in the batch; the first class has a present, an absent and an unknown label there."""


def some_labels(kind: str, shape: tuple[int, int], random: np.random.Generator) -> NDArray[np.int8]:
    """All labels known, a third of them (some rows none), or a single positive a row."""
    labels = np.where(random.random(shape) < 0.2, PRESENT, ABSENT).astype(np.int8)
    if kind == "partial":
        labels[random.random(shape) < 0.65] = UNKNOWN
        labels[1::4] = UNKNOWN
    elif kind == "single":
        labels[:] = UNKNOWN
        labels[np.arange(shape[0]), random.integers(shape[1], size=shape[0])] = PRESENT
    return labels


def some_logits(kind: str, shape: tuple[int, int], random: np.random.Generator) -> Matrix:
    """Normal ones, ones of four values only, or ones up to ±10,000."""
    logits = random.normal(0, 2, shape)
    if kind == "tied":
        return random.choice([-1.5, 0.0, 0.5, 2.0], shape)
    if kind == "extreme":
        far = random.choice([-1e4, 1e4, -3000, 3000, -88, 88, -40, 40, -17, 17, 0], shape)
        return np.where(random.random(shape) < 0.5, far, logits)
    return logits


def batch_of(labels: NDArray[np.int8], logits: Matrix, epoch: int = 1, seed: int = 0) -> Batch:
    """A batch whose rows lie in random order in a slightly larger table."""
    random = np.random.default_rng(seed)
    rows, classes = labels.shape
    index = random.permutation(rows + SPARE)[:rows]
    dense = some_labels("partial", (rows + SPARE, classes), random)
    dense[np.setdiff1d(np.arange(rows + SPARE), index), 0] = PRESENT, ABSENT, UNKNOWN
    dense[index] = labels
    features = random.normal(0, 1, (rows, 6))
    return Batch(logits, labels, index, features, LabelTable.from_dense(dense), epoch)


@cache
def a_batch(shape: tuple[int, int], labels: str, logits: str, epoch: int, seed: int) -> Batch:
    """The batch of these, made once for all methods: nothing may change it."""
    random = np.random.default_rng([seed, *shape, epoch])
    return batch_of(some_labels(labels, shape, random), some_logits(logits, shape, random), epoch, seed)


def every_batch(turn: int = 0) -> Iterator[Batch]:
    """All kinds of labels and logits of small shapes, in two epochs each; one large batch, another each ``turn``."""
    number = turn
    for shape, epochs in zip(SMALL, (2, 1), strict=True):
        for labels in LABELS:
            for logits in LOGITS:
                number += 1
                for step in range(epochs):
                    yield a_batch(shape, labels, logits, EPOCHS[(number + 2 * step) % len(EPOCHS)], number)
    yield a_batch(LARGE[turn % 2], LABELS[turn % 3], LOGITS[turn % 3], EPOCHS[(turn + 1) % len(EPOCHS)], turn)


def some_batches(epoch: int = 5, shape: tuple[int, int] = (8, 20)) -> Iterator[Batch]:
    """One batch of every kind of labels and logits."""
    for labels in LABELS:
        for logits in LOGITS:
            yield a_batch(shape, labels, logits, epoch, 7)


def set_heads(loss_fn: Loss, heads: tuple[int, ...]) -> None:
    """Tell a loss the leading axes, as the linear engine does."""
    assert isinstance(loss_fn, MultiHead)
    loss_fn.heads = heads


def prepared(
    name: str,
    batch: Batch,
    options: Mapping[str, Any],
    *,
    heads: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float64,
) -> Loss:
    """The loss, prepared with the batch's table and at its epoch; what it learns is of the type given.

    What its reference wants it to remember of earlier steps, it does, every head something else.
    """
    made = loss(name, **options)
    set_heads(made, heads)
    made.prepare(batch.table, epochs=batch.epochs, seed=0)
    made.set_epoch(batch.epoch)
    made.to(dtype)
    memory, random = reference_of(name).memory, np.random.default_rng(11)
    if memory is not None and options.get("storage") != "compact":
        drawn = [memory(batch.table, random) for _ in range(math.prod(heads))]
        stacked = {key: np.stack([one[key] for one in drawn]).reshape(*heads, *drawn[0][key].shape) for key in drawn[0]}
        made.load_state_dict({**made.state_dict(), **{key: torch.from_numpy(value) for key, value in stacked.items()}})
    return made


def scores_of(logits: Tensor, rows: Sequence[int], size: int = 2) -> TrainingScores:
    """What the network makes of some rows of a table, in batches, as a loop gives it to ``end_epoch``."""

    def scores() -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.split(torch.tensor(rows), size):
            yield index, logits[..., index, :]

    return scores


def forward(made: Callable[..., Tensor], batch: Batch, logits: Tensor) -> Tensor:
    """The loss of the batch for these logits, with everything that a loss may need."""
    labels, index = torch.from_numpy(batch.labels), torch.from_numpy(batch.index)
    features = torch.from_numpy(batch.features).to(torch.promote_types(logits.dtype, torch.float32))
    device = logits.device
    return made(logits, labels.to(device), index=index.to(device), features=features.to(device))


def with_state(batch: Batch, made: Loss) -> Batch:
    """The batch with the loss's state, for the reference."""
    return replace(batch, state={key: value.detach().cpu().numpy() for key, value in made.state_dict().items()})


@cache
def reductions_of(name: str) -> tuple[str, ...]:
    """The reductions that the reference can judge: all, where the method has a matrix of entries."""
    known, batch = reference_of(name), next(every_batch())
    answer = known.answer(with_state(batch, prepared(name, batch, known.plain)), **known.plain)
    matrix = answer.entries is not None and "reduction" in method_options(name)
    return ("mean", "sum", "none") if matrix else ("mean",)
