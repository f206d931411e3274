"""One picture file to upright RGB, or an error that says which file and why.

Pillow reads the file. What it leaves to the caller is done here: EXIF orientation, transparency, samples of more than
eight bits, and refusing what is damaged, cut short, or unpacks to an absurd size.

Where the package simplejpeg is installed (the extra ``fast``) it unpacks ordinary JPEGs, to the same pixels in about
two thirds of the time; whatever it stumbles over is left to Pillow.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from labelgap.core.errors import InputError

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

__all__ = ["check_file", "decode", "to_rgb"]

_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DEEP: Final = ("I", "F")
_HEIC: Final = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")


def decode(path: Path, min_size: int | None = None, *, quiet: bool = True) -> NDArray[np.uint8]:
    """Read a picture as ``(height, width, 3)`` uint8, upright.

    Args:
        path: the file; of several frames the first is taken.
        at_least: when given, a JPEG may be decoded at a half, a quarter or an eighth, neither side shorter than this.
        quiet: whether to silence Pillow's warnings here; threads have to do it once for all of them.

    Raises:
        InputError: the file is missing, empty, no picture, damaged, cut short, or larger than Pillow agrees to unpack.
    """
    check_file(path)
    try:
        with _silence() if quiet else nullcontext(), _open(path) as picture:
            if min_size is not None:
                picture.draft(None, (min_size, min_size))
            return _pixels(picture, path)
    except (MemoryError, InputError):
        raise
    except Image.DecompressionBombError as error:
        raise InputError(
            f"{path} is refused: it unpacks to more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels. "
            "Save it smaller, or take it off the list."
        ) from error
    except UnidentifiedImageError as error:
        raise InputError(f"{path} is not a picture, or of a kind that Pillow does not know.") from error
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes them stumble over
        what = "cannot be read" if isinstance(error, OSError) and error.errno else "is damaged or cut short"
        raise InputError(f"{path} {what}: {_reason(error)}.") from error


@contextmanager
def _silence() -> Iterator[None]:
    """Keep Pillow from warning of broken metadata, and of sizes that are large but accepted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _open(path: Path) -> Image.Image:
    """Open a file with Pillow; a HEIC photo, as phones take them, with the help of pillow-heif."""
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
    """Return what the system knows of a file; refuse what cannot be a picture (a pipe, say, would never end)."""
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {_reason(error)}.") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is a folder, not a picture.")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is not an ordinary file.")
    if found.st_size == 0:
        raise InputError(f"{path} is empty (0 bytes).")
    return found


def to_rgb(picture: Image.Image) -> Image.Image:
    """Convert any mode of Pillow to RGB, keeping what a person would see.

    Transparency is laid on white. Samples of 16 bits are divided by 257; those of 32 bits (whole or real numbers) are
    divided by the smallest usual full scale that holds the brightest: 1 or 255 for real numbers, 65,535, 2³² - 1.

    Example:
        >>> to_rgb(Image.new("I;16", (1, 1), 0x8080)).getpixel((0, 0))
        (128, 128, 128)
    """
    mode = picture.mode
    if mode.startswith(_DEEP):
        return Image.fromarray(_eight_bits(np.asarray(picture), mode)).convert("RGB")
    if mode in ("La", "RGBa"):
        picture = picture.convert("LA" if mode == "La" else "RGBA")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        paper = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(paper, picture).convert("RGB")
    return picture if mode == "RGB" else picture.convert("RGB")


def _eight_bits(samples: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
    values = samples.astype(np.float64)
    values[np.isnan(values)] = 0
    scales = (65535.0,) if mode.startswith("I;16") else (65535.0, 2.0**32 - 1)
    scales = (1.0, 255.0, *scales) if mode == "F" else scales
    brightest = float(values.max(initial=0.0, where=np.isfinite(values)))
    full = next((scale for scale in scales if brightest <= scale), brightest)
    return np.rint(np.clip(values, 0, full) * (255 / full)).astype(np.uint8)


def _pixels(picture: Image.Image, path: Path) -> NDArray[np.uint8]:
    """Unpack an opened file to upright RGB."""
    pixels = _quick_jpeg(picture, path)
    if pixels is not None:
        turn = _turn(picture)
        return pixels if turn is None else np.array(Image.fromarray(pixels).transpose(turn))
    picture.load()
    rgb = to_rgb(picture)
    turn = _turn(picture)  # only now: some formats say it after the pixels
    return np.array(rgb if turn is None else rgb.transpose(turn))


def _quick_jpeg(picture: Image.Image, path: Path) -> NDArray[np.uint8] | None:
    """Unpack a grey or colour JPEG, at the scale that Pillow chose; None for all else, and where anything is odd."""
    if simplejpeg is None or picture.format not in ("JPEG", "MPO") or picture.mode not in ("RGB", "L"):
        return None
    width, height = picture.size
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(path.read_bytes(), min_height=height, min_width=width)
    except ValueError:
        return None
    return pixels if pixels.shape == (height, width, 3) else None


def _turn(source: Image.Image) -> Image.Transpose | None:
    """Return how a picture is to be turned as its EXIF says; EXIF that cannot be read says nothing."""
    try:
        orientation = source.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return None
    return _UPRIGHT.get(orientation) if isinstance(orientation, int) else None


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text.rstrip(".").lower()
