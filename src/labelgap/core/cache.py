"""The cache on disk: its folder, its size limit, its entries, and which of them are evicted.

An entry is a data file ``KEY.npy`` and its metadata ``KEY.json``, which say what the data are and when they were last
used. While it is written it is called ``KEY.partial``, and the process that writes it holds the lock ``KEY.lock``.
Several processes may share the folder: a complete entry is never written to again.

What lies in the folder may be damaged, or may be made by somebody else who can write to it: metadata that are not as
this module writes them do not count, and a symbolic link is replaced, never followed, when a file is written.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import platformdirs
from filelock import BaseFileLock, FileLock, Timeout

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.files import make_folder, remove_partials, write_json
from labelgap.core.system import free_disk_space, parse_bytes

__all__ = [
    "CacheEntry",
    "CacheLimit",
    "DATA_SUFFIX",
    "FEATURE_FOLDER",
    "LIMIT_VARIABLE",
    "PARTIAL_SUFFIX",
    "cache_folder",
    "cache_limit",
    "clear_cache",
    "entry_lock",
    "evict",
    "folder_size",
    "list_entries",
    "mark_used",
    "pin",
    "read_metadata",
    "remove_orphans",
    "set_cache_limit",
    "utc_now",
    "write_metadata",
]

FEATURE_FOLDER: Final = "features"
"""The subfolder of features, the only one with a size limit."""
LIMIT_VARIABLE: Final = "LABELGAP_CACHE_LIMIT"
DATA_SUFFIX: Final = ".npy"
PARTIAL_SUFFIX: Final = ".partial"
_METADATA: Final = ".json"
_LOCK: Final = ".lock"
_MAX_LIMIT: Final = 20_000_000_000
_DISK_SHARE: Final = 0.1
_SETTINGS: Final = "settings.json"
_MAX_METADATA: Final = 1 << 20
_STALE: Final = 600.0
"""Seconds after which a temporary file has no writer any more."""
_PINNED: set[Path] = set()


class CacheLimit(NamedTuple):
    """How many bytes the features in the cache may take, None for no limit, and where the limit comes from."""

    bytes: int | None
    source: str


@dataclass(frozen=True)
class CacheEntry:
    """One entry: its data, its bytes, when it was last used (seconds since 1970), and what its writer stored of it."""

    path: Path
    size: int
    used: float
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all of it is written."""
        return self.path.suffix == DATA_SUFFIX


def cache_folder() -> Path:
    """Return ``$LABELGAP_CACHE``, or ``labelgap`` in the user's cache folder. It may not exist yet."""
    return Path(os.environ.get("LABELGAP_CACHE") or platformdirs.user_cache_path("labelgap", appauthor=False))


def cache_limit() -> CacheLimit:
    """Return the limit: ``$LABELGAP_CACHE_LIMIT``, what ``labelgap cache --limit`` has set, or the default.

    The default is 20 GB, or a tenth of what the disk would have free without the cache, whichever is less.
    """
    folder = cache_folder()
    if value := os.environ.get(LIMIT_VARIABLE):
        return CacheLimit(_parse_limit(value, LIMIT_VARIABLE), LIMIT_VARIABLE)
    settings = _read_flat_json(folder / _SETTINGS) or {}
    stored = settings.get("limit", "")
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
        _write_json(folder / _SETTINGS, {"limit": limit})
    return cache_limit()


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 where there is none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # another process has just removed it
                total += (Path(parent) / name).lstat().st_size
    return total


def list_entries(folder: Path) -> list[CacheEntry]:
    """Return all entries of a folder, least recently used first."""
    found = []
    for path in _files(folder):
        if path.suffix not in (DATA_SUFFIX, PARTIAL_SUFFIX) or path.name.startswith("."):
            continue
        with suppress(OSError):
            status, metadata = path.stat(), read_metadata(path) or {}
            beside = path.with_suffix(_METADATA)
            size = status.st_size + (beside.stat().st_size if beside.exists() else 0)
            found.append(CacheEntry(path, size, _last_used(metadata, status.st_mtime), metadata))
    return sorted(found, key=lambda entry: (entry.used, entry.path.name))


def read_metadata(path: Path) -> dict[str, Any] | None:
    """Return the metadata of the data at ``path``: texts and numbers; None where they are missing or damaged."""
    return _read_flat_json(path.with_suffix(_METADATA))


