"""Logits of images: from features that are in the cache, or by the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.images import ImageSource
from labelgap.inference.predict.batches import ReadBatch, Rows, read_batches
from labelgap.models.inference import inference_network
from labelgap.training.features import CachedFeatures
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.run import Run


class CachedLogits:
    """Logits from features that another command has cached: no image is read, and nothing is stored.

    A prediction may be of millions of images that are never seen again, so it does not fill the cache.
    """

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
        logits[list(batch.errors)] = np.nan
        yield batch, logits
