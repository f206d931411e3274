"""From an image file to pixels, with a bound on what the threads of a process decode at once.

Where the package simplejpeg is installed (the extra ``fast``) it decodes ordinary JPEGs, to the same pixels in about
two thirds of the time; Pillow decodes what simplejpeg refuses.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelgap.data.decoding.decoded_image import DecodedImage, exif_orientation
from labelgap.data.decoding.image_file import EncodedImage, open_image

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

_PIXELS_AT_ONCE: Final = 128_000_000
"""One very large image, or ten photos of twelve megapixels: half a gigabyte at four bytes per pixel."""

_WEIGHTS: Final = {"AVIF": 2, "HEIF": 2, "WEBP": 4, "JPEG2000": 5}
"""Their decoders hold several copies of an image: 10 to 19 bytes per pixel are used."""

_BLOCK_BYTES: Final = 64 * 2**20
"""Pillow allocates an image in blocks of 16 MiB, which the C library keeps for later, once for every thread. Blocks of
more than 32 MiB are given back to the system at once."""

if "PILLOW_BLOCK_SIZE" not in os.environ:
    Image.core.set_block_size(_BLOCK_BYTES)  # type: ignore[attr-defined]


class _PixelBudget:
    """A bound on the pixels that the threads of this process decode at once; a larger image is decoded alone."""

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels
        self.reset()

    def reset(self) -> None:
        """Forget what other threads hold: after a fork they do not exist."""
        self._free = self.pixels
        self._changed = threading.Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        share = min(pixels, self.pixels)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= share)
            self._free -= share
        try:
            yield
        finally:
            with self._changed:
                self._free += share
                self._changed.notify_all()


_budget = _PixelBudget(_PIXELS_AT_ONCE)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_budget.reset)


def decode(path: Path | EncodedImage, min_size: int | None = None, *, quiet: bool = True) -> NDArray[np.uint8]:
    """Read an image as ``(height, width, 3)`` uint8, upright; see ``decoded``."""
    with decoded(path, min_size, quiet=quiet) as image:
        return image.pixels()


@contextmanager
def decoded(path: Path | EncodedImage, min_size: int | None = None, *, quiet: bool = True) -> Iterator[DecodedImage]:
    """Decode an image file. Inside the block few other large images are decoded: copy what you need, and leave.

    Args:
        path: the file, or its bytes; of several frames the first is used.
        min_size: when given, a JPEG may be decoded at a half, a quarter or an eighth, neither side shorter than this.
        quiet: whether to silence Pillow's warnings here; threads have to do it once for all of them.

    Raises:
        InputError: the file is missing, empty, of no format in ``FORMATS``, damaged, truncated, or too large.
    """
    with open_image(path, quiet=quiet) as image:
        width, height = image.size
        if min_size is not None and image.draft(None, (min_size, min_size)) and not image.info.get("progressive"):
            width, height = image.size
        with _budget.take(width * height * _WEIGHTS.get(image.format or "", 1)):
            pixels = _decode_jpeg(image, path)
            if pixels is None:
                image.load()
            yield DecodedImage(image if pixels is None else pixels, exif_orientation(image))


def _decode_jpeg(image: Image.Image, path: Path | EncodedImage) -> NDArray[np.uint8] | None:
    """Decode a gray or color JPEG by simplejpeg, at the scale that Pillow chose; None where Pillow has to do it."""
    if simplejpeg is None or image.format not in ("JPEG", "MPO") or image.mode not in ("RGB", "L"):
        return None
    width, height = image.size
    content = path.read_bytes() if isinstance(path, Path) else path.getvalue()
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(content, min_height=height, min_width=width)
    except ValueError:
        return None
    return pixels if pixels.shape == (height, width, 3) else None
