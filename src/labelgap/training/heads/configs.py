"""Heads of several configurations, trained together where they share their settings: for folds and audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.labels import LabelTable
from labelgap.training.config import RunConfig
from labelgap.training.heads.basis import FeatureBasis
from labelgap.training.heads.plans import HeadPlan, HeadResult
from labelgap.training.heads.train import train_heads
from labelgap.training.presets import LINEAR_DEFAULTS
from labelgap.training.selection import Selection


@dataclass(frozen=True)
class HeadConfig:
    """How the heads of one run are trained; names as in ``RunConfig``.

    ``penalty`` is the weight decay times the number of training images: the same for a fold as for all of them.
    """

    method: str
    options: Mapping[str, Any]
    lr: float
    epochs: int
    batch_size: int
    seed: int = 0
    stop_below: float | None = None
    penalty: float = 0.0
    optimizer: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_run(cls, config: RunConfig, images: int) -> HeadConfig:
        """Return the configuration of a run's linear head on so many training images.

        The defaults of one if the run has no linear phase.
        """
        common: dict[str, Any] = {"method": config.method, "options": dict(config.options), "seed": config.seed}
        if config.protocol == "linear":
            names = ("optimizer", "momentum", "nesterov", "standardize")
            optimizer = tuple((name, getattr(config, name)) for name in names)
            own = {name: getattr(config, name) for name in ("lr", "epochs", "batch_size", "stop_below")}
            return cls(**common, **own, penalty=images * config.weight_decay, optimizer=optimizer)
        if config.protocol == "linear-init":
            phase = config.linear_phase()
            return cls(**common, lr=phase.lr, epochs=phase.epochs, batch_size=phase.batch_size)
        return cls(**common, **LINEAR_DEFAULTS)

    def plan(self, labels: LabelTable, part: int = 0) -> HeadPlan:
        """Return the plan of a head on some images."""
        decay = self.penalty / len(labels)
        return HeadPlan(self.method, self.options, self.lr, labels, self.seed, decay, part=part)

    def shared(self) -> dict[str, Any]:
        """Return the settings that ``train_heads`` takes for all heads; those of epochs that val selects apart."""
        return {"epochs": self.epochs, "batch_size": self.batch_size, **dict(self.optimizer)}

    def group_key(self) -> tuple[Any, ...]:
        """Return the settings that heads trained together must share; under "newton" a method converges on its own."""
        newton = dict(self.optimizer).get("optimizer") == "newton"
        return self.epochs, self.batch_size, self.stop_below, self.optimizer, self.method if newton else ""


def group_configs(configs: Sequence[HeadConfig]) -> list[list[int]]:
    """Return the numbers of the configurations that can be trained together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, config in enumerate(configs):
        groups.setdefault(config.group_key(), []).append(number)
    return list(groups.values())


def train_group(
    features: Mapping[str, NDArray[Any] | Tensor],
    labels: LabelTable,
    configs: Sequence[HeadConfig],
    selection: Selection | None = None,
    *,
    order_seed: int,
    device: torch.device,
    basis: FeatureBasis | None = None,
) -> list[HeadResult]:
    """Train heads of one group on the features of train, each to the epoch that ``selection`` chooses on val.

    All epochs are trained where there is no selection. ``basis`` is that of ``LinearEngine``.
    """
    first = configs[0]
    val_labels = None if selection is None else selection.labels
    return train_heads(
        _tensor(features["train"]),
        [config.plan(labels) for config in configs],
        order_seed=order_seed,
        val_features=None if val_labels is None else _tensor(features["val"]),
        val_labels=val_labels,
        select="auto" if selection is None else selection.rule,
        stop_below=None if selection is None else first.stop_below,
        device=device,
        basis=basis,
        **first.shared(),
    )


def _tensor(features: NDArray[Any] | Tensor) -> Tensor:
    return features if isinstance(features, Tensor) else torch.from_numpy(np.asarray(features, dtype=np.float32))
