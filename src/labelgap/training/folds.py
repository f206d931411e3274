"""Folds for out-of-fold scores: stratified by class, with duplicates of an image in one fold.

A model that has seen a duplicate of an image has seen its label, so duplicates share a fold.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.data.images import StoredImages
from labelgap.data.scanning.duplicates import cluster_ids, find_duplicates
from labelgap.data.scanning.image_scan import scan_images
from labelgap.labels import PRESENT, LabelTable

__all__ = ["assign_folds", "duplicate_groups", "equal_row_groups", "fold_groups"]


def assign_folds(
    labels: LabelTable, folds: int, seed: int = 0, groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the fold of every row.

    Groups are sorted by the rarest class that is known to be present in them, in random order within a class, and
    assigned to the folds in turn. So every class is spread as evenly as the others allow, at the cost of one sort.

    Args:
        labels: N rows.
        folds: how many, two at least.
        seed: of the random order.
        groups: ``(N,)`` integers, equal for rows that share a fold; each row is its own group when None.

    Returns:
        ``(N,)`` from 0 to ``folds`` - 1.

    Example:
        >>> fold = assign_folds(LabelTable.from_dense([[1, -1]] * 4 + [[-1, 1]] * 2), folds=2)
        >>> sorted(fold[:4].tolist()), sorted(fold[4:].tolist())
        ([0, 0, 1, 1], [0, 1])
    """
    group = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(group.max(initial=-1)) + 1
    if folds < 2:
        raise InputError(f"{folds} folds: two at least, so that every image is scored by a model that has not seen it.")
    if count < folds:
        remedy = f": give --folds {count}." if count > 1 else "."
        raise InputError(f"{count} images that are not duplicates cannot be split into {folds} folds{remedy}")
    present = labels.values == PRESENT
    frequency = np.bincount(labels.columns[present], minlength=len(labels.classes))
    rarity = np.empty(len(labels.classes), dtype=np.int64)
    rarity[np.argsort(frequency, kind="stable")] = np.arange(len(labels.classes))
    rarest = np.full(count, len(labels.classes))
    np.minimum.at(rarest, group[labels.rows[present]], rarity[labels.columns[present]])
    order = np.lexsort((numpy_generator(seed, "folds").random(count), rarest))
    fold = np.empty(count, dtype=np.int64)
    fold[order] = np.arange(count) % folds
    return fold[group]


def fold_groups(data: Dataset, split: str, features: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """Return a number per image of a split, equal for those that folds keep together: copies, and one's own groups."""
    groups = data.split(split).groups
    return duplicate_groups(data, split, features) if groups is None else groups


def duplicate_groups(data: Dataset, split: str, features: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """Return a number per image of a split, equal for duplicates.

    Image files are compared as the reader of the data compares them: by content and by appearance, or as its option
    ``duplicates`` says. Other images are duplicates if their features ``(N, D)``, if any, are equal.
    """
    images = data.split(split).images
    if isinstance(images, StoredImages):
        mode = str(data.recipe.get("options", {}).get("duplicates") or "near")
        return cluster_ids(find_duplicates(images, scan_images(images), mode), len(images))
    return np.arange(len(images)) if features is None else equal_row_groups(features)


def equal_row_groups(features: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number per row, equal for rows that are equal bit for bit.

    Example:
        >>> equal_row_groups(np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0]]))
        array([0, 1, 0])
    """
    seen: dict[bytes, int] = {}
    numbers = np.empty(len(features), dtype=np.int64)
    for row in range(len(features)):
        digest = hashlib.blake2b(np.ascontiguousarray(features[row]).tobytes(), digest_size=16).digest()
        numbers[row] = seen.setdefault(digest, len(seen))
    return numbers
