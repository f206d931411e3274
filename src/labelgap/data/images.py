"""Sources of images: ``source[17]`` is ``(height, width, channels)`` uint8, upright and in RGB; or feature vectors."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError
from labelgap.core.files import file_digest, stream_digest
from labelgap.core.text import pluralize
from labelgap.data.decoding import EncodedImage, check_file, decode
from labelgap.labels.sparse import as_row_indices


@runtime_checkable
class ImageSource(Protocol):
    """A sequence of images. Implementations can be pickled, for the loader's worker processes."""

    @property
    def names(self) -> Sequence[str]:
        """One name per image, as in the label table."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        """Return image ``row`` as ``(height, width, channels)``, one or three channels."""

    def select(self, rows: ArrayLike) -> ImageSource:
        """Return the images of these rows, in this order."""

    def fingerprint(self) -> str:
        """Return a hash that changes when an image, or the order of the images, changes."""


class ReadAhead(Protocol):
    """What is told how many images have been read; see ``StoredImages.read_ahead``."""

    def advance(self, images: int) -> None:
        """Note that so many more images have been read."""


class NamedRows:
    """What all sources here share: names, and a selection of whatever has an entry per image (``row_fields``)."""

    row_fields: ClassVar[tuple[str, ...]]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def set_names(self, names: Sequence[str] | None, count: int, noun: str) -> None:
        """Set the names of ``count`` images; row numbers when None."""
        self.names = tuple(map(str, range(count) if names is None else names))
        if len(self.names) != count:
            raise InputError(f"{count} {noun} were given, but {len(self.names)} names.")

    def select(self, rows: ArrayLike) -> Self:
        """Return these rows, in this order."""
        chosen = as_row_indices(rows, len(self))
        selected = copy(self)
        for field in ("names", *self.row_fields):
            values = getattr(self, field)
            array = isinstance(values, np.ndarray)
            setattr(selected, field, values[chosen] if array else tuple(values[row] for row in chosen.tolist()))
        return selected


class ArrayImages(NamedRows):
    """Images of one size in one uint8 array, ``(N, H, W)`` or ``(N, H, W, 1 or 3)``, which is kept, not copied."""

    row_fields = ("array",)

    def __init__(self, array: NDArray[np.uint8], names: Sequence[str] | None = None) -> None:
        if array.dtype != np.uint8:
            raise InputError(f"images in an array are uint8 (0…255), not {array.dtype}.")
        array = array[..., None] if array.ndim == 3 else array
        if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape[1:]:
            raise InputError(f"images in an array are (N, H, W) or (N, H, W, 1 or 3), not {array.shape}.")
        self.set_names(names, len(array), "images")
        self.array: NDArray[np.uint8] = array

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self.array[row]
        return image

    def __repr__(self) -> str:
        return f"ArrayImages({len(self):,} of {'×'.join(map(str, self.array.shape[1:]))})"

    def fingerprint(self) -> str:
        """Return a hash of the shape and every byte."""
        digest = hashlib.blake2b(repr(self.array.shape).encode(), digest_size=16)
        for start in range(0, len(self.array), 1024):
            digest.update(np.ascontiguousarray(self.array[start : start + 1024]).data)
        return digest.hexdigest()


class StoredImages(NamedRows, ABC):
    """Encoded images on a disk, read and decoded on access: files of their own, or members of shards.

    Every image is RGB: oriented by its EXIF, gray and palettes converted, transparency composited on white, 16 bits
    reduced to 8. An image that is missing or damaged is an ``InputError`` when it is read.
    """

    root: Path | str  # the folder or the URL that all images are below
    digests: NDArray[np.uint8] | None = None  # ``(N, 16)`` what ``digest`` returns, where it is known; else None

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        return self.read(row)

    def read(self, row: int, min_size: int | None = None) -> NDArray[np.uint8]:
        """Return image ``row``, ``(height, width, 3)``; a JPEG may be decoded smaller, no side below ``min_size``."""
        return decode(self.encoded(row), min_size)

    def shuffle(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return every row once, in a random order."""
        return generator.permutation(len(self))

    def read_ahead(self, rows: NDArray[np.int64]) -> AbstractContextManager[ReadAhead | None]:
        """Fetch what the images of these rows need, in this order, while the block runs; nothing for files."""
        return nullcontext()

    @abstractmethod
    def encoded(self, row: int) -> Path | EncodedImage:
        """Return what ``decode`` takes: the path of image ``row``, or its bytes."""

    def encoded_size(self, row: int) -> int:
        """Return the number of bytes of image ``row``."""
        found = self.encoded(row)
        return check_file(found).st_size if isinstance(found, Path) else found.getbuffer().nbytes

    def digest(self, row: int) -> bytes:
        """Return the ``file_digest`` of the bytes of image ``row``; ``OSError`` where they cannot be read."""
        found = self.encoded(row)
        return file_digest(found) if isinstance(found, Path) else stream_digest(found)

    @abstractmethod
    def state(self, row: int) -> bytes:
        """Return what changes with the content of image ``row``, without reading it: a key for caches."""


