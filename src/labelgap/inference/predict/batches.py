"""Inputs in batches, where an image that cannot be read is a reason, not the end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelgap.core.errors import LabelGapError
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.images import ImageSource
from labelgap.data.loader import make_loader
from labelgap.data.transforms import Transform

__all__ = ["ReadBatch", "read_batches"]


@dataclass(frozen=True)
class ReadBatch:
    """Some rows of a source.

    Attributes:
        rows: ``(B,)``
        values: ``(B, C, size, size)`` uint8, or ``(B, D)`` features; zeros for what could not be read.
        wrong: place in the batch → why it could not be read.
    """

    rows: NDArray[np.int64]
    values: Tensor
    wrong: dict[int, str] = field(default_factory=dict)


def read_batches(
    images: ImageSource, rows: range, transform: Transform, *, channels: int, batch_size: int, workers: int = 0
) -> Iterator[ReadBatch]:
    """Yield some rows of a source in order, a batch at a time.

    Args:
        images: pictures, or features.
        rows: which.
        transform: what is done to pictures.
        channels: 1 or 3.
        batch_size: the last batch may be smaller.
        workers: processes that decode; 0 reads in this one.

    A few batches are held at a time, whatever the source has.
    """
    batches = _Batches(images, rows, transform, channels, batch_size)
    if workers == 0 or isinstance(images, FeatureVectors):
        yield from (batches[number] for number in range(len(batches)))
        return
    source = DataLoader(batches, batch_size=None, num_workers=workers, generator=torch.Generator())
    with warnings.catch_warnings():  # from Python 3.12 on, forking beside torch's threads warns
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        started = iter(source)
    yield from started


class _Batches(Dataset[ReadBatch]):
    """Whole batches by number, for loader processes."""

    def __init__(self, images: ImageSource, rows: range, transform: Transform, channels: int, batch_size: int) -> None:
        self.images = images
        self.rows = rows
        self.transform = transform
        self.channels = channels
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __getitem__(self, number: int) -> ReadBatch:
        rows = np.array(self.rows[number * self.batch_size : (number + 1) * self.batch_size], dtype=np.int64)
        if isinstance(self.images, FeatureVectors):
            return ReadBatch(rows, torch.from_numpy(self.images.vectors[rows].astype(np.float32)))
        try:
            return ReadBatch(rows, self._read(rows))
        except LabelGapError:
            return self._one_by_one(rows)

    def _one_by_one(self, rows: NDArray[np.int64]) -> ReadBatch:
        size = self.transform.size
        values = torch.zeros(len(rows), self.channels, size, size, dtype=torch.uint8)
        wrong: dict[int, str] = {}
        for place, row in enumerate(rows):
            try:
                values[place] = self._read(np.array([row]))[0]
            except LabelGapError as error:
                wrong[place] = str(error)
        return ReadBatch(rows, values, wrong)

    def _read(self, rows: NDArray[np.int64]) -> Tensor:
        pixels = make_loader(
            self.images, rows, transform=self.transform, channels=self.channels, batch_size=max(len(rows), 1)
        )
        return next(iter(pixels))[1]
