"""The cache on disk: its folder, how large it may become, and rows of features by key.

Rows are in one SQLite database, each with a CRC-32: a damaged one counts as missing. It is opened for every operation,
so that no connection is carried into a forked worker. Its journal is a rollback journal: a write-ahead log needs a
folder that readers may write, and its recovery after a kill fails others.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import sqlite3
import stat
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import platformdirs
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import atomic_path, make_folder, write_json
from labelgap.core.lock import lock_folder
from labelgap.core.sqlite import SCHEMA, find_foreign
from labelgap.core.stored import read_bytes
from labelgap.core.system import format_bytes, free_disk_space, parse_bytes

FEATURE_FOLDER: Final = "features"  # the subfolder of features, the only one with a size limit
KEY_BYTES: Final = 16
_DATABASE: Final = "rows.sqlite"
_LIMIT_VARIABLE: Final = "LABELGAP_CACHE_LIMIT"
_MAX_LIMIT: Final = 20_000_000_000
_DISK_SHARE: Final = 0.1
_SETTINGS: Final = "settings.json"
_MAX_JSON: Final = 1 << 20
_FLAT_JSON: Final = TypeAdapter[dict[str, Any]](
    dict[str, str | Annotated[int, Field(ge=0, lt=2**63)] | Annotated[float, Field(ge=0, lt=2.0**63)] | None]
)
_PAGE_BYTES = 1 << 16  # of SQLite's page sizes the one that rows of 2 to 8 kB fill best: a row does not cross pages
_FAILURES: Final = (OSError, RunError, sqlite3.Error, TypeError, ValueError)
"""What a database may raise that is damaged, locked, full or read-only."""
_ENTRY_BYTES: Final = 64  # what a row takes besides its content, about
_KEYS_AT_ONCE: Final = 500
_BUSY_SECONDS: Final = 60.0
_RECENT_SECONDS: Final = 30.0
_USE_SECONDS: Final = 60.0  # a last use is stored to the minute, so that reading the same rows again does not write
_STARTED = time.time()  # what was used since then is in use, and is not evicted by this process
_SCHEMA: Final = """
    CREATE TABLE network(id INTEGER PRIMARY KEY, name TEXT UNIQUE, about TEXT, row_bytes INTEGER, writer TEXT, written);
    CREATE TABLE entry(network INTEGER, key BLOB, used REAL, row INTEGER, PRIMARY KEY(network, key)) WITHOUT ROWID;
    CREATE TABLE row(id INTEGER PRIMARY KEY, crc32 INTEGER, content BLOB);
"""
_NETWORK_ID: Final = "SELECT id FROM network WHERE name = ?"
_DELETE_ROW: Final = "DELETE FROM row WHERE id = (SELECT row FROM entry WHERE network = ? AND key = ?)"
_UPSERT_NETWORK: Final = """
    INSERT INTO network(name, about, row_bytes, writer, written) VALUES (?, ?, ?, ?, ?) ON CONFLICT(name) DO UPDATE
    SET about = excluded.about, row_bytes = excluded.row_bytes, writer = excluded.writer, written = excluded.written
    RETURNING id
"""
_LAST_TO_EVICT: Final = """
    SELECT max(used) FROM (
        SELECT used, sum(sum(row_bytes + :entry)) OVER (ORDER BY used) - sum(row_bytes + :entry) AS older
        FROM entry JOIN network ON network.id = network WHERE used < :started GROUP BY used
    ) WHERE older < :excess
"""
_COUNT_BY_NETWORK: Final = """
    SELECT name, about, row_bytes, count(*), max(used) FROM entry JOIN network ON network.id = network WHERE used <= ?
    GROUP BY network ORDER BY max(used) DESC
"""

Bytes = NDArray[np.uint8]


class CacheLimit(NamedTuple):
    """How many bytes the features in the cache may take, and where the limit comes from."""

    bytes: int | None  # None for no limit
    source: str


def cache_folder() -> Path:
    """Return ``$LABELGAP_CACHE``, or ``labelgap`` in the user's cache folder. It may not exist yet."""
    return Path(os.environ.get("LABELGAP_CACHE") or platformdirs.user_cache_path("labelgap", appauthor=False))


