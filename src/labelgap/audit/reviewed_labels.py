"""The labels of a table that a person decided, as ``labelgap apply`` listed them beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.labels.provenance import provenance_path, read_provenance

__all__ = ["reviewed_labels"]


def reviewed_labels(data: Dataset, tables: Mapping[str, LabelTable]) -> NDArray[np.int64]:
    """Return the labels of some splits that a person decided and nobody changed since.

    Args:
        data: loaded from a file, beside which the list lies; without one nothing is known to be decided.
        tables: labels of each split.

    Returns:
        ``(P,)`` positions ``row · K + class``, ascending; rows are counted over all splits.
    """
    source = data.recipe.get("path")
    entries = read_provenance(provenance_path(Path(source))) if source else []
    decided = [entry.revision for entry in entries if entry.by_person]
    number = {name: column for column, name in enumerate(data.classes)}
    found: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    before = 0
    for table in tables.values():
        row = {name: number for number, name in enumerate(table.images)} if decided else {}
        own = [each for each in decided if each.image in row and each.class_name in number]
        rows = np.array([row[each.image] for each in own], dtype=np.int64)
        columns = np.array([number[each.class_name] for each in own], dtype=np.int64)
        same = table.codes_at(rows, columns) == np.array([each.value for each in own], dtype=np.int8)
        found.append((before + rows[same]) * len(data.classes) + columns[same])
        before += len(table)
    return np.unique(np.concatenate(found))
