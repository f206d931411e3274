"""Logits of images: from features in the cache, or by the network; an unreadable image is reported, not raised."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelgap.core.errors import InputError, LabelGapError
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.images import ImageSource
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import Transform
from labelgap.models.inference import inference_network
from labelgap.training.features import CachedFeatures
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.run import Run

Rows = range | NDArray[np.int64]


@dataclass(frozen=True)
class ReadBatch:
    """Some rows of a source."""

    rows: NDArray[np.int64]  # (B,)
    values: Tensor  # (B, C, size, size) uint8, or (B, D) features; zeros for unreadable images
    errors: dict[int, str] = field(default_factory=dict)  # row → why the image cannot be read


def read_batches(
    images: ImageSource, rows: Rows, transform: Transform, *, channels: int, batch_size: int, workers: int = 0
) -> Iterator[ReadBatch]:
    """Yield rows of a source in order, a batch at a time; the last batch may be smaller."""
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
        with suppress(LabelGapError):
            return ReadBatch(rows, self._read(rows))
        values = torch.zeros(len(rows), self.channels, self.transform.size, self.transform.size, dtype=torch.uint8)
        errors: dict[int, str] = {}
        for position, row in enumerate(rows.tolist()):
            try:
                values[position] = self._read(rows[position : position + 1])[0]
            except LabelGapError as error:
                errors[row] = str(error)
        return ReadBatch(rows, values, errors)

    def _read(self, rows: NDArray[np.int64]) -> Tensor:
        settings: dict[str, Any] = {"transform": self.transform, "channels": self.channels}
        return next(iter(ImageLoader(self.images, rows, batch_size=max(len(rows), 1), **settings)))[1]


class CachedLogits:
    """Logits from features that another command has cached; nothing is stored, as images may never be seen again."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self.network, self.device = run.model.to(device), device
        self._cache: CachedFeatures | None = None
        if self.network.reads_features:
            config, backbone = run.config, self.network.backbone
            options: dict[str, Any] = {"average_flips": config.average_flips, "precision": config.feature_precision}
            self._cache = CachedFeatures(backbone, device, config.transform, **options)

    def read(self, images: ImageSource) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which images have cached features, and the ``(N, K)`` logits, 0 where they have none."""
        found = np.zeros(len(images), dtype=bool)
        logits = np.zeros((len(images), len(self.network.head.bias)), dtype=np.float32)
        if self._cache is not None and not isinstance(images, FeatureVectors):
            found, features = self._cache.read(images)
            with torch.inference_mode():
                values = torch.from_numpy(features[found]).to(self.device)
                logits[found] = self.network.head(values).float().cpu().numpy()
        return found, logits


def iterate_logits(
    run: Run, images: ImageSource, rows: Rows, *, device: torch.device, workers: int, batch_size: int
) -> Iterator[tuple[ReadBatch, NDArray[np.float32]]]:
    """Yield batches of rows with the logits that the network computes, NaN for unreadable images."""
    network = run.model.to(device)
    scorer = inference_network(network, device, run.config.feature_precision)
    batches = read_batches(
        images,
        rows,
        ImageInputs(images, network.backbone, device, transform=run.config.transform).transform_of(None),
        channels=network.backbone.input_spec.channels,
        batch_size=batch_size,
        workers=workers,
    )
    for batch in batches:
        values = batch.values.to(device)
        with torch.inference_mode():
            inputs = network.normalize(values) if values.dtype == torch.uint8 else values
            logits: NDArray[np.float32] = scorer(inputs).float().cpu().numpy().copy()
        if not np.isfinite(logits).all():
            raise InputError("the run gives scores that are not finite: its training has diverged.")
        logits[np.isin(batch.rows, list(batch.errors))] = np.nan
        yield batch, logits
