"""A decoded image, converted to upright RGB in strips: whole, or as a thumbnail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

_STRIP_PIXELS: Final = 2**20
_DEEP_MODES: Final = ("I", "F")


class DecodedImage:
    """An image as its file stores it, converted to RGB a few rows at a time, so that no second whole copy is made.

    Args:
        source: a loaded Pillow image of any mode, or an array ``(height, width, 3)``.
        orientation: of EXIF, 1 to 8.

    Transparency is composited on white. Samples of 16 bits are divided by 257; those of 32 bits (integer or float) are
    divided by the smallest usual full scale that holds the brightest: 1 or 255 for floats, 65,535, 2³² - 1.

    Example:
        >>> DecodedImage(Image.new("I;16", (2, 1), 0x8080)).pixels().tolist()
        [[[128, 128, 128], [128, 128, 128]]]
    """

    def __init__(self, source: Image.Image | NDArray[np.uint8], orientation: int = 1) -> None:
        self.source = source
        self.orientation = orientation
        self.width, self.height = source.size if isinstance(source, Image.Image) else source.shape[1::-1]

    def strips(self, multiple: int = 1) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield the number of the first row, and rows ``(a multiple, width, 3)``; the last strip may have fewer."""
        rows = max(1, _STRIP_PIXELS // (self.width * multiple)) * multiple
        for top in range(0, self.height, rows):
            if not isinstance(self.source, Image.Image):
                yield top, self.source[top : top + rows]
            elif rows >= self.height:
                yield top, self._to_rgb(self.source)
            else:
                box = (0, top, self.width, min(top + rows, self.height))
                yield top, self._to_rgb(self.source.crop(box))

    def pixels(self) -> NDArray[np.uint8]:
        """Return the upright image, ``(height, width, 3)``, contiguous and writable."""
        if not isinstance(self.source, Image.Image):
            return np.ascontiguousarray(upright(self.source, self.orientation))
        swapped = self.orientation >= 5
        shape = (self.width, self.height, 3) if swapped else (self.height, self.width, 3)
        result = np.empty(shape, dtype=np.uint8)
        stored = upright(result, {6: 8, 8: 6}.get(self.orientation, self.orientation))
        for top, strip in self.strips():
            stored[top : top + len(strip)] = strip
        return result

    def thumbnail(self, size: int) -> Image.Image:
        """Return the upright image with its longer side at most ``size``, as ``Image.thumbnail`` makes it.

        Its two steps, a box filter by whole factors and then Lanczos, but the first strip by strip.
        """
        if max(self.width, self.height) <= size:
            return Image.fromarray(self.pixels())
        width, height = _fit(self.width, self.height, size)
        across, down = max(1, self.width // (2 * width)), max(1, self.height // (2 * height))
        reduced = Image.new("RGB", (-(-self.width // across), -(-self.height // down)))
        for top, strip in self.strips(down):
            reduced.paste(Image.fromarray(strip).reduce((across, down)), (0, top // down))
        box = (0, 0, self.width / across, self.height / down)
        small = np.asarray(reduced.resize((width, height), Image.Resampling.LANCZOS, box))
        return Image.fromarray(np.ascontiguousarray(upright(small, self.orientation)))

    def _to_rgb(self, image: Image.Image) -> NDArray[np.uint8]:
        """Convert a strip of any mode of Pillow as a viewer would show it."""
        mode = image.mode
        if mode.startswith(_DEEP_MODES):
            values, full = np.asarray(image).astype(np.float64), self._full_scale
            values[np.isnan(values)] = 0
            gray = np.rint(np.clip(values, 0, full) * (255 / full)).astype(np.uint8)
            return np.repeat(gray[..., None], 3, axis=2)
        if mode in ("La", "RGBa"):
            image = image.convert("LA" if mode == "La" else "RGBA")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))

    @cached_property
    def _full_scale(self) -> float:
        """What counts as white among samples of 16 or 32 bits."""
        assert isinstance(self.source, Image.Image)
        mode, brightest = self.source.mode, 0.0
        rows = max(1, _STRIP_PIXELS // self.width)
        for top in range(0, self.height, rows):
            strip = self.source.crop((0, top, self.width, min(top + rows, self.height)))
            values = np.asarray(strip).astype(np.float64)
            brightest = max(brightest, float(values.max(initial=0.0, where=np.isfinite(values))))
        scales = (65535.0,) if mode.startswith("I;16") else (65535.0, 2.0**32 - 1)
        scales = (1.0, 255.0, *scales) if mode == "F" else scales
        return next((scale for scale in scales if brightest <= scale), brightest)


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return a view of ``(height, width, …)``, turned and mirrored as an EXIF orientation of 1 to 8 asks for.

    Example:
        >>> upright(np.array([[1, 2], [3, 4]], np.uint8), 6).tolist()
        [[3, 1], [4, 2]]
    """
    if orientation in (3, 4, 6, 7):
        pixels = pixels[::-1]
    if orientation in (2, 3, 7, 8):
        pixels = pixels[:, ::-1]
    return pixels.swapaxes(0, 1) if orientation >= 5 else pixels


def exif_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a loaded image, 1 where it is missing, makes no sense or cannot be read."""
    with suppress(Exception):
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
        return {number: number for number in range(1, 9)}.get(found, 1)
    return 1


def _fit(width: int, height: int, size: int) -> tuple[int, int]:
    """Return the size of ``Image.thumbnail``: the longer side is ``size``, the ratio as near as whole numbers allow."""
    ratio = width / height
    if ratio <= 1:
        exact = size * ratio
        return max(1, min(math.floor(exact), math.ceil(exact), key=lambda side: abs(ratio - side / size))), size
    exact = size / ratio
    nearest = min(math.floor(exact), math.ceil(exact), key=lambda side: abs(ratio - size / side) if side else 0)
    return size, max(1, nearest)
