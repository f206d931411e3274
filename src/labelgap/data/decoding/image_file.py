"""Opening an image file: which formats are read, how large a file may be, and what errors say."""

from __future__ import annotations

import errno
import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

from PIL import Image, UnidentifiedImageError

from labelgap.core.errors import InputError, LabelGapError

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "HEIF")
"""The formats that are read, in Pillow's names, whatever a file is called. Pillow knows others: some start programs
(EPS: Ghostscript), most have readers that few people use and nobody attacks but on purpose."""

_PLUGINS: Final = ("Jpeg", "Png", "WebP", "Gif", "Bmp", "Tiff", "Ppm", "Avif", "Jpeg2K")
_READ_WHOLE: Final = (b"\xff\xd8", b"RIFF", b"GIF8")
_MAX_READ_WHOLE: Final = 128 * 2**20
_MAX_FILE_BYTES_PER_PIXEL: Final = 8  # of the limit: 16 bits, four channels
_MAX_EXIF: Final = 16 * 2**20  # Pillow's time grows with the square of it
_MIN_TILE_PIXELS: Final = 2**22
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF
_APP1, _START_OF_SCAN = 0xE1, 0xDA  # markers of JPEG
_HEIC: Final = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_OTHER_KINDS: Final = {
    b"%!PS": "a PostScript file (EPS)",
    b"\xc5\xd0\xd3\xc6": "a PostScript file (EPS)",
    b"%PDF": "a PDF",
    b"8BPS": "a Photoshop file (PSD)",
    b"\xd7\xcd\xc6\x9a": "a Windows metafile (WMF)",
    b"<svg": "an SVG drawing",
    b"<?xml": "an XML file",
    b"<!doctype": "a web page",
    b"<html": "a web page",
    b"version https://git-lfs": "a pointer of Git LFS (git lfs pull fetches the image)",
    b"PK\3\4": "a ZIP archive",
}

_DEFAULT_MAX_PIXELS: Final = 178_956_970
"""What Pillow refuses by default: at four bytes per pixel 0.7 GB, and 1.3 GB with the array that ``decode`` returns."""


class UnreadableImageError(InputError):
    """An image is missing, damaged, too large, or of a format that is not read."""


class ImageAccessError(UnreadableImageError):
    """An image cannot be read on this machine now: no permission, no memory, no package. The file may be sound."""


