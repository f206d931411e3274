"""Where a network's inputs come from, batch by batch: images through the loader, or features computed once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.data.images import ImageSource
from labelgap.data.loading import loader
from labelgap.models import Backbone

__all__ = ["FeatureInputs", "ImageInputs", "Inputs"]


class Inputs(Protocol):
    """Gives the inputs of rows in a given order."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(index, inputs)`` of rows in this order, all when not given; ``epoch`` turns augmentation on.

        The index is on the CPU, where the labels are looked up: nothing waits for the device. The last batch may be
        smaller, and is never dropped.
        """


@dataclass(frozen=True)
class FeatureInputs:
    """Vectors that were computed once, on the device."""

    features: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows of the matrix; there is nothing to augment."""
        order = torch.arange(len(self)) if rows is None else torch.from_numpy(rows)
        there = order.to(self.features.device)
        for index, place in zip(torch.split(order, batch_size), torch.split(there, batch_size), strict=True):
            yield index, self.features[place]


@dataclass(frozen=True)
class ImageInputs:
    """Images, resized by the loader, normalised on the device.

    Attributes:
        images: the source.
        backbone: whose input size and normalisation are used.
        device: where the inputs go.
        flip: whether to mirror images at random in training.
        seed: of the mirroring.
        workers: processes that decode.
    """

    images: ImageSource
    backbone: Backbone
    device: torch.device
    flip: bool = False
    seed: int = 0
    workers: int = 0

    def __len__(self) -> int:
        return len(self.images)

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised images."""
        pixels = loader(
            self.images,
            rows,
            size=self.backbone.input.size,
            channels=self.backbone.input.channels,
            batch_size=batch_size,
            workers=self.workers,
            flip_seed=self.seed if self.flip and epoch is not None else None,
            epoch=epoch or 1,
        )
        for index, values in pixels:
            yield index, self.backbone.normalise(values.to(self.device))
