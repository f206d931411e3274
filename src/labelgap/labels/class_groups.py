"""Classes in groups by how many of their training labels are known, to measure rare classes apart (Kim et al. 2022)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.table import LabelTable

GROUPS: Final = 5
MIN_CLASSES: Final = 25
"""Fewer classes are not grouped: a mean over fewer than five says little."""


def class_groups(labels: LabelTable) -> list[NDArray[np.int64]]:
    """Return the classes in five groups of equal size, by the number of known training labels, the fewest first.

    Example:
        >>> table = LabelTable.from_dense([[1, -1, 0, 1, 1], [1, -1, 1, 1, -1], [1, -1, -1, 0, -1]])
        >>> [group.tolist() for group in class_groups(table)]
        [[1], [4], [2], [0], [3]]
    """
    counts = labels.counts()
    return np.array_split(np.argsort(counts.present + counts.absent, kind="stable"), GROUPS)


def group_numbers(labels: LabelTable) -> list[int] | None:
    """Return the group of every class, 1 to 5; None where every label is known, or there are few classes."""
    if labels.complete or len(labels.classes) < MIN_CLASSES:
        return None
    numbers = np.zeros(len(labels.classes), dtype=np.int64)
    for number, group in enumerate(class_groups(labels), 1):
        numbers[group] = number
    return numbers.tolist()
