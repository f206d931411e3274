"""Which rows are train, val and test: as the file says, or by a split of our own, with no image in two splits.

An image is in two splits when a copy of it, or another image of its group, is in another split. Where labelgap makes
the split, all of them go to one. Where the file has a split, they are reported as problems, unless leaks are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError
from labelgap.core.findings import Finding
from labelgap.data.dataset import Dataset
from labelgap.data.duplicates import DuplicatePairs, cluster_ids
from labelgap.data.findings import (
    AutoSplit,
    DuplicatesFound,
    FileSplit,
    GroupsKeptTogether,
    LeaksAllowed,
    NoTestSplit,
    ValidationHeldOut,
)
from labelgap.data.stratification import split_sizes, stratified_split
from labelgap.labels import LabelTable
from labelgap.labels.io.table_file import SPLITS

__all__ = ["SplitInputs", "assign_splits", "is_auto_split"]

Rows = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class SplitInputs:
    """What is known of the rows that are to be split.

    Attributes:
        path: the file or folder, for messages.
        table: labels.
        splits: the split of every row, or None when the file has none.
        groups: the group of every row ("" for none), or None when the file has none.
        pairs: rows that are copies of one another.
        lines: the line of every row in the file.
        unit: what ``lines`` counts; "" when there is nothing to count.
        seed: of a split of our own.
        allow_leaks: whether an image may be in two splits.
    """

    path: object
    table: LabelTable
    splits: Sequence[str] | None
    groups: Sequence[str] | None
    pairs: DuplicatePairs
    lines: NDArray[np.int64]
    unit: str = "line"
    seed: int = 0
    allow_leaks: bool = False


def is_auto_split(data: Dataset) -> bool:
    """Return whether labelgap made the split, because the data has none of its own."""
    return any(isinstance(finding, AutoSplit) for finding in data.findings)


def assign_splits(inputs: SplitInputs) -> tuple[Rows, list[Finding]]:
    """Return the rows of every split, and where the split comes from."""
    clusters = cluster_ids(inputs.pairs + _group_pairs(inputs), len(inputs.table))
    if inputs.splits is None:
        groups = None if inputs.allow_leaks else clusters
        parts = stratified_split(inputs.table, split_sizes(len(inputs.table), 1, 1), inputs.seed, groups)
        rows = dict(zip(SPLITS, parts, strict=True))
        return rows, [AutoSplit(_sizes(rows), inputs.seed), *_kept_together(inputs, rows)]
    given = np.array(inputs.splits)
    rows = {name: np.flatnonzero(given == name) for name in SPLITS}
    findings: list[Finding] = [FileSplit(_sizes(rows))]
    if not len(rows["train"]):
        counts = ", ".join(f"{count:,} {name}" for name, count in _sizes(rows).items())
        raise InputError(
            f"{inputs.path}: no row has 'train' under split ({counts}), so there is nothing to learn from."
        )
    findings += _leaks(inputs, given)
    if not len(rows["val"]) and len(rows["train"]) > 1:
        train = rows["train"]
        groups = None if inputs.allow_leaks else clusters[train]
        parts = stratified_split(inputs.table.select(train), split_sizes(len(train), 1), inputs.seed, groups)
        rows = {**rows, "train": train[parts[0]], "val": train[parts[1]]}
        findings.append(ValidationHeldOut(len(parts[1]), len(train), inputs.seed))
    if not len(rows["test"]):
        findings.append(NoTestSplit())
    return rows, findings


def _group_pairs(inputs: SplitInputs) -> DuplicatePairs:
    """Pair every row with the first of its group."""
    first: dict[str, int] = {}
    found = [
        (first.setdefault(group, row), row) for row, group in enumerate(inputs.groups or ()) if group and group.strip()
    ]
    ends = np.array(found, dtype=np.int64).reshape(-1, 2)
    ends = ends[ends[:, 0] != ends[:, 1]]
    return DuplicatePairs(ends[:, 0], ends[:, 1], np.zeros(len(ends), dtype=bool))


def _kept_together(inputs: SplitInputs, rows: Rows) -> list[Finding]:
    """Return what our own split keeps in one split, or does not."""
    findings: list[Finding] = []
    if inputs.groups is not None and not inputs.allow_leaks:
        findings.append(GroupsKeptTogether(len({group for group in inputs.groups if group.strip()})))
    if not len(inputs.pairs):
        return findings
    count = len(inputs.table)
    exact = count - len(np.unique(cluster_ids(inputs.pairs.exact_only(), count)))
    near = count - len(np.unique(cluster_ids(inputs.pairs, count))) - exact
    apart = None
    if inputs.allow_leaks:
        split_of = np.empty(count, dtype=object)
        for name, members in rows.items():
            split_of[members] = name
        apart = int((split_of[inputs.pairs.first] != split_of[inputs.pairs.second]).sum())
    return [*findings, DuplicatesFound(exact, near, apart)]


def _leaks(inputs: SplitInputs, given: NDArray[np.str_]) -> list[Finding]:
    """Find the images of one split that are in another as well: an error, or a finding where leaks are allowed."""
    count, pairs = len(inputs.table), inputs.pairs
    relations = {
        "is the same file as": pairs.exact_only(),
        "looks like": pairs,
        "is of one group with": _group_pairs(inputs),
    }
    messages: dict[int, str] = {}
    for relation, connected in relations.items():
        for row, other in _leaked_rows(cluster_ids(connected, count), given):
            message = f"{_describe_row(inputs, row)} {relation} {_describe_row(inputs, other, line=True)}"
            messages.setdefault(row, message)
    if not messages:
        return []
    if inputs.allow_leaks:
        return [LeaksAllowed(len(messages))]
    problems = [Problem(int(inputs.lines[row]), message) for row, message in messages.items()]
    outcome = "nothing was trained: images of one split are in another (--allow-leaks uses them all the same)"
    raise ProblemsError(inputs.path, problems, outcome, unit=inputs.unit)


def _leaked_rows(clusters: NDArray[np.int64], given: NDArray[np.str_]) -> list[tuple[int, int]]:
    """Return every row that is not in the first split of its cluster, with the first row that is."""
    order = np.array([SPLITS.index(name) for name in given])
    first: dict[int, int] = {}
    for row in np.lexsort((np.arange(len(order)), order)).tolist():
        first.setdefault(int(clusters[row]), row)
    leaders = np.array([first[int(number)] for number in clusters], dtype=np.int64)
    return [(int(row), int(leaders[row])) for row in np.flatnonzero(order > order[leaders])]


def _describe_row(inputs: SplitInputs, row: int, *, line: bool = False) -> str:
    """Return the name of an image with its split, and its line if asked for."""
    assert inputs.splits is not None
    place = f", {inputs.unit} {inputs.lines[row]}" if line and inputs.unit else ""
    return f"{inputs.table.images[row]} ({inputs.splits[row]}{place})"


def _sizes(rows: Mapping[str, NDArray[np.int64]]) -> dict[str, int]:
    return {name: len(rows[name]) for name in SPLITS}
