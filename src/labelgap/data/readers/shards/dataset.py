"""From shards to a data set."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.cache import cache_folder, read_flat_json, write_flat_json
from labelgap.core.errors import InputError, LabelGapError, Problem, ProblemsError
from labelgap.core.files import display_path, file_digest, make_folder
from labelgap.core.findings import Finding, Note
from labelgap.core.system import cpu_count
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import LabelsCounted, ShardsSkipped, describe_splits
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.shards.images import ShardImages
from labelgap.data.readers.shards.index import (
    IMAGES_FILE,
    INDEX_FILE,
    UNFINISHED_FILE,
    ImageRows,
    ShardEntry,
    ShardIndex,
    read_index,
    write_index,
)
from labelgap.data.readers.shards.location import CACHE_FOLDER, RemoteFolder, ShardLocation, is_shard_url
from labelgap.data.readers.shards.tar_file import ShardContent, join_contents, scan_shard
from labelgap.labels.io.table_file import SPLITS, check_choice

_REQUESTS_AT_ONCE: Final = 16


def is_shard_folder(path: Path) -> bool:
    """Return whether a path leads to shards: a folder with an index of shards, or with tar files, or the index."""
    if path.name == INDEX_FILE:
        path = path.parent
    indexed = (path / INDEX_FILE).is_file() and (path / IMAGES_FILE).is_file()
    return path.is_dir() and (indexed or (path / UNFINISHED_FILE).is_file() or bool(_tars(path)))


def load_shards(path: str | os.PathLike[str], *, on_bad_image: str = "error") -> Dataset:
    """Open shards, and check that all of them are complete.

    The bytes of every shard in a folder are compared with its digest once, and again when the file has changed. Of
    shards at a URL, the sizes are compared; each is compared with its digest when it is copied into the cache.

    Args:
        path: a folder, or a URL (``https://``, ``s3://``), that ``labelgap shard`` has written; or a folder of tar
            files in the same layout, without an index.
        on_bad_image: "error" names all broken shards in one error, "skip" leaves them out.
    """
    check_choice("on_bad_image", on_bad_image, ("error", "skip"))
    text = os.fspath(path)
    broken: dict[str, str] = {}
    if is_shard_url(text):
        location, rows, index = _open_url(text)
        broken = _check_sizes(location)
    else:
        refuse_url(text, "shards")
        folder = Path(path).absolute()
        folder = folder.parent if folder.name == INDEX_FILE else folder
        if (folder / INDEX_FILE).exists():
            index, rows = read_index(folder)
            broken = _check_files(folder, index.shards)
        else:
            index, rows, broken = _index_tars(folder)
        location = ShardLocation(folder, index.shards)
    name = display_path(text)
    lost = sum(entry.count for entry in index.shards if entry.name in broken)
    valid = np.array([entry.name not in broken for entry in index.shards], dtype=bool)
    kept = np.flatnonzero(valid[rows.shards]) if len(rows) else np.zeros(0, dtype=np.int64)
    if broken and (on_bad_image == "error" or not len(kept)):
        problems = [Problem(0, reason) for reason in broken.values()]
        outcome = f"{pluralize(len(broken), 'shard')} cannot be read"
        remedy = "--on-bad-image skip leaves them out" if len(kept) else "and there are no others"
        raise ProblemsError(name, problems, f"{outcome} ({remedy})", unit="")
    findings: list[Finding] = [ShardsSkipped(tuple(sorted(broken)), lost)] if broken else []
    return _dataset(name, index, rows, ShardImages(location, rows), kept, findings)


def _dataset(
    name: str,
    index: ShardIndex,
    rows: ImageRows,
    images: ShardImages,
    kept: NDArray[np.int64],
    findings: Sequence[Finding],
) -> Dataset:
    """Return the data set of the rows in shards that can be read."""
    parts = {}
    for split in SPLITS:
        members = kept[rows.splits[kept] == split]
        if not len(members):
            continue
        groups = rows.groups[members]
        table = rows.labels(index.classes, members)
        parts[split] = Split(split, images.select(members), table, groups=groups if (groups >= 0).all() else None)
    if "train" not in parts or not len(parts["train"].labels.values):
        raise InputError(f"{name}: no label of a train image is known, so there is nothing to learn from.")
    counts = LabelsCounted.of([part.labels for part in parts.values()])
    split_findings = describe_splits({split: len(part) for split, part in parts.items()}, index.has_splits)
    rule = Note("labels as the shards list them: present, absent; all others are unknown")
    return Dataset(
        name,
        parts["train"],
        parts.get("val"),
        parts.get("test"),
        findings=(rule, counts, *findings, *split_findings),
    )


def _open_url(url: str) -> tuple[ShardLocation, ImageRows, ShardIndex]:
    """Read the index at a URL."""
    folder = RemoteFolder(url.removesuffix(f"/{INDEX_FILE}"))
    with TemporaryDirectory(prefix="labelgap-") as temporary:
        for name in (INDEX_FILE, IMAGES_FILE):
            (Path(temporary) / name).write_bytes(folder.read(name))
        try:
            index, rows = read_index(Path(temporary))
        except LabelGapError as error:
            raise InputError(str(error).replace(temporary, folder.url)) from None
    return ShardLocation(folder.url, index.shards), rows, index


def _check_sizes(location: ShardLocation) -> dict[str, str]:
    """Return name → problem of the shards that are missing at a URL, have another size, or were damaged before."""
    folder, numbers = RemoteFolder(str(location.root)), {entry.name: n for n, entry in enumerate(location.entries)}

    def check(entry: ShardEntry) -> str | None:
        try:
            size = folder.size(entry.name)
            if size == entry.bytes and location.is_doubtful(numbers[entry.name]):
                location.path(numbers[entry.name])
        except InputError as error:
            return str(error).rstrip(".")
        return None if size in (None, entry.bytes) else _truncated(folder.address(entry.name), size, entry)

    return _checked(location.entries, check, _REQUESTS_AT_ONCE)


def _check_files(folder: Path, entries: Sequence[ShardEntry]) -> dict[str, str]:
    """Return name → problem of the shards that are missing, or are not what their index says.

    A shard is read once: its state and its digest are kept in the cache.
    """
    key = hashlib.blake2b(os.fsencode(folder), digest_size=16).hexdigest()
    cache = cache_folder() / CACHE_FOLDER / f"{key}.json"
    known = (read_flat_json(cache) or {}) if cache.exists() else {}
    verified: dict[str, str] = {}

    def check(entry: ShardEntry) -> str | None:
        path = folder / entry.name
        try:
            status = path.stat()
            if status.st_size != entry.bytes:
                return _truncated(str(path), status.st_size, entry)
            state = f"{entry.digest} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
            if known.get(entry.name) != state and file_digest(path).hex() != entry.digest:
                return f"{path} is damaged: its digest is not the one in {INDEX_FILE}. Copy it again"
        except FileNotFoundError:
            return f"{path} does not exist"
        except OSError as error:
            return f"{path} cannot be read ({(error.strerror or str(error)).lower()})"
        verified[entry.name] = state
        return None

    broken = _checked(entries, check, cpu_count())
    if verified != known:
        with suppress(OSError, LabelGapError):  # the next one reads the shards again
            make_folder(cache.parent)
            write_flat_json(cache, verified)
    return broken


def _checked(entries: Sequence[ShardEntry], check: Callable[[ShardEntry], str | None], threads: int) -> dict[str, str]:
    with ThreadPoolExecutor(threads) as pool:
        found = zip(entries, pool.map(check, entries), strict=True)
        return {entry.name: problem for entry, problem in found if problem is not None}


def _truncated(place: str, size: int, entry: ShardEntry) -> str:
    what = "is truncated" if size < entry.bytes else "is not what its index says"
    return f"{place} {what}: it has {size:,} bytes, not {entry.bytes:,}. Copy it again"


def _tars(folder: Path) -> list[Path]:
    """Return the tar files of a folder, sorted."""
    return sorted(path for path in folder.glob("*.tar") if path.is_file() and not path.name.startswith("."))


def _index_tars(folder: Path) -> tuple[ShardIndex, ImageRows, dict[str, str]]:
    """Index tar files that have no index; the result is cached by their states."""
    if (folder / UNFINISHED_FILE).exists():
        raise InputError(f"{folder} is not complete: `labelgap shard` was stopped. The same command writes the rest.")
    paths = _tars(folder)
    if not paths:
        raise InputError(f"{folder} holds no shards: there is no {INDEX_FILE} in it, nor a tar file.")
    digest = hashlib.blake2b(os.fsencode(folder), digest_size=16)
    for path in paths:
        status = path.stat()
        digest.update(b"\0%b\0%d %d %d" % (os.fsencode(path.name), status.st_size, status.st_mtime_ns, status.st_ino))
    cached = cache_folder() / CACHE_FOLDER / f"index-{digest.hexdigest()}"
    with suppress(LabelGapError):
        return (*read_index(cached), {})
    with ThreadPoolExecutor(cpu_count()) as pool:
        found = list(pool.map(_scan, paths))
    broken = {
        path.name: str(each).rstrip(".")
        for path, each in zip(paths, found, strict=True)
        if isinstance(each, InputError)
    }
    contents = [each for each in found if isinstance(each, ShardContent)]
    classes, rows = join_contents(contents)
    entries = tuple(content.entry for content in contents)
    has_splits = any(split for content in contents for split in content.splits)
    if not broken:
        with suppress(OSError, LabelGapError):  # the next one reads the shards again
            make_folder(cached)
            write_index(cached, classes, has_splits, entries, rows)
    digest_unknown = "0" * 32
    index = ShardIndex(
        classes=classes, has_splits=has_splits, images_digest=digest_unknown, images_bytes=0, shards=entries
    )
    return index, rows, broken


def _scan(path: Path) -> ShardContent | InputError:
    try:
        return scan_shard(path)
    except InputError as error:
        return error
