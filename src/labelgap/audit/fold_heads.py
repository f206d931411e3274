"""Out-of-fold heads: for each fold, linear heads on fixed features, trained on the images of the other folds.

The features are those of the backbone before training. A network that was trained on the labels carries them in its
features, so heads on top of it would not be out-of-fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.scorers import HeadScorer
from labelgap.core.errors import RunError
from labelgap.core.seeds import derive_seed, numpy_generator
from labelgap.core.system import available_memory
from labelgap.labels import LabelTable
from labelgap.training.config.defaults import defaults_for
from labelgap.training.config.schema import RunConfig
from labelgap.training.heads import HeadPlan, HeadResult, train_heads
from labelgap.training.selection import Selection

__all__ = ["FoldTrainingSetup", "HeadConfig", "group_configs", "train_folds", "train_group"]

MEMORY_SHARE: Final = 0.25
"""The share of the free memory that the training features of a fold may take."""


@dataclass(frozen=True)
class HeadConfig:
    """How the heads of one run are trained.

    Attributes:
        method: name of the loss.
        options: of the loss.
        lr: learning rate.
        epochs: how many.
        batch_size: images per step.
        seed: of the initial weights.
        stop_below: see ``RunConfig``.
        optimizer: "adam" or "sgd", with its momentum and so on.
    """

    method: str
    options: Mapping[str, Any]
    lr: float
    epochs: int
    batch_size: int
    seed: int = 0
    stop_below: float | None = None
    optimizer: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_run(cls, config: RunConfig) -> HeadConfig:
        """Return the configuration of a run's linear head; the defaults of one if the run has no linear phase."""
        common: dict[str, Any] = {"method": config.method, "options": dict(config.options), "seed": config.seed}
        if config.protocol == "linear":
            names = ("optimizer", "momentum", "nesterov", "weight_decay")
            optimizer = tuple((name, getattr(config, name)) for name in names)
            own = {name: getattr(config, name) for name in ("lr", "epochs", "batch_size", "stop_below")}
            return cls(**common, **own, optimizer=optimizer)
        linear = None if config.linear is None else config.linear.model_dump()
        defaults = defaults_for("linear", True)
        return cls(**common, **(linear or {name: defaults[name] for name in ("lr", "epochs", "batch_size")}))

    def group_key(self) -> tuple[Any, ...]:
        """Return the settings that heads trained together must share."""
        return self.epochs, self.batch_size, self.stop_below, self.optimizer


@dataclass(frozen=True, eq=False)
class FoldTrainingSetup:
    """Features, labels and folds that heads are trained on.

    Attributes:
        features: split → ``(N, D)``; train, and val where epochs are chosen on it.
        labels: of train.
        fold: ``(N,)`` of every row of train.
        selection: how the epoch is chosen.
        device: where to train.
        seed: of the order of the images, and of the rows where a fold does not use all of them.
        max_rows: training rows of a fold; as many as a quarter of the free memory holds when None.
    """

    features: Mapping[str, NDArray[Any]]
    labels: LabelTable
    fold: NDArray[np.int64]
    selection: Selection
    device: torch.device
    seed: int = 0
    max_rows: int | None = None

    @property
    def folds(self) -> int:
        """How many there are."""
        return int(self.fold.max()) + 1

    def training_rows(self, fold: int) -> NDArray[np.int64]:
        """Return the rows that a fold's heads are trained on: those of the other folds, or a random part of them."""
        others = np.flatnonzero(self.fold != fold)
        limit = self.max_rows
        if limit is None:
            free = available_memory()
            limit = len(others) if free is None else int(MEMORY_SHARE * free / (4 * self.features["train"].shape[1]))
        if len(others) <= limit:
            return others
        return np.sort(numpy_generator(self.seed, "learned", fold).permutation(others)[: max(limit, 1)])


def train_folds(
    setup: FoldTrainingSetup, configs: Sequence[HeadConfig], advance: Callable[[int], None] = lambda count: None
) -> list[HeadScorer]:
    """Train the heads of several runs for each fold, and return a scorer for each run.

    Args:
        setup: what to train on.
        configs: one for each run; those with the same group key are trained together.
        advance: called with 1 after each fold of each group.
    """
    classes, width = len(setup.labels.classes), setup.features["train"].shape[1]
    weight = np.empty((len(configs), setup.folds, classes, width), dtype=np.float32)
    bias = np.empty((len(configs), setup.folds, classes), dtype=np.float32)
    for fold in range(setup.folds):
        rows = setup.training_rows(fold)
        train = {"train": setup.features["train"][rows]}
        for group in group_configs(configs):
            results = train_group(
                {**setup.features, **train},
                setup.labels.select(rows),
                [configs[number] for number in group],
                setup.selection,
                order_seed=derive_seed(setup.seed, "audit", fold),
                device=setup.device,
            )
            for number, result in zip(group, results, strict=True):
                if result.failed is not None:
                    raise RunError(f"{result.plan} on fold {fold + 1}: {result.failed}.")
                weight[number, fold], bias[number, fold] = result.weight, result.bias
            advance(1)
    return [
        HeadScorer(setup.features, setup.fold, weight[number], bias[number], setup.device)
        for number in range(len(configs))
    ]


def group_configs(configs: Sequence[HeadConfig]) -> list[list[int]]:
    """Return the numbers of the configurations that can be trained together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, config in enumerate(configs):
        groups.setdefault(config.group_key(), []).append(number)
    return list(groups.values())


def train_group(
    features: Mapping[str, NDArray[Any]],
    labels: LabelTable,
    configs: Sequence[HeadConfig],
    selection: Selection,
    *,
    order_seed: int,
    device: torch.device,
) -> list[HeadResult]:
    """Train heads of one group on the features of train, each to the epoch that ``selection`` chooses on val."""
    first = configs[0]
    return train_heads(
        _tensor(features["train"]),
        [HeadPlan(config.method, config.options, config.lr, labels, seed=config.seed) for config in configs],
        epochs=first.epochs,
        batch_size=first.batch_size,
        order_seed=order_seed,
        val_features=None if selection.labels is None else _tensor(features["val"]),
        val_labels=selection.labels,
        select=selection.rule,
        stop_below=first.stop_below,
        device=device,
        **dict(first.optimizer),
    )


def _tensor(features: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.asarray(features, dtype=np.float32))
