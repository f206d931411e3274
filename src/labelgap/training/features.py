"""Features that are computed once and kept: the linear protocol's inputs.

A cache entry is found by what decides its content: the images, the network, its weights and its input. Entries are
shared by all runs of a machine, under ``$LABELGAP_CACHE`` or the user's cache folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.caches import cache_folder
from labelgap.core.files import atomic_path
from labelgap.data.images import ImageSource
from labelgap.models import Backbone
from labelgap.training.inputs import ImageInputs

__all__ = ["cache_folder", "compute_features"]


def compute_features(
    images: ImageSource,
    backbone: Backbone,
    *,
    device: torch.device,
    batch_size: int = 32,
    workers: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.float32]:
    """Return the (N, D) pooled features of all images, from the cache if they are there.

    Args:
        images: the source.
        backbone: in eval mode afterwards.
        device: where to compute.
        batch_size: images at a time.
        workers: processes that decode.
        advance: told how many images were done, after each batch.
    """
    path = cache_folder() / "features" / f"{_key(images, backbone)}.npy"
    kept = _kept(path, (len(images), backbone.width))
    if kept is not None:
        advance(len(images))
        return kept
    backbone = backbone.to(device).eval()
    inputs = ImageInputs(images, backbone, device, workers=workers)
    features = np.empty((len(images), backbone.width), dtype=np.float32)
    with torch.inference_mode():
        for index, values in inputs.batches(batch_size=batch_size):
            features[index.numpy()] = backbone.features(values).float().cpu().numpy()
            advance(len(index))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        np.save(temporary, features)
    return features


def _kept(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Return what the cache holds; None where it holds nothing, or something damaged, which is computed again."""
    try:
        features: NDArray[np.float32] = np.load(path)
    except (OSError, ValueError, EOFError):
        return None
    return features if features.shape == shape else None


def _key(images: ImageSource, backbone: Backbone) -> str:
    weights = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        weights.update(name.encode())
        weights.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    text = "\n".join([images.fingerprint(), type(backbone).__name__, repr(backbone.input), weights.hexdigest()])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
