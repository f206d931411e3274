"""Pictures in batches, in exactly the order asked for.

A batch is ``(index, pixels)``: the row numbers as int64 ``(B,)`` and the pictures as uint8 ``(B, C, size, size)``; they
become floats on the device, where that is cheap. What a batch holds depends on the arguments alone: not on the number
of loader processes, not on torch's or numpy's global state, which are neither read nor moved.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelgap.core.errors import InputError, LabelGapError
from labelgap.data.images import ArrayImages, FileImages, ImageSource, resize_to, row_numbers, with_channels

__all__ = ["Batch", "Loader", "flips", "loader"]

Batch = tuple[Tensor, Tensor]

_MASK: Final = (1 << 64) - 1


def loader(
    images: ImageSource,
    rows: ArrayLike | None = None,
    *,
    size: int,
    channels: int = 3,
    batch_size: int = 64,
    workers: int = 0,
    flip_seed: int | None = None,
    epoch: int = 1,
    drop_last: bool = False,
    pin_memory: bool = False,
    start_method: str | None = None,
) -> Loader:
    """Batch pictures in the order of ``rows``.

    Args:
        images: where the pictures are.
        rows: row numbers, in the order wanted, repeats allowed; all in order when left out.
        size: pictures are squashed to ``size`` × ``size``.
        channels: 1 or 3.
        batch_size: the last batch may be smaller, unless ``drop_last``.
        workers: loader processes; 0 reads in this one. More than there are processors are not started.
        flip_seed: when given, half of the pictures are mirrored left to right, chosen by (seed, epoch, row).
        epoch: counted from 1; only the mirroring looks at it.
        drop_last: leave out a last batch that is not full. For training only: val and test need every picture.
        pin_memory: put batches into page-locked memory, for quicker copies to a GPU.
        start_method: "fork", "spawn" or "forkserver"; the system's default when left out.

    Returns:
        Something to iterate over, as often as wanted, with a length in batches.

    Example:
        >>> images = ArrayImages(np.arange(5 * 8 * 8, dtype=np.uint8).reshape(5, 8, 8))
        >>> [(index.tolist(), tuple(pixels.shape)) for index, pixels in loader(images, [4, 0, 2], size=4, batch_size=2)]
        [([4, 0], (2, 3, 4, 4)), ([2], (1, 3, 4, 4))]
    """
    if batch_size < 1 or size < 1 or workers < 0:
        raise InputError(f"batch size ({batch_size}) and size ({size}) are at least 1, workers ({workers}) at least 0.")
    if channels not in (1, 3):
        raise InputError(f"pictures have 1 or 3 channels, not {channels}.")
    order = np.arange(len(images)) if rows is None else row_numbers(rows, len(images))
    if drop_last:
        order = order[: len(order) // batch_size * batch_size]
    mirrored = np.zeros(len(order), dtype=bool) if flip_seed is None else flips(flip_seed, epoch, order)
    batches = _Batches(images, order, mirrored, size, channels, batch_size)
    return Loader(batches, min(workers, _processors()), pin_memory, start_method)


class Loader:
    """Batches to iterate over; made by ``loader``."""

    def __init__(self, batches: _Batches, workers: int, pin_memory: bool, start_method: str | None) -> None:
        self._batches = batches
        self._workers = workers
        self._pin_memory = pin_memory
        self._start_method = start_method

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """Yield ``(index, pixels)``; a picture that cannot be read raises its ``InputError`` here."""
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
            generator=torch.Generator(),  # its own, so that torch's global state is not moved
        )
        with warnings.catch_warnings():  # from Python 3.12 on, forking beside torch's threads warns
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            return iter(source)


class _Batches(Dataset[Batch | LabelGapError]):
    """Whole batches by number, so that a loader process hands over one pair of tensors instead of many."""

    def __init__(
        self,
        images: ImageSource,
        order: NDArray[np.int64],
        mirrored: NDArray[np.bool_],
        size: int,
        channels: int,
        batch_size: int,
    ) -> None:
        self.images = images
        self.order = order
        self.mirrored = mirrored
        self.size = size
        self.channels = channels
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __getitem__(self, number: int) -> Batch | LabelGapError:
        """Return batch ``number``, or the error as a value: raised in another process it would become a traceback."""
        part = slice(number * self.batch_size, (number + 1) * self.batch_size)
        rows, mirrored = self.order[part], self.mirrored[part]
        try:
            pixels = _pixels(self.images, rows, self.size, self.channels)
        except LabelGapError as error:
            return error
        pixels[mirrored] = pixels[mirrored, :, :, ::-1]
        return torch.from_numpy(rows.copy()), torch.from_numpy(pixels)


def flips(seed: int, epoch: int, rows: ArrayLike) -> NDArray[np.bool_]:
    """Say which pictures are mirrored in an epoch: a fair coin per (seed, epoch, row), the same wherever it is asked.

    The coin is the top bit of a counter-based hash (three rounds of the finaliser of SplitMix64; Steele, Lea and Flood,
    OOPSLA 2014), so no generator has to be carried along.

    Example:
        >>> flips(0, 1, [7, 8, 9]).tolist() == [bool(flips(0, 1, [row])[0]) for row in (7, 8, 9)]
        True
    """
    state = np.full(1, seed & _MASK, dtype=np.uint64)
    for word in (np.array([epoch & _MASK], dtype=np.uint64), np.asarray(rows).astype(np.uint64)):
        state = _mix(_mix(state) ^ word)
    return (_mix(state) >> np.uint64(63)).astype(bool)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: add the golden ratio, then shift and multiply; arithmetic modulo 2⁶⁴."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _pixels(images: ImageSource, rows: NDArray[np.int64], size: int, channels: int) -> NDArray[np.uint8]:
    """Read pictures as ``(B, channels, size, size)``, all at once where they already have that size."""
    if isinstance(images, ArrayImages) and images.array.shape[1:3] == (size, size):
        return np.array(with_channels(images.array[rows], channels).transpose(0, 3, 1, 2), order="C")
    pixels = np.empty((len(rows), channels, size, size), dtype=np.uint8)
    for place, row in enumerate(rows.tolist()):
        picture = images.read(row, 2 * size) if isinstance(images, FileImages) else images[row]
        pixels[place] = resize_to(picture, size, channels)
    return pixels


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
