"""Images in batches, in a given order.

A batch is ``(index, pixels)``: the row numbers as int64 ``(B,)`` and the images as uint8 ``(B, C, size, size)``; they
become floats on the device, where that is cheap. A batch depends on the arguments alone: not on the number of worker
processes, nor on the global random state of torch or numpy, which is neither read nor changed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.system import cpu_count
from labelgap.data.images import ArrayImages, ImageSource, StoredImages, to_channels
from labelgap.data.transforms import Resize, Transform, flip_mask
from labelgap.labels.sparse import as_row_indices

Batch = tuple[Tensor, Tensor]


class ReadBatch(NamedTuple):
    """Some rows of a source, and which of them cannot be read."""

    rows: Tensor  # (B,) int64
    values: Tensor  # (B, C, size, size) uint8, or (B, D) features; zeros for unreadable images
    errors: dict[int, LabelGapError]  # by row


class ImageLoader:
    """An iterable of batches of images, with a length in batches; it can be iterated over again.

    Args:
        images: their source.
        rows: row numbers, in any order, with repeats or not; all rows when left out.
        transform: gives all images one size; see ``labelgap.data.transforms``.
        channels: 1 or 3.
        batch_size: the last batch may be smaller.
        workers: worker processes; 0 reads in this one. There are at most as many as processors.
        epoch: counted from 1; it changes only what is random.
        pin_memory: put batches into page-locked memory, for faster copies to a GPU.

    Example:
        >>> images = ArrayImages(np.arange(5 * 8 * 8, dtype=np.uint8).reshape(5, 8, 8))
        >>> batches = ImageLoader(images, [4, 0, 2], transform=Resize(4), batch_size=2)
        >>> [(index.tolist(), tuple(pixels.shape)) for index, pixels in batches]
        [([4, 0], (2, 3, 4, 4)), ([2], (1, 3, 4, 4))]
    """

    def __init__(
        self,
        images: ImageSource,
        rows: ArrayLike | None = None,
        *,
        transform: Transform,
        channels: int = 3,
        batch_size: int = 64,
        workers: int = 0,
        epoch: int = 1,
        pin_memory: bool = False,
    ) -> None:
        if batch_size < 1 or workers < 0:
            raise InputError(f"the batch size ({batch_size}) is at least 1, workers ({workers}) at least 0.")
        if channels not in (1, 3):
            raise InputError(f"images have 1 or 3 channels, not {channels}.")
        self.images = images
        self.rows = np.arange(len(images)) if rows is None else as_row_indices(rows, len(images))
        self.transform = transform
        self.channels = channels
        self.batch_size = batch_size
        self.workers = min(workers, cpu_count())
        self.epoch = epoch
        self.pin_memory = pin_memory

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield ``(index, pixels)``; an image that cannot be read raises its ``InputError`` here."""
        for batch in self.batches():
            for error in batch.errors.values():
                raise error
            yield batch[:2]

    def batches(self) -> Iterator[ReadBatch]:
        """Yield batches in which images that cannot be read are zeros."""
        images = self.images
        with images.read_ahead(self.rows) if isinstance(images, StoredImages) else nullcontext() as ahead:
            for batch in self._batches():
                if ahead is not None:
                    ahead.advance(len(batch.rows))
                yield batch

    def _batches(self) -> Iterator[ReadBatch]:
        if not len(self.rows) or (self.workers == 0 and not self.pin_memory):
            return map(self.read, range(len(self)))
        batches: DataLoader[int] = DataLoader(
            range(len(self)),  # type: ignore[arg-type]
            batch_size=None,
            collate_fn=self.read,  # type: ignore[arg-type]  # in the worker, which sends its tensors
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # its own, so that torch's global state does not change
        )
        with warnings.catch_warnings():  # from Python 3.12 on, forking beside torch's threads warns
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            return cast(Iterator[ReadBatch], iter(batches))

    def read(self, number: int, pool: ThreadPoolExecutor | None = None) -> ReadBatch:
        """Return batch ``number``; a pool of threads reads each image for itself."""
        rows = self.rows[number * self.batch_size : (number + 1) * self.batch_size]
        errors: dict[int, LabelGapError] = {}
        pixels = self._from_array(rows)
        if pixels is None:
            values = np.zeros((len(rows), self.channels, self.transform.size, self.transform.size), dtype=np.uint8)

            def read(place: int) -> None:
                try:
                    values[place] = self._read_image(int(rows[place]))
                except LabelGapError as error:  # as a value: raised in a worker process it would become a traceback
                    errors[int(rows[place])] = error

            for _ in (map if pool is None else pool.map)(read, range(len(rows))):
                pass
            pixels = values
        return ReadBatch(torch.from_numpy(rows.copy()), torch.from_numpy(pixels), dict(sorted(errors.items())))

    def _from_array(self, rows: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """Return a batch of an array of images that have the right size already; None for other images."""
        images, transform = self.images, self.transform
        if not isinstance(images, ArrayImages) or not isinstance(transform, Resize):
            return None
        if images.array.shape[1:3] != (transform.size, transform.size):
            return None
        pixels = np.array(to_channels(images.array[rows], self.channels).transpose(0, 3, 1, 2), order="C")
        if transform.flip_seed is not None:
            mirrored = flip_mask(transform.flip_seed, self.epoch, rows)
            pixels[mirrored] = pixels[mirrored, :, :, ::-1]
        return pixels

    def _read_image(self, row: int) -> NDArray[np.uint8]:
        images, size = self.images, self.transform.min_decode_size
        image = self.transform(
            images.read(row, size) if isinstance(images, StoredImages) else images[row], row, self.epoch
        )
        if len(image) != self.channels:
            image = to_channels(image.transpose(1, 2, 0), self.channels).transpose(2, 0, 1)
        return image


def _start_worker(_: int) -> None:
    """Let a worker ignore Ctrl-C, and end where its parent was killed: the main process completes its step."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
