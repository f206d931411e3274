"""What gives every image the logits of models that have not seen its labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.labels import LabelTable

__all__ = ["HeadScorer", "ScoreBlock", "Scorer", "StoredScorer", "score_blocks"]

BLOCK_SIZE: Final = 1 << 20
"""So many logits, or numbers of features, are looked at at a time."""


class Scorer(Protocol):
    """Gives logits of rows, a piece at a time."""

    @property
    def width(self) -> int:
        """How many numbers it looks at for an image; pieces are cut accordingly."""

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the ``(B, K)`` logits of some rows of a split, from models that have not seen their labels."""


@dataclass(frozen=True, eq=False)
class HeadScorer:
    """Linear heads, one for each fold.

    Attributes:
        features: split → ``(N, D)`` floats of any precision; a file that is mapped into memory will do.
        fold: ``(N,)`` the fold of every row of train, whose head has not seen it.
        weight: ``(F, K, D)``
        bias: ``(F, K)``
        device: where to multiply.

    Other splits than train were seen by no head: they get the mean of all heads' logits.
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
            return self._mean(vectors)
        fold = self.fold[rows]
        result = np.empty((len(fold), weight.shape[1]), dtype=np.float32)
        for number in np.unique(fold).tolist():
            here = np.flatnonzero(fold == number)
            some = vectors.index_select(0, torch.from_numpy(here).to(self.device))
            result[here] = torch.addmm(bias[number], some, weight[number].t()).cpu().numpy()
        return result

    @cached_property
    def _heads(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The heads of all folds, where they are multiplied."""
        weight, bias = (torch.from_numpy(np.asarray(part, dtype=np.float32)) for part in (self.weight, self.bias))
        return weight.to(self.device), bias.to(self.device)

    def _mean(self, vectors: torch.Tensor) -> NDArray[np.float32]:
        """Return the mean of all heads' logits, which is what the mean head gives."""
        weight, bias = (part.mean(dim=0) for part in self._heads)
        logits: NDArray[np.float32] = torch.addmm(bias, vectors, weight.t()).cpu().numpy()
        return logits


@dataclass(frozen=True, eq=False)
class StoredScorer:
    """Logits that were computed before; ``(N, K)`` for each split, mapped from a file where they are large."""

    stored: Mapping[str, NDArray[np.float32]]

    @property
    def width(self) -> int:
        """Nothing else is looked at."""
        return 1

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the ``(B, K)`` logits of some rows of a split."""
        return np.array(self.stored[split][rows], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """Some images that follow one another, with what all scorers say.

    Attributes:
        first: number of the first row, counted over all splits.
        logits: ``(R, B, K)`` of R scorers.
        places: ``(C,)`` of the known labels, ``row · K + class`` within the block.
        values: ``(C,)`` their codes.
    """

    first: int
    logits: NDArray[np.float32]
    places: NDArray[np.int64]
    values: NDArray[np.int8]


def score_blocks(
    tables: Mapping[str, LabelTable], scorers: Sequence[Scorer], entries: int = BLOCK_SIZE
) -> Iterator[ScoreBlock]:
    """Go through all images once, so many at a time that memory stays bounded.

    Args:
        tables: labels of each split that is looked at, in this order.
        scorers: R of them.
        entries: logits, or features, of a block at most; one image at least.
    """
    before = 0
    for split, table in tables.items():
        classes = len(table.classes)
        step = max(1, entries // max(classes * len(scorers), *(scorer.width for scorer in scorers)))
        for start in range(0, len(table), step):
            rows = slice(start, min(start + step, len(table)))
            known = slice(table.starts[rows.start], table.starts[rows.stop])
            row = np.repeat(np.arange(rows.stop - start), np.diff(table.starts[start : rows.stop + 1]))
            logits = np.stack([scorer.logits(split, rows) for scorer in scorers])
            yield ScoreBlock(before + start, logits, row * classes + table.columns[known], table.values[known])
        before += len(table)
