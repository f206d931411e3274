"""Which rows are train, val and test: as the file says, or by a split of our own, with no image in two splits.

An image is in two splits when a copy of it, or another image of its group, is in another split. Where labelgap makes
the split, all of them go to one. Where the file has a split, they are reported as problems, unless leaks are allowed.

The stratified split places rare classes first, while there is a choice (iterative stratification: Sechidis, Tsoumakas
and Vlahavas, "On the stratification of multi-label data", ECML PKDD 2011), with three changes: the sizes are met
exactly, a class that is known to be present anywhere is present in the first split, and an image is placed with regard
to all of its classes, not only the rarest, so that frequent ones are well distributed too.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError
from labelgap.core.findings import Finding, Note
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.data.duplicates import DuplicatePairs, cluster_ids
from labelgap.data.findings import (
    AutoSplit,
    DuplicatesFound,
    FileSplit,
    GroupsKeptTogether,
    LeaksAllowed,
    ValidationHeldOut,
    format_sizes,
)
from labelgap.labels import PRESENT, LabelTable
from labelgap.labels.io.table_file import SPLITS, TableFile

__all__ = ["assign_splits", "is_auto_split", "split_sizes", "stratified_split"]

Rows = dict[str, NDArray[np.int64]]


def is_auto_split(data: Dataset) -> bool:
    """Return whether labelgap made the split, because the data has none of its own."""
    return any(isinstance(finding, AutoSplit) for finding in data.findings)


def assign_splits(
    file: TableFile, pairs: DuplicatePairs, seed: int = 0, allow_leaks: bool = False
) -> tuple[Rows, list[Finding]]:
    """Return the rows of every split, and where the split comes from; ``seed`` is of a split of our own."""
    table = file.table
    clusters = cluster_ids(pairs + _group_pairs(file), len(table))
    if file.splits is None:
        groups = None if allow_leaks else clusters
        parts = stratified_split(table, split_sizes(len(table), 1, 1), seed, groups)
        rows = dict(zip(SPLITS, parts, strict=True))
        return rows, [AutoSplit(_sizes(rows), seed), *_kept_together(file, pairs, rows, allow_leaks)]
    given = np.array(file.splits)
    rows = {name: np.flatnonzero(given == name) for name in SPLITS}
    findings: list[Finding] = [FileSplit(_sizes(rows))]
    if not len(rows["train"]):
        counts = format_sizes(_sizes(rows))
        raise InputError(f"{file.path}: no row has 'train' under split ({counts}), so there is nothing to learn from.")
    findings += _leaks(file, pairs, given, allow_leaks)
    if not len(rows["val"]) and len(rows["train"]) > 1:
        train = rows["train"]
        groups = None if allow_leaks else clusters[train]
        parts = stratified_split(table.select(train), split_sizes(len(train), 1), seed, groups)
        rows = {**rows, "train": train[parts[0]], "val": train[parts[1]]}
        findings.append(ValidationHeldOut(len(parts[1]), len(train), seed))
    if not len(rows["test"]):
        findings.append(Note("no test rows: nothing is measured on images that took no part", "split"))
    return rows, findings


def _group_pairs(file: TableFile) -> DuplicatePairs:
    """Pair every row with the first of its group."""
    first: dict[str, int] = {}
    named = [(row, group) for row, group in enumerate(file.groups or ()) if group.strip()]
    found = [(first.setdefault(group, row), row) for row, group in named]
    return DuplicatePairs.of([pair for pair in found if pair[0] != pair[1]], exact=False)


def _kept_together(file: TableFile, pairs: DuplicatePairs, rows: Rows, allow_leaks: bool) -> list[Finding]:
    """Return what our own split keeps in one split, or does not."""
    findings: list[Finding] = []
    if file.groups is not None and not allow_leaks:
        findings.append(GroupsKeptTogether(len({group for group in file.groups if group.strip()})))
    if not len(pairs):
        return findings
    count = len(file.table)
    exact = count - len(np.unique(cluster_ids(pairs.exact_only(), count)))
    near = count - len(np.unique(cluster_ids(pairs, count))) - exact
    apart = None
    if allow_leaks:
        split_of = np.empty(count, dtype=object)
        for name, members in rows.items():
            split_of[members] = name
        apart = int((split_of[pairs.first] != split_of[pairs.second]).sum())
    return [*findings, DuplicatesFound(exact, near, apart)]


def _leaks(file: TableFile, pairs: DuplicatePairs, given: NDArray[np.str_], allow_leaks: bool) -> list[Finding]:
    """Find the images of one split that are in another as well: an error, or a finding where leaks are allowed."""
    count = len(file.table)
    relations = {
        "is the same file as": pairs.exact_only(),
        "looks like": pairs,
        "is of one group with": _group_pairs(file),
    }
    messages: dict[int, str] = {}
    for relation, connected in relations.items():
        for row, other in _leaked_rows(cluster_ids(connected, count), given):
            message = f"{_describe_row(file, row)} {relation} {_describe_row(file, other, line=True)}"
            messages.setdefault(row, message)
    if not messages:
        return []
    if allow_leaks:
        return [LeaksAllowed(len(messages))]
    problems = [Problem(int(file.lines[row]), message) for row, message in messages.items()]
    outcome = "nothing was trained: images of one split are in another (--allow-leaks uses them all the same)"
    raise ProblemsError(file.path, problems, outcome, unit=file.unit)


def _leaked_rows(clusters: NDArray[np.int64], given: NDArray[np.str_]) -> list[tuple[int, int]]:
    """Return every row that is not in the first split of its cluster, with the first row that is."""
    order = np.array([SPLITS.index(name) for name in given])
    first: dict[int, int] = {}
    for row in np.lexsort((np.arange(len(order)), order)).tolist():
        first.setdefault(int(clusters[row]), row)
    leaders = np.array([first[int(number)] for number in clusters], dtype=np.int64)
    return [(int(row), int(leaders[row])) for row in np.flatnonzero(order > order[leaders])]


def _describe_row(file: TableFile, row: int, *, line: bool = False) -> str:
    """Return the name of an image with its split, and its line if asked for."""
    assert file.splits is not None
    place = f", {file.unit} {file.lines[row]}" if line and file.unit else ""
    return f"{file.table.images[row]} ({file.splits[row]}{place})"


def _sizes(rows: Mapping[str, NDArray[np.int64]]) -> dict[str, int]:
    return {name: len(rows[name]) for name in SPLITS}


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
    for column in np.argsort(assignment.remaining, kind="stable").tolist():
        assignment.ensure_in_first(column)
    while (column := assignment.rarest_class()) is not None:
        for each in assignment.unassigned_units(column):
            assignment.assign(each, assignment.best_split(each))
    assignment.fill()
    return tuple(np.flatnonzero(assignment.split_of[unit] == split) for split in range(len(sizes)))


class _Assignment:
    """The split of every unit (an image, or a group) so far, the capacity left, and the positives each split lacks."""

    unassigned = 255

    def __init__(self, table: LabelTable, unit: NDArray[np.int64], sizes: Sequence[int], seed: int) -> None:
        positive = table.values == PRESENT
        units, count = int(unit.max(initial=-1)) + 1, len(table.classes)
        places, times = np.unique(unit[table.rows[positive]] * count + table.columns[positive], return_counts=True)
        rows, columns = np.divmod(places, max(count, 1))
        self.order = numpy_generator(seed, "split").permutation(units)
        rank = np.empty_like(self.order)
        rank[self.order] = np.arange(units)
        holders = np.bincount(columns, minlength=count)
        self.remaining = np.bincount(columns, weights=times, minlength=count).astype(np.int64)
        self.queue = sorted((left, column) for column, left in enumerate(self.remaining.tolist()))
        self.class_units = np.split(rows[np.lexsort((rank[rows], columns))], np.cumsum(holders)[:-1])
        self.columns, self.times = columns, times
        self.starts = np.searchsorted(rows, np.arange(units + 1))
        self.split_of = np.full(units, self.unassigned, dtype=np.uint8)
        self.weight = np.bincount(unit, minlength=units)
        self.capacity = np.array(sizes)
        self.sizes = np.maximum(self.capacity, 1)
        self.missing = np.outer(sizes, self.remaining) / max(len(table), 1)

    def ensure_in_first(self, column: int) -> None:
        """Put one positive of a class into the first split, unless one is there or there is no capacity."""
        units = self.class_units[column]
        if len(units) and self.capacity[0] >= self.weight[units[0]] and not (self.split_of[units] == 0).any():
            self.assign(int(units[0]), 0)

    def rarest_class(self) -> int | None:
        """Return the class with the fewest positives left to place, or None when all are placed."""
        while self.queue:
            left, column = self.queue[0]
            if left == self.remaining[column] and left:
                return column
            heapq.heappop(self.queue)  # outdated: a later entry of the class is in the queue
        return None

    def unassigned_units(self, column: int) -> list[int]:
        """Return the units with a class that have no split yet, the largest first."""
        units = self.class_units[column]
        units = units[self.split_of[units] == self.unassigned]
        found: list[int] = units[np.argsort(-self.weight[units], kind="stable")].tolist()
        return found

    def best_split(self, unit: int) -> int:
        """Return the split with room for a unit that lacks its classes the most; where none has room, the emptiest."""
        fits = self.capacity >= self.weight[unit]
        if not fits.any():
            return int((self.capacity / self.sizes).argmax())
        classes, times = self.classes_of(unit)
        need = (times * (self.missing[:, classes] - 0.5 * times) / self.remaining[classes]).sum(axis=1) / self.sizes
        return int(np.where(fits, need, -np.inf).argmax())

    def assign(self, unit: int, split: int) -> None:
        """Give a unit its split."""
        classes, times = self.classes_of(unit)
        self.split_of[unit] = split
        self.capacity[split] -= self.weight[unit]
        self.remaining[classes] -= times
        for column, left in zip(classes.tolist(), self.remaining[classes].tolist(), strict=True):
            heapq.heappush(self.queue, (left, column))
        self.missing[split, classes] -= times

    def classes_of(self, unit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the classes that are known to be present in a unit, and in how many of its images."""
        part = slice(self.starts[unit], self.starts[unit + 1])
        return self.columns[part], self.times[part]

    def fill(self) -> None:
        """Give the units without a known positive, in random order, the capacity that is left; the largest go first."""
        left = self.order[self.split_of[self.order] == self.unassigned]
        large = left[self.weight[left] > 1]
        for unit in large[np.argsort(-self.weight[large], kind="stable")].tolist():
            self.assign(unit, int((self.capacity / self.sizes).argmax()))
        single = left[self.weight[left] == 1]
        capacity = np.repeat(np.arange(len(self.capacity), dtype=np.uint8), np.maximum(self.capacity, 0))
        self.split_of[single] = capacity[: len(single)]
