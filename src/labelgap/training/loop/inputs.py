"""Where a network's inputs come from, batch by batch: images through the loader, or features computed once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.system import available_memory
from labelgap.data.images import ArrayImages, ImageSource
from labelgap.data.loader import make_loader
from labelgap.data.transforms import CenterCrop, RandomResizedCrop, Resize, Transform
from labelgap.models import Backbone

__all__ = ["FeatureInputs", "ImageInputs", "Inputs"]

MEMORY_SHARE = 0.25
"""How much of the free memory decoded pictures may take."""


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
        backbone: whose input size, interpolation and normalisation are used.
        device: where the inputs go.
        flip: whether to mirror images at random in training.
        seed: of the mirroring.
        workers: processes that decode.
        transform: "resize", or "crop" for random parts in training and the middle otherwise.
    """

    images: ImageSource
    backbone: Backbone
    device: torch.device
    flip: bool = False
    seed: int = 0
    workers: int = 0
    transform: str = "resize"

    def __len__(self) -> int:
        return len(self.images)

    def transform_of(self, epoch: int | None) -> Transform:
        """Return what is done to pictures, in training where an epoch is given."""
        size, filter_ = self.backbone.input_spec.size, self.backbone.input_spec.interpolation
        if self.transform == "crop":
            if epoch is not None:
                return RandomResizedCrop(size, self.seed, interpolation=filter_, mirrored=self.flip)
            return CenterCrop(size, round(size * 256 / 224), interpolation=filter_)
        return Resize(size, self.seed if self.flip and epoch is not None else None, interpolation=filter_)

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised images."""
        cuda = self.device.type == "cuda"
        pixels = make_loader(
            self.images,
            rows,
            transform=self.transform_of(epoch),
            channels=self.backbone.input_spec.channels,
            batch_size=batch_size,
            workers=self.workers,
            epoch=epoch or 1,
            pin_memory=cuda,
        )
        for index, values in pixels:
            images = self.backbone.normalize(values.to(self.device, non_blocking=True))
            yield index, images.contiguous(memory_format=torch.channels_last) if cuda else images

    def in_memory(self) -> ImageInputs:
        """Return inputs that decode every picture only once, where they fit; they give the same pixels.

        Worth it when pictures are seen in several epochs and always squashed: mirroring comes after that.
        """
        if isinstance(self.images, ArrayImages):
            return replace(self, workers=0)
        spec = self.backbone.input_spec
        needed = len(self) * spec.channels * spec.size**2
        free = available_memory()
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of this machine, each with pictures of its own
        if self.transform != "resize" or free is None or needed * here > MEMORY_SHARE * free:
            return self
        array = np.empty((len(self), spec.size, spec.size, spec.channels), dtype=np.uint8)
        still = make_loader(
            self.images, transform=self.transform_of(None), channels=spec.channels, batch_size=32, workers=self.workers
        )
        for index, values in still:
            array[index.numpy()] = values.permute(0, 2, 3, 1).numpy()
        return replace(self, images=ArrayImages(array, self.images.names), workers=0)
