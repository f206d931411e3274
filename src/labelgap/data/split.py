"""Which rows are train, val and test: as the file says, with no image in two splits; all are train where it has none.

An image is in two splits when a copy of it, or another image of its group, is in another split. Where a network is
trained and there is no val, a tenth of train becomes val, by a hash of each image's name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError
from labelgap.core.findings import Finding, Note
from labelgap.data.dataset import Dataset
from labelgap.data.findings import LeaksAllowed, NoSplit, NoValRows, ValidationHeldOut, describe_splits, format_sizes
from labelgap.data.scanning import DuplicatePairs, cluster_ids
from labelgap.labels import PRESENT, LabelTable
from labelgap.labels.io.table_file import SPLITS, TableFile

Rows = dict[str, NDArray[np.int64]]


def is_unsplit(data: Dataset) -> bool:
    """Return whether the data have no split of their own, so that all images are train."""
    return any(isinstance(finding, NoSplit) for finding in data.findings)


def hold_out_val(data: Dataset) -> Dataset:
    """Return data of one's own without val rows with a tenth of train as val, by a hash of each image's name."""
    train, unsplit = data.train, any(isinstance(finding, NoSplit | NoValRows) for finding in data.findings)
    if data.val is not None or not unsplit or len(train) < 2:
        return data
    seed = int(data.recipe.get("options", {}).get("seed") or 0)
    kept, held = hash_split(train.labels, 1, seed, train.groups)
    finding = ValidationHeldOut(len(held), len(train), seed)
    return replace(data, train=train.select(kept), val=train.select(held, "val"), findings=(*data.findings, finding))


def assign_splits(
    file: TableFile, pairs: DuplicatePairs, allow_leaks: bool = False
) -> tuple[Rows, NDArray[np.int64], list[Finding]]:
    """Return the rows of every split, a number for every row that copies and groups share, and the findings."""
    table = file.table
    groups = cluster_ids(pairs + _group_pairs(file), len(table))
    if file.splits is None:
        none = np.empty(0, dtype=np.int64)
        rows = {"train": np.arange(len(table)), "val": none, "test": none}
        return rows, groups, [NoSplit(len(table)), *_kept_together(file, pairs)]
    given = np.array(file.splits)
    rows = {name: np.flatnonzero(given == name) for name in SPLITS}
    sizes = {name: len(rows[name]) for name in SPLITS}
    if not len(rows["train"]):
        counts = format_sizes(sizes)
        raise InputError(f"{file.path}: no row has 'train' under split ({counts}), so there is nothing to learn from.")
    findings = [*describe_splits(sizes, given=True), *_leaks(file, pairs, given, allow_leaks)]
    if not len(rows["test"]):
        findings.append(Note("no test rows: nothing is measured on images that took no part", "split"))
    return rows, groups, findings


def _group_pairs(file: TableFile) -> DuplicatePairs:
    """Pair every row with the first of its group."""
    first: dict[str, int] = {}
    named = [(row, group) for row, group in enumerate(file.groups or ()) if group.strip()]
    found = [(first.setdefault(group, row), row) for row, group in named]
    return DuplicatePairs.of([pair for pair in found if pair[0] != pair[1]], exact=False)


def _kept_together(file: TableFile, pairs: DuplicatePairs) -> list[Finding]:
    findings: list[Finding] = []
    if file.groups is not None:
        groups = len({group for group in file.groups if group.strip()})
        findings.append(Note(f"the images of each of {groups:,} groups are kept in one fold", "split"))
    if not len(pairs):
        return findings
    count = len(file.table)
    exact = count - len(np.unique(cluster_ids(pairs.exact_only(), count)))
    near = count - len(np.unique(cluster_ids(pairs, count))) - exact
    counts = " and ".join(f"{count:,} {kind}" for count, kind in ((exact, "exact"), (near, "near")) if count)
    duplicates = "duplicates" if exact + near > 1 else "duplicate"
    return [*findings, Note(f"{counts} {duplicates}: kept in one fold", "split")]


def _leaks(file: TableFile, pairs: DuplicatePairs, given: NDArray[np.str_], allow_leaks: bool) -> list[Finding]:
    """Find the images of one split that are in another as well: an error, or a finding where leaks are allowed."""
    count = len(file.table)
    relations = {
        "is the same file as": pairs.exact_only(),
        "looks like": pairs,
        "is of one group with": _group_pairs(file),
    }
    order = np.array([SPLITS.index(name) for name in given], dtype=np.int64)
    messages: dict[int, str] = {}
    for relation, connected in relations.items():
        for row, other in leaked_rows(cluster_ids(connected, count), order).items():
            place = "" if file.sources is None else f"{file.sources[row].name}, line {file.lines[row]}: "
            message = f"{place}{_describe_row(file, row)} {relation} {_describe_row(file, other, line=True)}"
            messages.setdefault(row, message)
    if not messages:
        return []
    if allow_leaks:
        return [LeaksAllowed(len(messages))]
    problems = [Problem(int(file.lines[row]), message) for row, message in messages.items()]
    outcome = "nothing was trained: images of one split are in another (--allow-leaks uses them all the same)"
    fixable = file.unit != "" and file.sources is None
    unit = file.unit if file.sources is None else ""
    raise ProblemsError(file.path, problems, outcome, unit=unit, fixable=fixable)


def leaked_rows(clusters: NDArray[np.int64], rank: NDArray[np.int64]) -> dict[int, int]:
    """Return every row that has another rank than the lowest of its cluster, with the first row that has that."""
    first: dict[int, int] = {}
    for row in np.lexsort((np.arange(len(rank)), rank)).tolist():
        first.setdefault(int(clusters[row]), row)
    leaders = np.array([first[int(number)] for number in clusters], dtype=np.int64)
    return {int(row): int(leaders[row]) for row in np.flatnonzero(rank != rank[leaders])}


def _describe_row(file: TableFile, row: int, *, line: bool = False) -> str:
    assert file.splits is not None
    place = f", {file.unit} {file.lines[row]}" if line and file.unit else ""
    if place and file.sources is not None:
        place = f" in {file.sources[row].name}{place}"
    return f"{file.table.images[row]} ({file.splits[row]}{place})"


def hash_split(
    table: LabelTable, tenths: int, seed: int = 0, groups: ArrayLike | None = None
) -> tuple[NDArray[np.int64], ...]:
    """Hold out ``tenths`` splits of a tenth of the rows of a table, each row by a hash of its image's name alone.

    A row keeps its split whatever rows are added or removed, except: a group that an image joins or leaves may move
    (the largest hash of a group counts); of a class whose known positives would all be held out, the image nearest to
    the border goes to the first split; and a split that would be empty gets the image nearest to it. Returned are the
    rows of the first split and of each that is held out, ascending.
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
