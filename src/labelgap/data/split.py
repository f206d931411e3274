"""Which rows are train, val and test: as the file says, or by our own division, with no image on two sides.

An image is on two sides when a copy of it is in another split, or another image of its group. Where labelgap divides,
all of them go to one side. Where the file itself does, it is a problem to be told, unless leaks are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError
from labelgap.data.dataset import Dataset
from labelgap.data.duplicates import DuplicatePairs, cluster_ids
from labelgap.data.stratification import split_sizes, stratified_split
from labelgap.labels import LabelTable
from labelgap.labels.io.table_file import SPLITS

__all__ = ["SplitInputs", "assign_splits", "is_auto_split"]

Rows = dict[str, NDArray[np.int64]]
NOT_GIVEN = "no split given"
"""How the rule begins that says that labelgap has divided the data."""


@dataclass(frozen=True, eq=False)
class SplitInputs:
    """What is known of the rows that are to be divided.

    Attributes:
        where: the file or folder, for messages.
        table: labels.
        splits: the split of every row, or None when none is given.
        groups: the group of every row ("" for none), or None when none is given.
        pairs: rows that are copies of one another.
        lines: where every row stands in the file.
        unit: what ``lines`` counts; "" when there is nothing to count.
        seed: of our own division.
        allow_leaks: whether an image may be on two sides.
    """

    where: object
    table: LabelTable
    splits: Sequence[str] | None
    groups: Sequence[str] | None
    pairs: DuplicatePairs
    lines: NDArray[np.int64]
    unit: str = "line"
    seed: int = 0
    allow_leaks: bool = False


def is_auto_split(data: Dataset) -> bool:
    """Return whether labelgap has divided the data, which came without splits of their own."""
    return any(rule.startswith(NOT_GIVEN) for rule in data.rules)


def assign_splits(division: SplitInputs) -> tuple[Rows, list[str]]:
    """Return the rows of every split, and in words where they come from."""
    together = _together(division)
    table, seed = division.table, division.seed
    if division.splits is None:
        kept = None if division.allow_leaks else together
        parts = stratified_split(table, split_sizes(len(table), 1, 1), seed, kept)
        rows = dict(zip(SPLITS, parts, strict=True))
        rule = f"{NOT_GIVEN}: 80/10/10, stratified by known positives, seed {seed}: {_sizes(rows)}"
        return rows, [rule, *_kept_together(division, rows)]
    given = np.array(division.splits)
    rows = {name: np.flatnonzero(given == name) for name in SPLITS}
    if not len(rows["train"]):
        raise InputError(
            f"{division.where}: no row has 'train' under split ({_sizes(rows)}), so there is nothing to learn from."
        )
    rules = [f"split as the file says: {_sizes(rows)}", *_leaks(division, given)]
    if not len(rows["val"]) and len(rows["train"]) > 1:
        everything = rows["train"]
        kept = None if division.allow_leaks else together[everything]
        parts = stratified_split(table.select(everything), split_sizes(len(everything), 1), seed, kept)
        rows = {**rows, "train": everything[parts[0]], "val": everything[parts[1]]}
        rules.append(
            f"no val rows: {len(parts[1]):,} of the {len(everything):,} train images (10 %) are held out as val, "
            f"stratified by known positives, seed {seed}"
        )
    if not len(rows["test"]):
        rules.append("no test rows: nothing is measured on images that took no part")
    return rows, rules


def _together(division: SplitInputs) -> NDArray[np.int64]:
    """Return a number per row, the same for all that copies or a group connect."""
    return cluster_ids(division.pairs + _group_pairs(division), len(division.table))


def _group_pairs(division: SplitInputs) -> DuplicatePairs:
    """Pair every row with the first of its group."""
    first: dict[str, int] = {}
    found = [
        (first.setdefault(group, row), row)
        for row, group in enumerate(division.groups or ())
        if group and group.strip()
    ]
    ends = np.array(found, dtype=np.int64).reshape(-1, 2)
    ends = ends[ends[:, 0] != ends[:, 1]]
    return DuplicatePairs(ends[:, 0], ends[:, 1], np.zeros(len(ends), dtype=bool))


def _kept_together(division: SplitInputs, rows: Rows) -> list[str]:
    """Say what was kept on one side, or was not."""
    said = []
    if division.groups is not None and not division.allow_leaks:
        count = len({group for group in division.groups if group.strip()})
        said.append(f"the images of each of {count:,} groups are in one split")
    if not len(division.pairs):
        return said
    if not division.allow_leaks:
        return [*said, f"{_copies(division)}: kept on one side"]
    split_of = np.empty(len(division.table), dtype=object)
    for name, members in rows.items():
        split_of[members] = name
    apart = int((split_of[division.pairs.first] != split_of[division.pairs.second]).sum())
    return [*said, f"{_copies(division)}: {apart:,} of them in two splits, as allowed"]


def _copies(division: SplitInputs) -> str:
    """Count the images that are there once more: by their bytes, and by their looks."""
    count = len(division.table)
    same = count - len(np.unique(cluster_ids(division.pairs.exact_only(), count)))
    alike = count - len(np.unique(cluster_ids(division.pairs, count))) - same
    parts = [f"{number:,} {what}" for number, what in ((same, "exact"), (alike, "near")) if number]
    return f"{' and '.join(parts)} duplicate{'s' if same + alike > 1 else ''}"


def _leaks(division: SplitInputs, given: NDArray[np.str_]) -> list[str]:
    """Tell the images of one split that are in another as well: as problems, or as a rule where they are allowed."""
    count, pairs = len(division.table), division.pairs
    kinds = {
        "is the same file as": pairs.exact_only(),
        "looks like": pairs,
        "is of one group with": _group_pairs(division),
    }
    told: dict[int, str] = {}
    for what, connected in kinds.items():
        for row, other in _apart(cluster_ids(connected, count), given):
            told.setdefault(row, f"{_named(division, row)} {what} {_named(division, other, place=True)}")
    if not told:
        return []
    if division.allow_leaks:
        return [f"{len(told):,} images of one split are in another as well, as allowed"]
    problems = [Problem(int(division.lines[row]), message) for row, message in told.items()]
    outcome = "nothing was trained: images of one split are in another (--allow-leaks uses them all the same)"
    raise ProblemsError(division.where, problems, outcome, unit=division.unit)


def _apart(together: NDArray[np.int64], given: NDArray[np.str_]) -> list[tuple[int, int]]:
    """Return every row that is not in the first split of its cluster, with the first row that is."""
    order = np.array([SPLITS.index(name) for name in given])
    first: dict[int, int] = {}
    for row in np.lexsort((np.arange(len(order)), order)).tolist():
        first.setdefault(int(together[row]), row)
    leaders = np.array([first[int(number)] for number in together], dtype=np.int64)
    return [(int(row), int(leaders[row])) for row in np.flatnonzero(order > order[leaders])]


def _named(division: SplitInputs, row: int, *, place: bool = False) -> str:
    """Name an image with its split, and where it stands."""
    assert division.splits is not None
    line = f", {division.unit} {division.lines[row]}" if place and division.unit else ""
    return f"{division.table.images[row]} ({division.splits[row]}{line})"


def _sizes(rows: Rows) -> str:
    return ", ".join(f"{len(rows[name]):,} {name}" for name in SPLITS)
