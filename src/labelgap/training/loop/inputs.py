"""Batches of inputs of a network: images from the loader, or precomputed features."""

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
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import CenterCrop, RandomResizedCrop, Resize, Transform
from labelgap.models import Backbone

__all__ = ["FeatureInputs", "ImageInputs", "Inputs"]

MEMORY_SHARE = 0.25
"""The share of the free memory that decoded images may take."""


class Inputs(Protocol):
    """Inputs of a network that can be read in any order."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(index, inputs)`` of rows in this order, of all rows by default; ``epoch`` turns augmentation on.

        The index is on the CPU, like the labels, so that nothing waits for the device. A smaller last batch is kept.
        """


@dataclass(frozen=True)
class FeatureInputs:
    """Feature vectors on the device."""

    features: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows of the matrix, without augmentation."""
        order = torch.arange(len(self)) if rows is None else torch.from_numpy(rows)
        on_device = torch.split(order.to(self.features.device), batch_size)
        for index, index_on_device in zip(torch.split(order, batch_size), on_device, strict=True):
            yield index, self.features[index_on_device]


@dataclass(frozen=True)
class ImageInputs:
    """Images, resized by the loader and normalized on the device.

    Attributes:
        images: the source.
        backbone: defines size, interpolation and normalization.
        device: of the inputs.
        flip: whether images are flipped horizontally at random in training.
        seed: of the augmentation.
        workers: processes that decode images.
        transform: "resize", or "crop": random resized crops in training, the center crop otherwise.
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
        """Return the transform of images: that of training if an epoch is given."""
        size, filter_ = self.backbone.input_spec.size, self.backbone.input_spec.interpolation
        if self.transform == "crop":
            if epoch is not None:
                return RandomResizedCrop(size, self.seed, interpolation=filter_, flip=self.flip)
            return CenterCrop(size, round(size * 256 / 224), interpolation=filter_)
        return Resize(size, self.seed if self.flip and epoch is not None else None, interpolation=filter_)

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalized images."""
        cuda = self.device.type == "cuda"
        pixels = ImageLoader(
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
        """Return inputs with the same pixels whose images are decoded only once, if they fit in memory.

        Only the "resize" transform allows it: a flip comes after the resize.
        """
        if isinstance(self.images, ArrayImages):
            return replace(self, workers=0)
        spec = self.backbone.input_spec
        needed = len(self) * spec.channels * spec.size**2
        free = available_memory()
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes on this machine, each with its own copy
        if self.transform != "resize" or free is None or needed * processes > MEMORY_SHARE * free:
            return self
        array = np.empty((len(self), spec.size, spec.size, spec.channels), dtype=np.uint8)
        resized = ImageLoader(
            self.images, transform=self.transform_of(None), channels=spec.channels, batch_size=32, workers=self.workers
        )
        for index, values in resized:
            array[index.numpy()] = values.permute(0, 2, 3, 1).numpy()
        return replace(self, images=ArrayImages(array, self.images.names), workers=0)
