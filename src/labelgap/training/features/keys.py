"""Keys of the feature cache: what an image contains, and which network sees it how.

The key of an image file is a digest of its bytes, whatever its name or folder; that of an image in memory, a digest of
its pixels. To hash a file is to read it, so the cache also keeps digests by the state of a file: its path, size, inode,
and the times at which its content and its inode last changed. A file whose state is known is not read again. A file
that changed less than two seconds ago is hashed every time: within the resolution of a file system's clock it could
change again unnoticed. What remains is a content that is replaced while all five stay the same, which takes somebody
who sets the clock back, or a file system that does not keep these times.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.cache.limit import FEATURE_FOLDER, cache_folder
from labelgap.core.cache.row_store import KEY_BYTES, RowStore
from labelgap.core.errors import InputError
from labelgap.core.files import file_digest
from labelgap.core.system import cpu_count
from labelgap.data.decoding import check_file
from labelgap.data.images import FileImages, ImageSource, StoredImages
from labelgap.models import Backbone
from labelgap.training.progress import Reporter

_VERSION: Final = 3
"""Increased when the same image and weights give other features than before."""
_DIGEST_FOLDER: Final = "files"
_SETTLED: Final = 2_000_000_000
"""Nanoseconds since the last change after which the state of a file tells its content."""
_FILES_AT_ONCE: Final = 4096

Keys = NDArray[np.uint8]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ContentKeys:
    """Keys of the images of a source.

    Attributes:
        images: the source.
        keys: ``(N, 16)`` bytes; random where an image is not known.
        known: ``(N,)`` False for a file that cannot be read, or was not hashed.
        states: ``(N, 16)`` digests of the states of files; None for images in memory.
    """

    images: ImageSource
    keys: Keys
    known: NDArray[np.bool_]
    states: Keys | None = None

    def still_valid(self, rows: Rows) -> NDArray[np.bool_]:
        """Return whether images are known and their files have not changed since they were hashed."""
        if self.states is None or not isinstance(self.images, FileImages):
            return self.known[rows]
        now = _as_keys([_file_state(self.images.path(row))[0] for row in rows.tolist()])
        same: NDArray[np.bool_] = (now == self.states[rows]).all(axis=1)
        return self.known[rows] & same


def network_key(backbone: Backbone, transform: str, precision: str = "float32") -> str:
    """Return a key of all that decides the features of an image: architecture, weights, input, transform, precision."""
    weights = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        weights.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        weights.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    network = f"{type(backbone).__qualname__} {backbone.name}"
    parts = [str(_VERSION), repr(backbone.input_spec), transform, network, weights.hexdigest(), precision]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def open_digests() -> RowStore:
    """Return the digests of files by their states."""
    folder = cache_folder() / FEATURE_FOLDER / _DIGEST_FOLDER
    return RowStore(folder, KEY_BYTES, {"content": "digests of image files"})


def content_keys(
    images: ImageSource, digests: RowStore, reporter: Reporter | None = None, *, hash_files: bool = True
) -> ContentKeys:
    """Return the keys of images.

    Args:
        images: files, or images in memory.
        digests: of files; new ones are stored.
        reporter: shows how many files are hashed.
        hash_files: whether to read files whose state is not known; else they are not ``known``.
    """
    if isinstance(images, StoredImages) and images.digests is not None:
        return ContentKeys(images, images.digests, np.ones(len(images), dtype=bool))
    if not isinstance(images, FileImages):
        keys = _as_keys([_pixel_digest(images[row]) for row in range(len(images))])
        return ContentKeys(images, keys, np.ones(len(images), dtype=bool))
    now, status = time.time_ns(), [_file_state(images.path(row)) for row in range(len(images))]
    states, changed = _as_keys([state for state, _ in status]), np.array([when for _, when in status], dtype=np.int64)
    keys = np.zeros_like(states)
    known = digests.read(states, keys, np.arange(len(images)))
    unread = np.flatnonzero(~known & (changed > 0)) if hash_files else np.empty(0, dtype=np.int64)
    if len(unread):
        digests.reserve(len(unread))
    for rows, found in _hash_files(images, unread, reporter or Reporter(quiet=True)):
        keys[rows], known[rows] = found, True
        lasting = rows[changed[rows] < now - _SETTLED]
        digests.append(states[lasting], keys[lasting])
    keys[~known] = _as_keys([os.urandom(KEY_BYTES * int(np.count_nonzero(~known)))])
    return ContentKeys(images, keys, known, states)


def _hash_files(images: FileImages, rows: Rows, reporter: Reporter) -> Iterator[tuple[Rows, Keys]]:
    """Yield rows with the digests of their files, some thousand at a time; unreadable files are left out."""
    if not len(rows):
        return
    with reporter.bar("reading images", len(rows)), ThreadPoolExecutor(cpu_count()) as threads:
        for start in range(0, len(rows), _FILES_AT_ONCE):
            part = rows[start : start + _FILES_AT_ONCE]
            digests = list(threads.map(_digest, map(images.path, part.tolist())))
            readable = [digest for digest in digests if digest is not None]
            yield part[[digest is not None for digest in digests]], _as_keys(readable)
            reporter.advance(len(part))


def _file_state(path: Path) -> tuple[bytes, int]:
    """Return a digest of the state of a file and when it last changed, in nanoseconds; 0 where it cannot be read."""
    try:
        status = check_file(path)
    except InputError:
        return bytes(KEY_BYTES), 0
    times = status.st_mtime_ns, status.st_ctime_ns
    text = b"%b\0%d %d %d %d" % (os.fsencode(path), status.st_size, status.st_ino, *times)
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest(), max(*times, 1)


def _digest(path: Path) -> bytes | None:
    try:
        return file_digest(path)
    except OSError:
        return None  # the network's own reader says what is wrong


def _pixel_digest(image: NDArray[np.uint8]) -> bytes:
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=KEY_BYTES, person=b"pixels")
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


def _as_keys(digests: list[bytes]) -> Keys:
    return np.frombuffer(bytearray(b"".join(digests)), dtype=np.uint8).reshape(-1, KEY_BYTES)
