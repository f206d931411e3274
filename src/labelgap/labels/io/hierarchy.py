"""The class hierarchy: where a dog is present, an animal is present.

The consequences are revisions with the source "parents", applied to the table as any other: they fill what is unknown
and never overrule an observation.
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Final

import numpy as np

from labelgap.core.errors import InputError
from labelgap.labels.codes import PRESENT
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

__all__ = ["HIERARCHY_SOURCE", "ancestors", "implied_labels"]

HIERARCHY_SOURCE: Final = "parents"


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
    parents_of = ancestors(pairs)
    number = {name: column for column, name in enumerate(table.classes)}
    count = max(len(table.classes), 1)
    rows, places = table.rows, [np.zeros(0, dtype=np.int64)]
    for child, parents in parents_of.items():
        columns = [number[parent] for parent in parents if parent in number]
        if child in number and columns:
            present = rows[(table.columns == number[child]) & (table.values == PRESENT)]
            places.append((present[:, None] * count + np.array(columns)[None, :]).ravel())
    implied, known = np.unique(np.concatenate(places)), rows * count + table.columns
    contradicted = int(np.isin(known[table.values != PRESENT], implied).sum())
    row, column = np.divmod(implied[~np.isin(implied, known)], count)
    revisions = Revisions.from_arrays(table, row, column, source=HIERARCHY_SOURCE, epoch=None)
    names = {*parents_of, *(parent for parents in parents_of.values() for parent in parents)}
    return revisions, contradicted, tuple(sorted(names - number.keys()))


def ancestors(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the parents of every child, their parents, and so on.

    Example:
        >>> ancestors([("owl", "bird"), ("bird", "animal")])
        {'bird': ('animal',), 'owl': ('animal', 'bird')}
    """
    parents: dict[str, list[str]] = {}
    for child, parent in pairs:
        parents.setdefault(child, []).append(parent)
    try:
        order = list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        cycle = error.args[1][:0:-1]
        first = cycle.index(min(cycle))
        raise InputError(f"parents: {' → '.join([*cycle[first:], *cycle[: first + 1]])} is a cycle.") from None
    found: dict[str, set[str]] = {}
    for name in order:
        direct = parents.get(name, [])
        found[name] = set(direct).union(*(found[parent] for parent in direct))
    return {child: tuple(sorted(found[child])) for child in sorted(parents)}
