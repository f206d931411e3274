"""What a head is to learn, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.labels import LabelTable

__all__ = ["HeadPlan", "HeadResult"]


@dataclass(frozen=True)
class HeadPlan:
    """One of many heads that are trained at once.

    Attributes:
        method: one of ``methods()``.
        options: of the method.
        lr: learning rate; what the method itself learns follows from it (ROLE's estimate learns ten times as fast).
        labels: what this head observes; heads may differ in it, but speak of the same images and classes.
        seed: of the head's first weights, and of what its method draws.
        name: for tables and messages; anything.
    """

    method: str
    options: Mapping[str, Any]
    lr: float
    labels: LabelTable
    seed: int = 0
    name: str = ""

    def __str__(self) -> str:
        """Return the name, or the method and the rate."""
        return self.name or f"{self.method}, lr {self.lr:g}"


@dataclass(frozen=True, eq=False)
class HeadResult:
    """A trained head.

    Attributes:
        plan: what it was to learn.
        weight: ``(K, D)`` of the epoch that was chosen.
        bias: ``(K,)``
        best_epoch: that epoch; 0 where none was done, and the head is as it began.
        best_score: its score under the rule; None under "last".
        history: an entry for each epoch, with "epoch", "loss" and "score".
        stopped: the epoch after which it stopped early; None where it did not.
        failed: why it could not go on, in words; None where nothing went wrong.
    """

    plan: HeadPlan
    weight: NDArray[np.floating[Any]]
    bias: NDArray[np.floating[Any]]
    best_epoch: int
    best_score: float | None
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: int | None = None
    failed: str | None = None
