"""A backbone and images small enough for tests of the feature cache, and a process that extracts slowly."""

from __future__ import annotations

import os
import time
import zlib
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.data.images import ArrayImages
from labelgap.models import Backbone, InputSpec
from labelgap.training.features import cache as cache_module
from labelgap.training.features.extract import extract_features

WIDTH = 6
BATCH = 4


class Tiny(Backbone):
    """The mean of a gray image times a weight; counts its batches, and can report them and sleep."""

    def __init__(self, weight: float = 1.0, size: int = 4) -> None:
        super().__init__(num_features=WIDTH, input_spec=InputSpec(size=size, mean=(0.5,), std=(0.5,), channels=1))
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, WIDTH) * weight)
        self.batches = 0
        self.seconds = 0.0
        self.pipe: Connection | None = None

    def feature_maps(self, images: Tensor) -> Tensor:
        self.batches += 1
        if self.pipe is not None:
            self.pipe.send("batch")
            time.sleep(self.seconds)
        return images * self.weight[:, None, None]


def random_images(rows: int, seed: int = 0) -> ArrayImages:
    return ArrayImages(np.random.default_rng(seed).integers(0, 256, (rows, 4, 4), dtype=np.uint8))


def expected(images: ArrayImages, weight: float = 1.0) -> NDArray[np.float64]:
    """The formula in double precision."""
    mean = ((images.array[..., 0] / 255.0 - 0.5) / 0.5).mean(axis=(1, 2))
    result: NDArray[np.float64] = mean[:, None] * np.linspace(0.5, 1.5, WIDTH) * weight
    return result


def features(images: ArrayImages, backbone: Tiny, **options: Any) -> NDArray[np.float32]:
    return extract_features(images, backbone, device=torch.device("cpu"), batch_size=BATCH, **options)


def extract_slowly(pipe: Connection, cache: str, rows: int, seconds: float, sync_interval: float) -> None:
    """Extract features in a process of its own; send every batch, every message, and the result."""
    os.environ["LABELGAP_CACHE"] = cache
    torch.set_num_threads(1)
    cache_module.SYNC_INTERVAL = sync_interval
    network = Tiny()
    network.pipe, network.seconds = pipe, seconds
    found = features(random_images(rows), network, log=pipe.send)
    pipe.send((network.batches, zlib.crc32(found.tobytes())))
