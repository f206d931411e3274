"""Linear heads of run configurations: in folds, so that every image is scored by a head that has not seen its labels.

Folds are stratified by class. A model that has seen a duplicate of an image has seen its label, so duplicates share a
fold. ``train_folds`` trains all heads of all folds; a search, a sweep, a comparison and an audit are its users.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed, numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.data.images import StoredImages
from labelgap.data.scanning import cluster_ids, find_duplicates, scan_images
from labelgap.labels import PRESENT, LabelTable
from labelgap.training.config import RunConfig
from labelgap.training.heads import HeadPlan, HeadResult, train_heads
from labelgap.training.heads.solver import FeatureBasis
from labelgap.training.presets import LINEAR_PHASE
from labelgap.training.selection import Selection

LEFT_OUT: Final = 0.01
"""A fold leaves out so many more of its images at most, to have as many as another and to be trained with it."""
MAX_VALUES: Final = 1 << 23
"""Folds are trained together while their features have no more values than this."""
_SHARED: Final = ("epochs", "batch_size", "stop_below", "optimizer", "momentum", "nesterov", "standardize")

Features = Tensor | NDArray[Any]
"""``(N, D)``; an array may be a memory-mapped file of any precision."""


def assign_folds(
    labels: LabelTable, folds: int, seed: int = 0, groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the fold of every row.

    Groups are sorted by the rarest class that is known to be present in them, in random order within a class, and
    assigned to the folds in turn. So every class is spread as evenly as the others allow, at the cost of one sort.
    ``groups`` are ``(N,)`` integers, equal for rows that share a fold; each row is its own group when None.
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
    """Return a number per row, equal for rows that are equal bit for bit."""
    seen: dict[bytes, int] = {}
    digests = (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in features)
    return np.array([seen.setdefault(digest, len(seen)) for digest in digests], dtype=np.int64)


def head_config(config: RunConfig) -> RunConfig:
    """Return the settings of a run's linear head; for an end-to-end run, the defaults of one."""
    if config.protocol == "linear":
        return config
    phase = {} if config.protocol == "linear-init" else LINEAR_PHASE
    return config.model_copy(update=phase).linear_phase()


def train_configs(
    features: Mapping[str, Features],
    labels: LabelTable,
    configs: Sequence[RunConfig],
    selection: Selection,
    *,
    order_seed: int,
    device: torch.device,
    images: int | None = None,
) -> list[HeadResult]:
    """Train a head of each configuration on train, to the epoch that ``selection`` chooses on val, if it does.

    ``images`` is that of ``train_folds``.
    """
    found: dict[int, HeadResult] = {}
    train = as_tensor(features["train"])
    for members in _groups(configs):
        plans = [_plan(configs[member], labels, images or len(labels)) for member in members]
        how = {**_val(features, selection), **shared_settings(configs[members[0]])}
        found |= zip(members, train_heads(train, plans, order_seed=order_seed, device=device, **how), strict=True)
    return [found[number] for number in range(len(configs))]


class FoldTask(NamedTuple):
    """A configuration of a linear head that is cross-validated: with the labels of the images, and the fold of each."""

    config: RunConfig
    labels: LabelTable
    fold: NDArray[np.int64]


