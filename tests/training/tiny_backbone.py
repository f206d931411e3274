"""A backbone and images small enough for tests of the feature cache, and a process that extracts slowly."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.data.images import ArrayImages, ImageSource
from labelgap.models import Backbone, InputSpec
from labelgap.training import features as extraction
from labelgap.training.features import extract_features
from labelgap.training.progress import Reporter

WIDTH = 6
BATCH = 4


class Tiny(Backbone):
    """The mean of a gray image times a weight; counts its images, and can report its batches and sleep."""

    def __init__(self, weight: float = 1.0, size: int = 4) -> None:
        super().__init__(num_features=WIDTH, input_spec=InputSpec(size=size, mean=(0.5,), std=(0.5,), channels=1))
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, WIDTH) * weight)
        self.computed = 0
        self.seconds = 0.0
        self.fails_after: int | None = None
        self.hangs_at: int | None = None
        self.pipe: Connection | None = None

    def feature_maps(self, images: Tensor) -> Tensor:
        if self.computed == self.fails_after:
            raise KeyboardInterrupt
        self.computed += len(images)
        if self.pipe is not None:
            self.pipe.send("batch")
            time.sleep(3600 if self.computed == self.hangs_at else self.seconds)
        return images * self.weight[:, None, None]


class Recorder(Reporter):
    """Records messages and the steps of every bar."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.messages: list[str] = []
        self.steps = 0

    def log(self, text: str) -> None:
        self.messages.append(text)

    def advance(self, steps: int = 1, note: Any = None) -> None:
        self.steps += steps


def random_images(rows: int, seed: int = 0) -> ArrayImages:
    return ArrayImages(np.random.default_rng(seed).integers(0, 256, (rows, 4, 4), dtype=np.uint8))


def expected(images: ArrayImages, weight: float = 1.0) -> NDArray[np.float64]:
    """The formula in double precision."""
    mean = ((images.array[..., 0] / 255.0 - 0.5) / 0.5).mean(axis=(1, 2))
    result: NDArray[np.float64] = mean[:, None] * np.linspace(0.5, 1.5, WIDTH) * weight
    return result


def features(
    images: ImageSource, backbone: Backbone, reporter: Reporter | None = None, **options: Any
) -> NDArray[np.float32]:
    return several([images], backbone, reporter, **options)[0]


def several(
    sources: Sequence[ImageSource], backbone: Backbone, reporter: Reporter | None = None, **options: Any
) -> list[NDArray[np.float32]]:
    given: dict[str, Any] = {"device": torch.device("cpu"), "batch_size": BATCH, **options}
    return extract_features(sources, backbone, reporter=reporter or Reporter(quiet=True), **given)


def extract_slowly(pipe: Connection, cache: str, first: int, stop: int, seconds: float, hangs_at: int | None) -> None:
    """Extract the features of some of many images in a process of its own, a batch in a block; send every batch."""
    os.environ["LABELGAP_CACHE"] = cache
    torch.set_num_threads(1)
    extraction.BLOCK_SECONDS = extraction.SHARED_BLOCK_SECONDS = extraction.START_UPS = 0.0
    network = Tiny()
    network.pipe, network.seconds, network.hangs_at = pipe, seconds, hangs_at
    found = features(random_images(stop).select(np.arange(first, stop)), network)
    pipe.send((network.computed, zlib.crc32(found.tobytes())))