class EncodedImage(io.BytesIO):
    """The bytes of an image that is not a file of its own, e.g. in a shard; ``str()`` is its name in messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._name = name

    def __str__(self) -> str:
        return self._name


def max_pixels() -> int:
    """Return how many pixels an image may have: ``LABELGAP_MAX_PIXELS``, else what Pillow accepts by default."""
    text = os.environ.get("LABELGAP_MAX_PIXELS", "")
    if text and not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**40):
        raise InputError(f"LABELGAP_MAX_PIXELS is a number of pixels, e.g. 200000000; not {text[:40]!r}.")
    return int(text) if text else _DEFAULT_MAX_PIXELS


@contextmanager
def open_image(file: Path | BinaryIO, *, quiet: bool = True) -> Iterator[Image.Image]:
    """Open an image and read its header; inside the block, errors of Pillow become ``UnreadableImageError``.

    Every image of this package is opened here, so that no format outside of ``FORMATS`` is.
    """
    name = file if isinstance(file, Path | EncodedImage) else "the image"
    # of broken metadata, and of sizes that are large but accepted
    silence: AbstractContextManager[object] = warnings.catch_warnings(action="ignore") if quiet else nullcontext()
    try:
        with silence, _open(file) as image:
            _check_size(image)
            yield image
    except LabelGapError:
        raise
    except Image.DecompressionBombError as error:
        raise UnreadableImageError(
            f"{name} is refused: it unpacks to more than {max_pixels():,} pixels. Save it smaller, take it off the "
            "list, or set LABELGAP_MAX_PIXELS to a larger number (about 7 bytes of memory are used per pixel)."
        ) from error
    except UnidentifiedImageError as error:
        raise UnreadableImageError(f"{name} {_describe(file)}") from error
    except MemoryError as error:
        raise ImageAccessError(
            f"{name} needs more memory than there is. Save it smaller, or decode fewer images at once (--workers)."
        ) from error
    except Exception as error:  # Pillow's readers raise many kinds of errors for a damaged file
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.EMFILE, errno.ENFILE):
            raise LabelGapError(f"{name}: too many files are open. Raise the limit: ulimit -n 1024.") from error
        what = "cannot be read" if number else "is damaged or truncated"
        raise (ImageAccessError if number else UnreadableImageError)(f"{name} {what}: {_reason(error)}.") from error


def _open(file: Path | BinaryIO) -> Image.Image:
    """Open a file with Pillow; a HEIC photo, as phones take them, with pillow-heif."""
    limit = max_pixels()
    if Image.MAX_IMAGE_PIXELS is not None and limit > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = -(-limit // 2)  # only where LABELGAP_MAX_PIXELS asks for it
    start = _start(file)
    if isinstance(file, Path | EncodedImage):
        whole = start.startswith(_READ_WHOLE) or start[4:8] == b"ftyp"
        size = file.stat().st_size if isinstance(file, Path) else file.getbuffer().nbytes
        most = _MAX_READ_WHOLE if whole else _MAX_FILE_BYTES_PER_PIXEL * limit
        if size > most:
            raise UnreadableImageError(
                f"{file} is refused: it has {size:,} bytes, more than {most:,}. Save it smaller."
            )
        if size > _MAX_EXIF and start.startswith(b"\xff\xd8") and _exif_bytes(file) > _MAX_EXIF:
            raise UnreadableImageError(
                f"{file} is refused: it has more than {_MAX_EXIF:,} bytes of EXIF. Save it without them."
            )
    try:
        return Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        if start[4:8] != b"ftyp" or start[8:12] not in _HEIC:
            raise
    try:
        import pillow_heif
    except ImportError:
        raise ImageAccessError(
            f"{file} is a HEIC photo, which needs the package pillow-heif: pip install 'labelgap[heic]'. "
            "Or save it as JPEG."
        ) from None
    pillow_heif.register_heif_opener()
    return Image.open(file, formats=("HEIF",))


def _check_size(image: Image.Image) -> None:
    """Raise an error for an image, or tiles of a TIFF, of too many pixels; nothing has been allocated yet."""
    pixels = image.width * image.height
    if pixels > max_pixels():
        raise Image.DecompressionBombError
    tags = getattr(image, "tag_v2", {})
    if tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_LENGTH, 0) > max(2 * pixels, _MIN_TILE_PIXELS):
        raise ValueError("its tiles are much larger than the image")


def _exif_bytes(image: Path | EncodedImage) -> int:
    """Return the size of the APP1 segments (EXIF, XMP) of a JPEG."""
    total, place = 0, 2
    with image.open("rb") if isinstance(image, Path) else io.BytesIO(image.getbuffer()) as file:
        file.seek(place)
        while len(head := file.read(4)) == 4 and head[0] == 0xFF and head[1] != _START_OF_SCAN:
            length = int.from_bytes(head[2:], "big")
            total += length if head[1] == _APP1 else 0
            place += 2 + length
            file.seek(place)
    return total


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that this Pillow can read; their plugins are imported, and no others."""
    for name in _PLUGINS:
        with suppress(ImportError):  # an older Pillow
            import_module(f"PIL.{name}ImagePlugin")
    return tuple(name for name in FORMATS if name in Image.OPEN and name != "HEIF")


def _readable() -> tuple[str, ...]:
    """Return the formats that this installation can read."""
    return (*_formats(), *(["HEIF"] if find_spec("pillow_heif") else []))


def _start(file: Path | BinaryIO) -> bytes:
    """Return the first bytes of a file that can be an image."""
    if isinstance(file, Path):
        check_file(file)
        with file.open("rb") as opened:
            return opened.read(32)
    file.seek(0)
    start = file.read(32)
    file.seek(0)
    return start


def _describe(file: Path | BinaryIO) -> str:
    """Say what a file is that is no image, and the remedy."""
    start = _start(file).lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for magic, kind in _OTHER_KINDS.items():
        if start.startswith(magic.lower()):
            return f"is {kind}, whatever its name. Convert it to JPEG or PNG, or take it off the list."
    return f"is not an image, or of a format that is not read. These are: {', '.join(_readable())}."


def check_file(path: Path) -> os.stat_result:
    """Return the status of a file; raise an error for what cannot be an image (reading a pipe would never end)."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise UnreadableImageError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise ImageAccessError(f"{path} cannot be read: {_reason(error)}.") from error
    if stat.S_ISDIR(status.st_mode):
        raise UnreadableImageError(f"{path} is a folder, not an image.")
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableImageError(f"{path} is not an ordinary file.")
    if status.st_size == 0:
        raise UnreadableImageError(f"{path} is empty (0 bytes).")
    return status


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text.rstrip(".").lower()
