"""The features of several splits of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.models import Backbone
from labelgap.training.features.extract import extract_features
from labelgap.training.progress import Reporter

__all__ = ["split_features"]


def split_features(
    data: Dataset,
    splits: Iterable[str],
    build_backbone: Callable[[], Backbone],
    device: torch.device,
    workers: int,
    reporter: Reporter,
) -> dict[str, NDArray[Any]]:
    """Return the ``(N, D)`` features of splits: the data's own vectors, or those that a backbone computes.

    Args:
        data: the data set.
        splits: names of splits.
        build_backbone: called only where the data are images.
        device: where to compute.
        workers: processes that decode images.
        reporter: shows the progress.
    """
    sources = {name: data.split(name).images for name in splits}
    vectors = {name: images.vectors for name, images in sources.items() if isinstance(images, FeatureVectors)}
    if vectors:
        return vectors
    backbone = build_backbone()
    with reporter.bar("features", sum(map(len, sources.values()))):
        return {
            name: extract_features(
                images, backbone, device=device, workers=workers, advance=reporter.advance, log=reporter.log
            )
            for name, images in sources.items()
        }
