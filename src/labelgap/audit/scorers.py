"""Out-of-fold logits: every image is scored by models that have not seen its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.distributed import rank, single_process, world_size
from labelgap.core.errors import RunError
from labelgap.core.system import available_memory
from labelgap.labels import LabelTable
from labelgap.training.config import RunConfig
from labelgap.training.folds import FoldTask, train_folds
from labelgap.training.loop.processes import broadcast_array, fail_together
from labelgap.training.selection import Selection

BLOCK_SIZE: Final = 1 << 20
"""Largest number of logits, or of feature values, in a block."""
MEMORY_SHARE: Final = 0.25
"""The share of the free memory that the training features of a fold may take."""


class Scorer(Protocol):
    """Gives the logits of a slice of images."""

    @property
    def width(self) -> int:
        """How many numbers it reads per image; block sizes depend on it."""

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the ``(B, K)`` logits of some rows of a split, from models that have not seen their labels."""


@dataclass(frozen=True, eq=False)
class HeadScorer:
    """Linear heads, one for each fold.

    Attributes:
        features: split → ``(N, D)`` floats of any precision; memory-mapped files work.
        fold: ``(N,)`` the fold of every training row; the head of that fold has not seen the row.
        weight: ``(F, K, D)``
        bias: ``(F, K)``
        device: where to multiply.

    No head has seen the other splits: they get the mean of all heads' logits.
    """

    features: Mapping[str, NDArray[Any]]
    fold: NDArray[np.int64]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    device: torch.device

    @property
    def width(self) -> int:
        """D, the number of features."""
        return int(self.weight.shape[2])

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the ``(B, K)`` logits of some rows of a split."""
        vectors = torch.from_numpy(np.array(self.features[split][rows], dtype=np.float32)).to(self.device)
        weight, bias = self._heads
        if split != "train":
            mean: NDArray[np.float32] = torch.addmm(bias.mean(0), vectors, weight.mean(0).t()).cpu().numpy()
            return mean
        fold = self.fold[rows]
        result = np.empty((len(fold), weight.shape[1]), dtype=np.float32)
        for number in np.unique(fold).tolist():
            members = np.flatnonzero(fold == number)
            selected = vectors.index_select(0, torch.from_numpy(members).to(self.device))
            result[members] = torch.addmm(bias[number], selected, weight[number].t()).cpu().numpy()
        return result

    @cached_property
    def _heads(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias on the device."""
        weight, bias = (torch.from_numpy(np.asarray(part, dtype=np.float32)) for part in (self.weight, self.bias))
        return weight.to(self.device), bias.to(self.device)


def train_head_scorers(
    features: Mapping[str, NDArray[Any]],
    labels: LabelTable,
    fold: NDArray[np.int64],
    selection: Selection,
    configs: Sequence[RunConfig],
    *,
    device: torch.device,
    advance: Callable[[int], None] = lambda count: None,
) -> list[HeadScorer]:
    """Train heads of several configurations for each fold, and return a scorer for each configuration.

    Several processes divide the folds, and all get the heads of all folds. Where the training features of a fold do not
    fit into a quarter of the free memory, its heads learn from a random part of them.

    Args:
        features: split → ``(N, D)``; train, and val where epochs are selected on it. Those of the backbone before
            training: a network that was trained on the labels carries them in its features.
        labels: of train.
        fold: ``(N,)`` of every row of train.
        selection: how the epoch is selected.
        configs: of linear heads.
        device: where to train.
        advance: called after each head.
    """
    folds, (images, width), processes = int(fold.max()) + 1, features["train"].shape, world_size()
    free = available_memory()
    max_rows = images if free is None else int(MEMORY_SHARE * free / (4 * width))
    weight = np.empty((folds, len(configs), len(labels.classes), width), dtype=np.float32)
    bias = np.empty((folds, len(configs), len(labels.classes)), dtype=np.float32)
    tasks = [FoldTask(config, labels, fold) for config in configs]
    with fail_together(), single_process():
        own = range(rank() % processes, folds, processes)
        for member, number, head in train_folds(
            features, tasks, device, selection=selection, numbers=own, max_rows=max_rows
        ):
            if head.failed is not None:
                raise RunError(f"{head.plan} on fold {number + 1}: {head.failed}.")
            weight[number, member], bias[number, member] = head.weight, head.bias
            advance(processes)
    for number in range(folds):
        broadcast_array(weight[number], number % processes)
        broadcast_array(bias[number], number % processes)
    return [HeadScorer(features, fold, weight[:, member], bias[:, member], device) for member in range(len(configs))]


@dataclass(frozen=True, eq=False)
class StoredScorer:
    """Precomputed logits, ``(N, K)`` for each split; memory-mapped where they are large."""

    stored: Mapping[str, NDArray[np.float32]]
    width: int = 1

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the ``(B, K)`` logits of some rows of a split."""
        return np.array(self.stored[split][rows], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """Consecutive images with the logits of all scorers.

    Attributes:
        first: number of the first row, counted over all splits.
        logits: ``(R, B, K)`` of R scorers.
        known: ``(C,)`` positions of the known labels, ``row · K + class`` within the block.
        values: ``(C,)`` their codes.
    """

    first: int
    logits: NDArray[np.float32]
    known: NDArray[np.int64]
    values: NDArray[np.int8]


def score_blocks(tables: Mapping[str, LabelTable], scorers: Sequence[Scorer]) -> Iterator[ScoreBlock]:
    """Iterate once over the images of all splits, in their order, in blocks of bounded memory."""
    before = 0
    for split, table in tables.items():
        classes = len(table.classes)
        step = max(1, BLOCK_SIZE // max(classes * len(scorers), *(scorer.width for scorer in scorers)))
        for start in range(0, len(table), step):
            rows = slice(start, min(start + step, len(table)))
            known = slice(table.starts[rows.start], table.starts[rows.stop])
            row = np.repeat(np.arange(rows.stop - start), np.diff(table.starts[start : rows.stop + 1]))
            logits = np.stack([scorer.logits(split, rows) for scorer in scorers])
            yield ScoreBlock(before + start, logits, row * classes + table.columns[known], table.values[known])
        before += len(table)
