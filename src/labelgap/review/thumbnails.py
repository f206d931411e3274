"""The images of the page: encoded again from the pixels as WebP, so that no metadata leaves the machine, and cached."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.files import atomic_path
from labelgap.data.decoding import DecodedImage, EncodedImage, decoded, open_image
from labelgap.data.images import FEATURES, StoredImages, to_channels
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import Resize
from labelgap.inference.localization import heat_map_png
from labelgap.models import class_activation_maps
from labelgap.review.session import Review

THUMBNAIL_SIZE: Final = 240
LARGE_SIZE: Final = 1600
_QUALITY: Final = {THUMBNAIL_SIZE: 78, LARGE_SIZE: 88}
_THREADS: Final = max(2, min(os.cpu_count() or 2, 8))
_HEAT_CACHE_SIZE: Final = 64


class ReviewThumbnails:
    """The images of a review by image number."""

    def __init__(self, review: Review) -> None:
        self.review = review
        self.folder = cache_folder() / "thumbnails"
        self._semaphore = threading.BoundedSemaphore(_THREADS)
        self._locks = [threading.Lock() for _ in range(256)]  # by the first byte of a name

    def get(self, image: int, size: int) -> bytes:
        """Return an image as WebP, its longer side at most ``size``; ``InputError`` where it is gone or unreadable."""
        location = self.review.locate(image)
        if location is None:
            raise InputError(f"{self.review.candidates.columns.images[image][1]} is no longer in the data.")
        split, row = location
        if isinstance(split.images, StoredImages):
            return self._cached(split.images.state(row), size, split.images.encoded(row))
        pixels = split.images[row]
        return self._cached(repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes(), size, pixels)

    def _cached(self, key: bytes, size: int, source: Path | EncodedImage | NDArray[np.uint8]) -> bytes:
        """Return a thumbnail, which is made once however many ask for it at the same time."""
        name = hashlib.blake2b(key + f"\0{size}".encode(), digest_size=16).hexdigest()
        path = self.folder / name[:2] / f"{name}.webp"
        with self._locks[int(name[:2], 16)]:
            with suppress(OSError):
                data = path.read_bytes()
                if data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") + 8 == len(data):  # complete
                    return data
            with self._semaphore:
                data = _encode(source, size)
            with suppress(
                OSError, LabelGapError
            ):  # a disk that is full or read-only only makes the next request slower
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(path) as temporary:
                    temporary.write_bytes(data)
        return data


class HeatMaps:
    """Class activation maps of the network, computed on request, where a review has a run trained on images."""

    def __init__(self, thumbnails: ReviewThumbnails) -> None:
        self.thumbnails, self.review = thumbnails, thumbnails.review
        self._lock = threading.Lock()
        self._maps = lru_cache(maxsize=_HEAT_CACHE_SIZE)(self._compute)

    @property
    def available(self) -> bool:
        """Whether there is a network to ask."""
        run = self.review.folder.run
        return run is not None and run.finished and run.config.backbone != FEATURES

    def get(self, image: int, class_number: int) -> bytes:
        """Return a transparent PNG to be laid over the image; ``InputError`` without network or readable image."""
        if class_number >= len(self.review.folder.classes):
            raise InputError("the network does not know this class: people added it.")
        with self._lock:
            heat = self._maps(image)[class_number]
        with open_image(io.BytesIO(self.thumbnails.get(image, LARGE_SIZE)), quiet=False) as large:
            return heat_map_png(heat, large.size)

    def _compute(self, image: int) -> NDArray[np.float32]:
        run, location = self.review.folder.run, self.review.locate(image)
        if run is None or not self.available or location is None:
            raise InputError("there is no heat map of this image.")
        split, row = location
        model, spec = run.model, run.model.backbone.input_spec
        loader = ImageLoader(split.images, [row], transform=Resize(spec.size), channels=spec.channels)
        _, pixels = next(iter(loader))
        with torch.inference_mode():
            maps = class_activation_maps(model, model.normalize(pixels.to(next(model.parameters()).device)))
        return maps[0].float().cpu().numpy()


def _encode(source: Path | EncodedImage | NDArray[np.uint8], size: int) -> bytes:
    if isinstance(source, np.ndarray):
        image = DecodedImage(to_channels(source, 3)).thumbnail(size)
    else:
        with decoded(source, size, quiet=False) as opened:
            image = opened.thumbnail(size)
    buffer = io.BytesIO()
    lossless = max(image.size) <= THUMBNAIL_SIZE // 2
    image.save(buffer, "WEBP", lossless=lossless, quality=_QUALITY[size], method=2)
    return buffer.getvalue()
