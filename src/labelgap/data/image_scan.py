"""Looking at every image once, before anything is trained: can it be read, and what does it look like?

Each file is decoded as small as its format allows, on all processors, and what was seen is kept in the cache by the
files' names, sizes and times, so that the same photos are not looked at twice.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path
from labelgap.data.decoding import decode
from labelgap.data.images import FileImages, to_channels

__all__ = ["HASH_BITS", "ImageScan", "perceptual_hash", "scan_images"]

HASH_BITS: Final = 63
_SIDE: Final = 32
_DECODED: Final = 64
_FLAT: Final = 2.0
_WORTH_KEEPING: Final = 1.0  # seconds
_VERSION: Final = 1


class ImageSignature(NamedTuple):
    """What one picture looks like; see ``perceptual_hash``."""

    bits: int
    detail: float
    color: tuple[float, float]


@dataclass(frozen=True, eq=False)
class ImageScan:
    """What was seen of N images.

    Attributes:
        wrong: what is wrong with each, or "" where nothing is.
        bits: ``(N,)`` uint64, the perceptual hash, 63 bits.
        shaped: ``(N,)`` whether there is anything in the picture that a hash could tell; a plain sheet has nothing.
        colour: ``(N, 2)`` the mean of red − green and of blue − green.
    """

    wrong: tuple[str, ...]
    bits: NDArray[np.uint64]
    textured: NDArray[np.bool_]
    color: NDArray[np.float32]

    def select(self, rows: NDArray[np.int64]) -> ImageScan:
        """Return what was seen of these images, in this order."""
        wrong = tuple(self.wrong[row] for row in rows.tolist())
        return ImageScan(wrong, self.bits[rows], self.textured[rows], self.color[rows])

    @property
    def unreadable(self) -> dict[int, str]:
        """Row → what is wrong with it."""
        return {row: reason for row, reason in enumerate(self.wrong) if reason}


def scan_images(images: FileImages) -> ImageScan:
    """Look at every image, or remember what was seen; a file that cannot be read is noted, not raised."""
    key = _key(images)
    path = cache_folder() / "scans" / f"{key}.npz"
    if key and path.exists() and (kept := _kept(path, len(images))) is not None:
        return kept
    started = time.perf_counter()
    with warnings.catch_warnings(), ThreadPoolExecutor(_processors()) as threads:
        warnings.simplefilter("ignore")  # once for all threads: broken metadata, sizes that are large but accepted
        looks = list(threads.map(_look_or_reason, map(images.path, range(len(images)))))
    found = _put_together(looks)
    if key and time.perf_counter() - started > _WORTH_KEEPING:
        _keep(path, found)
    return found


def perceptual_hash(pixels: NDArray[np.uint8]) -> ImageSignature:
    r"""Hash a picture so that copies of it, scaled or saved anew, have nearly the same bits.

    The picture is brought to 32 × 32 grey pixels; of its cosine transform the 8 × 8 lowest frequencies but the first
    are kept, and each bit says whether one of these 63 is above their median.

    Args:
        pixels: ``(height, width, 3)`` uint8.

    Returns:
        the bits; how much detail those frequencies hold, in levels of grey; the mean of red − green and blue − green.

    Reference: C. Zauner, "Implementation and benchmarking of perceptual image hash functions", 2010.

    Example:
        >>> ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
        >>> small, large = (np.stack([each] * 3, axis=-1) for each in (ramp, ramp.repeat(2, axis=0).repeat(2, axis=1)))
        >>> perceptual_hash(small).bits == perceptual_hash(large).bits
        True
    """
    gray = Image.fromarray(to_channels(pixels, 1)[..., 0])
    small = np.asarray(gray.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), dtype=np.float64)
    low = dctn(small, norm="ortho")[:8, :8].ravel()[1:]
    bits = int.from_bytes(np.packbits(low > np.median(low)).tobytes(), "big") >> 1
    red, green, blue = pixels.reshape(-1, 3).mean(axis=0)
    return ImageSignature(bits, float(np.sqrt((low**2).sum())) / _SIDE, (float(red - green), float(blue - green)))


def _look_or_reason(path: Path) -> ImageSignature | str:
    try:
        return perceptual_hash(decode(path, _DECODED, quiet=False))
    except InputError as error:
        return str(error)


def _put_together(looks: list[ImageSignature | str]) -> ImageScan:
    nothing = ImageSignature(0, 0.0, (0.0, 0.0))
    seen = [nothing if isinstance(look, str) else look for look in looks]
    return ImageScan(
        tuple(look if isinstance(look, str) else "" for look in looks),
        np.array([look.bits for look in seen], dtype=np.uint64),
        np.array([look.detail > _FLAT for look in seen], dtype=bool),
        np.array([look.color for look in seen], dtype=np.float32).reshape(-1, 2),
    )


def _key(images: FileImages) -> str:
    """Return under what a scan is kept; "" for images that are not all there."""
    try:
        return hashlib.sha256(f"{_VERSION} {images.fingerprint()}".encode()).hexdigest()[:32]
    except InputError:
        return ""


def _kept(path: Path, count: int) -> ImageScan | None:
    """Read a scan; None where the file is damaged, or not about these images."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            found = ImageScan(tuple(stored["wrong"].tolist()), stored["bits"], stored["textured"], stored["color"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return found if len(found.wrong) == len(found.bits) == count else None


def _keep(path: Path, found: ImageScan) -> None:
    """Write a scan; where the cache cannot be written, it is made anew the next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            np.savez_compressed(
                temporary,
                wrong=np.array(found.wrong, dtype=str),
                bits=found.bits,
                textured=found.textured,
                color=found.color,
            )
    except OSError:
        return


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
