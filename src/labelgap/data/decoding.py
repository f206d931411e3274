"""One image file to upright RGB, or an error that says which file and why.

Pillow reads the file. This module adds what Pillow leaves to the caller: EXIF orientation, transparency, samples of
more than eight bits, and errors for files that are damaged, truncated, or unpack to an absurd size.

Where the package simplejpeg is installed (the extra ``fast``) it decodes ordinary JPEGs, to the same pixels in about
two thirds of the time; Pillow decodes what simplejpeg refuses.
"""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from labelgap.core.errors import InputError

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

__all__ = ["check_file", "decode", "to_rgb"]

_DEEP_MODES: Final = ("I", "F")
_HEIC: Final = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")


def decode(path: Path, min_size: int | None = None, *, quiet: bool = True) -> NDArray[np.uint8]:
    """Read an image as ``(height, width, 3)`` uint8, upright.

    Args:
        path: the file; of several frames the first is used.
        min_size: when given, a JPEG may be decoded at a half, a quarter or an eighth, neither side shorter than this.
        quiet: whether to silence Pillow's warnings here; threads have to do it once for all of them.

    Raises:
        InputError: the file is missing, empty, not an image, damaged, truncated, or larger than Pillow's limit.
    """
    check_file(path)
    # of broken metadata, and of sizes that are large but accepted
    silence: AbstractContextManager[object] = warnings.catch_warnings(action="ignore") if quiet else nullcontext()
    try:
        with silence, _open(path) as image:
            if min_size is not None:
                image.draft(None, (min_size, min_size))
            return _pixels(image, path)
    except (MemoryError, InputError):
        raise
    except Image.DecompressionBombError as error:
        raise InputError(
            f"{path} is refused: it unpacks to more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels. "
            "Save it smaller, or take it off the list."
        ) from error
    except UnidentifiedImageError as error:
        raise InputError(f"{path} is not an image, or of a format that Pillow does not know.") from error
    except Exception as error:  # Pillow's readers raise many kinds of errors for a damaged file
        what = "cannot be read" if isinstance(error, OSError) and error.errno else "is damaged or truncated"
        raise InputError(f"{path} {what}: {_reason(error)}.") from error


def _open(path: Path) -> Image.Image:
    """Open a file with Pillow; a HEIC photo, as phones take them, with pillow-heif."""
    try:
        return Image.open(path)
    except UnidentifiedImageError:
        with path.open("rb") as file:
            start = file.read(12)
        if start[4:8] != b"ftyp" or start[8:12] not in _HEIC:
            raise
    try:
        import pillow_heif
    except ImportError:
        raise InputError(
            f"{path} is a HEIC photo, which needs the package pillow-heif: pip install 'labelgap[heic]'. "
            "Or save it as JPEG."
        ) from None
    pillow_heif.register_heif_opener()
    return Image.open(path)


def check_file(path: Path) -> os.stat_result:
    """Return the status of a file; raise an error for what cannot be an image (reading a pipe would never end)."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {_reason(error)}.") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder, not an image.")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not an ordinary file.")
    if status.st_size == 0:
        raise InputError(f"{path} is empty (0 bytes).")
    return status


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode of Pillow to RGB, as a viewer would show it.

    Transparency is composited on white. Samples of 16 bits are divided by 257; those of 32 bits (integer or float) are
    divided by the smallest usual full scale that holds the brightest: 1 or 255 for floats, 65,535, 2³² - 1.

    Example:
        >>> to_rgb(Image.new("I;16", (1, 1), 0x8080)).getpixel((0, 0))
        (128, 128, 128)
    """
    mode = image.mode
    if mode.startswith(_DEEP_MODES):
        return Image.fromarray(_to_eight_bits(np.asarray(image), mode)).convert("RGB")
    if mode in ("La", "RGBa"):
        image = image.convert("LA" if mode == "La" else "RGBA")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(background, image).convert("RGB")
    return image if mode == "RGB" else image.convert("RGB")


def _to_eight_bits(samples: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
    values = samples.astype(np.float64)
    values[np.isnan(values)] = 0
    scales = (65535.0,) if mode.startswith("I;16") else (65535.0, 2.0**32 - 1)
    scales = (1.0, 255.0, *scales) if mode == "F" else scales
    brightest = float(values.max(initial=0.0, where=np.isfinite(values)))
    full = next((scale for scale in scales if brightest <= scale), brightest)
    return np.rint(np.clip(values, 0, full) * (255 / full)).astype(np.uint8)


def _pixels(image: Image.Image, path: Path) -> NDArray[np.uint8]:
    """Decode an opened file to upright RGB."""
    pixels = _decode_jpeg(image, path)
    if pixels is None:
        image.load()
        return np.array(to_rgb(_upright(image)))
    if _orientation(image) == 1:
        return pixels
    decoded = Image.fromarray(pixels)
    decoded.info = image.info
    return np.array(_upright(decoded))


def _decode_jpeg(image: Image.Image, path: Path) -> NDArray[np.uint8] | None:
    """Decode a gray or color JPEG by simplejpeg, at the scale that Pillow chose; None where Pillow has to do it."""
    if simplejpeg is None or image.format not in ("JPEG", "MPO") or image.mode not in ("RGB", "L"):
        return None
    width, height = image.size
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(path.read_bytes(), min_height=height, min_width=width)
    except ValueError:
        return None
    return pixels if pixels.shape == (height, width, 3) else None


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 where it is missing or cannot be read."""
    with suppress(Exception):
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    return 1


def _upright(image: Image.Image) -> Image.Image:
    """Rotate or mirror an image in place as its EXIF says; EXIF that cannot be read is ignored."""
    with suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text.rstrip(".").lower()
