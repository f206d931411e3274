"""Files by their addresses, a path or a URL that fsspec opens (``https://``, ``s3://``, ``gs://``), and such images."""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.core.findings import Note
from labelgap.data.dataset import Dataset, InMemoryImages, Split
from labelgap.data.decoding import EncodedImage, UnreadableImageError, decode
from labelgap.data.findings import count_labels
from labelgap.data.images import StoredImages
from labelgap.labels import LabelTable

SCHEMES: Final = ("http", "https", "s3", "gs", "abfs", "abfss", "az")
"""URLs that a table of somebody else may name. fsspec knows others: some read this machine, or lead to another URL."""
ATTEMPTS: Final = 4
PAUSE_SECONDS = 1.0  # before the second attempt; it doubles
_NOT_FOUND: Final = 404


def is_url(address: str) -> bool:
    """Return whether an address is a URL, and not a path."""
    return "://" in address


def check_url(address: str) -> None:
    """Raise an ``UnreadableImageError`` for a URL that is not of ``SCHEMES``."""
    scheme = address.partition("://")[0]
    if "::" in address or scheme not in SCHEMES:
        raise UnreadableImageError(f"{address} is refused: an address is a path, or a URL of {', '.join(SCHEMES)}.")


def resolve_address(folder: str, address: str) -> str | InputError:
    """Return the URL, or the path below the folder of a file, that an address in the file means.

    What leads out of the folder is an error in the place of the image; not so an absolute path in a file of this
    machine.

    Example:
        >>> resolve_address("s3://bucket/tables", "photos/a.jpg")
        's3://bucket/tables/photos/a.jpg'
    """
    if is_url(address) or (Path(address).is_absolute() and not is_url(folder)):
        return address
    inside = posixpath.normpath(address)
    if f"{inside}/".startswith(("../", "/")):
        return UnreadableImageError(f"{address} is refused: it leads out of {folder}.")
    return f"{folder}/{inside}"


def file_system(address: str) -> tuple[Any, str]:
    """Return the file system of fsspec that an address is in, and the path there."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(address)  # made anew in a forked process
    except ImportError as error:
        raise InputError(
            f"{address} needs the packages fsspec, aiohttp (http) and s3fs (s3): pip install 'labelgap[shards]' "
            f"({error})."
        ) from None
    return system, str(path)


def remote(address: str, method: str, *arguments: Any, **options: Any) -> Any:
    """Return what a method of fsspec returns for the file at an address; ``InputError`` where every attempt fails."""
    for attempt in range(ATTEMPTS):
        try:
            system, path = file_system(address)
            return getattr(system, method)(path, *arguments, **options)
        except InputError:
            raise
        except PermissionError as error:
            raise InputError(f"{address} may not be read: {error}.") from None
        except Exception as error:  # of the package of the protocol: aiohttp, botocore …
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # the disk of this machine
            cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
            if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) == _NOT_FOUND:
                raise InputError(f"{address} does not exist.") from None
            reason = str(cause) or type(cause).__name__
        time.sleep(PAUSE_SECONDS * 2**attempt if attempt + 1 < ATTEMPTS else 0)
    raise InputError(
        f"{address} cannot be read, {ATTEMPTS} attempts failed ({reason}). Nothing is lost: run the same command "
        "again when the server answers; a training continues with --resume."
    )


@contextmanager
def local_copy(address: str) -> Iterator[Path]:
    """Yield the path of a file; one at a URL is copied to this disk while the block runs."""
    if not is_url(address):
        yield Path(address)
        return
    with tempfile.TemporaryDirectory(prefix="labelgap-") as folder:
        path = Path(folder) / (address.rstrip("/").rpartition("/")[2] or "file")
        remote(address, "get_file", os.fspath(path))
        yield path


class EncodedImages(StoredImages):
    """Images as the column of a table holds them: the bytes of a file, an address, or an array; None for none.

    An error in the place of an image is raised when it is read. Threads silence Pillow's warnings once for all of them,
    and read with ``quiet`` False.
    """

    root = ""
    row_fields = ("items",)

    def __init__(self, items: Sequence[Any], names: Sequence[str] | None = None, *, quiet: bool = True) -> None:
        self.items, self.quiet = tuple(items), quiet
        if names is None:
            names = [str(item) if self._is_address(row) else f"image {row}" for row, item in enumerate(self.items)]
        self.set_names(names, len(self.items), "images")

    def read(self, row: int, min_size: int | None = None) -> NDArray[np.uint8]:
        """Return image ``row`` as ``(height, width, 1 or 3)``; for ``min_size`` see ``StoredImages.read``."""
        if isinstance(self.items[row], np.ndarray | Image.Image):
            return InMemoryImages([self.items[row]])[0]
        return decode(self.encoded(row), min_size, quiet=self.quiet)

    def encoded(self, row: int) -> Path | EncodedImage:
        """Return the path of image ``row``, or its bytes."""
        item = self.items[row]
        if isinstance(item, InputError):
            raise item
        if self._is_address(row):
            if not is_url(address := os.fspath(item)):
                return Path(address)
            check_url(address)
            return EncodedImage(remote(address, "cat_file"), address)
        if not isinstance(item, bytes | bytearray | memoryview):
            what = "nothing" if item is None else f"a {type(item).__name__}"
            raise UnreadableImageError(f"{self.names[row]} is {what}: an image is bytes, an address or an array.")
        return EncodedImage(bytes(item), self.names[row])

    def _is_address(self, row: int) -> bool:
        return isinstance(self.items[row], str | os.PathLike)

    def state(self, row: int) -> bytes:
        """Return the address of image ``row``: what is at a URL counts as unchanged."""
        return str(self.items[row]).encode("utf-8", "surrogateescape") if self._is_address(row) else self.digest(row)

    def fingerprint(self) -> str:
        """Return a hash of the states of all images."""
        return hashlib.blake2b(b"\0".join(map(self.state, range(len(self)))), digest_size=16).hexdigest()


ADDRESSES: Final = "addresses"


def load_addresses(path: str | os.PathLike[str]) -> Dataset:
    """Read a table whose images are named by their addresses; they are fetched when they are needed.

    Args:
        path: what ``LabelTable.to_parquet`` has written.
    """
    labels = LabelTable.from_parquet(path)
    findings = (Note("images by their addresses, fetched when they are needed", "images"), count_labels([labels]))
    return Dataset(Path(path).name, Split("train", EncodedImages(labels.images), labels), None, None, findings=findings)