def train_folds(
    features: Mapping[str, Features],
    tasks: Sequence[FoldTask],
    device: torch.device,
    *,
    selection: Selection | None = None,
    images: int | None = None,
    numbers: Collection[int] | None = None,
    max_rows: int | None = None,
) -> Iterator[tuple[int, int, HeadResult]]:
    """Train a head of every task for each fold, on the images of the other folds; yield task, fold and head.

    The penalty of the weights is the same for a fold as for all images: with fewer images the weight decay, which is
    relative to the mean loss, is higher. Folds of as many images are trained together where they are small and no val
    selects their epochs. Each is standardized by its own images: a mean that is not 0 would serve Adam, whose biases
    follow slowly, as a bias, and has the opposite sign in the images that are held out. Under "newton", which solves
    for the biases, folds that are trained together share the principal components of all images.

    The epoch is the last one, or the one that ``selection`` chooses on the features of "val". ``images`` is how many
    all images are, where these are a part of them, and ``numbers`` the folds that are trained, all when None. Of more
    training images than ``max_rows`` a random part is used.
    """
    train, whole, val = features["train"], images or len(tasks[0].labels), _val(features, selection)
    together, every = "val_features" not in val, 1 if max_rows is None else -(-len(train) // max(max_rows, 1))
    for members in _groups([task.config for task in tasks]):
        config = tasks[members[0]].config
        how: dict[str, Any] = {**shared_settings(config), **val, "device": device}
        how["order_seed"] = derive_seed(config.seed, "fold")
        if together and config.optimizer == "newton":
            how["basis"] = FeatureBasis.fit(as_tensor(train[::every]), standardize=config.standardize, rotate=True)
        own_basis = together and config.standardize and config.optimizer != "newton"
        for size, parts in _groups_of_parts(tasks, members, numbers, max_rows, train.shape[1] if together else None):
            rows = [training_rows(part.fold, part.number, max_rows, config.seed)[:size] for part in parts]
            jobs = sorted((member, number) for number, part in enumerate(parts) for member in part.tasks)
            labels = {(id(tasks[member].labels), part): tasks[member].labels for member, part in jobs}
            tables = {key: table.select(rows[key[1]]) for key, table in labels.items()}
            own = ((tasks[member], part) for member, part in jobs)
            plans = [_plan(task.config, tables[id(task.labels), part], whole, part) for task, part in own]
            inputs = [select_rows(train, each) for each in rows]
            if own_basis:
                bases = [FeatureBasis.fit(each) for each in inputs]
                inputs = [basis.apply(each) for basis, each in zip(bases, inputs, strict=True)]
                how["standardize"] = False
            heads = train_heads(torch.stack(inputs) if together else inputs[0], plans, **how)
            for (member, part), head in zip(jobs, heads, strict=True):
                if own_basis:
                    found = bases[part].to_features(torch.from_numpy(head.weight), torch.from_numpy(head.bias))
                    head.weight, head.bias = (values.numpy() for values in found)
                yield member, parts[part].number, head


def out_of_fold_logits(
    features: Tensor,
    tasks: Sequence[FoldTask],
    device: torch.device,
    *,
    images: int | None = None,
    numbers: Collection[int] | None = None,
) -> list[NDArray[np.float32]]:
    """Return the ``(N, K)`` out-of-fold logits of every task of ``train_folds``.

    They are NaN where its loss was not finite, and outside of the folds of ``numbers``.
    """
    found = [np.full(task.labels.shape, np.nan, dtype=np.float32) for task in tasks]
    for member, number, head in train_folds({"train": features}, tasks, device, images=images, numbers=numbers):
        if head.failed is None:
            held_out = np.flatnonzero(tasks[member].fold == number)
            vectors = select_rows(features, held_out).float().cpu().numpy()
            found[member][held_out] = vectors @ head.weight.T + head.bias
    return found


def training_rows(
    fold: NDArray[np.int64], number: int, max_rows: int | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """Return the rows of the other folds than this one; a random part of them where they are more than ``max_rows``."""
    others = np.flatnonzero(fold != number)
    if max_rows is None or len(others) <= max_rows:
        return others
    return np.sort(numpy_generator(seed, "learned", number).permutation(others)[: max(max_rows, 1)])


class _Part(NamedTuple):
    """The fold of every image, the number of the one that is held out, and the tasks that learn from the others."""

    fold: NDArray[np.int64]
    number: int
    tasks: list[int]


def _groups_of_parts(
    tasks: Sequence[FoldTask],
    members: Sequence[int],
    numbers: Collection[int] | None,
    max_rows: int | None,
    width: int | None,
) -> Iterator[tuple[int, list[_Part]]]:
    """Yield folds that are trained together, as many as fit with this number of features, and on how many images.

    Without a number each fold is trained alone, on all of its images.
    """
    parts: dict[tuple[int, int], _Part] = {}
    for member in members:
        fold = tasks[member].fold
        for number in range(int(fold.max()) + 1):
            if numbers is None or number in numbers:
                parts.setdefault((id(fold), number), _Part(fold, number, [])).tasks.append(member)
    seen = {key: int((part.fold != part.number).sum()) for key, part in parts.items()}
    by_size: dict[int, list[_Part]] = {}
    for key in sorted(parts, key=seen.__getitem__):
        most = seen[key] if max_rows is None else min(seen[key], max(max_rows, 1))
        fewest = next((size for size in by_size if width is not None and most <= size * (1 + LEFT_OUT)), most)
        by_size.setdefault(fewest, []).append(parts[key])
    for size, equal in by_size.items():
        together = 1 if width is None else max(1, MAX_VALUES // (size * width))
        yield from ((size, equal[first : first + together]) for first in range(0, len(equal), together))


def _groups(configs: Sequence[RunConfig]) -> list[list[int]]:
    """Return the numbers of configurations that are trained together; under "newton" a method converges on its own."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, config in enumerate(configs):
        method = config.method if config.optimizer == "newton" else ""
        groups.setdefault((*shared_settings(config).values(), method), []).append(number)
    return list(groups.values())


def shared_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that heads which are trained together have in common, as arguments of ``train_heads``."""
    return {name: getattr(config, name) for name in _SHARED}


def _plan(config: RunConfig, labels: LabelTable, images: int, part: int = 0) -> HeadPlan:
    decay = images * config.weight_decay / len(labels)
    return HeadPlan(config.method, config.options, config.lr, labels, config.seed, decay, part=part)


def _val(features: Mapping[str, Features], selection: Selection | None) -> dict[str, Any]:
    if selection is None or selection.labels is None:
        return {"select": "last"}
    return {"val_features": as_tensor(features["val"]), "val_labels": selection.labels, "select": selection.rule}


def select_rows(features: Features, rows: NDArray[np.int64]) -> Tensor:
    """Return some rows of features, on their device."""
    if not isinstance(features, Tensor):
        return as_tensor(features[rows])
    return features.index_select(0, torch.from_numpy(rows).to(features.device))


def as_tensor(features: Features) -> Tensor:
    """Return features as a tensor; arrays in float32."""
    return features if isinstance(features, Tensor) else torch.from_numpy(np.asarray(features, dtype=np.float32))
