"""How a table without splits is divided: by size, and alike in every class.

Rare classes come first, as long as there is a choice (iterative stratification: Sechidis, Tsoumakas and Vlahavas,
"On the stratification of multi-label data", ECML PKDD 2011), with three rules of our own: the sizes are met exactly, a
class that is known to be present anywhere is present in the first split, and an image is placed with regard to all of
its classes, not only the rarest, so that frequent ones are shared out well too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.seeds import generator
from labelgap.labels import PRESENT, LabelTable

__all__ = ["share_sizes", "stratified_split"]


def share_sizes(count: int, *tenths: int) -> tuple[int, ...]:
    """Return how many of ``count`` rows the first split keeps and how many each other gets, so many tenths each.

    Tenths are rounded; each split gets at least one row as long as the first keeps one.

    Example:
        >>> share_sizes(100, 1, 1)
        (80, 10, 10)
        >>> share_sizes(17, 1), share_sizes(3, 1, 1), share_sizes(2, 1, 1), share_sizes(1, 1, 1)
        ((15, 2), (1, 1, 1), (1, 1, 0), (1, 0, 0))
    """
    left, sizes = count, []
    for tenth in tenths:
        size = min(max((count * tenth + 5) // 10, 1), max(left - 1, 0))
        sizes.append(size)
        left -= size
    return left, *sizes


def stratified_split(table: LabelTable, sizes: Sequence[int], seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    r"""Divide the rows of a table so that each split gets its share of every class's known positives.

    First every class, from the rarest on, gets one positive into the first split. Then the class with the fewest
    positives left to place is taken again and again, and each of its images goes to the split s with room that

    .. math:: \sum_{k \in \text{classes of the image}} \frac{m_{sk} - 1/2}{w_k\, n_s}

    is largest for: m positives of class k are missing there, w are left to place, n is the split's size. (That lowers
    the weighted squared distance from the wanted shares the most.) Images without a known positive fill what is left.
    Absent and unknown labels play no part.

    Each image stands for itself; images that have to stay together (a group) would be placed here as one.

    Args:
        table: N labels.
        sizes: rows of each split, N together; the first is the one to learn from.
        seed: of the order among equals.

    Returns:
        the row numbers of each split, ascending; every row is in exactly one.

    Example:
        >>> table = LabelTable.from_dense([[1, 0]] * 4 + [[0, 1]] * 4)
        >>> first, second = stratified_split(table, (4, 4))
        >>> table.select(first).counts().present, table.select(second).counts().present
        (array([2, 2]), array([2, 2]))
    """
    if min(sizes, default=0) < 0 or sum(sizes) != len(table):
        raise InputError(f"splits of {', '.join(map(str, sizes))} rows do not make up the {len(table)} rows there are.")
    placing = _Placing(table, sizes, seed)
    for column in np.argsort(placing.waiting, kind="stable").tolist():
        placing.seed_class(column)
    while (column := placing.rarest()) is not None:
        for row in placing.waiting_rows(column):
            placing.put(row, placing.neediest(row))
    placing.fill()
    return tuple(np.flatnonzero(placing.split_of == split) for split in range(len(sizes)))


class _Placing:
    """Which row went where so far, how much room is left, and how many positives each split still misses."""

    unplaced = 255

    def __init__(self, table: LabelTable, sizes: Sequence[int], seed: int) -> None:
        positive = table.values == PRESENT
        rows, columns = table.rows[positive], table.columns[positive]
        self.order = generator(seed, "split").permutation(len(table))
        rank = np.empty_like(self.order)
        rank[self.order] = np.arange(len(table))
        self.waiting = np.bincount(columns, minlength=len(table.classes))
        self.class_rows = np.split(rows[np.lexsort((rank[rows], columns))], np.cumsum(self.waiting)[:-1])
        self.columns: NDArray[np.int32] = columns
        self.starts = np.searchsorted(rows, np.arange(len(table) + 1))
        self.split_of = np.full(len(table), self.unplaced, dtype=np.uint8)
        self.room = np.array(sizes)
        self.sizes = np.maximum(self.room, 1)
        self.missing = np.outer(sizes, self.waiting) / max(len(table), 1)

    def seed_class(self, column: int) -> None:
        """Put one positive of a class into the first split, unless one is there or there is no room."""
        rows = self.class_rows[column]
        if len(rows) and self.room[0] and not (self.split_of[rows] == 0).any():
            self.put(int(rows[0]), 0)

    def rarest(self) -> int | None:
        """Return the class with the fewest positives left to place, or None when all are placed."""
        left = np.where(self.waiting > 0, self.waiting, np.iinfo(np.int64).max)
        column = int(left.argmin()) if len(left) else 0
        return column if len(left) and self.waiting[column] else None

    def waiting_rows(self, column: int) -> list[int]:
        """Return the rows with a class that have no split yet."""
        rows = self.class_rows[column]
        found: list[int] = rows[self.split_of[rows] == self.unplaced].tolist()
        return found

    def neediest(self, row: int) -> int:
        """Return the split with room that misses a row's classes the most."""
        classes = self.classes_of(row)
        need = ((self.missing[:, classes] - 0.5) / self.waiting[classes]).sum(axis=1) / self.sizes
        return int(np.where(self.room > 0, need, -np.inf).argmax())

    def put(self, row: int, split: int) -> None:
        """Give a row its split."""
        classes = self.classes_of(row)
        self.split_of[row] = split
        self.room[split] -= 1
        self.waiting[classes] -= 1
        self.missing[split, classes] -= 1

    def classes_of(self, row: int) -> NDArray[np.int32]:
        """Return the classes that are known to be present in a row."""
        return self.columns[self.starts[row] : self.starts[row + 1]]

    def fill(self) -> None:
        """Give the rows without a known positive, in random order, the room that is left."""
        left = self.order[self.split_of[self.order] == self.unplaced]
        self.split_of[left] = np.repeat(np.arange(len(self.room), dtype=np.uint8), self.room)
