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
from labelgap.data.augmentation import Augmentation
from labelgap.data.counter_rng import flip_mask
from labelgap.data.images import ArrayImages, ImageSource
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import CenterCrop, RandomResizedCrop, Resize, Transform
from labelgap.models import Backbone

__all__ = ["DeviceInputs", "FeatureInputs", "ImageInputs", "Inputs"]

MEMORY_SHARE = 0.25
"""The share of the free memory, of the machine or of the GPU, that decoded images may take."""


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
        transform: "resize"; "augment": in training, random changes on the device after the resize; "crop": random
            resized crops in training, the center crop otherwise.
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
        mirror = self.transform == "resize" and self.flip and epoch is not None
        return Resize(size, self.seed if mirror else None, interpolation=filter_)

    @property
    def augmentation(self) -> Augmentation | None:
        """What changes training images on the device."""
        return Augmentation(self.seed, self.flip) if self.transform == "augment" else None

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
        change = None if epoch is None else self.augmentation
        for index, values in pixels:
            on_device = values.to(self.device, non_blocking=True)
            if change is not None and epoch is not None:
                on_device = change(on_device, index.numpy(), epoch)
            images = self.backbone.normalize(on_device)
            yield index, images.contiguous(memory_format=torch.channels_last) if cuda else images

    def in_memory(self) -> ImageInputs | DeviceInputs:
        """Return inputs with the same pixels whose images are decoded only once, if they fit in memory.

        On a GPU they are stored there. A "crop" comes before the resize, and does not allow it.
        """
        spec, processes = self.backbone.input_spec, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        needed = len(self) * spec.channels * spec.size**2  # of each process, which has a GPU of its own
        if self.device.type == "cuda" and self.transform != "crop":
            taken = torch.cuda.memory_allocated(self.device)  # also by the images of other splits
            if needed + taken <= MEMORY_SHARE * (torch.cuda.mem_get_info(self.device)[0] + taken):
                return self.on_device()
        if isinstance(self.images, ArrayImages):
            return replace(self, workers=0)
        free = available_memory()
        if self.transform == "crop" or free is None or needed * processes > MEMORY_SHARE * free:
            return self
        array = np.empty((len(self), spec.size, spec.size, spec.channels), dtype=np.uint8)
        for index, values in self._resized():
            array[index.numpy()] = values.permute(0, 2, 3, 1).numpy()
        return replace(self, images=ArrayImages(array, self.images.names), workers=0)

    def on_device(self) -> DeviceInputs:
        """Return inputs with the same pixels, decoded and stored on the device."""
        spec = self.backbone.input_spec
        shape = (len(self), spec.channels, spec.size, spec.size)
        pixels = torch.empty(shape, dtype=torch.uint8, device=self.device, memory_format=torch.channels_last)
        for index, values in self._resized():
            pixels[index.to(self.device)] = values.to(self.device)
        return DeviceInputs(pixels, self)

    def _resized(self) -> ImageLoader:
        """Return the images without augmentation."""
        return ImageLoader(
            self.images,
            transform=self.transform_of(None),
            channels=self.backbone.input_spec.channels,
            batch_size=32,
            workers=self.workers,
        )


@dataclass(frozen=True)
class DeviceInputs:
    """Decoded images on the device: a batch is gathered, changed and normalized there.

    Attributes:
        pixels: uint8 ``(N, C, size, size)``, channels last.
        source: the inputs that they are of.
    """

    pixels: Tensor
    source: ImageInputs

    def __len__(self) -> int:
        return len(self.pixels)

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalized images."""
        order = torch.arange(len(self)) if rows is None else torch.from_numpy(rows)
        on_device = torch.split(order.to(self.pixels.device), batch_size)
        for index, index_on_device in zip(torch.split(order, batch_size), on_device, strict=True):
            values = self.pixels[index_on_device]
            if epoch is not None:
                values = self._augmented(values, index.numpy(), epoch)
            yield index, self.source.backbone.normalize(values).contiguous(memory_format=torch.channels_last)

    def _augmented(self, values: Tensor, rows: NDArray[np.int64], epoch: int) -> Tensor:
        source = self.source
        if (change := source.augmentation) is not None:
            return change(values, rows, epoch)
        if not source.flip:
            return values
        mirrored = torch.from_numpy(flip_mask(source.seed, epoch, rows)).to(values.device)
        return torch.where(mirrored[:, None, None, None], values.flip(-1), values)
