"""A scan of all image files before training: which can be read, and the perceptual hash of each.

Each file is decoded as small as its format allows, on all processors. The results are cached per file, by its path,
size and time: another table of the same folder, or a further image, costs only what is new. Files that cannot be read
are tried again.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path
from labelgap.core.stored import read_arrays
from labelgap.core.system import cpu_count
from labelgap.data.decoding import DecodedImage, decoded, max_pixels
from labelgap.data.decoding.decoded_image import upright
from labelgap.data.images import StoredImages, to_channels

HASH_BITS: Final = 63
_SIDE: Final = 32
_DECODE_SIZE: Final = 64
_MIN_DETAIL: Final = 2.0
_MIN_CACHED_SECONDS: Final = 1.0
_VERSION: Final = 4
_MAX_CACHED: Final = 1_000_000
"""Images of one folder whose scan is kept: 33 bytes each."""


class ImageSignature(NamedTuple):
    """What copies of one image share; see ``perceptual_hash``."""

    bits: int
    detail: float
    color: tuple[float, float]


@dataclass(frozen=True, eq=False)
class ImageScan:
    """The result of scanning N images.

    Attributes:
        errors: why an image cannot be read, or "".
        bits: ``(N,)`` uint64, the perceptual hash, 63 bits.
        textured: ``(N,)`` whether the image has enough detail for its hash to mean something.
        color: ``(N, 2)`` the mean of red − green and of blue − green.
    """

    errors: tuple[str, ...]
    bits: NDArray[np.uint64]
    textured: NDArray[np.bool_]
    color: NDArray[np.float32]

    def select(self, rows: NDArray[np.int64]) -> ImageScan:
        """Return the scan of these images, in this order."""
        errors = tuple(self.errors[row] for row in rows.tolist())
        return ImageScan(errors, self.bits[rows], self.textured[rows], self.color[rows])

    @property
    def unreadable(self) -> dict[int, str]:
        """Row → why the image cannot be read."""
        return {row: error for row, error in enumerate(self.errors) if error}


class _CachedScans(NamedTuple):
    """The scans of images that can be read, by ascending key; see ``ImageScan``."""

    keys: NDArray[np.uint64]
    bits: NDArray[np.uint64]
    textured: NDArray[np.bool_]
    color: NDArray[np.float32]


def scan_images(images: StoredImages, advance: Callable[[int], object] = lambda images: None) -> ImageScan:
    """Scan every image that is not in the cache; a file that cannot be read is recorded, not raised.

    ``advance`` is called with the number of images that are done, as the scan proceeds.
    """
    keys = _image_keys(images)
    folder = hashlib.sha256(f"{_VERSION} {max_pixels()} ".encode() + os.fsencode(images.root)).hexdigest()[:32]
    path = cache_folder() / "scans" / f"{folder}.npz"
    cached = _read_cache(path)
    known = np.isin(keys, cached.keys)
    new = np.flatnonzero(~known)
    advance(len(images) - len(new))
    results = []
    started = time.perf_counter()
    # once for all threads: broken metadata, sizes that are large but accepted
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(cpu_count()) as threads:
        for result in threads.map(partial(_scan_image, images), new.tolist()):
            results.append(result)
            advance(1)
    scanned = _collect(results)
    if time.perf_counter() - started > _MIN_CACHED_SECONDS:
        readable = np.array([not error for error in scanned.errors], dtype=bool) & (keys[new] != 0)
        _add_to_cache(
            path,
            _CachedScans(
                keys[new][readable], scanned.bits[readable], scanned.textured[readable], scanned.color[readable]
            ),
        )
    places = np.searchsorted(cached.keys, keys[known])
    errors = np.full(len(images), "", dtype=object)
    errors[new] = scanned.errors
    arrays = []
    for name in ("bits", "textured", "color"):
        values = getattr(scanned, name)
        merged = np.zeros((len(images), *values.shape[1:]), dtype=values.dtype)
        merged[known], merged[new] = getattr(cached, name)[places], values
        arrays.append(merged)
    return ImageScan(tuple(errors.tolist()), *arrays)


def perceptual_hash(image: DecodedImage) -> ImageSignature:
    r"""Hash an image so that copies of it, resized or recompressed, have nearly the same bits.

    The image is resized to 32 × 32 gray pixels; each bit is whether one of the 63 lowest frequencies of its cosine
    transform, the first left out, is above their median.

    Returned are the bits; the detail in those frequencies, in gray levels; the mean of red − green and of blue − green.

    Reference: C. Zauner, "Implementation and benchmarking of perceptual image hash functions", 2010.

    Example:
        >>> ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
        >>> small, large = (np.stack([each] * 3, axis=-1) for each in (ramp, ramp.repeat(2, axis=0).repeat(2, axis=1)))
        >>> perceptual_hash(DecodedImage(small)).bits == perceptual_hash(DecodedImage(large)).bits
        True
    """
    gray, total = np.empty((image.height, image.width), dtype=np.uint8), np.zeros(3)
    for top, strip in image.strips():
        gray[top : top + len(strip)] = to_channels(strip, 1)[..., 0]
        total += strip.sum(axis=(0, 1), dtype=np.float64)
    shown = Image.fromarray(np.ascontiguousarray(upright(gray, image.orientation)))
    small = np.asarray(shown.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), dtype=np.float64)
    low = dctn(small, norm="ortho")[:8, :8].ravel()[1:]
    bits = int.from_bytes(np.packbits(low > np.median(low)).tobytes(), "big") >> 1
    red, green, blue = total / gray.size
    return ImageSignature(bits, float(np.sqrt((low**2).sum())) / _SIDE, (float(red - green), float(blue - green)))


def _scan_image(images: StoredImages, row: int) -> ImageSignature | InputError:
    try:
        with decoded(images.encoded(row), _DECODE_SIZE, quiet=False) as image:
            return perceptual_hash(image)
    except InputError as error:
        return type(error)(str(error))  # without the traceback, which refers to the image


def _collect(results: list[ImageSignature | InputError]) -> ImageScan:
    nothing = ImageSignature(0, 0.0, (0.0, 0.0))
    signatures = [nothing if isinstance(result, InputError) else result for result in results]
    return ImageScan(
        tuple(str(result) if isinstance(result, InputError) else "" for result in results),
        np.array([each.bits for each in signatures], dtype=np.uint64),
        np.array([each.detail > _MIN_DETAIL for each in signatures], dtype=bool),
        np.array([each.color for each in signatures], dtype=np.float32).reshape(-1, 2),
    )


def _image_keys(images: StoredImages) -> NDArray[np.uint64]:
    """Return a hash of the state of every image; 0 where there is none."""
    keys = np.zeros(len(images), dtype=np.uint64)
    for row in range(len(images)):
        try:
            state = images.state(row)
        except InputError:
            continue
        keys[row] = int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "big")
    return keys


def _read_cache(path: Path) -> _CachedScans:
    """Read the scans of a folder; none where there is no file, or a damaged one."""
    none = (np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, bool), np.zeros((0, 2), np.float32))
    empty = _CachedScans(*none)
    if not path.exists():
        return empty
    try:
        stored = read_arrays(path)
        found = [stored[name] for name in _CachedScans._fields]
    except (RunError, KeyError):
        return empty
    expected = [(values.dtype, values.ndim, values.shape[1:]) for values in none]
    if [(values.dtype, values.ndim, values.shape[1:]) for values in found] != expected or len({*map(len, found)}) != 1:
        return empty
    cached = _CachedScans(*found)  # type: ignore[arg-type]
    return cached if (cached.keys[1:] > cached.keys[:-1]).all() else empty


def _add_to_cache(path: Path, new: _CachedScans) -> None:
    """Add scans to those of a folder; where the cache cannot be written, the next scan computes them again."""
    before = _read_cache(path)  # once more: another process may have added to it
    keys = np.concatenate([new.keys, before.keys])
    kept, rows = np.unique(keys[:_MAX_CACHED], return_index=True)
    merged = [np.concatenate([ours, theirs])[rows] for ours, theirs in zip(new[1:], before[1:], strict=True)]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            np.savez(temporary, **_CachedScans(kept, *merged)._asdict())