def cache_limit() -> CacheLimit:
    """Return the limit that is set, or the default: 20 GB, or a tenth of the free disk, whichever is less."""
    folder = cache_folder()
    if value := os.environ.get(_LIMIT_VARIABLE):
        return CacheLimit(_parse_limit(value, _LIMIT_VARIABLE), _LIMIT_VARIABLE)
    stored = (read_flat_json(folder / _SETTINGS) or {}).get("limit", "")
    if stored is None or isinstance(stored, int):
        return CacheLimit(stored, "labelgap cache --limit")
    free = free_disk_space(folder)
    share = _MAX_LIMIT if free is None else round(_DISK_SHARE * (free + folder_size(folder)))
    return CacheLimit(min(_MAX_LIMIT, share), "default")


def set_cache_limit(text: str) -> CacheLimit:
    """Store a limit: an amount such as "5GB", "none" for no limit, or "default"."""
    folder = cache_folder()
    if text.strip().lower() == "default":
        (folder / _SETTINGS).unlink(missing_ok=True)
    else:
        limit = _parse_limit(text, "--limit")
        make_folder(folder)
        write_flat_json(folder / _SETTINGS, {"limit": limit})
    return cache_limit()


def _parse_limit(text: str, source: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    try:
        return parse_bytes(text)
    except InputError as error:
        raise InputError(f"{source}={text}: {error} Or 'none' for no limit.") from None


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 where there is none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # another process has just removed it
                total += (Path(parent) / name).lstat().st_size
    return total


def other_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of every subfolder of the cache but that of features: scans, shards, thumbnails."""
    subfolders = [path for path in sorted(folder.glob("*")) if path.is_dir() and path.name != FEATURE_FOLDER]
    files = {below.name: [path for path in below.rglob("*") if path.is_file()] for below in subfolders}
    return {name: paths for name, paths in files.items() if paths}


def remove_old(paths: Sequence[Path], older_than: float) -> int:
    """Remove the files that were not changed for some seconds, and return how many."""
    count = 0
    for path in paths:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime >= older_than:
                path.unlink()
                count += 1
    return count


def read_flat_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file if its values are texts, None, and numbers that are finite and not negative."""
    with suppress(LabelGapError):
        return _parse_flat(read_bytes(path, limit=_MAX_JSON))
    return None


def _parse_flat(content: str | bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        return _FLAT_JSON.validate_json(content, strict=True)
    return None


def write_flat_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON atomically; a symbolic link is replaced, not followed."""
    if path.is_symlink():
        path.unlink()
    write_json(path, value)


@dataclass(frozen=True)
class CachedRows:
    """Rows of one network that are in the cache, or were removed from it."""

    name: str  # the key of the network
    metadata: dict[str, Any]  # describes the rows; empty where the description is damaged
    count: int
    size: int  # about the bytes that they take
    used: float  # when they were last used


class RowStore:
    """The rows of one network, whose key is ``name``; ``log`` hears why rows are not stored, or are damaged."""

    def __init__(
        self, name: str, row_bytes: int, metadata: Mapping[str, Any], log: Callable[[str], None] = lambda text: None
    ) -> None:
        self.name, self.row_bytes, self.metadata, self.log = name, row_bytes, dict(metadata), log
        self.path = _database()
        self.writable = True
        self._damage_logged = False
        self._process = secrets.token_hex(8)
        self._others_wrote = 0.0

    def find(self, keys: Bytes) -> NDArray[np.bool_]:
        """Return which of ``(N, 16)`` keys have a row."""
        found = np.zeros(len(keys), dtype=bool)
        for _, numbers, _ in self._select("key FROM entry", keys):
            found[numbers] = True
        return found

    def read(self, keys: Bytes, out: Bytes, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Copy the rows of ``(N, 16)`` keys to ``out[places]``; return which of them were found and are intact."""
        found, damaged, stale = np.zeros(len(keys), dtype=bool), 0, list[bytes]()
        target, width, into, now = out.data.cast("B"), self.row_bytes, places.tolist(), time.time()
        columns = "key, used, crc32, content FROM entry JOIN row ON row.id = entry.row"
        for key, numbers, (used, crc32, content) in self._select(columns, keys):
            intact = isinstance(content, bytes) and len(content) == width
            if not intact or zlib.crc32(content, zlib.crc32(key)) != crc32:
                damaged += 1
                continue
            for number in numbers:
                target[into[number] * width : (into[number] + 1) * width] = content
            found[numbers] = True
            if not isinstance(used, float) or used < now - _USE_SECONDS:
                stale.append(key)
        if damaged and not self._damage_logged:
            self._damage_logged = True
            self.log(f"{damaged:,} cached features are damaged and are computed again")
        if stale:
            with suppress(*_FAILURES), _writing(self.path) as connection:  # it may be read-only
                sql = f"UPDATE entry SET used = ? WHERE network = ({_NETWORK_ID}) AND key = ?"
                connection.executemany(sql, ((now, self.name, key) for key in stale))
        return found

    @property
    def shared(self) -> bool:
        """Whether another process has stored rows in the last half minute."""
        with suppress(*_FAILURES), _opened(self.path) as connection:
            self._notice_others(connection)
        return self._others_wrote > time.time() - _RECENT_SECONDS

    def reserve(self, count: int) -> bool:
        """Evict what was not used for longest to fit ``count`` rows; return whether rows will be stored."""
        needed, limit = count * (self.row_bytes + _ENTRY_BYTES), cache_limit().bytes
        try:
            make_folder(self.path.parent)
            size = 0
            if limit is not None and needed <= limit and self.path.exists():
                with _writing(self.path) as connection:
                    _evict(connection, limit - needed)
                    size = _size(connection)
            free = free_disk_space(self.path.parent)
            if limit is not None and size + needed > limit:
                enough = format_bytes(2 * (size + needed)).replace(" ", "")
                self._stop(
                    f"they take {format_bytes(needed)} more, and the cache is limited to {format_bytes(limit)}. Raise "
                    f"the limit with labelgap cache --limit {enough}, or {_LIMIT_VARIABLE}"
                )
            elif free is not None and needed > free:
                self._stop(f"they take {format_bytes(needed)}, and the disk has {format_bytes(free)} left")
        except _FAILURES as error:
            self._fail(error)
        return self.writable

    def append(self, keys: Bytes, rows: Bytes) -> None:
        """Store ``(N, row_bytes)`` rows by their keys; a disk that is full or read-only is logged once."""
        if not self.writable or not len(keys) or not self.reserve(len(keys)):  # others have written since
            return
        new = dict(zip(_split(keys), np.ascontiguousarray(rows), strict=True))
        try:
            with _writing(self.path) as connection:
                self._notice_others(connection)
                now = time.time()
                about = self.name, json.dumps(self.metadata), self.row_bytes, self._process, now
                ((network,),) = connection.execute(_UPSERT_NETWORK, about).fetchall()
                connection.executemany(_DELETE_ROW, ((network, key) for key in new))
                ((last,),) = connection.execute("SELECT coalesce(max(id), 0) FROM row")
                numbers = range(last + 1, last + 1 + len(new))
                checked = ((zlib.crc32(row, zlib.crc32(key)), row.data) for key, row in new.items())
                contents = ((number, *each) for number, each in zip(numbers, checked, strict=True))
                connection.executemany("INSERT INTO row VALUES (?, ?, ?)", contents)
                entries = sorted((network, key, now, number) for key, number in zip(new, numbers, strict=True))
                connection.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", entries)
        except _FAILURES as error:
            self._fail(error)

    def _select(self, columns: str, keys: Bytes) -> Iterator[tuple[bytes, list[int], list[Any]]]:
        """Yield each key that has an entry, the numbers of the ``keys`` that are it, and the columns after the key."""
        numbers: defaultdict[bytes, list[int]] = defaultdict(list)
        for number, key in enumerate(_split(keys)):
            numbers[key].append(number)
        distinct = list(numbers)
        try:
            with _opened(self.path) as connection:
                for start in range(0, len(distinct), _KEYS_AT_ONCE):
                    part = distinct[start : start + _KEYS_AT_ONCE]
                    where = f"network = ({_NETWORK_ID}) AND key IN ({','.join('?' * len(part))})"
                    for key, *values in connection.execute(f"SELECT {columns} WHERE {where}", (self.name, *part)):
                        yield key, numbers[key], values
        except FileNotFoundError:
            return
        except _FAILURES as error:
            self._fail(error)

    def _notice_others(self, connection: sqlite3.Connection) -> None:
        wrote = "SELECT written FROM network WHERE name = ? AND writer != ?"
        for (when,) in connection.execute(wrote, (self.name, self._process)):
            self._others_wrote = float(when)

    def _fail(self, error: Exception) -> None:
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        remedy = "; `labelgap cache clear` removes it" if damaged else ""
        self._stop(f"{self.path} cannot be used ({reason}){remedy}")

    def _stop(self, reason: str) -> None:
        if self.writable:
            self.writable = False
            self.log(f"features are not cached: {reason}")


def list_rows() -> list[CachedRows]:
    """Return what is cached of each network, the most recently used first."""
    with suppress(*_FAILURES), _opened(_database()) as connection:
        return _describe(connection)
    return []


def shrink_cache(limit: int | None) -> list[CachedRows]:
    """Remove the least recently used rows until the rest is within a limit; return what was removed."""
    return [] if limit is None else _remove(lambda connection: _evict(connection, limit))


def clear_cache(older_than: float = 0.0) -> list[CachedRows]:
    """Remove the rows that were not used for so many seconds, and what earlier versions cached; return the rows."""
    path, before = _database(), time.time() - older_than if older_than else math.inf
    files = list(path.parent.iterdir()) if path.parent.is_dir() else []
    for old in (each for each in files if not each.name.startswith(_DATABASE)):
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()
    try:
        return _remove(lambda connection: _delete(connection, before))
    except sqlite3.OperationalError as error:
        raise RunError(f"{path} cannot be cleared ({error}): wait for other commands to end.") from None
    except sqlite3.DatabaseError:
        for each in files:  # it is damaged
            each.unlink(missing_ok=True)
        return []


def _remove(action: Callable[[sqlite3.Connection], list[CachedRows]]) -> list[CachedRows]:
    path = _database()
    if not os.path.lexists(path):
        return []
    with _writing(path) as connection:
        removed = action(connection)
    if removed:
        with suppress(sqlite3.OperationalError), _opened(path) as unlocked:  # without room for it, the space is reused
            unlocked.execute("VACUUM")
    return removed


def _evict(connection: sqlite3.Connection, limit: int) -> list[CachedRows]:
    removed: list[CachedRows] = []
    values: dict[str, float] = {"entry": _ENTRY_BYTES, "started": _STARTED - _USE_SECONDS}
    while (excess := _size(connection) - limit) > 0:
        ((last,),) = connection.execute(_LAST_TO_EVICT, {**values, "excess": excess})
        if last is None:
            break
        removed += _delete(connection, last)
    return removed


def _delete(connection: sqlite3.Connection, before: float) -> list[CachedRows]:
    removed = _describe(connection, before)
    connection.execute("DELETE FROM row WHERE id IN (SELECT row FROM entry WHERE used <= ?)", (before,))
    connection.execute("DELETE FROM entry WHERE used <= ?", (before,))
    connection.execute("DELETE FROM network WHERE NOT EXISTS (SELECT 1 FROM entry WHERE network = network.id)")
    return removed


def _describe(connection: sqlite3.Connection, before: float = math.inf) -> list[CachedRows]:
    """Return the rows that were last used at a time or before, by network, the most recently used first."""
    found = []
    for name, about, row_bytes, count, used in connection.execute(_COUNT_BY_NETWORK, (before,)):
        size = count * (row_bytes + _ENTRY_BYTES)
        found.append(CachedRows(str(name), _parse_flat(str(about)) or {}, count, size, min(used, time.time())))
    return found


def _size(connection: sqlite3.Connection) -> int:
    """Return the bytes of the pages that are used; the others are filled before the file grows."""
    names = "page_size", "page_count", "freelist_count"
    size, pages, free = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int(size * (pages - free))


def _database() -> Path:
    return cache_folder() / FEATURE_FOLDER / _DATABASE


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database, read-only where it cannot be written; ``FileNotFoundError`` where there is none."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise sqlite3.DatabaseError("it is not an ordinary file")
    address = f"{path.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=_BUSY_SECONDS)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = NORMAL")
        if find_foreign(connection, _own_schema()) is not None:
            raise sqlite3.DatabaseError("it is no cache of features")
        yield connection


@cache
def _own_schema() -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return connection.execute(SCHEMA).fetchall()


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database, which is created where there is none; what the block does is stored as a whole, or not."""
    if not os.path.lexists(path):
        with lock_folder(path.parent, "creating the cache", wait=_BUSY_SECONDS):
            if not path.exists():
                with atomic_path(path) as temporary, closing(sqlite3.connect(temporary)) as connection:
                    connection.executescript(f"PRAGMA page_size = {_PAGE_BYTES}; {_SCHEMA}")
    with _opened(path) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def _split(keys: Bytes) -> list[bytes]:
    whole = keys.tobytes()
    return [whole[start : start + KEY_BYTES] for start in range(0, len(whole), KEY_BYTES)]
