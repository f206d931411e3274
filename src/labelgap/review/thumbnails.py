"""Pictures for the page: drawn anew from the pixels, so that no metadata gets out, and kept on disk once made.

Everything is WebP: photos with loss, small pictures (scenes of digits, say) as they are. What is kept can be deleted at
any time; a picture is made again when its file has changed.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError
from labelgap.data.decoding import check_file, decode
from labelgap.data.images import FileImages
from labelgap.data.loader import make_loader
from labelgap.data.readers.features import FEATURES
from labelgap.models import Classifier, class_activation_maps
from labelgap.review.session import Review

__all__ = ["HeatMaps", "LARGE_SIZE", "ReviewThumbnails", "THUMBNAIL_SIZE"]

THUMBNAIL_SIZE: Final = 240
LARGE_SIZE: Final = 1600
_QUALITY: Final = {THUMBNAIL_SIZE: 78, LARGE_SIZE: 88}
_AT_ONCE: Final = max(2, min(os.cpu_count() or 2, 8))
_HEAT: Final = (213, 94, 0)
_HEAT_SIDE: Final = 256
_HEAT_KEPT: Final = 64


class ReviewThumbnails:
    """The pictures of a review by number of the image.

    Args:
        review: whose images.
        folder: where they are kept; in labelgap's cache when not given.
    """

    def __init__(self, review: Review, folder: Path | None = None) -> None:
        self.review = review
        self.folder = folder or cache_folder() / "thumbnails"
        self._gate = threading.BoundedSemaphore(_AT_ONCE)

    def get(self, image: int, side: int) -> bytes:
        """Return an image as WebP, at most ``side`` pixels a side.

        Raises:
            InputError: the image is gone, or cannot be read.
        """
        found = self.review.place(image)
        if found is None:
            raise InputError(f"{self.review.candidates.columns.places[image][1]} is no longer among the data.")
        split, row = found
        source = split.images
        if isinstance(source, FileImages):
            path = source.path(row)
            state = check_file(path)
            return self._kept(f"{path}\0{state.st_size}\0{state.st_mtime_ns}".encode(), side, path)
        pixels = source[row]
        return self._kept(repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes(), side, pixels)

    def _kept(self, key: bytes, side: int, source: Path | NDArray[np.uint8]) -> bytes:
        name = hashlib.blake2b(key + f"\0{side}\0{1}".encode(), digest_size=16).hexdigest()
        place = self.folder / name[:2] / f"{name}.webp"
        try:
            data = place.read_bytes()
        except OSError:
            data = b""
        if _is_whole(data):
            return data
        with self._gate:
            pixels = decode(source, side, quiet=False) if isinstance(source, Path) else source
            data = _webp(pixels, side)
        self._keep(place, data)
        return data

    def _keep(self, place: Path, data: bytes) -> None:
        """Write a file beside its place, then rename it; a disk that is full or read-only is no reason to fail."""
        temporary = place.with_name(f".{place.stem}-{secrets.token_hex(4)}.partial")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            temporary.replace(place)
        except OSError:
            temporary.unlink(missing_ok=True)


class HeatMaps:
    """Where in an image the run's network sees a class; made when asked for, the last few kept.

    Args:
        pictures: of the review; there are heat maps where it has a run that was trained on images.
    """

    def __init__(self, pictures: ReviewThumbnails) -> None:
        self.pictures, self.review = pictures, pictures.review
        self._lock = threading.Lock()
        self._maps: OrderedDict[int, NDArray[np.float32]] = OrderedDict()

    @property
    def available(self) -> bool:
        """Whether there is a network to ask."""
        run = self.review.folder.run
        return run is not None and run.finished and run.config.backbone != FEATURES

    def get(self, image: int, class_number: int) -> bytes:
        """Return a transparent PNG of the image's proportions, to be laid over it.

        Raises:
            InputError: there is no network, or the image is gone or cannot be read.
        """
        run, found = self.review.folder.run, self.review.place(image)
        if run is None or not self.available or found is None:
            raise InputError("there is no heat map of this image.")
        with self._lock:
            if image not in self._maps:
                split, row = found
                size = run.model.backbone.input_spec
                (batch,) = make_loader(split.images, [row], size=size.size, channels=size.channels, batch_size=1)
                self._maps[image] = _maps(run.model, batch[1])
                while len(self._maps) > _HEAT_KEPT:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(image)
            heat = self._maps[image][class_number]
        with Image.open(io.BytesIO(self.pictures.get(image, LARGE_SIZE))) as picture:
            return _overlay(heat, picture.size)


def _maps(model: Classifier, pixels: torch.Tensor) -> NDArray[np.float32]:
    device = next(model.parameters()).device
    with torch.inference_mode():
        feature_maps = class_activation_maps(model, model.normalize(pixels.to(device)))
    return feature_maps[0].float().cpu().numpy()


def _overlay(heat: NDArray[np.float32], size: tuple[int, int]) -> bytes:
    """Return a map as one colour that is the more opaque, the more a place speaks for the class; the average and what
    lies below it are clear."""
    above = np.clip(heat - heat.mean(), 0, None)
    share = above / max(float(above.max()), 1e-12)
    wide, high = (max(1, round(_HEAT_SIDE * side / max(size))) for side in size)
    alpha = Image.fromarray(np.rint(share * 170).astype(np.uint8)).resize((wide, high), Image.Resampling.BICUBIC)
    picture = Image.new("RGBA", alpha.size, (*_HEAT, 0))
    picture.putalpha(alpha)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def _webp(pixels: NDArray[np.uint8], side: int) -> bytes:
    picture = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)).convert("RGB")
    small = max(picture.size) <= THUMBNAIL_SIZE // 2
    if max(picture.size) > side:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", lossless=small, quality=_QUALITY.get(side, 80), method=2)
    return buffer.getvalue()


def _is_whole(data: bytes) -> bool:
    """Whether a file was written to its end; it says itself how long it is."""
    return data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") + 8 == len(data)
