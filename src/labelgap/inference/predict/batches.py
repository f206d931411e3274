"""Batches of inputs in which an image that cannot be read is reported, not raised."""

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
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import Transform

Rows = range | NDArray[np.int64]


@dataclass(frozen=True)
class ReadBatch:
    """Some rows of a source.

    Attributes:
        rows: ``(B,)``
        values: ``(B, C, size, size)`` uint8, or ``(B, D)`` features; zeros for unreadable images.
        errors: position in the batch → why the image cannot be read.
    """

    rows: NDArray[np.int64]
    values: Tensor
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def errors_by_row(self) -> dict[int, str]:
        """Row → why the image cannot be read."""
        return {int(self.rows[position]): error for position, error in self.errors.items()}


def read_batches(
    images: ImageSource, rows: Rows, transform: Transform, *, channels: int, batch_size: int, workers: int = 0
) -> Iterator[ReadBatch]:
    """Yield rows of a source in order, a batch at a time; the last batch may be smaller.

    Args:
        images: images, or features.
        rows: which.
        transform: of images.
        channels: 1 or 3.
        batch_size: rows of a batch.
        workers: processes that decode; 0 decodes in this one.
    """
    batches = _Batches(images, rows, transform, channels, batch_size)
    if workers == 0 or isinstance(images, FeatureVectors):
        yield from (batches[number] for number in range(len(batches)))
        return
    loader = DataLoader(batches, batch_size=None, num_workers=workers, generator=torch.Generator())
    with warnings.catch_warnings():  # from Python 3.12 on, forking beside torch's threads warns
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        iterator = iter(loader)
    yield from iterator


@dataclass(frozen=True)
class _Batches(Dataset[ReadBatch]):
    """Whole batches by number, for worker processes."""

    images: ImageSource
    rows: Rows
    transform: Transform
    channels: int
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __getitem__(self, number: int) -> ReadBatch:
        rows = np.array(self.rows[number * self.batch_size : (number + 1) * self.batch_size], dtype=np.int64)
        if isinstance(self.images, FeatureVectors):
            return ReadBatch(rows, torch.from_numpy(self.images.vectors[rows].astype(np.float32)))
        try:
            return ReadBatch(rows, self._read(rows))
        except LabelGapError:
            return self._read_one_by_one(rows)

    def _read_one_by_one(self, rows: NDArray[np.int64]) -> ReadBatch:
        size = self.transform.size
        values = torch.zeros(len(rows), self.channels, size, size, dtype=torch.uint8)
        errors: dict[int, str] = {}
        for position in range(len(rows)):
            try:
                values[position] = self._read(rows[position : position + 1])[0]
            except LabelGapError as error:
                errors[position] = str(error)
        return ReadBatch(rows, values, errors)

    def _read(self, rows: NDArray[np.int64]) -> Tensor:
        loader = ImageLoader(
            self.images, rows, transform=self.transform, channels=self.channels, batch_size=max(len(rows), 1)
        )
        return next(iter(loader))[1]
