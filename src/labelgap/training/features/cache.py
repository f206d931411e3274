"""Feature matrices in the cache: read where they are complete, and written row by row so that a kill costs little.

While features are computed, rows are appended to ``KEY.partial``; every half minute the metadata store how many of them
are on the disk, with a checksum. The next computation of the same features resumes there. A complete matrix is a plain
``KEY.npy``; its checksum is verified on every read.
"""

from __future__ import annotations

import io
import os
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from filelock import Timeout
from numpy.typing import NDArray

from labelgap.core.cache import (
    LIMIT_VARIABLE,
    PARTIAL_SUFFIX,
    cache_folder,
    cache_limit,
    entry_lock,
    evict,
    mark_used,
    pin,
    read_metadata,
    write_metadata,
)
from labelgap.core.errors import RunError
from labelgap.core.files import make_folder
from labelgap.core.system import format_bytes, free_disk_space

__all__ = ["FeatureWriter", "read_features"]

SYNC_INTERVAL = 30.0
"""Seconds between two writes of the metadata."""
STALL_TIMEOUT = 600.0
"""Seconds without a new row after which another process is no longer waited for."""
MEMORY_MAP_BYTES: Final = 1 << 30
"""Files from this size on are memory-mapped."""
_CHUNK: Final = 1 << 26
_DTYPE: Final = np.dtype("<f4")
_LOGGED: set[str] = set()

Log = Callable[[str], None]


def read_features(path: Path, shape: tuple[int, int], log: Log = lambda text: None) -> NDArray[np.float32] | None:
    """Return the features at ``path``; None where there are none. A damaged file is removed."""
    metadata = read_metadata(path)
    if metadata is None and path.exists():
        log(f"cached features are damaged and are computed again ({path.name}: its metadata cannot be read)")
    if metadata is None or metadata.get("rows") != shape[0] or not path.exists():
        return None
    pin(path)
    try:
        features = _read_matrix(path, shape)
        if _checksum(features) != metadata.get("crc32"):
            raise ValueError("its checksum is wrong")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log(f"cached features are damaged and are computed again ({path.name}: {error})")
        for damaged in (path, path.with_suffix(".json")):
            with suppress(OSError):
                damaged.unlink()
        return None
    mark_used(path, metadata)
    return np.asarray(features)


