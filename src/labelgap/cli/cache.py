"""``labelgap cache``: list what the cache holds, limit its size, clear it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from labelgap.cli.options import AsJson
from labelgap.cli.parsing import parse_duration
from labelgap.cli.printing import print_json, print_table
from labelgap.core.system import format_bytes
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.core.cache.segments import RowFolder

cache = typer.Typer(help="List what is cached so that it need not be computed again; `clear` removes it.")

_SUBFOLDERS: Final = {
    "scans": "scans of images",
    "shards": "shards of URLs, and which shards are complete",
    "thumbnails": "thumbnails of the review page",
}


@cache.callback(invoke_without_command=True)
def list_cache(
    context: typer.Context,
    as_json: AsJson = False,
    limit: Annotated[str | None, typer.Option(help="Limit the size of all features: 5GB, none, or default.")] = None,
) -> None:
    """List the cached features and, a line each, the other subfolders of the cache."""
    from labelgap.core.cache.limit import FEATURE_FOLDER, cache_folder, cache_limit, folder_size, set_cache_limit
    from labelgap.core.cache.segments import evict, list_folders, remove_orphans

    if context.invoked_subcommand is not None:
        return
    folder = cache_folder()
    features = folder / FEATURE_FOLDER
    if limit is not None:
        removed = evict(features, 0, set_cache_limit(limit).bytes)
        _print_removed(() if as_json else removed)
    remove_orphans(features)
    entries, maximum, others = list_folders(features), cache_limit(), _other_files(folder)
    size, total = folder_size(features), folder_size(folder)
    if as_json:
        content = {
            "folder": str(folder),
            "bytes": total,
            "features_bytes": size,
            "limit": maximum.bytes,
            "limit_from": maximum.source,
            "features": [_entry_json(entry) for entry in entries],
            "others": {name: {"files": len(paths), "bytes": _total_size(paths)} for name, paths in others.items()},
        }
        print_json(content)
        return
    _print_table(entries, others)
    allowed = "without a limit" if maximum.bytes is None else f"of at most {format_bytes(maximum.bytes)}"
    print(f"{'features':<10}{format_bytes(size)} {allowed} ({maximum.source})")
    print(f"{'total':<10}{format_bytes(total)} in {folder}")


@cache.command()
def clear(
    older_than: Annotated[str | None, typer.Option(help="Only what was last used longer ago: 30d, 12h, 2w.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also scans of images and thumbnails.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove features from the cache; they are computed again when they are needed."""
    from labelgap.core.cache.limit import FEATURE_FOLDER, cache_folder
    from labelgap.core.cache.segments import clear_cache

    folder, age = cache_folder(), 0.0 if older_than is None else parse_duration(older_than, "--older-than")
    removed = clear_cache(folder / FEATURE_FOLDER, age)
    others = {name: _remove_old(paths, age) for name, paths in _other_files(folder).items()} if everything else {}
    if as_json:
        counts = {name: len(paths) for name, paths in others.items()}
        entries = [_entry_json(entry) for entry in removed]
        print_json({"removed": entries, "others_removed": counts})
        return
    _print_removed(removed)
    for name, paths in others.items():
        if paths:
            print(f"removed   {_SUBFOLDERS.get(name, name)} ({pluralize(len(paths), 'file')})")
    if not removed and not any(others.values()):
        print("nothing to remove" + ("" if older_than is None else f" that was not used for {older_than}"))


def format_age(seconds: float) -> str:
    """Return how long ago something was.

    Example:
        >>> format_age(20), format_age(90 * 60), format_age(3 * 86400)
        ('just now', '1 hour ago', '3 days ago')
    """
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{pluralize(int(seconds // size), unit)} ago"
    return "just now"


def _print_table(entries: Sequence[RowFolder], others: Mapping[str, Sequence[Path]]) -> None:
    now, rows = time.time(), []
    for entry in entries:
        side = f"{entry.metadata['size']} px" if "size" in entry.metadata else "–"
        rows.append((_title(entry), side, f"{entry.count:,}", format_bytes(entry.size), format_age(now - entry.used)))
    for name, paths in others.items():
        age = format_age(now - max(path.stat().st_mtime for path in paths))
        rows.append((_SUBFOLDERS.get(name, name), "–", "–", format_bytes(_total_size(paths)), age))
    if rows:
        print_table(
            ("features of", "input", "images", "on disk", "last used"), rows, right=("input", "images", "on disk")
        )


def _print_removed(removed: Sequence[RowFolder]) -> None:
    for entry in removed:
        print(f"removed   {_title(entry)}, {entry.count:,} images, {format_bytes(entry.size)}")
    if len(removed) > 1:
        print(f"          {format_bytes(sum(entry.size for entry in removed))} in all")


def _title(entry: RowFolder) -> str:
    """Return the network whose features these are."""
    unknown = f"no description ({entry.path.name[:8]}…)"
    return str(entry.metadata.get("backbone", entry.metadata.get("content", unknown)))


def _entry_json(entry: RowFolder) -> dict[str, Any]:
    used = datetime.fromtimestamp(entry.used, UTC).isoformat(timespec="seconds")
    return {**entry.metadata, "path": str(entry.path), "images": entry.count, "bytes": entry.size, "used": used}


def _other_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of every subfolder but that of features."""
    from labelgap.core.cache.limit import FEATURE_FOLDER

    subfolders = [path for path in sorted(folder.glob("*")) if path.is_dir() and path.name != FEATURE_FOLDER]
    files = {below.name: [path for path in sorted(below.rglob("*")) if path.is_file()] for below in subfolders}
    return {name: paths for name, paths in files.items() if paths}


def _total_size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _remove_old(paths: Sequence[Path], age: float) -> list[Path]:
    removed = []
    for path in paths:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime >= age:
                path.unlink()
                removed.append(path)
    return removed
