"""The features that all heads of a comparison share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.files import file_digest
from labelgap.data.dataset import Dataset
from labelgap.models import Backbone, check_backbone, create_backbone, is_pretrained
from labelgap.models.inference import inference_precision
from labelgap.training.features import split_features
from labelgap.training.network import check_feature_data
from labelgap.training.progress import Reporter


def compute_split_features(
    data: Dataset,
    backbone: str,
    weights: str | None,
    device: torch.device,
    workers: int,
    reporter: Reporter,
    *,
    size: int | None = None,
) -> tuple[dict[str, Tensor], str]:
    """Return the ``(N, D)`` float32 features of all splits on the device, and their fingerprint.

    They are the data's own vectors, or those that the backbone computes, with its default weights or those of a file,
    from images of ``size``.
    The fingerprint is that of the training and val images, of the network and of its precision.
    """
    check_feature_data(data, backbone, "linear")
    precision = inference_precision(backbone, device)
    differences = [str(size)] * (size is not None) + [precision] * (precision != "float32")
    digest = hashlib.blake2b(" ".join([backbone, str(weights), *differences]).encode(), digest_size=12)
    if weights is not None and Path(weights).is_file():
        digest.update(file_digest(Path(weights)))
    for split in data.splits[:2]:
        digest.update(split.images.fingerprint().encode())
    names = [split.name for split in data.splits]
    arrays = split_features(data, names, lambda: _build_backbone(backbone, weights, size), device, workers, reporter)
    tensors = {name: torch.from_numpy(np.array(values, dtype=np.float32)) for name, values in arrays.items()}
    return {name: values.to(device) for name, values in tensors.items()}, digest.hexdigest()


def _build_backbone(name: str, weights: str | None, size: int | None) -> Backbone:
    check_backbone(name)
    if not is_pretrained(name, weights):
        raise InputError(
            f"the backbone '{name}' has no pretrained weights, so its features carry no information: choose a "
            "pretrained one (`labelgap backbones`), or give its --weights."
        )
    return create_backbone(name, weights=weights, size=size)
