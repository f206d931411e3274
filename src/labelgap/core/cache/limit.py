"""The folder of the cache, and how large it may become."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import platformdirs

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.files import make_folder, write_json
from labelgap.core.system import free_disk_space, parse_bytes

FEATURE_FOLDER: Final = "features"
"""The subfolder of features, the only one with a size limit."""
LIMIT_VARIABLE: Final = "LABELGAP_CACHE_LIMIT"
_MAX_LIMIT: Final = 20_000_000_000
_DISK_SHARE: Final = 0.1
_SETTINGS: Final = "settings.json"
_MAX_JSON: Final = 1 << 20


class CacheLimit(NamedTuple):
    """How many bytes the features in the cache may take, None for no limit, and where the limit comes from."""

    bytes: int | None
    source: str


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
    settings = read_flat_json(folder / _SETTINGS) or {}
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
        write_flat_json(folder / _SETTINGS, {"limit": limit})
    return cache_limit()


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
    from labelgap.core.stored import parse_json, read_bytes

    try:
        value = parse_json(read_bytes(path, limit=_MAX_JSON))
    except (LabelGapError, ValueError):
        return None
    if not isinstance(value, dict):
        return None
    return value if all(each is None or isinstance(each, str) or _is_count(each) for each in value.values()) else None


def write_flat_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON atomically; a symbolic link is replaced, not followed."""
    if path.is_symlink():
        path.unlink()
    write_json(path, value)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63


def _parse_limit(text: str, source: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    try:
        return parse_bytes(text)
    except InputError as error:
        raise InputError(f"{source}={text}: {error} Or 'none' for no limit.") from None
