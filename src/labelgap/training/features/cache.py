"""A matrix of features in the cache: read where it is whole, and made row by row so that a kill costs a minute at most.

While it is made, rows are added to ``KEY.partial`` and every half minute the description beside it says how many of
them are safely on the disk, with a checksum. Whoever computes the same features next goes on from there. Finished, the
file is a plain ``KEY.npy``, and the checksum is looked at whenever it is read.
"""

from __future__ import annotations

import io
import os
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.cache import LIMIT_VARIABLE, cache_folder, cache_limit
from labelgap.core.cache_entries import (
    PARTIAL_SUFFIX,
    evict,
    mark_used,
    pin,
    read_entry_metadata,
    try_lock,
    utc_now,
    write_entry_metadata,
)
from labelgap.core.files import make_folder
from labelgap.core.system import format_bytes, free_disk_space

__all__ = ["FeatureWriter", "feature_writer", "read_features"]

SYNC_INTERVAL = 30.0
"""Seconds between two notes of how far the rows are on the disk."""
STALL_TIMEOUT = 600.0
"""Seconds without a new row after which another process is no longer waited for."""
MEMORY_MAP_BYTES: Final = 1 << 30
"""From so many bytes on, features stay in the file and come to memory when they are looked at."""
_CHUNK: Final = 1 << 26
_TYPE: Final = np.dtype("<f4")
_SAID: set[str] = set()

Say = Callable[[str], None]


def read_features(path: Path, shape: tuple[int, int], say: Say = lambda text: None) -> NDArray[np.float32] | None:
    """Return what the cache holds at ``path``; None where it holds nothing, or something damaged, which is removed."""
    about = read_entry_metadata(path)
    if about is None or about.get("rows") != shape[0] or not path.exists():
        return None
    pin(path)
    try:
        large = path.stat().st_size >= MEMORY_MAP_BYTES
        features: NDArray[np.float32] = np.load(path, mmap_mode="c" if large else None, allow_pickle=False)
        if features.shape != shape or features.dtype != _TYPE:
            raise ValueError("it is of another shape")
        if _checksum(features) != about.get("crc32"):
            raise ValueError("it is not what was written")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        say(f"features in the cache are damaged and computed again ({path.name}: {error})")
        _unlink(path)
        return None
    mark_used(path, about)
    return np.asarray(features)


@contextmanager
def feature_writer(path: Path, shape: tuple[int, int], about: dict[str, Any], say: Say) -> Iterator[FeatureWriter]:
    """Make features at ``path``; where the cache cannot take them, say so once and let the work go on without it."""
    file = FeatureWriter(path, shape, about, say)
    file.open()
    try:
        yield file
    finally:
        file.close()


