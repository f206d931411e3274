"""Images in batches, in a given order.

A batch is ``(index, pixels)``: the row numbers as int64 ``(B,)`` and the images as uint8 ``(B, C, size, size)``; they
become floats on the device, where that is cheap. A batch depends on the arguments alone: not on the number of worker
processes, nor on the global random state of torch or numpy, which is neither read nor changed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelgap.core.errors import InputError, LabelGapError
from labelgap.data.counter_rng import flip_mask
from labelgap.data.images import ArrayImages, FileImages, ImageSource, check_rows, to_channels
from labelgap.data.transforms import Interpolation, Resize, Transform

__all__ = ["Batch", "ImageLoader", "flip_mask", "make_loader"]

Batch = tuple[Tensor, Tensor]


def make_loader(
    images: ImageSource,
    rows: ArrayLike | None = None,
    *,
    size: int | None = None,
    interpolation: Interpolation = "bilinear",
    transform: Transform | None = None,
    channels: int = 3,
    batch_size: int = 64,
    workers: int = 0,
    flip_seed: int | None = None,
    epoch: int = 1,
    drop_last: bool = False,
    pin_memory: bool = False,
    start_method: str | None = None,
) -> ImageLoader:
    """Return the batches of images in the order of ``rows``.

    Args:
        images: their source.
        rows: row numbers, in any order, with repeats or not; all rows when left out.
        size: images are resized to ``size`` × ``size``; left out where a ``transform`` is given.
        interpolation: the filter of the resize; a ``transform`` has its own.
        transform: applied instead of the resize; see ``labelgap.data.transforms``.
        channels: 1 or 3.
        batch_size: the last batch may be smaller, unless ``drop_last``.
        workers: worker processes; 0 reads in this one. There are at most as many as processors.
        flip_seed: when given, half of the images are mirrored left to right, chosen by (seed, epoch, row); a
            ``transform`` has a seed of its own.
        epoch: counted from 1; it changes only what is random.
        drop_last: drop a last batch that is not full. For training only: val and test need every image.
        pin_memory: put batches into page-locked memory, for faster copies to a GPU.
        start_method: "fork", "spawn" or "forkserver"; the system's default when left out.

    Returns:
        An iterable of batches, with a length in batches; it can be iterated over again.

    Example:
        >>> images = ArrayImages(np.arange(5 * 8 * 8, dtype=np.uint8).reshape(5, 8, 8))
        >>> batches = make_loader(images, [4, 0, 2], size=4, batch_size=2)
        >>> [(index.tolist(), tuple(pixels.shape)) for index, pixels in batches]
        [([4, 0], (2, 3, 4, 4)), ([2], (1, 3, 4, 4))]
    """
    if batch_size < 1 or workers < 0 or (size is not None and size < 1):
        raise InputError(f"batch size ({batch_size}) and size ({size}) are at least 1, workers ({workers}) at least 0.")
    if channels not in (1, 3):
        raise InputError(f"images have 1 or 3 channels, not {channels}.")
    order = np.arange(len(images)) if rows is None else check_rows(rows, len(images))
    if drop_last:
        order = order[: len(order) // batch_size * batch_size]
    chosen = _choose_transform(size, interpolation, transform, flip_seed)
    batches = _Batches(images, order, chosen, epoch, channels, batch_size)
    return ImageLoader(batches, min(workers, _processors()), pin_memory, start_method)


def _choose_transform(
    size: int | None, interpolation: Interpolation, transform: Transform | None, flip_seed: int | None
) -> Transform:
    """Return the given transform, or a resize to ``size``."""
    if transform is None:
        if size is None:
            raise InputError("a loader needs a size, or a transform that has one.")
        return Resize(size, flip_seed, interpolation)
    if size is not None or flip_seed is not None or interpolation != "bilinear":
        raise InputError("a transform has its own size, interpolation and seed: give it alone.")
    return transform


class ImageLoader:
    """An iterable of batches; see ``make_loader``."""

    def __init__(self, batches: _Batches, workers: int, pin_memory: bool, start_method: str | None) -> None:
        self._batches = batches
        self._workers = workers
        self._pin_memory = pin_memory
        self._start_method = start_method

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """Yield ``(index, pixels)``; an image that cannot be read raises its ``InputError`` here."""
        for batch in self._source():
            if isinstance(batch, LabelGapError):
                raise batch
            yield batch

    def _source(self) -> Iterator[Batch | LabelGapError]:
        if self._workers == 0 and not self._pin_memory:
            return (self._batches[number] for number in range(len(self)))
        source = DataLoader(
            self._batches,
            batch_size=None,
            num_workers=self._workers,
            pin_memory=self._pin_memory,
            multiprocessing_context=self._start_method if self._workers else None,
            generator=torch.Generator(),  # its own, so that torch's global state does not change
        )
        with warnings.catch_warnings():  # from Python 3.12 on, forking beside torch's threads warns
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            return iter(source)


class _Batches(Dataset[Batch | LabelGapError]):
    """Batches by number, so that a worker process sends one pair of tensors instead of many."""

    def __init__(
        self,
        images: ImageSource,
        order: NDArray[np.int64],
        transform: Transform,
        epoch: int,
        channels: int,
        batch_size: int,
    ) -> None:
        self.images = images
        self.order = order
        self.transform = transform
        self.epoch = epoch
        self.channels = channels
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __getitem__(self, number: int) -> Batch | LabelGapError:
        """Return batch ``number``, or the error as a value: raised in a worker it would become a traceback."""
        rows = self.order[number * self.batch_size : (number + 1) * self.batch_size]
        try:
            pixels = self._from_array(rows)
            pixels = self._one_by_one(rows) if pixels is None else pixels
        except LabelGapError as error:
            return error
        return torch.from_numpy(rows.copy()), torch.from_numpy(pixels)

    def _from_array(self, rows: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """Return a batch of an array of images that have the right size already; None for other images."""
        images, transform, size = self.images, self.transform, self.transform.size
        if not isinstance(images, ArrayImages) or not isinstance(transform, Resize):
            return None
        if images.array.shape[1:3] != (size, size):
            return None
        pixels = np.array(to_channels(images.array[rows], self.channels).transpose(0, 3, 1, 2), order="C")
        if transform.flip_seed is not None:
            mirrored = flip_mask(transform.flip_seed, self.epoch, rows)
            pixels[mirrored] = pixels[mirrored, :, :, ::-1]
        return pixels

    def _one_by_one(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read and transform images, ``(B, channels, size, size)``."""
        size, min_decode_size = self.transform.size, self.transform.min_decode_size
        pixels = np.empty((len(rows), self.channels, size, size), dtype=np.uint8)
        for place, row in enumerate(rows.tolist()):
            image = self.images.read(row, min_decode_size) if isinstance(self.images, FileImages) else self.images[row]
            made = self.transform(image, row, self.epoch)
            if len(made) == self.channels:
                pixels[place] = made
            else:
                pixels[place] = to_channels(made.transpose(1, 2, 0), self.channels).transpose(2, 0, 1)
        return pixels


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
