"""The class hierarchy: where a dog is present, an animal is present.

The consequences are revisions with the source "parents", applied to the table as any other: they fill what is unknown
and never overrule an observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.text import truncate_text
from labelgap.labels.codes import PRESENT
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

HIERARCHY_SOURCE: Final = "parents"
_MAX_LABELS: Final = 2_000_000
_MAX_PER_LABEL: Final = 100
"""How many labels a hierarchy may imply: so many, and so many for every known label."""
_MAX_SHOWN: Final = 10


def implied_labels(table: LabelTable, pairs: Iterable[tuple[str, str]]) -> tuple[Revisions, int, tuple[str, ...]]:
    """Find the labels that follow from "child present, so parent present", over any number of generations.

    A name that is no class still connects others: from dog to animal through canine. A cycle is an error.
    Returned are the revisions of unknown labels to PRESENT, how many labels are absent although a descendant is present
    (they stay absent), and the children and parents that are no class of the table.

    Example:
        >>> table = LabelTable.from_lists([["dog"], ["owl"]], classes=["animal", "bird", "dog", "owl"])
        >>> revisions, _, _ = implied_labels(table, [("dog", "animal"), ("owl", "bird"), ("bird", "animal")])
        >>> table.revised(revisions).to_dense().tolist()
        [[1, -1, 1, -1], [1, 1, -1, 1]]
    """
    children = _children(pairs)
    number = {name: column for column, name in enumerate(table.classes)}
    count = max(len(table.classes), 1)
    rows, places = table.rows, [np.zeros(0, dtype=np.int64)]
    known = rows * count + table.columns
    present = _rows_by_class(table)
    limit = _MAX_LABELS + _MAX_PER_LABEL * len(table.values)
    found: dict[str, NDArray[np.int64]] = {}
    for name, below in children.items():
        own = present[number[name]] if name in number else places[0]
        parts = {id(part): part for part in (own, *(found[child] for child in below)) if len(part)}
        found[name] = (
            next(iter(parts.values()), own) if len(parts) < 2 else np.unique(np.concatenate([*parts.values()]))
        )
        if len(parts) > 1 or (name in number and found[name] is not own):
            limit -= len(found[name])
        if limit < 0:
            raise InputError("parents: the hierarchy implies too many labels; is it a chain of thousands of classes?")
        if name in number and found[name] is not own:
            places.append(found[name] * count + number[name])
    implied = np.unique(np.concatenate(places))
    contradicted = int(np.isin(known[table.values != PRESENT], implied).sum())
    row, column = np.divmod(implied[~np.isin(implied, known)], count)
    revisions = Revisions.from_arrays(table, row, column, source=HIERARCHY_SOURCE, epoch=None)
    return revisions, contradicted, tuple(sorted(children.keys() - number.keys()))


def describe_cycle(names: Sequence[str]) -> str:
    """Return the names of a cycle, the first of them in alphabetical order first, and only a few of many.

    Example:
        >>> describe_cycle(["b", "c", "a"])
        'a → b → c → a'
    """
    first = names.index(min(names))
    shown = [truncate_text(name) for name in (*names[first:], *names[: first + 1])]
    return " → ".join(shown if len(shown) <= _MAX_SHOWN else [*shown[: _MAX_SHOWN - 2], "…", shown[-1]])


def _children(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the children of every name, in an order that has children before their parents."""
    children: dict[str, set[str]] = {}
    for child, parent in pairs:
        children.setdefault(parent, set()).add(child)
    try:
        order = list(TopologicalSorter(children).static_order())
    except CycleError as error:
        raise InputError(f"parents: {describe_cycle(error.args[1][:-1])} is a cycle.") from None
    return {name: children.get(name, set()) for name in order}


def _rows_by_class(table: LabelTable) -> list[NDArray[np.int64]]:
    """Return the rows in which each class is present, ascending."""
    present = table.values == PRESENT
    columns = table.columns[present]
    order = np.argsort(columns, kind="stable")
    ends = np.cumsum(np.bincount(columns, minlength=len(table.classes)))
    return np.split(table.rows[present][order], ends[:-1])
