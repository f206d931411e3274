"""Batches of inputs of a network: images from the loader, or precomputed features."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.system import available_memory
from labelgap.data.augmentation import Augmentation, smallest_crop
from labelgap.data.counter_rng import flip_mask
from labelgap.data.images import ArrayImages, ImageSource
from labelgap.data.loader import ImageLoader
from labelgap.data.scanning.file_check import name_unreadable
from labelgap.data.transforms import CenterCrop, RandomResizedCrop, Resize, Transform
from labelgap.models import Backbone
from labelgap.training.loop.device_copies import copy_ahead, to_device

MEMORY_SHARE = 0.25
"""The share of the free memory, of the machine or of the GPU, that decoded images may take."""
DRAWN_ROWS = 65_536
"""Images of a training on a GPU whose random changes are drawn and copied at once."""


def fits_on_gpu(needed: int, device: torch.device) -> bool:
    """Return whether decoded images of so many bytes may be stored on a GPU, beside what is there already."""
    taken = torch.cuda.memory_allocated(device)  # also by the images of other splits
    return needed + taken <= MEMORY_SHARE * (torch.cuda.mem_get_info(device)[0] + taken)


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
        flips_on_device: whether "resize" mirrors on a CPU as on a GPU, where bytes are, not in the loader.
    """

    images: ImageSource
    backbone: Backbone
    device: torch.device
    flip: bool = False
    seed: int = 0
    workers: int = 0
    transform: str = "resize"
    flips_on_device: bool = False

    def __len__(self) -> int:
        return len(self.images)

    def transform_of(self, epoch: int | None) -> Transform:
        """Return the transform of images: that of training if an epoch is given."""
        size, filter_ = self.backbone.input_spec.size, self.backbone.input_spec.interpolation
        if self.transform == "crop":
            if epoch is not None:
                return RandomResizedCrop(size, self.seed, interpolation=filter_, flip=self.flip)
            return CenterCrop(size, round(size * 256 / 224), interpolation=filter_)
        mirror = self.transform == "resize" and self.flip and epoch is not None and not self._mirrors_on_device
        return Resize(size, self.seed if mirror else None, interpolation=filter_)

    @property
    def augmentation(self) -> Augmentation | None:
        """What changes training images on the device."""
        if self.transform != "augment":
            return None
        return Augmentation(self.seed, self.flip, min_area=smallest_crop(self.backbone.input_spec.size))

    def batches(
        self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalized images; to a GPU, bytes are copied ahead of their use."""
        order = np.arange(len(self)) if rows is None else rows
        pixels: Iterable[tuple[Tensor, Tensor]] = self._from_memory(order, batch_size) or ImageLoader(
            self.images,
            order,
            transform=self.transform_of(epoch),
            channels=self.backbone.input_spec.channels,
            batch_size=batch_size,
            workers=self.workers,
            epoch=epoch or 1,
            pin_memory=self.device.type == "cuda",
        )
        readable = name_unreadable(pixels, self.images)
        return self.prepared(copy_ahead(readable, self.device), order, batch_size, epoch)

    def prepared(
        self, pixels: Iterable[tuple[Tensor, Tensor]], order: NDArray[np.int64], batch_size: int, epoch: int | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Change and normalize batches of pixels on their device; what is random is drawn for many batches at once."""
        cuda, changes = self.device.type == "cuda", epoch is not None and self._changes_on_device
        block = batch_size * (max(DRAWN_ROWS // batch_size, 1) if cuda else 1)
        start = 0
        drawn: tuple[Tensor, ...] = ()
        for index, values in pixels:
            if changes and epoch is not None:
                if start % block == 0:
                    drawn = tuple(to_device(part, self.device) for part in self._draw(order[start:][:block], epoch))
                values = self._change(values, *(part[start % block :][: len(index)] for part in drawn))
                start += len(index)
            images = self.backbone.normalize(values)
            yield index, images.contiguous(memory_format=torch.channels_last) if cuda else images

    @property
    def _changes_on_device(self) -> bool:
        """Whether anything random happens on the device."""
        return self.transform == "augment" or (self.transform == "resize" and self.flip and self._mirrors_on_device)

    @property
    def _mirrors_on_device(self) -> bool:
        return self.flips_on_device or self.device.type == "cuda"

    def _draw(self, rows: NDArray[np.int64], epoch: int) -> tuple[Tensor, ...]:
        """Return what is random of these rows, on the CPU."""
        if (change := self.augmentation) is not None:
            return change.draw(rows, epoch)
        return (torch.from_numpy(flip_mask(self.seed, epoch, rows)),)

    def _change(self, values: Tensor, *drawn: Tensor) -> Tensor:
        """Return changed pixels, by what was drawn for them."""
        if (change := self.augmentation) is not None:
            return change.apply(values, *drawn)
        return torch.where(drawn[0][:, None, None, None], values.flip(-1), values)

    def _from_memory(self, order: NDArray[np.int64], batch_size: int) -> Iterator[tuple[Tensor, Tensor]] | None:
        """Return batches of an array of resized images, in page-locked memory; None for other images or no GPU."""
        images, spec = self.images, self.backbone.input_spec
        if self.device.type != "cuda" or self.transform == "crop" or not isinstance(images, ArrayImages):
            return None
        if images.array.shape[1:] != (spec.size, spec.size, spec.channels) or not images.array.flags.writeable:
            return None
        array = torch.from_numpy(images.array)
        return (
            (index, torch.index_select(array, 0, index, out=_page_locked(len(index), array)).permute(0, 3, 1, 2))
            for index in torch.split(torch.from_numpy(order), batch_size)
        )

    def in_memory(self) -> ImageInputs | DeviceInputs:
        """Return inputs with the same pixels whose images are decoded only once, if they fit in memory.

        On a GPU they are stored there. A "crop" comes before the resize, and does not allow it.
        """
        spec, processes = self.backbone.input_spec, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        needed = len(self) * spec.channels * spec.size**2  # of each process, which has a GPU of its own
        if self.device.type == "cuda" and self.transform != "crop" and fits_on_gpu(needed, self.device):
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
        return DeviceInputs(pixels, replace(self, flips_on_device=True))

    def _resized(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the images without augmentation."""
        loader = ImageLoader(
            self.images,
            transform=self.transform_of(None),
            channels=self.backbone.input_spec.channels,
            batch_size=32,
            workers=self.workers,
        )
        return name_unreadable(loader, self.images)


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
        order = np.arange(len(self)) if rows is None else rows
        parts = torch.split(torch.from_numpy(order), batch_size)
        on_device = torch.split(to_device(torch.from_numpy(order), self.pixels.device), batch_size)
        pixels = ((index, self.pixels[there]) for index, there in zip(parts, on_device, strict=True))
        return self.source.prepared(pixels, order, batch_size, epoch)


def _page_locked(count: int, like: Tensor) -> Tensor:
    return torch.empty((count, *like.shape[1:]), dtype=like.dtype, pin_memory=True)
