"""Which images are scored by a model that has not seen their labels: folds, with copies of an image in one of them.

A model that has seen the twin of a picture has seen the label of both, so twins stay together. Classes are shared out:
in the order of each image's rarest known class, images are dealt to the folds like cards.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.data.duplicates import cluster_ids, find_duplicates
from labelgap.data.image_scan import scan_images
from labelgap.data.images import FileImages
from labelgap.labels import PRESENT, LabelTable

__all__ = ["assign_folds", "duplicate_groups", "equal_row_groups"]


def assign_folds(
    labels: LabelTable, folds: int, seed: int = 0, groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the fold of every row.

    Groups are put in the order of the rarest class that is known to be present in them, at random within it, and dealt
    out in turn. So every class is shared out as evenly as the others allow, in no more time than it takes to sort.

    Args:
        labels: N rows.
        folds: how many, two at least; each gets a row at least where there are as many groups.
        seed: of the order among equals.
        groups: ``(N,)`` whole numbers, the same for rows that stay together; each alone when not given.

    Returns:
        ``(N,)`` from 0 to ``folds`` - 1.

    Example:
        >>> fold = assign_folds(LabelTable.from_dense([[1, -1]] * 4 + [[-1, 1]] * 2), folds=2)
        >>> sorted(fold[:4].tolist()), sorted(fold[4:].tolist())
        ([0, 0, 1, 1], [0, 1])
    """
    unit = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    units = int(unit.max(initial=-1)) + 1
    if folds < 2:
        raise InputError(f"{folds} folds: two at least, so that every image is scored by a model that has not seen it.")
    if units < folds:
        raise InputError(f"{units} images that are no copies of one another cannot be dealt to {folds} folds.")
    present = labels.values == PRESENT
    count = np.bincount(labels.columns[present], minlength=len(labels.classes))
    place = np.empty(len(labels.classes) + 1, dtype=np.int64)
    place[np.argsort(count, kind="stable")] = np.arange(len(labels.classes))
    place[-1] = len(labels.classes)
    rarest = np.full(units, place[-1])
    np.minimum.at(rarest, unit[labels.rows[present]], place[labels.columns[present]])
    order = np.lexsort((numpy_generator(seed, "folds").random(units), rarest))
    fold = np.empty(units, dtype=np.int64)
    fold[order] = np.arange(units) % folds
    return fold[unit]


def duplicate_groups(data: Dataset, split: str, features: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """Return a number per image of a split, the same for copies of one another.

    Photos are compared as they were when the data were read: by their bytes and by their looks, unless that was
    switched off there. Of other data, images with exactly the same features are copies.

    Args:
        data: the data set.
        split: by name.
        features: ``(N, D)``, where there are any.
    """
    images = data.split(split).images
    if isinstance(images, FileImages):
        which = str(data.recipe.get("options", {}).get("duplicates") or "near")
        return cluster_ids(find_duplicates(images, scan_images(images), which), len(images))
    return np.arange(len(images)) if features is None else equal_row_groups(features)


def equal_row_groups(features: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number per row, the same for rows that are equal to the last bit.

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
