"""Out-of-fold scores: every image is scored by a linear head that has not seen its labels.

Folds are stratified by class. A model that has seen a duplicate of an image has seen its label, so duplicates share a
fold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed, numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.data.images import StoredImages
from labelgap.data.scanning.duplicates import cluster_ids, find_duplicates
from labelgap.data.scanning.image_scan import scan_images
from labelgap.labels import PRESENT, LabelTable
from labelgap.training.config import RunConfig
from labelgap.training.heads.basis import FeatureBasis
from labelgap.training.heads.configs import HeadConfig, group_configs
from labelgap.training.heads.train import train_heads

LEFT_OUT: Final = 0.01
"""A fold leaves out so many more of its images at most, to have as many as another and to be trained with it."""
MAX_VALUES: Final = 1 << 23
"""Folds are trained together while their features have no more values than this."""


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


class FoldTask(NamedTuple):
    """A configuration that is cross-validated: with the labels of the images, and the fold of each."""

    config: RunConfig
    labels: LabelTable
    fold: NDArray[np.int64]


def out_of_fold_logits(
    features: Tensor, tasks: Sequence[FoldTask], device: torch.device, *, images: int | None = None
) -> list[NDArray[np.float32]]:
    """Return the ``(N, K)`` out-of-fold logits of every task; NaN where its loss was not finite.

    The penalty of the weights is the same for a fold as for all images: with fewer images the weight decay, which is
    relative to the mean loss, is higher. All are N, or ``images`` where these are a part of more. Standardization uses
    the features of all N images, and no labels. Folds of as many images are trained together where they are small.
    """
    heads = [HeadConfig.from_run(task.config, images or len(task.labels)) for task in tasks]
    found = [np.full(task.labels.shape, np.nan, dtype=np.float32) for task in tasks]
    for members in group_configs(heads):
        basis = _fit_basis(features, tasks[members[0]].config)
        for size, parts in _groups_of_parts(tasks, members, features.shape[1]):
            rows = [np.flatnonzero(fold != number)[:size] for fold, number, _ in parts]
            jobs = sorted((member, part) for part, (_, _, own) in enumerate(parts) for member in own)
            labels = {(id(tasks[member].labels), part): tasks[member].labels for member, part in jobs}
            tables = {key: table.select(rows[key[1]]) for key, table in labels.items()}
            results = train_heads(
                torch.stack([select_rows(features, each) for each in rows]),
                [heads[member].plan(tables[id(tasks[member].labels), part], part) for member, part in jobs],
                order_seed=derive_seed(heads[members[0]].seed, "fold"),
                device=device,
                basis=basis,
                **heads[members[0]].shared(),
            )
            for (member, part), result in zip(jobs, results, strict=True):
                held_out = np.flatnonzero(parts[part][0] == parts[part][1])
                if result.failed is None:
                    vectors = select_rows(features, held_out).float().cpu().numpy()
                    found[member][held_out] = vectors @ result.weight.T + result.bias
    return found


_Part = tuple[NDArray[np.int64], int, list[int]]
"""The fold of every image, the number of the one that is held out, and the tasks that are trained on the others."""


def _groups_of_parts(
    tasks: Sequence[FoldTask], members: Sequence[int], width: int
) -> Iterator[tuple[int, list[_Part]]]:
    """Yield folds that are trained together, as far as their features fit, and on how many images: all but a few."""
    parts: dict[tuple[int, int], _Part] = {}
    for member in members:
        fold = tasks[member].fold
        for number in range(int(fold.max()) + 1):
            parts.setdefault((id(fold), number), (fold, number, []))[2].append(member)
    by_size: dict[int, list[_Part]] = {}
    for part in sorted(parts.values(), key=lambda part: int((part[0] != part[1]).sum())):
        seen = int((part[0] != part[1]).sum())
        fewest = next((size for size in by_size if seen <= size * (1 + LEFT_OUT)), seen)
        by_size.setdefault(fewest, []).append(part)
    for size, equal in by_size.items():
        together = max(1, MAX_VALUES // (size * width))
        yield from ((size, equal[first : first + together]) for first in range(0, len(equal), together))


def _fit_basis(features: Tensor, config: RunConfig) -> FeatureBasis | None:
    """Return the basis of all features, where the engine would otherwise fit one on those of a fold."""
    newton = config.optimizer == "newton"
    if not newton and not config.standardize:
        return None
    return FeatureBasis.fit(features, standardize=config.standardize, rotate=newton)


def select_rows(features: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """Return some rows of features, on their device."""
    return features.index_select(0, torch.from_numpy(rows).to(features.device))
