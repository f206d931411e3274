"""``labelgap cache``: what is kept so that it need not be computed again, how large it is, and how it is cleared."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from labelgap.core.errors import InputError

if TYPE_CHECKING:
    from labelgap.core.cache_entries import CacheEntry

__all__ = ["cache"]

cache = typer.Typer(help="List what is kept so that it need not be computed again; `clear` removes it.")

AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]

_OTHERS: Final = {"scans": "what was seen of images", "pictures": "pictures of the review page"}
_UNITS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@cache.callback(invoke_without_command=True)
def list_cache(
    context: typer.Context,
    as_json: AsJson = False,
    limit: Annotated[
        str | None, typer.Option(help="Let features take so much from now on: 5GB, none, or default.")
    ] = None,
) -> None:
    """List what is kept: features of images and, a line each, the smaller things."""
    from labelgap.core.cache import FEATURE_FOLDER, cache_folder, cache_limit, folder_size, set_cache_limit
    from labelgap.core.cache_entries import evict, list_entries, remove_orphans
    from labelgap.core.system import format_bytes

    if context.invoked_subcommand is not None:
        return
    folder = cache_folder()
    if limit is not None:
        _told_removed(evict(folder / FEATURE_FOLDER, 0, set_cache_limit(limit).bytes), quiet=as_json)
    remove_orphans(folder / FEATURE_FOLDER)
    kept, most, others = list_entries(folder / FEATURE_FOLDER)[::-1], cache_limit(), _others(folder)
    size, total = folder_size(folder / FEATURE_FOLDER), folder_size(folder)
    if as_json:
        found = {
            "folder": str(folder),
            "bytes": total,
            "features_bytes": size,
            "limit": most.bytes,
            "limit_from": most.source,
            "features": [_plain(entry) for entry in kept],
            "others": {name: {"files": len(paths), "bytes": _size(paths)} for name, paths in others.items()},
        }
        print(json.dumps(found, ensure_ascii=False))
        return
    _print_table(kept, others)
    allowed = "without a limit" if most.bytes is None else f"of at most {format_bytes(most.bytes)}"
    print(f"{'features':<10}{format_bytes(size)} {allowed} ({most.source})")
    print(f"{'total':<10}{format_bytes(total)} in {folder}")


@cache.command()
def clear(
    older_than: Annotated[
        str | None, typer.Option(help="Only what was not used for so long, e.g. 30d, 12h or 2w.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also all else: what was seen of images, pictures of the review page.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove features from the cache; they are computed again when they are needed."""
    from labelgap.core.cache import FEATURE_FOLDER, cache_folder
    from labelgap.core.cache_entries import clear_cache as clear_entries

    folder, age = cache_folder(), 0.0 if older_than is None else parse_age(older_than)
    removed, in_use = clear_entries(folder / FEATURE_FOLDER, age)
    others = {name: _remove_old(paths, age) for name, paths in _others(folder).items()} if everything else {}
    if as_json:
        gone = {name: len(paths) for name, paths in others.items()}
        features = [_plain(entry) for entry in removed]
        print(json.dumps({"removed": features, "others_removed": gone, "in_use": len(in_use)}, ensure_ascii=False))
        return
    _told_removed(removed)
    for name, paths in others.items():
        if paths:
            print(f"removed   {_OTHERS.get(name, name)} ({_count(len(paths), 'file')})")
    if in_use:
        print(f"left      {_count(len(in_use), 'entry', 'entries')} that a process is making now")
    if not removed and not any(others.values()):
        print("nothing to remove" + ("" if older_than is None else f" that was not used for {older_than}"))


def parse_age(text: str) -> float:
    """Read how long ago: minutes, hours, days or weeks.

    Example:
        >>> parse_age("30d") == 30 * 24 * 3600, parse_age("12h")
        (True, 43200.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([mhdw])", text.strip().lower())
    if found is None:
        raise InputError(f"--older-than {text}: write it like 30d, 12h, 2w or 90m.")
    return float(found[1]) * _UNITS[found[2]]


def format_age(seconds: float) -> str:
    """Say how long ago something was.

    Example:
        >>> format_age(20), format_age(90 * 60), format_age(3 * 86400)
        ('just now', '1 hour ago', '3 days ago')
    """
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{_count(int(seconds // size), unit)} ago"
    return "just now"


def _print_table(kept: Sequence[CacheEntry], others: Mapping[str, Sequence[Path]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from labelgap.core.system import format_bytes

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("images", justify="right")
    table.add_column("backbone")
    for name in ("input", "on disk"):
        table.add_column(name, justify="right")
    table.add_column("last used")
    for entry in kept:
        size = f"{entry.about['size']} px" if "size" in entry.about else "–"
        backbone = str(entry.about.get("backbone", "–"))
        table.add_row(
            _what(entry), _images(entry), backbone, size, format_bytes(entry.size), format_age(time.time() - entry.used)
        )
    for name, paths in others.items():
        used = format_age(time.time() - max(path.stat().st_mtime for path in paths))
        table.add_row(_OTHERS.get(name, name), "–", "–", "–", format_bytes(_size(paths)), used)
    if table.row_count:
        Console(highlight=False, markup=False, emoji=False).print(table)


def _what(entry: CacheEntry) -> str:
    """Say what an entry is about, and how far it is where it is not whole."""
    about = entry.about
    what = str(about.get("data", f"not described ({entry.path.stem[:8]}…)"))
    if entry.whole:
        return what
    rows, images = about.get("rows", 0), about.get("images", 0)
    return f"{what} (unfinished: {100 * rows // images if images else 0} %)"


def _images(entry: CacheEntry) -> str:
    images = entry.about.get("images")
    return f"{images:,}" if isinstance(images, int) else "–"


def _plain(entry: CacheEntry) -> dict[str, Any]:
    about = {name: value for name, value in entry.about.items() if name not in ("used", "crc32")}
    used = datetime.fromtimestamp(entry.used, UTC).isoformat(timespec="seconds")
    return {**about, "path": str(entry.path), "bytes": entry.size, "used": used, "whole": entry.whole}


def _told_removed(removed: Sequence[CacheEntry], quiet: bool = False) -> None:
    from labelgap.core.system import format_bytes

    for entry in () if quiet else removed:
        print(f"removed   {_what(entry)}, {_images(entry)} images, {format_bytes(entry.size)}")
    if len(removed) > 1 and not quiet:
        print(f"          {format_bytes(sum(entry.size for entry in removed))} in all")


def _others(folder: Path) -> dict[str, list[Path]]:
    """Return what the cache holds besides features, folder by folder."""
    from labelgap.core.cache import FEATURE_FOLDER

    found = {path.name: path for path in sorted(folder.glob("*")) if path.is_dir() and path.name != FEATURE_FOLDER}
    files = {name: [path for path in sorted(below.rglob("*")) if path.is_file()] for name, below in found.items()}
    return {name: paths for name, paths in files.items() if paths}


def _size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _remove_old(paths: Sequence[Path], age: float) -> list[Path]:
    gone = []
    for path in paths:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime >= age:
                path.unlink()
                gone.append(path)
    return gone


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else several or one + 's'}"
