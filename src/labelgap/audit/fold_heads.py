"""Out-of-fold heads: for each fold, linear heads on fixed features, trained on the images of the other folds.

The features are those of the backbone before training. A network that was trained on the labels carries them in its
features, so heads on top of it would not be out-of-fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.scorers import HeadScorer
from labelgap.core.distributed import rank, single_process, world_size
from labelgap.core.errors import RunError
from labelgap.core.seeds import derive_seed, numpy_generator
from labelgap.core.system import available_memory
from labelgap.labels import LabelTable
from labelgap.training.heads.configs import HeadConfig, group_configs, train_group
from labelgap.training.loop.processes import broadcast_array, fail_together
from labelgap.training.selection import Selection

MEMORY_SHARE: Final = 0.25
"""The share of the free memory that the training features of a fold may take."""


def training_rows(
    fold: NDArray[np.int64], number: int, width: int, *, seed: int = 0, max_rows: int | None = None
) -> NDArray[np.int64]:
    """Return the rows that the heads of fold ``number`` are trained on: those of the other folds.

    A random part of them where they exceed ``max_rows``: as many rows of ``width`` features as a quarter of the free
    memory holds when None.
    """
    others = np.flatnonzero(fold != number)
    if max_rows is None:
        free = available_memory()
        max_rows = len(others) if free is None else int(MEMORY_SHARE * free / (4 * width))
    if len(others) <= max_rows:
        return others
    return np.sort(numpy_generator(seed, "learned", number).permutation(others)[: max(max_rows, 1)])


def train_folds(
    features: Mapping[str, NDArray[Any]],
    labels: LabelTable,
    fold: NDArray[np.int64],
    selection: Selection,
    configs: Sequence[HeadConfig],
    *,
    device: torch.device,
    seed: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> list[HeadScorer]:
    """Train heads of several configurations for each fold, and return a scorer for each configuration.

    Several processes divide the folds, and all get the heads of all folds.

    Args:
        features: split → ``(N, D)``; train, and val where epochs are selected on it.
        labels: of train.
        fold: ``(N,)`` of every row of train.
        selection: how the epoch is selected.
        configs: those with the same group key are trained together.
        device: where to train.
        seed: of the order of the images, and of the rows where a fold does not use all of them.
        advance: called with 1 after each fold of each group.
    """
    folds, width, processes = int(fold.max()) + 1, features["train"].shape[1], world_size()
    weight = np.empty((folds, len(configs), len(labels.classes), width), dtype=np.float32)
    bias = np.empty((folds, len(configs), len(labels.classes)), dtype=np.float32)
    with fail_together(), single_process():
        for number in range(rank() % processes, folds, processes):
            rows = training_rows(fold, number, width, seed=seed)
            part, part_labels = {**features, "train": features["train"][rows]}, labels.select(rows)
            order_seed = derive_seed(seed, "audit", number)
            for group in group_configs(configs):
                chosen = [configs[member] for member in group]
                results = train_group(part, part_labels, chosen, selection, order_seed=order_seed, device=device)
                for member, result in zip(group, results, strict=True):
                    if result.failed is not None:
                        raise RunError(f"{result.plan} on fold {number + 1}: {result.failed}.")
                    weight[number, member], bias[number, member] = result.weight, result.bias
                advance(processes)
    for number in range(folds):
        broadcast_array(weight[number], number % processes)
        broadcast_array(bias[number], number % processes)
    return [HeadScorer(features, fold, weight[:, member], bias[:, member], device) for member in range(len(configs))]
