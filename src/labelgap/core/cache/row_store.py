"""Rows of one size by key, on disk, for several processes at once, without locks.

Rows are stored in segments, pairs of files: ``NAME.rows`` has the rows one after the other, ``NAME.keys`` for each row
its key of 16 bytes and the CRC-32 of key and row. A process creates a segment of its own and appends to it; nobody else
ever writes to it, and later processes only read it. A key is written after its row is on the disk: a process that is
killed loses what it was about to append, and what it left half written is never read. A row whose checksum is wrong
counts as missing, so only that row is computed again. Where a key has several rows, the newest counts.

Small segments that nobody writes any more are merged into the next one that is written.
"""

from __future__ import annotations

import os
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.cache.limit import LIMIT_VARIABLE, cache_folder, cache_limit, folder_size, write_flat_json
from labelgap.core.cache.segments import ABOUT_FILE, KEY_ENTRY_BYTES, STALE_SECONDS, Segment, evict, list_segments, pin
from labelgap.core.errors import LabelGapError, RunError
from labelgap.core.files import make_folder
from labelgap.core.stored import open_ordinary, read_bytes
from labelgap.core.system import format_bytes, free_disk_space

KEY_BYTES: Final = 16
SEGMENT_BYTES: Final = 1 << 26
"""A segment of this size is not appended to any more."""
SMALL_BYTES: Final = 1 << 22
"""Segments of less than this size are merged."""
MANY_SEGMENTS: Final = 8
"""So many small segments are merged."""
_ENTRY: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("crc32", "<u4")])
_INDEX: Final = ("high", "low", "crc32", "segment", "row")
_MAX_KEYS: Final = 1 << 32
_RECENT_SECONDS: Final = 30.0
_DENSE: Final = 4
"""Where one row in so many is wanted, all are read."""

Bytes = NDArray[np.uint8]
Log = Callable[[str], None]


