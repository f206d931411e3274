"""The files of the feature cache, and which of them are evicted.

A subfolder holds rows of one kind (``row_store``): the features of one network, or the digests of files. Its rows are
in segments, ``NAME.rows`` and ``NAME.keys``; ``about.json`` describes them. The time of change of ``NAME.keys`` is when
the segment was last used, that of ``NAME.rows`` when it was last written. Segments are evicted whole.

What lies in the folder may be damaged, or made by somebody else who can write to it: a description that is not as this
module writes it does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from labelgap.core.cache.limit import folder_size, read_flat_json
from labelgap.core.files import remove_partials

ABOUT_FILE: Final = "about.json"
KEY_ENTRY_BYTES: Final = 20
"""Bytes of a row in ``NAME.keys``: its key and its checksum."""
STALE_SECONDS: Final = 600.0
"""Seconds without a write after which a segment or a temporary file has no writer any more."""
_KEYS: Final = ".keys"
_ROWS: Final = ".rows"
_PINNED: set[Path] = set()


@dataclass(frozen=True)
class Segment:
    """A segment on disk: the path of its keys, the bytes of its two files, when it was used and when written to."""

    keys: Path
    keys_size: int
    rows_size: int
    used: float
    written: float

    @property
    def rows(self) -> Path:
        """The path of its rows."""
        return self.keys.with_suffix(_ROWS)

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return self.keys_size + self.rows_size

    def mark_used(self) -> None:
        """Store that it is used now, and keep this process from evicting it; a read-only cache is used as it is."""
        pin(self.keys)
        with suppress(OSError):
            os.utime(self.keys)

    @property
    def pinned(self) -> bool:
        """Whether this process uses it."""
        return self.keys.absolute() in _PINNED

    def remove(self) -> bool:
        """Remove its files; return whether they are gone."""
        with suppress(OSError):
            self.keys.unlink(missing_ok=True)  # first: rows without keys are never read
            self.rows.unlink(missing_ok=True)
        return not self.keys.exists()


@dataclass(frozen=True)
class RowFolder:
    """Segments of one subfolder, with its description: what is listed, or was removed."""

    path: Path
    metadata: dict[str, Any]
    segments: Sequence[Segment]

    @property
    def size(self) -> int:
        """Bytes of the segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(segment.keys_size // KEY_ENTRY_BYTES for segment in self.segments)

    @property
    def used(self) -> float:
        """When it was last used."""
        return max((segment.used for segment in self.segments), default=0.0)


def pin(keys: Path) -> None:
    """Keep this process from evicting a segment."""
    _PINNED.add(keys.absolute())


def list_segments(folder: Path) -> list[Segment]:
    """Return the segments in a subfolder, the oldest first: their names begin with the time of their creation."""
    found, now = [], time.time()
    for keys in _files(folder, _KEYS):
        with suppress(OSError):
            of_keys, of_rows = keys.stat(), keys.with_suffix(_ROWS).stat()
            times = min(of_keys.st_mtime, now), min(of_rows.st_mtime, now)
            found.append(Segment(keys, of_keys.st_size, of_rows.st_size, *times))
    return found


def list_folders(folder: Path) -> list[RowFolder]:
    """Return the subfolders of a folder that hold rows, the most recently used first."""
    return _group(_all_segments(folder))


def _group(segments: Iterable[Segment]) -> list[RowFolder]:
    """Return segments by their subfolder, the most recently used first."""
    groups: dict[Path, list[Segment]] = {}
    for segment in segments:
        groups.setdefault(segment.keys.parent, []).append(segment)
    folders = [RowFolder(path, read_flat_json(path / ABOUT_FILE) or {}, group) for path, group in groups.items()]
    return sorted(folders, key=lambda folder: -folder.used)


def evict(folder: Path, needed: int, limit: int | None) -> list[RowFolder]:
    """Remove the least recently used segments until ``needed`` more bytes fit the limit; return what was removed."""
    remove_orphans(folder)
    removed, size = [], folder_size(folder)
    segments = [] if limit is None else _all_segments(folder)
    for segment in sorted(segments, key=lambda each: (each.used, each.keys.name)):
        if size + needed <= (limit or 0):
            break
        if not segment.pinned and segment.remove():
            size -= segment.size
            removed.append(segment)
    return _removed(removed)


def clear_cache(folder: Path, older_than: float = 0.0) -> list[RowFolder]:
    """Remove the segments that were not used for so many seconds; return what was removed."""
    remove_orphans(folder)
    segments, now = _all_segments(folder), time.time()
    return _removed([each for each in segments if now - each.used >= older_than and not each.pinned and each.remove()])


def remove_orphans(folder: Path) -> None:
    """Remove what killed processes left, what an earlier version of labelgap cached, links, and empty subfolders."""
    for path in _files(folder, "*"):
        with suppress(OSError):
            if path.is_symlink() or not path.is_dir():  # KEY.npy, .partial, .json, .lock of an earlier version
                path.unlink()
                continue
        remove_partials(path, STALE_SECONDS)
        for part in (*_files(path, _KEYS), *_files(path, _ROWS)):
            with suppress(OSError):
                other = part.with_suffix(_ROWS if part.suffix == _KEYS else _KEYS)
                if not other.exists() and time.time() - part.lstat().st_mtime >= STALE_SECONDS:
                    part.unlink()
        _remove_empty(path)


def _removed(segments: list[Segment]) -> list[RowFolder]:
    """Return what was removed, by subfolder, and remove the subfolders that are empty now."""
    groups = _group(segments)
    for group in groups:
        _remove_empty(group.path)
    return groups


def _remove_empty(folder: Path) -> None:
    """Remove a subfolder in which nothing but its description is left."""
    with suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {ABOUT_FILE}:
            (folder / ABOUT_FILE).unlink(missing_ok=True)
            folder.rmdir()


def _all_segments(folder: Path) -> list[Segment]:
    return [segment for subfolder in _files(folder, "*") for segment in list_segments(subfolder)]


def _files(folder: Path, suffix: str) -> list[Path]:
    """Return the entries of a folder with a suffix ("*": all), sorted; none where there is no folder."""
    try:
        return sorted(path for path in folder.iterdir() if suffix == "*" or path.suffix == suffix)
    except OSError:
        return []
