"""The plan of a head, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.labels import LabelTable


@dataclass(frozen=True)
class HeadPlan:
    """One of many heads that are trained at once.

    Attributes:
        method: one of ``methods()``.
        options: of the method.
        lr: learning rate; those of a loss's own parameters follow from it (ROLE's estimate learns ten times as fast).
        labels: the observed labels; heads may differ in them, but have the same images and classes.
        seed: of the initial weights, and of what the method draws.
        weight_decay: times the weights, added to their gradient; not for the parameters of losses, and not for the
            biases under the optimizer "newton".
        name: for tables and messages.
        part: which features it is trained on, where there are several: those of its fold.
    """

    method: str
    options: Mapping[str, Any]
    lr: float
    labels: LabelTable
    seed: int = 0
    weight_decay: float = 0.0
    name: str = ""
    part: int = 0

    def frequency_logits(self) -> NDArray[np.float64]:
        """Return the logits ``(K,)`` of how often each class is known to be present."""
        present, images = self.labels.counts().present, len(self.labels)
        return np.asarray(np.log((present + 0.5) / (images - present + 0.5)))

    def __str__(self) -> str:
        """Return the name, or the method and the learning rate."""
        return self.name or f"{self.method}, lr {self.lr:g}"


@dataclass(eq=False)
class HeadResult:
    """A trained head.

    Attributes:
        plan: of the head.
        weight: ``(K, D)`` of the best epoch.
        bias: ``(K,)``
        best_epoch: the selected epoch; 0 where none was finished, and the weights are the initial ones.
        best_score: its score; None under "last".
        history: an entry for each epoch, with "epoch", "loss" and "score".
        stopped: the epoch after which it stopped early; None where it did not.
        failed: why it failed; None where it did not.
    """

    plan: HeadPlan
    weight: NDArray[np.floating[Any]] = field(default_factory=lambda: np.empty((0, 0)))
    bias: NDArray[np.floating[Any]] = field(default_factory=lambda: np.empty(0))
    best_epoch: int = 0
    best_score: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: int | None = None
    failed: str | None = None
