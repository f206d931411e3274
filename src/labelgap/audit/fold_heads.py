"""Out-of-fold heads: for each fold, linear heads on fixed features that have not seen the labels of its images.

The features are those of the backbone as it came, *not* as the run left it: a network that was trained on the labels
has them in its features, so that folds of heads on top would hide nothing.
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
from labelgap.training.heads import HeadPlan, train_heads
from labelgap.training.selection import Selection

__all__ = ["FoldTrainingSetup", "HeadConfig", "train_folds"]

SHARE: Final = 0.25
"""How much of the free memory the features that a fold learns from may take."""


@dataclass(frozen=True)
class HeadConfig:
    """How the heads of one run are trained.

    Attributes:
        method: the objective's name.
        options: of the objective.
        lr: learning rate.
        epochs: how many.
        batch_size: images per step.
        seed: of the first weights.
        stop_below: see ``RunConfig``.
        optimiser: "adam" or "sgd", with its momentum and so on.
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
    def of(cls, config: RunConfig) -> HeadConfig:
        """Take the settings of a run's linear head; those that suit one where the run has trained its network alone."""
        plain: dict[str, Any] = {"method": config.method, "options": dict(config.options), "seed": config.seed}
        if config.protocol == "linear":
            names = ("optimizer", "momentum", "nesterov", "weight_decay")
            optimizer = tuple((name, getattr(config, name)) for name in names)
            own = {name: getattr(config, name) for name in ("lr", "epochs", "batch_size", "stop_below")}
            return cls(**plain, **own, optimizer=optimizer)
        linear = None if config.linear is None else config.linear.model_dump()
        usual = linear or {name: defaults_for("linear", True)[name] for name in ("lr", "epochs", "batch_size")}
        return cls(**plain, **usual)

    def alike(self) -> tuple[Any, ...]:
        """Return what two heads must have in common to be trained together."""
        return self.epochs, self.batch_size, self.stop_below, self.optimizer


@dataclass(frozen=True, eq=False)
class FoldTrainingSetup:
    """What heads learn from.

    Attributes:
        features: split → ``(N, D)``; train, and val where epochs are chosen on it.
        labels: of train.
        fold: ``(N,)`` of every row of train.
        selection: how the epoch is chosen.
        device: where to train.
        seed: of the order of the images, and of the rows where not all are learned from.
        rows: of train that a fold learns from at most; as many as a quarter of the memory holds when None.
    """

    features: Mapping[str, NDArray[Any]]
    labels: LabelTable
    fold: NDArray[np.int64]
    selection: Selection
    device: torch.device
    seed: int = 0
    rows: int | None = None

    @property
    def folds(self) -> int:
        """How many there are."""
        return int(self.fold.max()) + 1

    def learned(self, fold: int) -> NDArray[np.int64]:
        """Return the rows that a fold's heads learn from: those of the other folds, or a random part of them."""
        others = np.flatnonzero(self.fold != fold)
        most = self.rows
        if most is None:
            free = available_memory()
            most = len(others) if free is None else int(SHARE * free / (4 * self.features["train"].shape[1]))
        if len(others) <= most:
            return others
        return np.sort(numpy_generator(self.seed, "learned", fold).permutation(others)[: max(most, 1)])


def train_folds(
    learning: FoldTrainingSetup, settings: Sequence[HeadConfig], advance: Callable[[int], None] = lambda count: None
) -> list[HeadScorer]:
    """Train the heads of several runs for each fold, those together that can be, and return a scorer for each run.

    Args:
        learning: what to learn from.
        settings: of each run.
        advance: told about each fold that is done, once for each group of runs that are trained together.
    """
    classes, width = len(learning.labels.classes), learning.features["train"].shape[1]
    weight = np.empty((len(settings), learning.folds, classes, width), dtype=np.float32)
    bias = np.empty((len(settings), learning.folds, classes), dtype=np.float32)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, each in enumerate(settings):
        groups.setdefault(each.alike(), []).append(number)
    for fold in range(learning.folds):
        rows = learning.learned(fold)
        features, labels = _tensor(learning.features["train"][rows]), learning.labels.select(rows)
        for members in groups.values():
            together = [settings[number] for number in members]
            for number, result in zip(members, _train(learning, features, labels, together, fold), strict=True):
                weight[number, fold], bias[number, fold] = result.weight, result.bias
            advance(1)
    return [
        HeadScorer(learning.features, learning.fold, weight[number], bias[number], learning.device)
        for number in range(len(settings))
    ]


def _train(
    learning: FoldTrainingSetup, features: torch.Tensor, labels: LabelTable, together: Sequence[HeadConfig], fold: int
) -> list[Any]:
    first, chosen = together[0], learning.selection
    plans = [HeadPlan(each.method, each.options, each.lr, labels, seed=each.seed) for each in together]
    results = train_heads(
        features,
        plans,
        epochs=first.epochs,
        batch_size=first.batch_size,
        order_seed=derive_seed(learning.seed, "audit", fold),
        val_features=None if chosen.labels is None else _tensor(learning.features["val"]),
        val_labels=chosen.labels,
        select=chosen.rule,
        stop_below=first.stop_below,
        device=learning.device,
        **dict(first.optimizer),
    )
    for result in results:
        if result.failed is not None:
            raise RunError(f"{result.plan} on fold {fold + 1}: {result.failed}.")
    return results


def _tensor(features: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.asarray(features, dtype=np.float32))
