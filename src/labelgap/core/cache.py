"""Where results that can be computed again are kept, and how much of the disk they may take."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from labelgap.core.errors import InputError
from labelgap.core.files import make_folder, write_json
from labelgap.core.system import free_disk_space, parse_bytes

__all__ = [
    "CacheLimit",
    "FEATURE_FOLDER",
    "LIMIT_VARIABLE",
    "cache_folder",
    "cache_limit",
    "folder_size",
    "set_cache_limit",
]

FEATURE_FOLDER: Final = "features"
"""The folder of what networks made of images, below the cache's."""
LIMIT_VARIABLE: Final = "LABELGAP_CACHE_LIMIT"
_MOST: Final = 20_000_000_000
_SHARE: Final = 0.1
_SETTINGS: Final = "settings.json"
_NONE: Final = "none"
_DEFAULT: Final = "default"


class CacheLimit(NamedTuple):
    """How many bytes the features in the cache may take, None for as many as they like, and who says so."""

    bytes: int | None
    source: str


def cache_folder() -> Path:
    """Return the folder: ``$LABELGAP_CACHE``, or ``labelgap`` in the user's cache folder. It may not exist yet."""
    given = os.environ.get("LABELGAP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "labelgap"


def cache_limit() -> CacheLimit:
    """Return the limit: ``$LABELGAP_CACHE_LIMIT``, what ``labelgap cache --limit`` has set, or what suits the disk.

    By default it is 20 GB, or a tenth of what the disk would have free without the cache, whichever is less.
    """
    folder = cache_folder()
    if given := os.environ.get(LIMIT_VARIABLE):
        return CacheLimit(_parsed(given, LIMIT_VARIABLE), LIMIT_VARIABLE)
    try:
        stored = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))["limit"]
        return CacheLimit(None if stored is None else int(stored), "labelgap cache --limit")
    except (OSError, ValueError, KeyError, TypeError):
        pass
    free = free_disk_space(folder)
    if free is None:
        return CacheLimit(_MOST, _DEFAULT)
    return CacheLimit(min(_MOST, round(_SHARE * (free + folder_size(folder)))), _DEFAULT)


def set_cache_limit(text: str) -> CacheLimit:
    """Keep a limit from now on: an amount such as "5GB", "none" for no limit, or "default"."""
    folder = cache_folder()
    if text.strip().lower() == _DEFAULT:
        (folder / _SETTINGS).unlink(missing_ok=True)
    else:
        limit = _parsed(text, "--limit")
        make_folder(folder)
        write_json(folder / _SETTINGS, {"limit": limit})
    return cache_limit()


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 where there is none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue  # somebody else has just removed it
    return total


def _parsed(text: str, source: str) -> int | None:
    if text.strip().lower() == _NONE:
        return None
    try:
        return parse_bytes(text)
    except InputError as error:
        raise InputError(f"{source}={text}: {error} Or '{_NONE}' for no limit.") from None
