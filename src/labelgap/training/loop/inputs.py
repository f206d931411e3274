"""Batches of inputs of a network, images from the loader or precomputed features, and the logits for all of them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.errors import LabelGapError
from labelgap.core.system import available_memory, freed_memory_is_kept
from labelgap.data.images import ImageSource
from labelgap.data.loader import ImageLoader
from labelgap.data.scanning import name_unreadable
from labelgap.data.transforms import (
    Augmentation,
    CenterCrop,
    RandomResizedCrop,
    Resize,
    Transform,
    flip_mask,
    smallest_crop,
)
from labelgap.models import Backbone
from labelgap.training.loop.processes import gather_all, shard_batches

MEMORY_SHARE = 0.25
"""The share of the free memory, of the machine or of the GPU, that decoded images may take."""
DRAWN_ROWS = 65_536
"""Images of a training on a GPU whose random changes are drawn and copied at once."""
MAX_BATCH_PIXELS = 64 * 288**2
"""Pixels of the images that a network scores at once."""
COPIED_AHEAD = 2
"""Batches that are copied to a GPU before the one that is computed is complete."""
MAX_ON_DEVICE = 2**24
"""Logits that stay on the device until they are copied together; every copy waits for it."""

Rows = NDArray[np.int64]
Batches = Iterator[tuple[Tensor, Tensor]]
"""The rows of every batch, and what belongs to them."""
S = TypeVar("S")
T = TypeVar("T")
Autocast = Callable[[torch.device], AbstractContextManager[Any]]


@dataclass(frozen=True)
class FeatureInputs:
    """Feature vectors on the device."""

    features: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def batches(self, rows: Rows, *, batch_size: int, epoch: int | None = None) -> Batches:
        """Yield rows of the matrix, without augmentation."""
        return ((index, self.features[there]) for index, there in _split(rows, batch_size, self.features.device))


@dataclass(frozen=True)
class ImageInputs:
    """Images, resized by the loader and normalized on the device; the backbone defines size and normalization.

    ``transform`` is "resize"; "augment": in training, random changes on the device after the resize; "crop": random
    resized crops in training, the center crop otherwise.
    """

    images: ImageSource
    backbone: Backbone
    device: torch.device
    flip: bool = False  # whether images are flipped horizontally at random in training
    seed: int = 0  # of the augmentation
    workers: int = 0
    transform: str = "resize"
    pixels: Tensor | None = None  # decoded, uint8 (N, C, size, size), on the device or in main memory; else from files

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, rows: Rows, *, batch_size: int, epoch: int | None = None) -> Batches:
        """Yield normalized images; to a GPU, bytes are copied ahead of their use."""
        if (stored := self.pixels) is None:
            return self._prepared(
                _copy_ahead(self._load(rows, batch_size, epoch), self.device), rows, batch_size, epoch
            )
        parts = _split(rows, batch_size, stored.device)
        if stored.is_cpu:
            pixels: Batches = ((index, stored.index_select(0, there)) for index, there in parts)
        else:  # the layout of the memory stays
            pixels = ((index, stored[there]) for index, there in parts)
        if stored.device.type != self.device.type:
            pixels = _copy_ahead(((index, values.pin_memory()) for index, values in pixels), self.device)
        return self._prepared(pixels, rows, batch_size, epoch)

    def _load(self, order: Rows | None, batch_size: int, epoch: int | None) -> Batches:
        """Return batches of the loader, or an error that names the images which cannot be read."""
        loader = ImageLoader(
            self.images,
            order,
            transform=self.transform_of(epoch),
            channels=self.backbone.input_spec.channels,
            batch_size=batch_size,
            workers=self.workers,
            epoch=epoch or 1,
            pin_memory=self.device.type == "cuda",
        )
        return name_unreadable(loader, self.images)

    def transform_of(self, epoch: int | None) -> Transform:
        """Return the transform of the loader: that of training if an epoch is given."""
        size, filter_ = self.backbone.input_spec.size, self.backbone.input_spec.interpolation
        if self.transform == "crop":
            if epoch is not None:
                return RandomResizedCrop(size, self.seed, interpolation=filter_, flip=self.flip)
            return CenterCrop(size, round(size * 256 / 224), interpolation=filter_)
        return Resize(size, interpolation=filter_)

    def _prepared(self, pixels: Batches, order: Rows, batch_size: int, epoch: int | None) -> Batches:
        """Change and normalize batches of pixels on their device; what is random is drawn for many batches at once."""
        with freed_memory_is_kept() if self.device.type == "cpu" else nullcontext():  # the network computes meanwhile
            yield from self._changed(pixels, order, batch_size, epoch)

    def _changed(self, pixels: Batches, order: Rows, batch_size: int, epoch: int | None) -> Batches:
        cuda, spec, change = self.device.type == "cuda", self.backbone.input_spec, None
        if self.transform == "augment":
            change = Augmentation(self.seed, self.flip, min_area=smallest_crop(spec.size))
        random = epoch is not None and (change is not None or (self.transform == "resize" and self.flip))
        block = batch_size * max(DRAWN_ROWS // batch_size, 1)
        start = 0
        drawn: tuple[Tensor, ...] = ()
        for index, values in pixels:
            if random and epoch is not None:
                if start % block == 0:
                    part = order[start:][:block]
                    mask = torch.from_numpy(flip_mask(self.seed, epoch, part))
                    parts = (mask,) if change is None else change.draw(part, epoch)
                    drawn = tuple(to_device(each, self.device) for each in parts)
                own = [part[start % block :][: len(index)] for part in drawn]
                start += len(index)
            if not random:
                images = self.backbone.normalize(values)
            elif change is None:
                images = self.backbone.normalize(torch.where(own[0][:, None, None, None], values.flip(-1), values))
            else:
                images = self.backbone.normalize_(change.apply(values, *own))
            yield index, images.contiguous(memory_format=torch.channels_last) if cuda else images

    def in_memory(self) -> ImageInputs:
        """Return inputs with the same pixels whose images are decoded only once, if they fit in memory.

        On a GPU they are stored there. A "crop" comes before the resize, and does not allow it.
        """
        spec, processes = self.backbone.input_spec, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        needed = len(self) * spec.channels * spec.size**2  # of each process, which has a GPU of its own
        if self.transform == "crop":
            return self
        if self.device.type == "cuda" and fits_on_gpu(needed, self.device):
            return self.store(self.device)
        fits = needed * processes <= MEMORY_SHARE * available_memory()
        return self.store(torch.device("cpu")) if fits else self

    def store(self, device: torch.device) -> ImageInputs:
        """Return inputs with the same pixels, decoded and stored on a device."""
        spec = self.backbone.input_spec
        layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        shape = (len(self), spec.channels, spec.size, spec.size)
        pixels = torch.empty(shape, dtype=torch.uint8, device=device, memory_format=layout)
        for index, values in self._load(None, 32, None):
            pixels[index.to(device)] = values.to(device)
        return replace(self, pixels=pixels)


Inputs = ImageInputs | FeatureInputs
"""Inputs of a network. ``batches`` yields ``(index, inputs)`` of rows in any order, with a smaller last batch; an epoch
turns augmentation on. The index is on the CPU, like the labels, so that nothing waits for the device."""


def bounded_batch(batch_size: int, backbone: Backbone, average_sizes: Sequence[int] = ()) -> int:
    """Return how many images are computed at once where it is free: fewer large ones, or what activations take grows.

    Example:
        >>> from labelgap.models import create_backbone
        >>> [bounded_batch(64, create_backbone("small-cnn", size=size)) for size in (64, 384, 1024, 4096)]
        [64, 36, 5, 1]
    """
    return max(1, min(batch_size, MAX_BATCH_PIXELS // max(backbone.input_spec.size, *average_sizes, 0) ** 2))


def _split(order: Rows, batch_size: int, device: torch.device) -> Batches:
    """Return the rows of every batch, on the CPU and on a device."""
    rows = torch.from_numpy(order)
    return zip(torch.split(rows, batch_size), torch.split(to_device(rows, device), batch_size), strict=True)


def fits_on_gpu(needed: int, device: torch.device) -> bool:
    """Return whether decoded images of so many bytes may be stored on a GPU, beside what is there already."""
    taken = torch.cuda.memory_allocated(device)  # also by the images of other splits
    return needed + taken <= MEMORY_SHARE * (torch.cuda.mem_get_info(device)[0] + taken)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device; to a GPU through page-locked memory, so that the host does not wait."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _copy_ahead(batches: Batches, device: torch.device) -> Batches:
    """Yield ``(index, pixels)`` with the pixels on the device; copies to a GPU are ahead, on a stream of their own."""
    if device.type != "cuda":
        yield from ((index, values.to(device)) for index, values in batches)
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            pixels = batch[1].to(device, non_blocking=True)
        return batch[0], pixels, stream.record_event()

    for index, pixels, copied in start_ahead(batches, start, COPIED_AHEAD):
        torch.cuda.current_stream(device).wait_event(copied)
        pixels.record_stream(torch.cuda.current_stream(device))
        yield index, pixels


def start_ahead(items: Iterable[T], start: Callable[[T], S], count: int) -> Iterator[S]:
    """Yield what ``start`` returns for every item; it was called for the ``count`` items that follow as well.

    Where an item cannot be read, those before it are yielded first.
    """
    waiting = deque[S]()
    try:
        for item in items:
            waiting.append(start(item))
            if len(waiting) > count:
                yield waiting.popleft()
    except LabelGapError:
        yield from waiting
        raise
    yield from waiting


def iterate_batches(inputs: Inputs, rows: Rows, batch_size: int, epoch: int | None = None) -> Batches:
    """Yield ``(index, inputs)`` of this process's part of every batch.

    All processes take the same number of steps: where the last batch is too small for all, ``index`` is empty and one
    row of inputs comes along for the network, whose output must not count.
    """
    own, size, padded = shard_batches(rows, batch_size)
    last = -(-len(own) // size)
    for number, (index, values) in enumerate(inputs.batches(own, batch_size=size, epoch=epoch), 1):
        yield (index[:0] if padded and number == last else index), values


def predict_logits(
    network: nn.Module, inputs: Inputs, batch_size: int = 256, *, autocast: Autocast = nullcontext
) -> NDArray[np.float32]:
    """Return the logits of every row, in eval mode and without augmentation."""
    found: list[NDArray[np.float32]] = []
    on_device: list[Tensor] = []
    for _, logits in iterate_logits(network, inputs, batch_size, autocast=autocast):
        on_device.append(logits)
        if sum(part.numel() for part in on_device) > MAX_ON_DEVICE:
            found.append(torch.cat(on_device).cpu().numpy())
            on_device.clear()
    return np.concatenate([*found, *([torch.cat(on_device).cpu().numpy()] if on_device else [])])


def iterate_logits(
    network: nn.Module, inputs: Inputs, batch_size: int = 256, *, autocast: Autocast = nullcontext
) -> Batches:
    """Yield ``(index, logits)`` of every row once, in eval mode and without augmentation.

    Several processes share the work, and each gets the logits of all.
    """
    was_training = network.training
    network.eval()
    try:
        for index, values in iterate_batches(inputs, np.arange(len(inputs)), batch_size):
            with torch.no_grad(), autocast(values.device):
                logits = network(values)[: len(index)].float()
            index, logits = gather_all(to_device(index, logits.device), logits)
            yield index, logits
    finally:
        network.train(was_training)
