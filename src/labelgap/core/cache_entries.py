"""Entries of the cache: a file of data, and beside it a small description that says what it is and when it was used.

``KEY.npy`` is whole; ``KEY.partial`` is being made, or was when its process was killed. ``KEY.json`` describes either.
Several processes may use one folder: what is being made is locked, and what is whole is never written to again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from labelgap.core.cache import folder_size
from labelgap.core.files import remove_partials, write_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "CacheEntry",
    "DATA_SUFFIX",
    "PARTIAL_SUFFIX",
    "clear_cache",
    "evict",
    "list_entries",
    "mark_used",
    "pin",
    "read_entry_metadata",
    "remove_entry",
    "remove_orphans",
    "try_lock",
    "utc_now",
    "write_entry_metadata",
]

DATA_SUFFIX: Final = ".npy"
PARTIAL_SUFFIX: Final = ".partial"
_ABOUT: Final = ".json"
_STALE: Final = 600.0
"""Seconds after which a description that is only half written has no writer any more."""
_HELD: set[Path] = set()


@dataclass(frozen=True)
class CacheEntry:
    """One thing in the cache.

    Attributes:
        path: its data.
        size: bytes on the disk.
        used: when it was last used, in seconds since 1970.
        about: what its maker wrote of it; empty where the description is lost.
    """

    path: Path
    size: int
    used: float
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether it is finished."""
        return self.path.suffix == DATA_SUFFIX


def list_entries(folder: Path) -> list[CacheEntry]:
    """Return all entries of a folder, the one that was not used for longest first."""
    found = []
    for path in _listed(folder):
        if path.suffix not in (DATA_SUFFIX, PARTIAL_SUFFIX) or path.name.startswith("."):
            continue
        with suppress(OSError):
            known, about = path.stat(), read_entry_metadata(path) or {}
            beside = path.with_suffix(_ABOUT)
            size = known.st_size + (beside.stat().st_size if beside.exists() else 0)
            found.append(CacheEntry(path, size, _used(about, known.st_mtime), about))
    return sorted(found, key=lambda entry: (entry.used, entry.path.name))


def read_entry_metadata(path: Path) -> dict[str, Any] | None:
    """Return what stands beside the data at ``path``; None where nothing does that can be read."""
    try:
        about = json.loads(path.with_suffix(_ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def write_entry_metadata(path: Path, about: dict[str, Any]) -> None:
    """Write a description beside the data at ``path``."""
    write_json(path.with_suffix(_ABOUT), about)


def mark_used(path: Path, about: dict[str, Any]) -> None:
    """Note that the data at ``path`` are used now, and not to be removed while this process lives.

    A cache that may only be read is used as it is.
    """
    pin(path)
    with suppress(OSError):
        write_entry_metadata(path, {**about, "used": utc_now()})


def pin(path: Path) -> None:
    """Keep this process from removing the data at ``path``."""
    _HELD.add(path.absolute())


def utc_now() -> str:
    """Return the time as descriptions write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def remove_entry(entry: CacheEntry) -> bool:
    """Remove an entry, unless this process uses it or any process is making it; return whether it is gone."""
    if entry.path.absolute() in _HELD:
        return False
    if entry.whole:
        return _removed(entry.path)
    try:
        with entry.path.open("r+b") as file:
            return try_lock(file) is not False and _removed(entry.path)
    except OSError:
        return not entry.path.exists()


def evict(folder: Path, needed: int, limit: int | None) -> list[CacheEntry]:
    """Remove what was not used for longest until ``needed`` bytes more fit into the limit; return what was removed.

    Args:
        folder: of the entries.
        needed: bytes to come.
        limit: of all that the folder holds; None for none.
    """
    remove_orphans(folder)
    removed: list[CacheEntry] = []
    taken = folder_size(folder)
    for entry in list_entries(folder) if limit is not None else ():
        if taken + needed <= (limit or 0):
            break
        if remove_entry(entry):
            taken -= entry.size
            removed.append(entry)
    return removed


def clear_cache(folder: Path, older_than: float = 0.0) -> tuple[list[CacheEntry], list[CacheEntry]]:
    """Remove the entries that were not used for so many seconds; return those, and those that are in use and stay."""
    remove_orphans(folder)
    old = [entry for entry in list_entries(folder) if time.time() - entry.used >= older_than]
    removed = [entry for entry in old if remove_entry(entry)]
    return removed, [entry for entry in old if entry not in removed]


def remove_orphans(folder: Path) -> None:
    """Remove what nobody can use: what killed writers left, descriptions of nothing, and beginnings without one."""
    remove_partials(folder, _STALE)
    for path in _listed(folder):
        if path.suffix == _ABOUT and not _any_exists(
            path.with_suffix(suffix) for suffix in (DATA_SUFFIX, PARTIAL_SUFFIX)
        ):
            with suppress(OSError):
                path.unlink()
        elif path.suffix == PARTIAL_SUFFIX and not path.with_suffix(_ABOUT).exists() and fcntl is not None:
            with suppress(OSError):
                remove_entry(CacheEntry(path, 0, time.time()))


def try_lock(file: IO[bytes]) -> bool | None:
    """Lock an open file until it is closed, by whatever end; False where another has it, None where nobody can know."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _removed(path: Path) -> bool:
    """Remove data and description; return whether the data are gone."""
    try:
        path.unlink(missing_ok=True)
        path.with_suffix(_ABOUT).unlink(missing_ok=True)
    except OSError:
        return not path.exists()
    return True


def _used(about: dict[str, Any], otherwise: float) -> float:
    try:
        return datetime.fromisoformat(about["used"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return otherwise


def _any_exists(paths: Iterable[Path]) -> bool:
    return any(os.path.lexists(path) for path in paths)