class DigestedImages(StoredImages):
    """Images that are not files of their own, whose sizes and digests are known without reading them."""

    sizes: NDArray[np.int64]
    digests: NDArray[np.uint8]

    def encoded_size(self, row: int) -> int:
        """Return the number of bytes of image ``row``."""
        return int(self.sizes[row])

    def digest(self, row: int) -> bytes:
        """Return the digest of the bytes of image ``row``."""
        digest: bytes = self.digests[row].tobytes()
        return digest

    state = digest

    def fingerprint(self) -> str:
        """Return a hash of the names and digests of all images, wherever they are."""
        digest = hashlib.blake2b(np.ascontiguousarray(self.digests).data, digest_size=16)
        for name in self.names:
            digest.update(b"\0" + name.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


class FileImages(StoredImages):
    """Image files below one folder, opened when they are read.

    Names are paths relative to ``root``, or absolute ones below it, ``files`` the paths where they differ; one that
    leads out of the folder is an error. Links inside the folder are followed.
    """

    root: Path
    row_fields = ("files",)

    def __init__(self, root: str | os.PathLike[str], names: Sequence[str], files: Sequence[str] | None = None) -> None:
        self.root = Path(root).absolute()
        self.files = tuple(names if files is None else files)
        self.set_names(names, len(self.files), "files")
        for name in self.files:
            _check_below(self.root, name)

    def __repr__(self) -> str:
        return f"FileImages({len(self):,} below {self.root})"

    def path(self, row: int) -> Path:
        """Return the path of image ``row``."""
        return self.root / self.files[row]

    encoded = path

    def state(self, row: int) -> bytes:
        """Return path, size and time of change of the file of image ``row``."""
        path = self.path(row)
        found = check_file(path)
        return b"%b\0%d %d" % (os.fsencode(path), found.st_size, found.st_mtime_ns)

    def fingerprint(self) -> str:
        """Return a hash of every file's path, size and time of change."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(os.fsencode(self.root))
        for row, name in enumerate(self.files):
            found = check_file(self.path(row))
            digest.update(b"\0%b\0%d %d" % (os.fsencode(name), found.st_size, found.st_mtime_ns))
        return digest.hexdigest()


def to_channels(array: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Convert images ``(…, 1 or 3)`` to 1 or 3 channels, as Pillow rounds; the result may share memory."""
    if array.shape[-1] == channels:
        return array
    if channels == 3:
        return np.broadcast_to(array, (*array.shape[:-1], 3))
    red, green, blue = np.moveaxis(array.astype(np.uint32), -1, 0)
    gray: NDArray[np.uint32] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return gray.astype(np.uint8)[..., None]


def shuffle_rows(images: ImageSource, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return every row once, in a random order that a source may choose for its speed; see ``StoredImages.shuffle``."""
    return images.shuffle(generator) if isinstance(images, StoredImages) else generator.permutation(len(images))


def path_inside(folder: Path, path: Path) -> str | None:
    """Return a path relative to a folder, or None when it leads out of it. Links are not followed."""
    try:
        relative = os.path.relpath(path, folder)
    except ValueError:  # another drive
        return None
    return None if Path(relative).parts[:1] == (os.pardir,) else relative


def _check_below(root: Path, name: str) -> None:
    """Raise an error for a name that leads out of ``root``, by its text alone: the disk is not accessed."""
    if "\0" in name or not name.strip():
        raise InputError(f"{name!r} is not the name of an image.")
    if ".." not in name and ":" not in name and name[0] not in "/\\":
        return  # nothing in it could lead elsewhere
    if path_inside(root, root / name) is None:
        raise InputError(f"{name} leads out of the folder {root}: names of images are paths below it.")


_BLOCK: Final = 4096
FEATURES: Final = "features"  # the name of the backbone that is no network: what comes in are its features


class FeatureVectors(NamedRows):
    """One vector of ``(N, D)`` floats per image in place of an ``ImageSource``; asked for pixels, an error says why."""

    row_fields = ("vectors",)

    def __init__(self, vectors: NDArray[np.floating[Any]], names: Sequence[str] | None = None) -> None:
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] == 0:
            raise InputError(f"features are (N, D) floats, not {vectors.shape} of {vectors.dtype}.")
        blocks = (vectors[start : start + _BLOCK] for start in range(0, len(vectors), _BLOCK))  # it may be in a file
        invalid = np.flatnonzero(
            np.concatenate([np.empty(0, bool), *(~np.isfinite(each).all(axis=1) for each in blocks)])
        )
        if len(invalid):
            raise InputError(
                f"the features of row {invalid[0]} are not finite ({pluralize(len(invalid), 'such row')} in all)."
            )
        self.set_names(names, len(vectors), "vectors")
        self.vectors = vectors

    @property
    def width(self) -> int:
        """D, the number of features."""
        return int(self.vectors.shape[1])

    def __getitem__(self, row: int) -> NoReturn:
        raise InputError(
            "these data are feature vectors, there are no pixels to show or to train a network on: "
            "use the protocol linear, or data with images."
        )

    def __repr__(self) -> str:
        return f"FeatureVectors({len(self):,} of {self.width:,} numbers)"

    def fingerprint(self) -> str:
        """Return a hash of the shape and every number."""
        digest = hashlib.blake2b(f"{self.vectors.shape} {self.vectors.dtype}".encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.vectors).data)
        return digest.hexdigest()
