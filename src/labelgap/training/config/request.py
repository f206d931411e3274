"""What a training is asked for: the arguments of ``fit``, before anything is resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labelgap.losses import Loss
from labelgap.models import Backbone
from labelgap.training.config.defaults import TrainingSettings


@dataclass(frozen=True)
class TrainingRequest:
    """The arguments of ``fit``; None, or a default, where the choice is left open."""

    method: str | Loss = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    backbone: str | Backbone | None = None
    weights: str | None = None
    protocol: str | None = None
    head: str = "linear"
    seed: int = 0
    select: str = "auto"
    trace: str | int = "auto"
    allow_micro_batch: bool = False
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def given_settings(self) -> dict[str, Any]:
        """Return the settings of ``training`` that were given."""
        return {name: value for name, value in self.training.items() if value is not None}
