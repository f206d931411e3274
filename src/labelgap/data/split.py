"""Which rows are train, val and test: as the file says, or by a split of our own, with no image in two splits.

An image is in two splits when a copy of it, or another image of its group, is in another split. Where labelgap makes
the split, all of them go to one. Where the file has a split, they are reported as problems, unless leaks are allowed.

Our own split is by a hash of each image's name, so an image stays where it is when rows are added, removed or
relabeled; ``hash_split`` lists the exceptions for groups and tiny tables. The classes come out evenly as chance has it,
except that a class that is known to be present anywhere is present in train, as far as the table allows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError
from labelgap.core.findings import Finding, Note
from labelgap.data.dataset import Dataset
from labelgap.data.findings import (
    AutoSplit,
    DuplicatesFound,
    FileSplit,
    GroupsKeptTogether,
    LeaksAllowed,
    ValidationHeldOut,
    format_sizes,
)
from labelgap.data.scanning.duplicates import DuplicatePairs, cluster_ids
from labelgap.labels import PRESENT, LabelTable
from labelgap.labels.io.table_file import SPLITS, TableFile

__all__ = ["assign_splits", "hash_split", "is_auto_split"]

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
        rows = dict(zip(SPLITS, hash_split(table, 2, seed, groups), strict=True))
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
        kept, val = hash_split(table.select(train), 1, seed, groups)
        rows = {**rows, "train": train[kept], "val": train[val]}
        findings.append(ValidationHeldOut(len(val), len(train), seed))
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
    raise ProblemsError(file.path, problems, outcome, unit=file.unit, fixable=file.unit != "")


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


def hash_split(
    table: LabelTable, tenths: int, seed: int = 0, groups: ArrayLike | None = None
) -> tuple[NDArray[np.int64], ...]:
    """Hold out tenths of the rows of a table, each row by a hash of its image's name alone.

    A row keeps its split whatever other rows are added or removed, with exceptions: a group that an image joins or
    leaves may move; where every known positive of a class would be held out, the image nearest to the border goes to
    the first split; and a held-out split that would be empty gets the image nearest to it.

    Args:
        table: N labels with the names of the images.
        tenths: number of splits to hold out, a tenth each.
        seed: part of the hash.
        groups: ``(N,)`` whole numbers, the same for images that have to stay together: the largest hash counts,
            so that an image that joins a group can only bring it into the first split.

    Returns:
        the row numbers of the first split and of each that is held out, ascending; every row is in exactly one.

    Example:
        >>> table = LabelTable.from_dense([[1]] * 40, images=[f"{number}.jpg" for number in range(40)])
        >>> [len(part) for part in hash_split(table, 2)]
        [36, 3, 1]
    """
    unit = np.arange(len(table)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    if unit.shape != (len(table),):
        raise InputError(f"groups of shape {unit.shape} for {len(table)} rows: give one number for every row.")
    position = np.zeros(int(unit.max(initial=-1)) + 1)
    np.maximum.at(position, unit, _hash_fractions(table.images, seed))
    held_out = np.minimum((position * 10).astype(np.int64), tenths)  # the last number is the first split
    _keep_classes(table, unit, position, held_out, tenths)
    for split in range(tenths):
        candidates = np.flatnonzero(held_out == tenths)
        if not (held_out == split).any() and len(candidates) > 1:
            held_out[candidates[position[candidates].argmin()]] = split
    return tuple(np.flatnonzero(held_out[unit] == split) for split in (tenths, *range(tenths)))


def _hash_fractions(names: Sequence[str], seed: int) -> NDArray[np.float64]:
    """Return a number from 0 to 1 for every name, evenly distributed."""
    salt = f"{seed}\0".encode()
    digests = (hashlib.blake2b(salt + name.encode("utf-8", "surrogatepass"), digest_size=8) for name in names)
    numbers = np.frombuffer(b"".join(each.digest() for each in digests), dtype=">u8")
    return numbers.astype(np.float64) / 2.0**64


def _keep_classes(
    table: LabelTable, unit: NDArray[np.int64], position: NDArray[np.float64], held_out: NDArray[np.int64], first: int
) -> None:
    """Move a unit into the first split for each class whose known positives are all held out."""
    positive = table.values == PRESENT
    order = np.argsort(table.columns[positive], kind="stable")
    units, columns = unit[table.rows[positive]][order], table.columns[positive][order]
    covered = np.unique(columns[held_out[units] == first])
    for column in np.setdiff1d(columns, covered).tolist():
        members = units[slice(*np.searchsorted(columns, [column, column + 1]))]
        if not (held_out[members] == first).any():
            held_out[members[position[members].argmax()]] = first
