"""What one tag says of another: where a dog is, an animal is.

The consequences are revisions with the source "parents", laid over the table as any other: they fill what is unknown
and never overrule what somebody said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.labels.codes import PRESENT
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

__all__ = ["HIERARCHY_SOURCE", "ImpliedLabels", "ancestors", "implied_labels"]

HIERARCHY_SOURCE: Final = "parents"


class ImpliedLabels(NamedTuple):
    """What follows from a table and its parents.

    Attributes:
        revisions: a PRESENT for every parent of a present class that nobody had said anything about.
        against: how many labels say absent where a child is present; they stay as they are.
        strange: the children and parents that are no class of the table.
    """

    revisions: Revisions
    against: int
    strange: tuple[str, ...]


def implied_labels(table: LabelTable, pairs: Iterable[tuple[str, str]]) -> ImpliedLabels:
    """Find what follows from "child present, so parent present", over any number of generations.

    A name that is no class still hands on: from dog to animal by way of canine.

    Args:
        table: labels; absent and unknown ones have no consequences.
        pairs: (child, parent), several parents allowed; a circle is an error.

    Example:
        >>> table = LabelTable.from_lists([["dog"], ["owl"]], classes=["animal", "bird", "dog", "owl"])
        >>> found = implied_labels(table, [("dog", "animal"), ("owl", "bird"), ("bird", "animal")])
        >>> table.revised(found.revisions).to_dense().tolist()
        [[1, -1, 1, -1], [1, 1, -1, 1]]
    """
    above = ancestors(pairs)
    number = {name: column for column, name in enumerate(table.classes)}
    count = max(len(table.classes), 1)
    rows, places = table.rows, [np.zeros(0, dtype=np.int64)]
    for child, parents in above.items():
        known = [number[parent] for parent in parents if parent in number]
        if child in number and known:
            here = rows[(table.columns == number[child]) & (table.values == PRESENT)]
            places.append((here[:, None] * count + np.array(known)[None, :]).ravel())
    wanted = np.unique(np.concatenate(places))
    stated = rows * count + table.columns
    new = wanted[~np.isin(wanted, stated)]
    against = np.isin(stated[table.values != PRESENT], wanted).sum()
    mentioned = {*above, *(parent for parents in above.values() for parent in parents)}
    return ImpliedLabels(_revisions(table, new, count), int(against), tuple(sorted(mentioned - number.keys())))


def ancestors(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return all that every child implies, near and far.

    Example:
        >>> ancestors([("owl", "bird"), ("bird", "animal")])
        {'bird': ('animal',), 'owl': ('animal', 'bird')}
    """
    parents: dict[str, list[str]] = {}
    for child, parent in pairs:
        parents.setdefault(child, []).append(parent)
    found: dict[str, set[str]] = {}
    for start in parents:
        path, stack = [start], [iter(parents[start])]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                done = path.pop()
                found[done] = {*parents.get(done, ())}.union(*(found.get(up, ()) for up in parents.get(done, ())))
            elif step in path:
                raise InputError(f"parents: {_circle(path, step)} goes round in a circle.")
            elif step not in found:
                path.append(step)
                stack.append(iter(parents.get(step, ())))
    return {child: tuple(sorted(found[child])) for child in sorted(parents)}


def _circle(path: Sequence[str], again: str) -> str:
    return " → ".join([*path[path.index(again) :], again])


def _revisions(table: LabelTable, places: NDArray[np.int64], count: int) -> Revisions:
    row, column = np.divmod(places, count)
    images, classes = np.asarray(table.images, dtype=object), np.asarray(table.classes, dtype=object)
    made = len(places)
    columns = {
        "image": pa.array(images[row], pa.string()),
        "class": pa.array(classes[column], pa.string()),
        "value": pa.array(np.full(made, PRESENT, dtype=np.int8)),
        "source": pa.array([HIERARCHY_SOURCE] * made, pa.string()),
    }
    return Revisions.from_table(
        pa.table({**columns, **{name: pa.nulls(made) for name in ("target", "epoch", "time", "author")}})
    )
