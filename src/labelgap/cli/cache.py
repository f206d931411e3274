"""``labelgap cache``: list what the cache holds, limit its size, clear it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Context, Typer

from labelgap.cli.options import AsJson, option, parse_duration
from labelgap.cli.printing import print_fields, print_json, print_table
from labelgap.core.system import format_bytes
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.core.cache import CachedRows

cache = Typer()

_SUBFOLDERS: Final = {
    "scans": "scans of images",
    "shards": "shards of URLs, and which shards are complete",
    "thumbnails": "thumbnails of the review page",
}


@cache.callback(invoke_without_command=True)
def list_cache(
    context: Context,
    as_json: AsJson = False,
    limit: Annotated[str | None, option("Limit the size of all features: 5GB, none, or default.")] = None,
) -> None:
    """List what is cached so that it need not be computed again; `clear` removes it."""
    if context.invoked_subcommand is not None:
        return
    from labelgap.core import cache as files

    folder = files.cache_folder()
    if limit is not None:
        removed = files.shrink_cache(files.set_cache_limit(limit).bytes)
        _print_removed(() if as_json else removed)
    entries, maximum, others = files.list_rows(), files.cache_limit(), files.other_files(folder)
    size, total = files.folder_size(folder / files.FEATURE_FOLDER), files.folder_size(folder)
    if as_json:
        about = {"limit": maximum.bytes, "limit_from": maximum.source, "features": [*map(_entry_json, entries)]}
        sizes = {
            name: {"files": len(paths), "bytes": files.folder_size(folder / name)} for name, paths in others.items()
        }
        return print_json({"folder": folder, "bytes": total, "features_bytes": size, **about, "others": sizes})
    rows = []
    for entry in entries:
        side = f"{entry.metadata['size']} px" if "size" in entry.metadata else "–"
        rows.append((_title(entry), side, f"{entry.count:,}", format_bytes(entry.size), _age(entry.used)))
    for name, paths in others.items():
        age = _age(max(path.stat().st_mtime for path in paths))
        rows.append((_SUBFOLDERS.get(name, name), "–", "–", format_bytes(files.folder_size(folder / name)), age))
    if rows:
        numbers = ("input", "images", "on disk")
        print_table(("features of", *numbers, "last used"), rows, right=numbers)
    allowed = "without a limit" if maximum.bytes is None else f"of at most {format_bytes(maximum.bytes)}"
    print_fields(
        ("features", f"{format_bytes(size)} {allowed} ({maximum.source})"),
        ("total", f"{format_bytes(total)} in {folder}"),
    )


@cache.command()
def clear(
    older_than: Annotated[str | None, option("Only what was last used longer ago: 30d, 12h, 2w.")] = None,
    everything: Annotated[bool, option("Also scans of images and thumbnails.", name="--all")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove features from the cache; they are computed again when they are needed."""
    from labelgap.core import cache as files

    folder, age = files.cache_folder(), 0.0 if older_than is None else parse_duration(older_than, "--older-than")
    removed = files.clear_cache(age)
    listed = files.other_files(folder) if everything else {}
    others = {name: files.remove_old(paths, age) for name, paths in listed.items()}
    if as_json:
        return print_json({"removed": [*map(_entry_json, removed)], "others_removed": others})
    _print_removed(removed)
    for name, count in others.items():
        print_fields(("removed", f"{_SUBFOLDERS.get(name, name)} ({pluralize(count, 'file')})" if count else ""))
    if not removed and not any(others.values()):
        print("nothing to remove" + ("" if older_than is None else f" that was not used for {older_than}"))


def _age(used: float) -> str:
    seconds, units = time.time() - used, (("day", 86400), ("hour", 3600), ("minute", 60))
    return next((f"{pluralize(int(seconds // size), unit)} ago" for unit, size in units if seconds >= size), "just now")


def _print_removed(removed: Sequence[CachedRows]) -> None:
    for entry in removed:
        print_fields(("removed", f"{_title(entry)}, {entry.count:,} images, {format_bytes(entry.size)}"))
    if len(removed) > 1:
        print_fields(("", f"{format_bytes(sum(entry.size for entry in removed))} in all"))


def _title(entry: CachedRows) -> str:
    unknown = f"no description ({entry.name[:8]}…)"
    return str(entry.metadata.get("backbone", entry.metadata.get("content", unknown)))


def _entry_json(entry: CachedRows) -> dict[str, Any]:
    used = datetime.fromtimestamp(entry.used, UTC).isoformat(timespec="seconds")
    return {**entry.metadata, "key": entry.name, "images": entry.count, "bytes": entry.size, "used": used}
