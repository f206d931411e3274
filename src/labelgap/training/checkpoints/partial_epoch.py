"""How far an epoch is: what a checkpoint within it has besides the network, the optimizer and the loss.

The order of the images and their random changes follow from the seed and the epoch alone. The number of batches that
are done is therefore enough to continue with the next one, without reading an image of those before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from labelgap.losses.base.terms import widest_float


@dataclass
class PartialEpoch:
    """The position in an epoch after a complete optimizer step, and the mean loss until there.

    Attributes:
        batches: that are done.
        images: of these batches.
        loss_sum: of the mean loss of each batch times its images, on the device.
        trace: what was recorded of the epoch; set where it is saved.
        started: when the epoch started, by ``time.perf_counter``; earlier where it was resumed.

    Example:
        >>> partial = PartialEpoch(batches=1, images=16, loss_sum=8.0)
        >>> partial.mean_loss, PartialEpoch.from_state(partial.state_dict()).batches
        (0.5, 1)
    """

    batches: int = 0
    images: int = 0
    loss_sum: Tensor | float = 0.0
    trace: Mapping[str, Tensor] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def add(self, loss: Tensor, images: int) -> None:
        """Add the mean loss of a batch of so many images; nothing waits for the device."""
        self.loss_sum = self.loss_sum + loss.detach().to(widest_float(loss.device)) * images
        self.images += images

    @property
    def mean_loss(self) -> float:
        """The mean so far; reading it waits for the device."""
        return float(self.loss_sum) / max(self.images, 1)

    @property
    def seconds(self) -> float:
        """The time that the epoch has taken, in all processes one after another."""
        return time.perf_counter() - self.started

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint saves, in plain types and tensors."""
        numbers = {"batches": self.batches, "images": self.images, "loss_sum": float(self.loss_sum)}
        return {**numbers, "seconds": self.seconds, "trace": dict(self.trace)}

    @classmethod
    def from_state(cls, state: Any) -> PartialEpoch:
        """Return it from a ``state_dict``; a ``ValueError`` says that it is none."""
        kinds = {"batches": int, "images": int, "loss_sum": float, "seconds": float, "trace": dict}
        if not isinstance(state, dict) or {name: type(value) for name, value in state.items()} != kinds:
            raise ValueError("it has no position in an epoch")
        recorded = all(isinstance(values, Tensor) for values in state["trace"].values())
        if not recorded or min(state["batches"], state["images"]) < 0:
            raise ValueError("its position in an epoch is none")
        started = time.perf_counter() - state["seconds"]
        return cls(state["batches"], state["images"], state["loss_sum"], state["trace"], started)
