"""One image file to upright RGB, or an error that says which file and why.

Pillow reads the file. This package adds what Pillow leaves to the caller: a fixed list of formats and bounds on size
(``image_file``), EXIF orientation, transparency and samples of more than eight bits (``decoded_image``), and a bound on
what threads decode at once (``decoder``)."""

from __future__ import annotations

import errno
import io
import math
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from labelgap.core.errors import InputError, LabelGapError

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "HEIF")
"""The formats that are read, in Pillow's names, whatever a file is called. Pillow knows others: some start programs
(EPS: Ghostscript), most have readers that few people use and nobody attacks but on purpose."""

PLUGINS: Final = ("Jpeg", "Png", "WebP", "Gif", "Bmp", "Tiff", "Ppm", "Avif", "Jpeg2K")
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
    """Open an image of ``FORMATS`` and read its header; errors of Pillow become ``UnreadableImageError``."""
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
        return Image.open(file, formats=readable_formats())
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
def readable_formats() -> tuple[str, ...]:
    """Return the formats that this Pillow can read; their plugins are imported, and no others."""
    for name in PLUGINS:
        with suppress(ImportError):  # an older Pillow
            import_module(f"PIL.{name}ImagePlugin")
    return tuple(name for name in FORMATS if name in Image.OPEN and name != "HEIF")


def _start(file: Path | BinaryIO) -> bytes:
    if isinstance(file, Path):
        check_file(file)
        with file.open("rb") as opened:
            return opened.read(32)
    file.seek(0)
    start = file.read(32)
    file.seek(0)
    return start


def _describe(file: Path | BinaryIO) -> str:
    start = _start(file).lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for magic, kind in _OTHER_KINDS.items():
        if start.startswith(magic.lower()):
            return f"is {kind}, whatever its name. Convert it to JPEG or PNG, or take it off the list."
    readable = (*readable_formats(), *(["HEIF"] if find_spec("pillow_heif") else []))
    return f"is not an image, or of a format that is not read. These are: {', '.join(readable)}."


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


_STRIP_PIXELS: Final = 2**20


class DecodedImage:
    """An image as its file stores it, converted to RGB a few rows at a time, so that no second whole copy is made.

    Args:
        source: a loaded Pillow image of any mode, or an array ``(height, width, 3)``.
        orientation: the orientation of EXIF, 1 to 8.

    Transparency is composited on white. Samples of 16 bits are divided by 257; those of 32 bits (integer or float) are
    divided by the smallest usual full scale that holds the brightest: 1 or 255 for floats, 65,535, 2³² - 1.
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
        """Convert a strip of the image."""
        return to_rgb(image, self._white)

    @cached_property
    def _white(self) -> float:
        assert isinstance(self.source, Image.Image)
        rows = max(1, _STRIP_PIXELS // self.width)
        boxes = ((0, top, self.width, min(top + rows, self.height)) for top in range(0, self.height, rows))
        mode = self.source.mode
        return full_scale(mode, max(brightest_sample(self.source.crop(box)) for box in boxes)) if is_deep(mode) else 255


def is_deep(mode: str) -> bool:
    """Return whether Pillow's mode has samples of 16 or 32 bits."""
    return mode.startswith(("I", "F"))


def brightest_sample(image: Image.Image) -> float:
    """Return the largest finite sample of 16 or 32 bits, at least 0."""
    values = np.asarray(image).astype(np.float64)
    return float(values.max(initial=0.0, where=np.isfinite(values)))


def full_scale(mode: str, brightest: float) -> float:
    """Return what counts as white among samples of 16 or 32 bits, the brightest of which is given."""
    scales = (65535.0,) if mode.startswith("I;16") else (65535.0, 2.0**32 - 1)
    scales = (1.0, 255.0, *scales) if mode == "F" else scales
    return next((scale for scale in scales if brightest <= scale), brightest)


def to_rgb(image: Image.Image, white: float) -> NDArray[np.uint8]:
    """Convert an image of any mode of Pillow as a viewer would show it; ``white`` is for samples of 16 or 32 bits."""
    mode = image.mode
    if is_deep(mode):
        values = np.asarray(image).astype(np.float64)
        values[np.isnan(values)] = 0
        gray = np.rint(np.clip(values, 0, white) * (255 / white)).astype(np.uint8)
        return np.repeat(gray[..., None], 3, axis=2)
    if mode in ("La", "RGBa"):
        image = image.convert("LA" if mode == "La" else "RGBA")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return a view of ``(height, width, …)``, turned and mirrored as an EXIF orientation of 1 to 8 asks for."""
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

    Of several frames the first is used. A JPEG may be decoded at a half, a quarter or an eighth, if neither side gets
    shorter than ``min_size``. Threads silence Pillow's warnings once for all of them (``quiet``).
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
