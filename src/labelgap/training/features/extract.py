"""Features that are computed once and kept: the linear protocol's inputs.

A cache entry is found by what decides its content: the images, what is done to them, the network and its weights, and
the precision it computes in. Entries are shared by all runs and studies of a machine, under ``$LABELGAP_CACHE`` or the
user's cache folder; ``labelgap cache`` lists them.
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

from labelgap.core.cache import FEATURE_FOLDER, cache_folder
from labelgap.core.cache_entries import utc_now
from labelgap.data.images import FileImages, ImageSource
from labelgap.models import Backbone
from labelgap.training.features.cache import feature_writer, read_features
from labelgap.training.loop.inputs import ImageInputs, Inputs

__all__ = ["cache_folder", "extract_features", "features_cached"]

_VERSION: Final = 2
"""Raised when features come out otherwise than before from the same images and weights."""


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
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> NDArray[np.float32]:
    """Return the (N, D) pooled features of all images, from the cache if they are there.

    A computation that was killed goes on. Where the cache cannot be used, features are computed all the same.

    Args:
        images: the source.
        backbone: in eval mode afterwards.
        device: where to compute.
        inputs: gives the images as the backbone sees them; squashed to its input size when left out.
        transform: what ``inputs`` does to images, in any words that change when it does.
        precision: "float32", or "bf16" where that is safe.
        batch_size: images at a time.
        workers: processes that decode, where ``inputs`` is left out.
        advance: told how many images were done, after each batch.
        say: told what of the cache a person should know.
    """
    shape, description = (len(images), backbone.num_features), repr(backbone.input_spec)
    if not len(images):
        return np.empty(shape, dtype=np.float32)
    path = _place(images, backbone, transform, precision)
    features = read_features(path, shape, say)
    if features is not None:
        advance(len(images))
        return features
    backbone = backbone.to(device).eval()
    inputs = ImageInputs(images, backbone, device, workers=workers) if inputs is None else inputs
    about = {
        **_about(images, backbone),
        "transform": transform or description,
        "precision": precision,
        "created": utc_now(),
    }
    with feature_writer(path, shape, about, say) as file:
        if file.finished is not None:
            advance(len(images))
            return file.finished
        features = np.empty(shape, dtype=np.float32)
        done = file.resume_rows(features)
        advance(done)
        for rows in _computed(inputs, backbone, done, batch_size, precision):
            features[done : done + len(rows)] = rows
            done += len(rows)
            file.append(rows)
            advance(len(rows))
        file.finish()
    return features


def features_cached(
    images: ImageSource, backbone: Backbone, *, transform: str = "", precision: str = "float32"
) -> bool:
    """Return whether the features of images need not be computed again."""
    return _place(images, backbone, transform, precision).exists()


def _place(images: ImageSource, backbone: Backbone, transform: str, precision: str) -> Path:
    """Return the file of the cache that the features of images are in, or will be."""
    key = _key(images, backbone, f"{backbone.input_spec!r}\n{transform}", precision)
    return cache_folder() / FEATURE_FOLDER / f"{key}.npy"


def _computed(
    inputs: Inputs, backbone: Backbone, done: int, batch_size: int, precision: str
) -> Iterator[NDArray[np.float32]]:
    """Yield the features of the rows from ``done`` on, batch by batch."""
    if done == len(inputs):
        return
    for index, values in inputs.batches(np.arange(done, len(inputs)), batch_size=batch_size):
        if index.tolist() != list(range(done, done + len(index))):
            raise ValueError("the inputs of features must come in the order of their rows")
        fewer_bits = torch.autocast(values.device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
        with torch.inference_mode(), fewer_bits:
            rows: NDArray[np.float32] = backbone.features(values).float().cpu().numpy()
        yield rows
        done += len(index)


def _key(images: ImageSource, backbone: Backbone, transform: str, precision: str) -> str:
    weights = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        weights.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        weights.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    network = f"{type(backbone).__qualname__} {backbone.name}"
    parts = [str(_VERSION), images.fingerprint(), transform, network, weights.hexdigest(), precision]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _about(images: ImageSource, backbone: Backbone) -> dict[str, Any]:
    """Say what features are of, and by what network."""
    return {
        "data": str(images.root) if isinstance(images, FileImages) else type(images).__name__,
        "images": len(images),
        "backbone": backbone.name,
        "size": backbone.input_spec.size,
        "width": backbone.num_features,
    }
