"""The features that all heads of a comparison share: computed once, kept in the cache, or given as they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES, FeatureVectors
from labelgap.models import check_backbone, create_backbone, is_pretrained
from labelgap.training.features.extract import extract_features
from labelgap.training.features.precomputed import check_feature_data
from labelgap.training.progress import Reporter

__all__ = ["SplitFeatures", "compute_split_features", "default_backbone"]

DEFAULT = "efficientnet-lite0"


@dataclass(frozen=True)
class SplitFeatures:
    """The features of every split.

    Attributes:
        splits: name of a split → ``(N, D)`` float32, on the device.
        fingerprint: of the training and val images and of the network.
    """

    splits: dict[str, Tensor]
    fingerprint: str


def default_backbone(data: Dataset) -> str:
    """Return the network whose features suit: the data's own, unless it would start from nothing."""
    if data.backbone == FEATURES or is_pretrained(data.backbone):
        return data.backbone
    return DEFAULT


def compute_split_features(
    data: Dataset,
    backbone: str,
    weights: str | None,
    device: torch.device,
    workers: int,
    reporter: Reporter,
) -> SplitFeatures:
    """Return the features of all splits: those that the data are, or those that the backbone computes.

    Args:
        data: what is compared on.
        backbone: name of the network.
        weights: file of its weights, instead of its usual ones.
        device: where to compute, and where the features are wanted.
        workers: processes that decode images.
        reporter: shows how far it is.
    """
    check_feature_data(data, backbone, "linear")
    digest = hashlib.blake2b(f"{backbone} {weights}".encode(), digest_size=12)
    if weights is not None and Path(weights).is_file():
        with Path(weights).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    for split in data.splits[:2]:
        digest.update(split.images.fingerprint().encode())
    if backbone == FEATURES:
        found = {
            split.name: torch.from_numpy(split.images.vectors.astype(np.float32))
            for split in data.splits
            if isinstance(split.images, FeatureVectors)
        }
    else:
        found = _computed(data, backbone, weights, device, workers, reporter)
    return SplitFeatures({name: values.to(device) for name, values in found.items()}, digest.hexdigest())


def _computed(
    data: Dataset, backbone: str, weights: str | None, device: torch.device, workers: int, reporter: Reporter
) -> dict[str, Tensor]:
    check_backbone(backbone)
    if not is_pretrained(backbone, weights):
        raise InputError(
            f"the backbone '{backbone}' starts from nothing, and features of it say nothing: take one that has learned "
            "(`labelgap backbones`), or give its --weights."
        )
    network = create_backbone(backbone, weights=weights)
    found = {}
    with reporter.bar("features", sum(len(split) for split in data.splits)):
        for split in data.splits:
            computed = extract_features(
                split.images, network, device=device, workers=workers, advance=reporter.advance, log=reporter.log
            )
            found[split.name] = torch.from_numpy(np.array(computed))
    return found