class RowStore:
    """The rows in a subfolder of the feature cache.

    Args:
        folder: need not exist.
        row_bytes: of every row.
        metadata: describes the rows, for ``labelgap cache``.
        log: called with why rows are not stored, or are damaged.
    """

    def __init__(self, folder: Path, row_bytes: int, metadata: Mapping[str, Any], log: Log = lambda text: None) -> None:
        assert _ENTRY.itemsize == KEY_ENTRY_BYTES
        self.folder, self.row_bytes, self.metadata, self.log = folder, row_bytes, dict(metadata), log
        self.writable = True
        self._damage_logged = False
        self._segments: list[Segment] = []
        self._index: dict[str, NDArray[Any]] = {name: np.empty(0, dtype=np.uint64) for name in _INDEX}
        self._target: Path | None = None
        self._own: set[Path] = set()
        self._count = 0

    def find(self, keys: Bytes) -> NDArray[np.int64]:
        """Return where the rows of ``(N, 16)`` keys are, as of now: positions in the index, −1 where there is none."""
        self._refresh()
        wanted = np.ascontiguousarray(keys).view("<u8").reshape(-1, 2)
        high, low = self._index["high"], self._index["low"]
        if not len(high):
            return np.full(len(wanted), -1, dtype=np.int64)
        position = np.searchsorted(high, wanted[:, 0], side="right") - 1
        same = (position >= 0) & (high[position] == wanted[:, 0]) & (low[position] == wanted[:, 1])
        return np.where(same, position, -1)

    def read(self, keys: Bytes, out: Bytes, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Copy the rows of ``(N, 16)`` keys to ``out[places]``; return which of them were found and are intact."""
        position = self.find(keys)
        found = position >= 0
        wanted, into = position[found], places[found]
        number, row = self._index["segment"][wanted], self._index["row"][wanted]
        order = np.lexsort((row, number))
        bounds = np.searchsorted(number[order], np.arange(len(self._segments) + 1))
        for segment, start, stop in zip(self._segments, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if start < stop:
                chosen = order[start:stop]
                self._copy(segment, row[chosen], into[chosen], out)
                segment.mark_used()
        intact = _checksums(np.ascontiguousarray(keys[found]), out, into) == self._index["crc32"][wanted]
        found[found] = intact
        if not intact.all() and not self._damage_logged:
            self._damage_logged = True
            self.log(f"{np.count_nonzero(~intact):,} cached features are damaged and are computed again")
        return found

    @property
    def shared(self) -> bool:
        """Whether another process has stored rows in the last half minute."""
        since = time.time() - _RECENT_SECONDS
        return any(each.written > since and each.keys not in self._own for each in list_segments(self.folder))

    def reserve(self, count: int) -> bool:
        """Evict what was not used for longest, so that ``count`` rows fit; return whether rows will be stored.

        Where they do not fit, or the folder cannot be written, that is logged, and ``append`` does nothing.
        """
        needed, limit, root = count * (self.row_bytes + KEY_ENTRY_BYTES), cache_limit().bytes, self.folder.parent
        try:
            make_folder(root)
            size = 0
            if limit is None or needed <= limit:
                evict(root, needed, limit)
                size = folder_size(root)
            free = free_disk_space(root)
            if limit is not None and size + needed > limit:
                enough = format_bytes(2 * (size + needed)).replace(" ", "")
                self._stop(
                    f"they take {format_bytes(needed)} more, and the cache is limited to {format_bytes(limit)}. Raise "
                    f"the limit with labelgap cache --limit {enough}, or {LIMIT_VARIABLE}"
                )
            elif free is not None and needed > free:
                self._stop(f"they take {format_bytes(needed)}, and the disk has {format_bytes(free)} left")
        except (OSError, RunError) as error:
            self._fail(error)
        return self.writable

    def append(self, keys: Bytes, rows: Bytes) -> None:
        """Store ``(N, row_bytes)`` rows by their keys; a disk that is full or read-only is logged once."""
        if not self.writable or not len(keys) or not self.reserve(len(keys)):  # others have written since
            return
        try:
            if self._target is None:
                merged = self._mergeable()
                self._start()
                self._write(keys, rows)
                self._merge(merged)
                with suppress(OSError):
                    write_flat_json(self.folder / ABOUT_FILE, self.metadata)
                return
            sizes = self._count * KEY_ENTRY_BYTES, self._count * self.row_bytes
            if sum(sizes) >= SEGMENT_BYTES or _sizes(self._target) != sizes:  # another process has evicted it
                self._start()
            self._write(keys, rows)
        except (OSError, RunError) as error:
            self._truncate()
            self._fail(error)

    def _refresh(self) -> None:
        """Read the keys again, where a segment is new, has grown, or is gone."""
        segments = list_segments(self.folder)
        now, before = (
            [(each.keys, each.keys_size, each.rows_size) for each in part] for part in (segments, self._segments)
        )
        if now == before:
            return
        tables = [self._read_keys(segment) for segment in segments]
        entries = np.concatenate([np.empty(0, dtype=_ENTRY), *tables])
        lengths = list(map(len, tables))
        number = np.repeat(np.arange(len(tables)), lengths)
        row = np.arange(len(entries)) - np.repeat(np.cumsum([0, *lengths[:-1]])[: len(lengths)], lengths)
        order = np.argsort(entries["high"], kind="stable")
        columns = (entries["high"], entries["low"], entries["crc32"], number, row)
        self._segments = segments
        self._index = {name: values[order] for name, values in zip(_INDEX, columns, strict=True)}

    def _read_keys(self, segment: Segment) -> NDArray[Any]:
        """Return the entries of a segment whose rows are there."""
        try:
            content = read_bytes(segment.keys, limit=_MAX_KEYS)
        except LabelGapError:
            return np.empty(0, dtype=_ENTRY)
        count = min(len(content) // KEY_ENTRY_BYTES, segment.rows_size // self.row_bytes)
        return np.frombuffer(content, dtype=_ENTRY, count=count)

    def _copy(self, segment: Segment, rows: NDArray[np.int64], places: NDArray[np.int64], out: Bytes) -> None:
        """Read rows of a segment to ``out[places]``: adjacent ones at once, or all between if many of them are wanted.

        ``rows`` are sorted. What cannot be read is left as it is, so that its checksum is wrong.
        """
        ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(places) != 1)) + 1
        starts, stops = [0, *ends.tolist()], [*ends.tolist(), len(rows)]
        span = int(rows[-1] - rows[0]) + 1
        with suppress(OSError, ValueError), open_ordinary(segment.rows) as file:
            if len(starts) > 1 and span <= _DENSE * len(rows):
                between = np.zeros((span, self.row_bytes), dtype=np.uint8)
                file.raw.seek(int(rows[0]) * self.row_bytes, os.SEEK_SET)
                file.raw.readinto(between.data)
                out[places] = between[rows - rows[0]]
                return
            for start, stop in zip(starts, stops, strict=True):
                file.raw.seek(int(rows[start]) * self.row_bytes, os.SEEK_SET)
                file.raw.readinto(out[places[start] : places[start] + stop - start].data)

    def _start(self) -> None:
        """Begin a segment."""
        self._count = 0
        self._target = self.folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}.keys"
        self._own.add(self._target)
        pin(self._target)

    def _write(self, keys: Bytes, rows: Bytes) -> None:
        """Append rows, then their keys, to the segment of this process."""
        assert self._target is not None
        entries = np.empty(len(keys), dtype=_ENTRY)
        wanted = np.ascontiguousarray(keys).view("<u8").reshape(-1, 2)
        entries["high"], entries["low"] = wanted.T
        rows = np.ascontiguousarray(rows)
        entries["crc32"] = _checksums(np.ascontiguousarray(keys), rows, np.arange(len(rows)))
        for path, content in ((self._target.with_suffix(".rows"), rows), (self._target, entries)):
            _append(path, content.view(np.uint8).data)
        self._count += len(keys)

    def _mergeable(self) -> list[Segment]:
        """Return small segments that nobody writes any more, where there are many."""
        before = time.time() - STALE_SECONDS
        small = [each for each in list_segments(self.folder) if each.size < SMALL_BYTES and each.written < before]
        return small if len(small) >= MANY_SEGMENTS else []

    def _merge(self, segments: list[Segment]) -> None:
        """Copy the intact rows of segments to the segment of this process, and remove them."""
        for segment in segments:
            if not len(entries := self._read_keys(segment)):
                segment.remove()
                continue
            keys = np.stack([entries["high"], entries["low"]], axis=1).view(np.uint8)
            rows, every = np.zeros((len(keys), self.row_bytes), dtype=np.uint8), np.arange(len(keys))
            self._copy(segment, every, every, rows)
            intact = _checksums(keys, rows, every) == entries["crc32"]
            self._write(keys[intact], rows[intact])
            segment.remove()

    def _truncate(self) -> None:
        """Remove what a failed ``append`` wrote."""
        if self._target is None:
            return
        for path, size in ((self._target, KEY_ENTRY_BYTES), (self._target.with_suffix(".rows"), self.row_bytes)):
            with suppress(OSError):
                if self._count:
                    os.truncate(path, self._count * size)
                else:
                    path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()  # where it is empty

    def _fail(self, error: OSError | RunError) -> None:
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        self._stop(f"{cache_folder()} cannot be written ({reason})")

    def _stop(self, reason: str) -> None:
        if self.writable:
            self.writable = False
            self.log(f"features are not cached: {reason}")


def _checksums(keys: Bytes, rows: Bytes, places: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the CRC-32 of every key and its row, ``rows[places]``."""
    found, width = np.empty(len(keys), dtype=np.uint32), rows.shape[1]
    if not len(keys):
        return found
    key_bytes, row_bytes, crc32 = keys.data.cast("B"), rows.data.cast("B"), zlib.crc32
    for number, place in enumerate(places.tolist()):
        start = crc32(key_bytes[number * KEY_BYTES : (number + 1) * KEY_BYTES])
        found[number] = crc32(row_bytes[place * width : (place + 1) * width], start)
    return found


def _append(path: Path, content: memoryview) -> None:
    """Append to a file, and return when it is on the disk; a symbolic link is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        make_folder(path.parent)  # also where another process has just removed it, while it was empty
        descriptor = os.open(path, flags, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sizes(keys: Path) -> tuple[int, int]:
    try:
        return keys.stat().st_size, keys.with_suffix(".rows").stat().st_size
    except OSError:
        return 0, 0
