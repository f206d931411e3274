"""Single entries (image, class) with the epoch in which each was recorded, in memory that grows with their number.

The entries of a step are appended, a *block* for each image that has any; a block points to the image's previous one.
The entries of a batch are found by following these pointers in all of its images at once: as many rounds as an image
has blocks, which is at most one for each epoch where an epoch contains it once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.labels.sparse import starts_from_lengths


class _Column:
    """An array that grows at its end."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values, self.size = values, len(values)

    def extend(self, values: NDArray[Any]) -> None:
        if self.size + len(values) > len(self.values):
            room = np.empty(self.size // 2 + len(values), dtype=self.values.dtype)
            self.values = np.concatenate([self.values[: self.size], room])
        self.values[self.size : self.size + len(values)] = values
        self.size += len(values)

    def all(self) -> NDArray[Any]:
        return self.values[: self.size]


class EntryLog(nn.Module):
    """A log of entries of ``(…, N, K)``, on the host; its ``state_dict`` is as large as what was recorded.

    Args:
        heads: leading axes.
        images: N.
        classes: K.

    Example:
        >>> log = EntryLog((), images=1000, classes=3)
        >>> log.record(torch.tensor([7, 2]), torch.tensor([[True, False, True], [False, False, False]]), epoch=2)
        >>> log.epochs_of(torch.tensor([2, 7]))
        tensor([[0, 0, 0],
                [2, 0, 2]], dtype=torch.int16)
    """

    def __init__(self, heads: tuple[int, ...], images: int, classes: int) -> None:
        super().__init__()
        self.heads, self.images, self.classes = heads, images, classes
        self._load(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int16), np.empty(0, np.int32))

    def _load(
        self,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int32],
        epochs: NDArray[np.int16],
        columns: NDArray[np.int32],
    ) -> None:
        """Start from blocks: their rows (counted over all heads), lengths and epochs, and the classes of all."""
        order = np.argsort(rows, kind="stable")
        previous = np.full(len(rows), -1, dtype=np.int64)
        same = np.flatnonzero(rows[order][1:] == rows[order][:-1])
        previous[order[same + 1]] = order[same]
        self._last = np.full(math.prod(self.heads) * self.images, -1, dtype=np.int64)
        self._last[rows] = np.arange(len(rows))  # of equal rows the last is kept
        self._rows, self._lengths, self._epochs = _Column(rows), _Column(lengths), _Column(epochs)
        self._starts, self._previous = _Column(starts_from_lengths(lengths)[:-1]), _Column(previous)
        self._columns = _Column(columns)

    def epochs_of(self, index: Tensor) -> Tensor:
        """Return the epochs of the entries of some images, ``(…, B, K)`` int16; 0 where there is none."""
        rows = self._places(index)
        found = np.zeros((len(rows), self.classes), dtype=np.int16)
        batch, block = np.arange(len(rows)), self._last[rows]
        while len(batch := batch[block >= 0]):
            block = block[block >= 0]
            lengths, starts = self._lengths.values[block].astype(np.int64), self._starts.values[block]
            first = np.cumsum(lengths) - lengths
            entries = np.arange(int(lengths.sum())) + np.repeat(starts - first, lengths)
            epochs = np.repeat(self._epochs.values[block], lengths)
            found[np.repeat(batch, lengths), self._columns.values[entries]] = epochs
            block = self._previous.values[block]
        return torch.from_numpy(found).view(*self.heads, len(index), self.classes).to(index.device)

    def record(self, index: Tensor, mask: Tensor, epoch: int) -> None:
        """Append the entries of a mask ``(…, B, K)``; those that were recorded before must not be in it.

        An image that is in the batch twice has the entries of either.
        """
        batch, columns = np.nonzero(mask.reshape(-1, self.classes).cpu().numpy())
        places, columns = np.divmod(np.unique(self._places(index)[batch] * self.classes + columns), self.classes)
        rows, lengths = np.unique(places, return_counts=True)
        starts = self._columns.size + starts_from_lengths(lengths)[:-1]
        self._previous.extend(self._last[rows])
        self._last[rows] = self._rows.size + np.arange(len(rows))
        self._rows.extend(rows)
        self._lengths.extend(lengths)
        self._epochs.extend(np.full(len(rows), epoch))
        self._starts.extend(starts)
        self._columns.extend(columns)

    def recorded_in(self, epoch: int, head: tuple[int, ...] = ()) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the images and classes of an epoch's entries, in ascending order."""
        number = int(np.ravel_multi_index(head, self.heads)) if head else 0
        chosen = np.repeat(self._epochs.all() == epoch, self._lengths.all())
        row, column = np.repeat(self._rows.all(), self._lengths.all())[chosen], self._columns.all()[chosen]
        own = row // self.images == number
        places = np.sort((row[own] % self.images) * self.classes + column[own])
        rows, columns = np.divmod(places, self.classes)
        return rows, columns

    def _places(self, index: Tensor) -> NDArray[np.int64]:
        """Return the rows of images, counted over all heads."""
        rows = index.cpu().numpy().astype(np.int64)
        return (np.arange(math.prod(self.heads))[:, None] * self.images + rows).ravel()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name in ("rows", "lengths", "epochs", "columns"):
            destination[prefix + name] = torch.from_numpy(getattr(self, f"_{name}").all().copy())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        names = [prefix + name for name in ("rows", "lengths", "epochs", "columns")]
        if missing := [name for name in names if name not in state_dict]:
            arguments[2].extend(missing)
        else:
            self._load(*(state_dict[name].cpu().numpy() for name in names))