def _read_matrix(path: Path, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Read a matrix whose size and header are those that a ``FeatureWriter`` gives it; large ones are memory-mapped."""
    header, size = _header(shape), path.stat().st_size
    if size != len(header) + shape[0] * shape[1] * _DTYPE.itemsize:
        raise ValueError("its size is wrong")
    with path.open("rb") as file:
        if file.read(len(header)) != header:
            raise ValueError("its header is wrong")
        if size >= MEMORY_MAP_BYTES:
            return np.memmap(file, dtype=_DTYPE, mode="c", offset=len(header), shape=shape)
        values = np.fromfile(file, dtype=_DTYPE, count=shape[0] * shape[1])
        if values.size != shape[0] * shape[1]:
            raise ValueError("it is truncated")
        return values.reshape(shape)


class FeatureWriter:
    """Writes features to the cache; a context manager.

    Where the cache cannot take them it logs that once, and the caller computes without it.

    Args:
        path: the file to be, ``KEY.npy``.
        shape: ``(N, D)``.
        metadata: what is stored about the features.
        log: is called once with each reason why the cache cannot be used.

    Attributes:
        finished: the features, where another process completed them while this one waited.
    """

    def __init__(self, path: Path, shape: tuple[int, int], metadata: dict[str, Any], log: Log) -> None:
        self.path, self.shape, self.metadata, self.log = path, shape, metadata, log
        self.finished: NDArray[np.float32] | None = None
        self._partial, self._lock = path.with_suffix(PARTIAL_SUFFIX), entry_lock(path)
        self._file: io.BufferedRandom | None = None
        self._rows = self._crc = 0
        self._synced = time.monotonic()

    def __enter__(self) -> Self:
        try:
            make_folder(self.path.parent)
            if self._fits() and self._acquire():
                self.finished = read_features(self.path, self.shape)
                if self.finished is None:
                    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
                    self._file = os.fdopen(os.open(self._partial, flags, 0o666), "r+b")
                else:
                    self._release(remove=True)
        except (OSError, RunError) as error:
            self._disable(error)
        return self

    def __exit__(self, *exception: object) -> None:
        """Store how many rows are written, so that the next computation resumes there."""
        if self._file is not None:
            if self._rows:
                with suppress(OSError):
                    self._sync()
            self._release(remove=not self._rows)

    def resume_rows(self, features: NDArray[np.float32]) -> int:
        """Read the rows of an interrupted computation into ``features``, and return their number."""
        if self._file is None:
            return 0
        header, stored = _header(self.shape), read_metadata(self._partial) or {}
        try:
            self._file.seek(0)
            valid = self._file.read(len(header)) == header and isinstance(stored.get("rows"), int)
            rows = features[: max(0, min(stored["rows"], self.shape[0]))] if valid else features[:0]
            read = self._file.readinto(rows.data.cast("B")) if rows.size else 0
            if read != rows.nbytes or _checksum(rows) != stored.get("crc32", 0):
                rows = features[:0]
            self._rows, self._crc = len(rows), _checksum(rows)
            self._file.seek(0)
            self._file.write(header)
            self._file.seek(len(header) + rows.nbytes)
            self._file.truncate()
        except OSError as error:
            self._disable(error)
            return 0
        if self._rows and isinstance(stored.get("created"), str):
            self.metadata["created"] = stored["created"]
        return self._rows

    def append(self, rows: NDArray[np.float32]) -> None:
        """Append rows."""
        if self._file is None:
            return
        data = np.ascontiguousarray(rows, dtype=_DTYPE).data.cast("B")
        try:
            self._file.write(data)
            self._rows, self._crc = self._rows + len(rows), zlib.crc32(data, self._crc)
            if time.monotonic() - self._synced >= SYNC_INTERVAL:
                self._sync()
        except OSError as error:
            self._disable(error)

    def finish(self) -> None:
        """Make the entry complete."""
        if self._file is None:
            return
        try:
            self._sync()
            if sys.platform == "win32":
                self._file.close()
            pin(self.path)
            self._partial.replace(self.path)
        except OSError as error:
            self._disable(error)
        else:
            self._release(remove=True)

    def _sync(self) -> None:
        """Flush all rows to the disk, then store how many they are."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        write_metadata(self.path, {**self.metadata, "rows": self._rows, "crc32": self._crc})
        self._synced = time.monotonic()

    def _fits(self) -> bool:
        """Evict the least recently used entries; log where that is not enough."""
        needed = self.shape[0] * self.shape[1] * _DTYPE.itemsize
        limit, free = cache_limit(), free_disk_space(self.path.parent)
        pin(self._partial)
        written = self._partial.stat().st_size if self._partial.exists() else 0
        if limit.bytes is not None and needed > limit.bytes:
            self._log_once(
                f"the features take {format_bytes(needed)} and the cache is limited to {format_bytes(limit.bytes)}: "
                f"they are not cached. Raise the limit with labelgap cache --limit "
                f"{format_bytes(2 * needed).replace(' ', '')}, or {LIMIT_VARIABLE}."
            )
            return False
        removed = evict(self.path.parent, needed - written, limit.bytes)
        available = None if free is None else free + written + sum(entry.size for entry in removed)
        if available is not None and needed > available:
            self._log_once(
                f"the features take {format_bytes(needed)} and the disk has {format_bytes(available)} left: they are "
                "not cached"
            )
            return False
        return True

    def _acquire(self) -> bool:
        """Wait for the lock while the process that holds it appends rows; return False where it stalls."""
        size, since = -1, time.monotonic()
        while True:
            with suppress(Timeout):
                self._lock.acquire(timeout=0)
                return True
            self._log_once("another process computes the same features: waiting for it", self._partial.name)
            current = self._partial.stat().st_size if self._partial.exists() else 0
            if current != size:
                size, since = current, time.monotonic()
            elif time.monotonic() - since > STALL_TIMEOUT:
                self._log_once("another process computes the same features and has stalled: not waiting for it")
                return False
            time.sleep(0.1)

    def _disable(self, error: OSError | RunError) -> None:
        """Continue without the cache."""
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        self._log_once(f"features are not cached: {cache_folder()} cannot be written ({reason})", "")
        self._release(remove=True)

    def _release(self, *, remove: bool) -> None:
        """Close the file and release the lock; ``remove`` also removes the file and the lock."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
        if not self._lock.is_locked:
            return
        if remove:
            metadata = () if self.path.exists() else (self.path.with_suffix(".json"),)
            for path in (self._partial, *metadata, Path(self._lock.lock_file)):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        self._lock.release()

    def _log_once(self, text: str, key: str | None = None) -> None:
        """Log a message once per process, not once per split."""
        key = text if key is None else key
        if key not in _LOGGED:
            _LOGGED.add(key)
            self.log(text)


def _header(shape: tuple[int, int]) -> bytes:
    """Return the header of a ``.npy`` file of this shape."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": _DTYPE.str, "fortran_order": False, "shape": shape})
    return header.getvalue()


def _checksum(features: NDArray[np.float32]) -> int:
    if not features.size:
        return 0
    data, crc = np.ascontiguousarray(features).data.cast("B"), 0
    for start in range(0, len(data), _CHUNK):
        crc = zlib.crc32(data[start : start + _CHUNK], crc)
    return crc
