"""Where pixels come from: an array in memory, or files in a folder, behind one small protocol.

Everything above this room asks an ``ImageSource`` for row 17 and gets ``(height, width, channels)`` uint8, upright and
in RGB, whatever the file looked like. A file that cannot be shown is an ``InputError`` that names it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.data.decoding import check_file, decode

__all__ = ["ArrayImages", "FileImages", "ImageSource", "check_rows", "resize_to", "to_channels"]


@runtime_checkable
class ImageSource(Protocol):
    """A numbered collection of pictures. Implementations can be pickled, so loader processes can have a copy."""

    @property
    def names(self) -> Sequence[str]:
        """One name per picture, as the label table writes it."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        """Return picture ``row`` as ``(height, width, channels)``, one or three channels."""

    def select(self, rows: ArrayLike) -> ImageSource:
        """Return the pictures of these rows, in this order."""

    def fingerprint(self) -> str:
        """Return a hash that changes when a picture, or the order of the pictures, changes."""


class ArrayImages:
    """Pictures of one size in one array.

    Args:
        array: ``(N, H, W)`` or ``(N, H, W, C)`` uint8 with one or three channels. It is kept, not copied.
        names: ``N`` names; row numbers when left out.

    Example:
        >>> images = ArrayImages(np.zeros((5, 8, 6), np.uint8), names="abcde")
        >>> images[4].shape, images.select([3, 1]).names
        ((8, 6, 1), ('d', 'b'))
    """

    def __init__(self, array: NDArray[np.uint8], names: Sequence[str] | None = None) -> None:
        if array.dtype != np.uint8:
            raise InputError(f"pictures in an array are uint8 (0…255), not {array.dtype}.")
        array = array[..., None] if array.ndim == 3 else array
        if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape[1:]:
            raise InputError(f"pictures in an array are (N, H, W) or (N, H, W, 1 or 3), not {array.shape}.")
        self.names: tuple[str, ...] = tuple(map(str, range(len(array)) if names is None else names))
        if len(self.names) != len(array):
            raise InputError(f"{len(array)} pictures were given, but {len(self.names)} names.")
        self.array: NDArray[np.uint8] = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = self.array[row]
        return picture

    def __repr__(self) -> str:
        return f"ArrayImages({len(self):,} of {'×'.join(map(str, self.array.shape[1:]))})"

    def select(self, rows: ArrayLike) -> Self:
        """Return a copy of these rows, in this order."""
        chosen = check_rows(rows, len(self))
        selected = copy(self)
        selected.array = self.array[chosen]
        selected.names = tuple(self.names[row] for row in chosen.tolist())
        return selected

    def fingerprint(self) -> str:
        """Return a hash of the shape and every byte."""
        digest = hashlib.blake2b(repr(self.array.shape).encode(), digest_size=16)
        for start in range(0, len(self.array), 1024):
            digest.update(np.ascontiguousarray(self.array[start : start + 1024]).data)
        return digest.hexdigest()


class FileImages:
    """Picture files below one folder, read when asked for.

    Args:
        root: the folder.
        names: paths relative to ``root``, or absolute ones below it; one that leads out of the folder is refused. A
            link inside the folder is followed wherever it points: whoever keeps the folder put it there.
        files: the same, where the files are called otherwise than the table calls them.

    Every picture comes as RGB: turned as its EXIF says, grey and palettes converted, transparency laid on white, 16
    bits brought down to 8. No file is opened before it is asked for: a missing one shows then, or in ``fingerprint``.
    """

    def __init__(self, root: str | os.PathLike[str], names: Sequence[str], files: Sequence[str] | None = None) -> None:
        self.root = Path(root).absolute()
        self.names: tuple[str, ...] = tuple(names)
        self.files: tuple[str, ...] = self.names if files is None else tuple(files)
        if len(self.files) != len(self.names):
            raise InputError(f"{len(self.names)} names were given for {len(self.files)} files.")
        for name in self.files:
            _check_below(self.root, name)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        return self.read(row)

    def __repr__(self) -> str:
        return f"FileImages({len(self):,} below {self.root})"

    def path(self, row: int) -> Path:
        """Return where picture ``row`` lies."""
        return self.root / self.files[row]

    def read(self, row: int, min_size: int | None = None) -> NDArray[np.uint8]:
        """Return picture ``row`` as ``(height, width, 3)``.

        Args:
            row: which.
            at_least: when given, a JPEG may be decoded smaller, with neither side shorter than this. Much quicker for
                photos that will be shrunk anyway.
        """
        return decode(self.path(row), min_size)

    def select(self, rows: ArrayLike) -> Self:
        """Return these rows, in this order."""
        chosen = check_rows(rows, len(self)).tolist()
        selected = copy(self)
        selected.names = tuple(self.names[row] for row in chosen)
        selected.files = tuple(self.files[row] for row in chosen)
        return selected

    def fingerprint(self) -> str:
        """Return a hash of every file's path, size and time of change."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(os.fsencode(self.root))
        for row, name in enumerate(self.files):
            found = check_file(self.path(row))
            digest.update(b"\0%b\0%d %d" % (os.fsencode(name), found.st_size, found.st_mtime_ns))
        return digest.hexdigest()


