"""Features that a backbone extracts once: the inputs of the linear protocol.

The key of a cache entry covers what decides its content: the images, their transform, the backbone and its weights, and
the precision. All runs and studies of a machine share the entries; ``labelgap cache`` lists them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.cache import FEATURE_FOLDER, cache_folder, utc_now
from labelgap.data.images import FileImages, ImageSource
from labelgap.models import Backbone
from labelgap.training.features.cache import FeatureWriter, read_features
from labelgap.training.loop.inputs import ImageInputs, Inputs

__all__ = ["extract_features", "features_cached"]

_VERSION: Final = 2
"""Increased when the same images and weights give other features than before."""


def extract_features(
    images: ImageSource,
    backbone: Backbone,
    *,
    device: torch.device,
    inputs: Inputs | None = None,
    transform: str = "",
    precision: str = "float32",
    batch_size: int = 32,
    workers: int = 0,
    advance: Callable[[int], None] = lambda count: None,
    log: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> NDArray[np.float32]:
    """Return the (N, D) pooled features of all images, from the cache where they are there.

    A killed computation resumes. Where the cache cannot be used, features are computed without it.

    Args:
        images: the source.
        backbone: moved to ``device``, in eval mode.
        device: of the computation.
        inputs: gives the images as the backbone sees them; resized to its input size when left out.
        transform: describes ``inputs``: any text that changes when they do.
        precision: "float32", or "bf16" where that is safe.
        batch_size: images at a time.
        workers: processes that decode, where ``inputs`` is left out.
        advance: called with the number of images done, after each batch.
        log: called with what the user should know of the cache.
    """
    shape = (len(images), backbone.num_features)
    if not len(images):
        return np.empty(shape, dtype=np.float32)
    path = _entry_path(images, backbone, transform, precision)
    features = read_features(path, shape, log)
    if features is not None:
        advance(len(images))
        return features
    backbone = backbone.to(device).eval()
    inputs = ImageInputs(images, backbone, device, workers=workers) if inputs is None else inputs
    metadata = {**_metadata(images, backbone, transform), "precision": precision, "created": utc_now()}
    with FeatureWriter(path, shape, metadata, log) as writer:
        if writer.finished is not None:
            advance(len(images))
            return writer.finished
        features = np.empty(shape, dtype=np.float32)
        done = writer.resume_rows(features)
        advance(done)
        for rows in _iterate_features(inputs, backbone, done, batch_size, precision):
            features[done : done + len(rows)] = rows
            done += len(rows)
            writer.append(rows)
            advance(len(rows))
        writer.finish()
    return features


def features_cached(
    images: ImageSource, backbone: Backbone, *, transform: str = "", precision: str = "float32"
) -> bool:
    """Return whether the features of images are in the cache."""
    return _entry_path(images, backbone, transform, precision).exists()


def _metadata(images: ImageSource, backbone: Backbone, transform: str) -> dict[str, Any]:
    return {
        "data": str(images.root) if isinstance(images, FileImages) else type(images).__name__,
        "images": len(images),
        "backbone": backbone.name,
        "size": backbone.input_spec.size,
        "width": backbone.num_features,
        "transform": transform or repr(backbone.input_spec),
    }


def _entry_path(images: ImageSource, backbone: Backbone, transform: str, precision: str) -> Path:
    """Return the cache entry of the features of images."""
    weights = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        weights.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        weights.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    network = f"{type(backbone).__qualname__} {backbone.name}"
    inputs = f"{backbone.input_spec!r}\n{transform}"
    parts = [str(_VERSION), images.fingerprint(), inputs, network, weights.hexdigest(), precision]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return cache_folder() / FEATURE_FOLDER / f"{key}.npy"


def _iterate_features(
    inputs: Inputs, backbone: Backbone, start: int, batch_size: int, precision: str
) -> Iterator[NDArray[np.float32]]:
    """Yield the features of the rows from ``start`` on, batch by batch."""
    if start == len(inputs):
        return
    for index, values in inputs.batches(np.arange(start, len(inputs)), batch_size=batch_size):
        if index.tolist() != list(range(start, start + len(index))):
            raise ValueError("the inputs of features must come in the order of their rows")
        autocast = torch.autocast(values.device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
        with torch.inference_mode(), autocast:
            rows: NDArray[np.float32] = backbone.features(values).float().cpu().numpy()
        yield rows
        start += len(index)
