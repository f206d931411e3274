"""A scan of all image files before training: which can be read, and the perceptual hash of each.

Each file is decoded as small as its format allows, on all processors. The result is cached under a hash of the files'
names, sizes and times, so that the same files are not scanned twice.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from labelgap.core.cache.limit import cache_folder
from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path
from labelgap.core.stored import read_arrays
from labelgap.core.system import cpu_count
from labelgap.data.decoding import DecodedImage, ImageAccessError, decoded, max_pixels
from labelgap.data.decoding.decoded_image import upright
from labelgap.data.images import FileImages, to_channels

__all__ = ["HASH_BITS", "ImageScan", "perceptual_hash", "scan_images"]

HASH_BITS: Final = 63
_SIDE: Final = 32
_DECODE_SIZE: Final = 64
_MIN_DETAIL: Final = 2.0
_MIN_CACHED_SECONDS: Final = 1.0
_VERSION: Final = 3


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


def scan_images(images: FileImages) -> ImageScan:
    """Scan every image, or read the cached scan; a file that cannot be read is recorded, not raised."""
    key = _key(images)
    path = cache_folder() / "scans" / f"{key}.npz"
    if key and path.exists() and (cached := _read_cache(path, len(images))) is not None:
        return cached
    started = time.perf_counter()
    # once for all threads: broken metadata, sizes that are large but accepted
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(cpu_count()) as threads:
        results = list(threads.map(_scan_file, map(images.path, range(len(images)))))
    found = _collect(results)
    lasting = not any(isinstance(result, ImageAccessError) for result in results)  # others would fail tomorrow too
    if key and lasting and time.perf_counter() - started > _MIN_CACHED_SECONDS:
        _write_cache(path, found)
    return found


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


def _scan_file(path: Path) -> ImageSignature | InputError:
    try:
        with decoded(path, _DECODE_SIZE, quiet=False) as image:
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


def _key(images: FileImages) -> str:
    """Return the key of a scan in the cache; "" where an image is missing."""
    try:
        return hashlib.sha256(f"{_VERSION} {max_pixels()} {images.fingerprint()}".encode()).hexdigest()[:32]
    except InputError:
        return ""


def _read_cache(path: Path, count: int) -> ImageScan | None:
    """Read a scan; None where the file is damaged, or of other images."""
    try:
        stored = read_arrays(path)
        expected = {"errors": ("U", 1), "bits": ("u", 1), "textured": ("b", 1), "color": ("f", 2)}
        if any((stored[name].dtype.kind, stored[name].ndim) != kind for name, kind in expected.items()):
            return None
        found = ImageScan(
            tuple(stored["errors"].tolist()),
            *(stored["bits"].astype(np.uint64), stored["textured"].astype(bool), stored["color"].astype(np.float32)),
        )
    except (RunError, KeyError):
        return None
    lengths = {len(found.errors), len(found.bits), len(found.textured), len(found.color)}
    return found if lengths == {count} and found.color.shape == (count, 2) else None


def _write_cache(path: Path, found: ImageScan) -> None:
    """Write a scan; where the cache cannot be written, the next scan is computed again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            np.savez_compressed(temporary, **{**vars(found), "errors": np.array(found.errors, dtype=str)})