def resize_to(array: NDArray[np.uint8], size: int, channels: int = 3) -> NDArray[np.uint8]:
    """Squash a picture to exactly ``size`` × ``size``, whatever its shape was, by Pillow's bilinear filter.

    Args:
        array: ``(H, W)``, ``(H, W, 1)`` or ``(H, W, 3)`` uint8.
        size: the new height and width.
        channels: 1 (grey, as Pillow's mode L weighs colours) or 3.

    Returns:
        ``(channels, size, size)`` uint8, contiguous and writable.

    Example:
        >>> resize_to(np.full((20, 10, 3), 7, np.uint8), 4, channels=1)[0, 0]
        array([7, 7, 7, 7], dtype=uint8)
    """
    if size < 1:
        raise InputError(f"pictures cannot be resized to {size} pixels.")
    array = array[..., None] if array.ndim == 2 else array
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3) or 0 in array.shape:
        raise InputError(f"a picture is (H, W) or (H, W, 1 or 3) of uint8, not {array.shape} of {array.dtype}.")
    if array.shape[:2] != (size, size):
        picture = Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2] == 1 else array))
        array = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)).reshape(size, size, -1)
    return np.array(to_channels(array, channels).transpose(2, 0, 1), order="C")


def to_channels(array: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Give pictures ``(…, 1 or 3)`` the number of channels asked for; the result may share memory with ``array``.

    Grey is ``(19595 R + 38470 G + 7471 B + 32768) // 65536``, the rounding of Pillow's mode L.

    Example:
        >>> to_channels(np.array([[255, 0, 0]], np.uint8), 1)
        array([[76]], dtype=uint8)
    """
    if channels not in (1, 3):
        raise InputError(f"pictures have 1 or 3 channels, not {channels}.")
    if array.shape[-1] == channels:
        return array
    if channels == 3:
        return np.broadcast_to(array, (*array.shape[:-1], 3))
    red, green, blue = np.moveaxis(array.astype(np.uint32), -1, 0)
    gray: NDArray[np.uint32] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return gray.astype(np.uint8)[..., None]


def check_rows(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    """Check row numbers, ``(n,)`` from 0 to ``count`` - 1; negative ones are refused, since they are never meant."""
    chosen = np.asarray(rows)
    if chosen.size == 0:
        return np.zeros(0, dtype=np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InputError(f"rows are a list of whole numbers, not {chosen.dtype} of shape {chosen.shape}.")
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= count:
        raise InputError(
            f"row {low if low < 0 else high} does not exist: there are {count:,} pictures, counted from 0."
        )
    return chosen.astype(np.int64)


def _check_below(root: Path, name: str) -> None:
    """Refuse a name that leads out of ``root``, by its text alone: nothing is looked up on the disk."""
    if "\0" in name or not name.strip():
        raise InputError(f"{name!r} is not the name of a picture.")
    if ".." not in name and ":" not in name and name[0] not in "/\\":
        return  # nothing in it could lead elsewhere
    try:
        first = Path(os.path.relpath(root / name, root)).parts[:1]
    except ValueError:  # another drive
        first = (os.pardir,)
    if first == (os.pardir,):
        raise InputError(f"{name} leads out of the folder {root}: names of pictures are paths below it.")