class FeatureWriter:
    """Features that are being made.

    Args:
        path: where they are to be, ``KEY.npy``.
        shape: ``(N, D)``.
        about: what the description says of them.
        say: told once in what way the cache cannot be used.

    Attributes:
        finished: the features, where another process has finished them while this one waited for it.
    """

    def __init__(self, path: Path, shape: tuple[int, int], about: dict[str, Any], say: Say) -> None:
        self.path, self.shape, self.about, self.say = path, shape, about, say
        self.finished: NDArray[np.float32] | None = None
        self._partial = path.with_suffix(PARTIAL_SUFFIX)
        self._shared = True
        self._file: io.BufferedRandom | None = None
        self._rows = self._crc = 0
        self._marked = time.monotonic()

    def open(self) -> None:
        """Get ready to add rows, wherever the cache can take them."""
        try:
            make_folder(self.path.parent)
            if self._has_room():
                self._file = self._locked()
            if self._file is not None and (found := read_features(self.path, self.shape)) is not None:
                self.finished = found
                self._drop()
        except OSError as error:
            self._give_up(error)

    def resume_rows(self, features: NDArray[np.float32]) -> int:
        """Read the rows that were made before into ``features``, and return how many they are."""
        if self._file is None:
            return 0
        header, before = _header(self.shape), read_entry_metadata(self._partial) or {}
        try:
            self._file.seek(0)
            same = self._file.read(len(header)) == header and isinstance(before.get("rows"), int)
            part = features[: min(before["rows"], self.shape[0])] if same else features[:0]
            read = self._file.readinto(part.data.cast("B")) if part.size else 0
            if read != part.nbytes or _checksum(part) != before.get("crc32", 0):
                part = features[:0]
            self._rows, self._crc = len(part), _checksum(part)
            self._file.seek(0)
            self._file.write(header)
            self._file.seek(len(header) + part.nbytes)
            self._file.truncate()
        except OSError as error:
            self._give_up(error)
            return 0
        if self._rows and isinstance(before.get("created"), str):
            self.about["created"] = before["created"]
        return self._rows

    def append(self, rows: NDArray[np.float32]) -> None:
        """Add rows; now and then they are brought to the disk for good."""
        if self._file is None:
            return
        data = np.ascontiguousarray(rows, dtype=_TYPE).data.cast("B")
        try:
            self._file.write(data)
            self._rows, self._crc = self._rows + len(rows), zlib.crc32(data, self._crc)
            if time.monotonic() - self._marked >= SYNC_INTERVAL:
                self._mark()
        except OSError as error:
            self._give_up(error)

    def finish(self) -> None:
        """Give the file its name: from now on it is there for all."""
        if self._file is None:
            return
        try:
            self._mark()
            if sys.platform == "win32":
                self._file.close()
            pin(self.path)
            self._partial.replace(self.path)
            if not self._shared:
                self._describe()
        except OSError as error:
            self._give_up(error)
        self._close()

    def close(self) -> None:
        """Let go of the file; what was made so far can be taken up."""
        if self._file is None:
            return
        with suppress(OSError):
            if self._rows and self._shared:
                self._mark()
            else:
                self._drop()
        self._close()

    def _mark(self) -> None:
        """Bring all rows to the disk, and note how many they are."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._shared:
            self._describe()
        self._marked = time.monotonic()

    def _describe(self) -> None:
        write_entry_metadata(self.path, {**self.about, "rows": self._rows, "crc32": self._crc, "used": utc_now()})

    def _has_room(self) -> bool:
        """Make room by what was not used for longest; say where that is not enough."""
        needed = self.shape[0] * self.shape[1] * _TYPE.itemsize
        limit, free = cache_limit(), free_disk_space(self.path.parent)
        pin(self._partial)
        there = self._partial.stat().st_size if self._partial.exists() else 0
        if limit.bytes is not None and needed > limit.bytes:
            self._once(
                f"the features take {format_bytes(needed)} and the cache may hold {format_bytes(limit.bytes)}: they are not "
                f"kept. labelgap cache --limit {format_bytes(2 * needed).replace(' ', '')}, or {LIMIT_VARIABLE}, lets it hold more."
            )
            return False
        removed = evict(self.path.parent, needed - there, limit.bytes)
        room = None if free is None else free + there + sum(entry.size for entry in removed)
        if room is not None and needed > room:
            self._once(
                f"the features take {format_bytes(needed)} and the disk has {format_bytes(room)} left: they are not kept"
            )
            return False
        return True

    def _locked(self) -> io.BufferedRandom | None:
        """Open the partial file for this process alone; None where another works on it that does not get on."""
        size, since = -2, time.monotonic()
        while True:
            file = os.fdopen(os.open(self._partial, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b")
            held = try_lock(file)
            if held is None:
                file.close()
                return self._own()
            if held and _same(file, self._partial):
                return file
            there = os.fstat(file.fileno()).st_size
            file.close()
            if there != size or held:
                size, since = there, time.monotonic()
            if time.monotonic() - since > STALL_TIMEOUT:
                self._once("another process computes the same features and does not get on: not waiting for it")
                return None
            if not held:
                self._once("another process computes the same features: waiting for it", self._partial.name)
                time.sleep(0.1)

    def _own(self) -> io.BufferedRandom:
        """Open a partial file that no other process knows: the last to finish wins, and a kill loses it."""
        self._partial, self._shared = self.path.with_name(f".{self.path.stem}-{secrets.token_hex(8)}.partial"), False
        return self._partial.open("x+b")

    def _give_up(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._once(f"features are not kept: the cache at {cache_folder()} cannot be written ({reason.rstrip('.')})", "")
        self._drop()

    def _drop(self) -> None:
        """Remove what was made, while nobody else can have it."""
        if self._file is not None:
            _unlink(self._partial, data_only=self.path.exists())
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None

    def _once(self, text: str, key: str | None = None) -> None:
        """Say something that need not be said for every split."""
        key = text if key is None else key
        if key not in _SAID:
            _SAID.add(key)
            self.say(text)


def _header(shape: tuple[int, int]) -> bytes:
    """Return how a ``.npy`` file of these rows begins."""
    header = io.BytesIO()
    described = {"descr": _TYPE.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


def _checksum(features: NDArray[np.float32]) -> int:
    if not features.size:
        return 0
    data, crc = np.ascontiguousarray(features).data.cast("B"), 0
    for start in range(0, len(data), _CHUNK):
        crc = zlib.crc32(data[start : start + _CHUNK], crc)
    return crc


def _same(file: io.BufferedRandom, path: Path) -> bool:
    """Whether an open file is still the one of this name: another process may have renamed or removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _unlink(path: Path, data_only: bool = False) -> None:
    for gone in (path,) if data_only else (path, path.with_suffix(".json")):
        with suppress(OSError):
            gone.unlink()
