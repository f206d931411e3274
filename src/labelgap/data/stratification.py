"""A stratified split of a multi-label table.

Rare classes are placed first, while there is a choice (iterative stratification: Sechidis, Tsoumakas and Vlahavas,
"On the stratification of multi-label data", ECML PKDD 2011), with three changes: the sizes are met exactly, a
class that is known to be present anywhere is present in the first split, and an image is placed with regard to all of
its classes, not only the rarest, so that frequent ones are well distributed too. Images of one group are placed as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.labels import PRESENT, LabelTable

__all__ = ["split_sizes", "stratified_split"]


def split_sizes(count: int, *tenths: int) -> tuple[int, ...]:
    """Return the size of the first split, and of each other one, which gets so many tenths of ``count`` rows.

    Tenths are rounded; each split has at least one row as long as the first has one.

    Example:
        >>> split_sizes(100, 1, 1)
        (80, 10, 10)
        >>> split_sizes(17, 1), split_sizes(3, 1, 1), split_sizes(2, 1, 1), split_sizes(1, 1, 1)
        ((15, 2), (1, 1, 1), (1, 1, 0), (1, 0, 0))
    """
    left, sizes = count, []
    for tenth in tenths:
        size = min(max((count * tenth + 5) // 10, 1), max(left - 1, 0))
        sizes.append(size)
        left -= size
    return left, *sizes


def stratified_split(
    table: LabelTable, sizes: Sequence[int], seed: int = 0, groups: ArrayLike | None = None
) -> tuple[NDArray[np.int64], ...]:
    r"""Split the rows of a table so that each split gets its share of every class's known positives.

    First every class, from the rarest on, gets one positive into the first split. Then the class with the fewest
    positives left to place is taken again and again, and each of its images goes to the split s with room that

    .. math:: \sum_{k \in \text{classes of the image}} \frac{c_k (m_{sk} - c_k/2)}{w_k\, n_s}, \qquad c_k = 1

    is largest for: m positives of class k are missing there, w are left to place, n is the split's size. (That lowers
    the weighted squared distance from the wanted shares the most.) Images without a known positive fill what is left.
    Absent and unknown labels play no part.

    Images of one group are placed as one, with all their positives (c of class k) and their number; the sizes are then
    met as nearly as the groups allow.

    Args:
        table: N labels.
        sizes: rows of each split, N in all; the first is the one to learn from.
        seed: of the order among ties.
        groups: ``(N,)`` whole numbers, the same for images that have to stay together; each alone when not given.

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
    unit = np.arange(len(table)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    if unit.shape != (len(table),):
        raise InputError(f"groups of shape {unit.shape} for {len(table)} rows: give one number for every row.")
    assignment = _Assignment(table, unit, sizes, seed)
    for column in np.argsort(assignment.waiting, kind="stable").tolist():
        assignment.seed_class(column)
    while (column := assignment.rarest()) is not None:
        for each in assignment.waiting_units(column):
            assignment.put(each, assignment.neediest(each))
    assignment.fill()
    return tuple(np.flatnonzero(assignment.split_of[unit] == split) for split in range(len(sizes)))


class _Assignment:
    """The split of every unit (an image, or a group) so far, the room left, and the positives each split lacks."""

    unplaced = 255

    def __init__(self, table: LabelTable, unit: NDArray[np.int64], sizes: Sequence[int], seed: int) -> None:
        positive = table.values == PRESENT
        units, count = int(unit.max(initial=-1)) + 1, len(table.classes)
        places, times = np.unique(unit[table.rows[positive]] * count + table.columns[positive], return_counts=True)
        rows, columns = np.divmod(places, max(count, 1))
        self.order = numpy_generator(seed, "split").permutation(units)
        rank = np.empty_like(self.order)
        rank[self.order] = np.arange(units)
        holders = np.bincount(columns, minlength=count)
        self.waiting = np.bincount(columns, weights=times, minlength=count).astype(np.int64)
        self.class_units = np.split(rows[np.lexsort((rank[rows], columns))], np.cumsum(holders)[:-1])
        self.columns, self.times = columns, times
        self.starts = np.searchsorted(rows, np.arange(units + 1))
        self.split_of = np.full(units, self.unplaced, dtype=np.uint8)
        self.weight = np.bincount(unit, minlength=units)
        self.room = np.array(sizes)
        self.sizes = np.maximum(self.room, 1)
        self.missing = np.outer(sizes, self.waiting) / max(len(table), 1)

    def seed_class(self, column: int) -> None:
        """Put one positive of a class into the first split, unless one is there or there is no room."""
        units = self.class_units[column]
        if len(units) and self.room[0] >= self.weight[units[0]] and not (self.split_of[units] == 0).any():
            self.put(int(units[0]), 0)

    def rarest(self) -> int | None:
        """Return the class with the fewest positives left to place, or None when all are placed."""
        left = np.where(self.waiting > 0, self.waiting, np.iinfo(np.int64).max)
        column = int(left.argmin()) if len(left) else 0
        return column if len(left) and self.waiting[column] else None

    def waiting_units(self, column: int) -> list[int]:
        """Return the units with a class that have no split yet, the largest first."""
        units = self.class_units[column]
        units = units[self.split_of[units] == self.unplaced]
        found: list[int] = units[np.argsort(-self.weight[units], kind="stable")].tolist()
        return found

    def neediest(self, unit: int) -> int:
        """Return the split with room that misses a unit's classes the most; where none has room, the emptiest."""
        fits = self.room >= self.weight[unit]
        if not fits.any():
            return int((self.room / self.sizes).argmax())
        classes, times = self.classes_of(unit)
        need = (times * (self.missing[:, classes] - 0.5 * times) / self.waiting[classes]).sum(axis=1) / self.sizes
        return int(np.where(fits, need, -np.inf).argmax())

    def put(self, unit: int, split: int) -> None:
        """Give a unit its split."""
        classes, times = self.classes_of(unit)
        self.split_of[unit] = split
        self.room[split] -= self.weight[unit]
        self.waiting[classes] -= times
        self.missing[split, classes] -= times

    def classes_of(self, unit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the classes that are known to be present in a unit, and in how many of its images."""
        part = slice(self.starts[unit], self.starts[unit + 1])
        return self.columns[part], self.times[part]

    def fill(self) -> None:
        """Give the units without a known positive, in random order, the room that is left; the largest go first."""
        left = self.order[self.split_of[self.order] == self.unplaced]
        large = left[self.weight[left] > 1]
        for unit in large[np.argsort(-self.weight[large], kind="stable")].tolist():
            self.put(unit, int((self.room / self.sizes).argmax()))
        single = left[self.weight[left] == 1]
        room = np.repeat(np.arange(len(self.room), dtype=np.uint8), np.maximum(self.room, 0))
        self.split_of[single] = room[: len(single)]