def write_metadata(path: Path, metadata: dict[str, Any]) -> None:
    """Write the metadata of the data at ``path``, marked as used now unless they say otherwise."""
    _write_json(path.with_suffix(_METADATA), {"used": utc_now(), **metadata})


def mark_used(path: Path, metadata: dict[str, Any]) -> None:
    """Pin the data at ``path`` and store that they are used now; a read-only cache is used as it is."""
    pin(path)
    with suppress(OSError):
        write_metadata(path, {**metadata, "used": utc_now()})


def pin(path: Path) -> None:
    """Keep this process from evicting the data at ``path``."""
    _PINNED.add(path.absolute())


def entry_lock(path: Path) -> BaseFileLock:
    """Return the lock of the process that writes the data at ``path``; the system releases it when a process dies."""
    return FileLock(path.with_suffix(_LOCK))


def utc_now() -> str:
    """Return the time as metadata store it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def evict(folder: Path, needed: int, limit: int | None) -> list[CacheEntry]:
    """Remove the least recently used entries until ``needed`` more bytes fit the limit; return what was removed."""
    remove_orphans(folder)
    removed: list[CacheEntry] = []
    size = folder_size(folder)
    for entry in list_entries(folder) if limit is not None else ():
        if size + needed <= (limit or 0):
            break
        if _remove_entry(entry):
            size -= entry.size
            removed.append(entry)
    return removed


def clear_cache(folder: Path, older_than: float = 0.0) -> tuple[list[CacheEntry], list[CacheEntry]]:
    """Remove the entries that were not used for so many seconds; return those removed, and those still in use."""
    remove_orphans(folder)
    old = [entry for entry in list_entries(folder) if time.time() - entry.used >= older_than]
    removed = [entry for entry in old if _remove_entry(entry)]
    return removed, [entry for entry in old if entry not in removed]


def remove_orphans(folder: Path) -> None:
    """Remove what killed processes left: temporary files, metadata and locks without data, data without metadata."""
    remove_partials(folder, _STALE)
    for path in _files(folder):
        data, partial = path.with_suffix(DATA_SUFFIX), path.with_suffix(PARTIAL_SUFFIX)
        metadata = path.with_suffix(_METADATA)
        if (path in (metadata, path.with_suffix(_LOCK)) and not (data.exists() or partial.exists())) or (
            path == partial and not metadata.exists()
        ):
            _remove_unlocked(partial)


def _remove_entry(entry: CacheEntry) -> bool:
    """Remove an entry, unless this process uses it or any process writes it; return whether it is gone."""
    if entry.path.absolute() in _PINNED:
        return False
    if not entry.complete:
        return _remove_unlocked(entry.path)
    with suppress(OSError):
        entry.path.unlink(missing_ok=True)
        entry.path.with_suffix(_METADATA).unlink(missing_ok=True)
    return not entry.path.exists()


def _remove_unlocked(partial: Path) -> bool:
    """Remove the files of a partial entry that no process writes; return whether they are gone."""
    lock = entry_lock(partial)
    try:
        with lock.acquire(blocking=False):
            for suffix in (PARTIAL_SUFFIX, _METADATA, _LOCK):  # the lock last: whoever waits for it starts afresh
                partial.with_suffix(suffix).unlink(missing_ok=True)
    except (OSError, Timeout):
        return False
    return True


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _last_used(metadata: dict[str, Any], default: float) -> float:
    try:
        return min(datetime.fromisoformat(metadata["used"]).timestamp(), time.time())
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return default


def _read_flat_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file if its values are texts, None, and numbers that are finite and not negative."""
    from labelgap.core.stored import parse_json, read_bytes

    try:
        value = parse_json(read_bytes(path, limit=_MAX_METADATA))
    except (LabelGapError, ValueError):
        return None
    if not isinstance(value, dict):
        return None
    return value if all(each is None or isinstance(each, str) or _is_count(each) for each in value.values()) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON atomically; a symbolic link is replaced, not followed."""
    if path.is_symlink():
        path.unlink()
    write_json(path, value)


def _parse_limit(text: str, source: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    try:
        return parse_bytes(text)
    except InputError as error:
        raise InputError(f"{source}={text}: {error} Or 'none' for no limit.") from None
