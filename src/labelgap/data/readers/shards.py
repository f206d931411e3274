"""Shards: images and labels in tar files, as the package webdataset reads and writes them.

A shard holds two members per image, ``000017.jpg`` and ``000017.json``; the second is ``{"image": name, "split": …,
"present": […], "absent": […]}``, and a class in neither list is unknown. Beside the shards are ``index.json`` (classes,
and name, split, count, bytes and digest of every shard) and ``images.parquet`` (labels, shard, offset and size of every
image), so that an image is read by its offset, in any order. Shards at a URL are copied into the cache first.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from labelgap.core.cache import cache_folder, cache_limit, read_flat_json, write_flat_json
from labelgap.core.errors import InputError, LabelGapError, Problem, ProblemsError, RunError
from labelgap.core.files import atomic_path, display_path, file_digest, make_folder, remove_partials, write_json
from labelgap.core.findings import Finding, Note
from labelgap.core.lock import lock_folder
from labelgap.core.stored import damaged, parse_json, read_json, read_table
from labelgap.core.system import cpu_count
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.addresses import remote
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import EncodedImage
from labelgap.data.findings import ShardsSkipped, count_labels, describe_splits
from labelgap.data.images import DigestedImages
from labelgap.data.readers.image_paths import is_image_name, refuse_url
from labelgap.labels import ABSENT, PRESENT, LabelTable
from labelgap.labels.io.table_file import SPLIT_NAMES, SPLITS, check_choice

INDEX_FILE: Final = "index.json"
IMAGES_FILE: Final = "images.parquet"
UNFINISHED_FILE: Final = "unfinished.json"  # in the folder while shards are written; it says which
FORMAT: Final = 1
DIGEST_BYTES: Final = 16
REMEDY: Final = "Write the shards again: labelgap shard."

_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
_Count = Annotated[int, Field(ge=0, lt=2**62)]
_LISTS: Final = pa.list_(pa.int32())
_COLUMNS: Final = {
    "image": pa.string(),
    "split": pa.string(),
    "shard": pa.int32(),
    "offset": pa.int64(),
    "bytes": pa.int64(),
    "digest": pa.binary(DIGEST_BYTES),
    "group": pa.int64(),
    "present": _LISTS,
    "absent": _LISTS,
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ShardEntry(_Strict):
    """A shard: its file, the split of its images ("" where they are of several), their count, its bytes and digest."""

    name: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*\.tar$")]
    split: Literal["train", "val", "test", ""]
    count: _Count
    bytes: _Count
    digest: _Digest


class ShardIndex(_Strict):
    """The content of ``index.json``; ``request`` is a digest of the data and options that it was written for."""

    format: Literal[1] = 1
    classes: tuple[str, ...]
    has_splits: bool
    images_digest: _Digest
    images_bytes: _Count
    shards: tuple[ShardEntry, ...]
    request: _Digest | None = None


class ImageRows:
    """The images of shards in their order, the columns of ``images.parquet``; a group of -1 is unknown."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.combine_chunks()
        self.names: tuple[str, ...] = tuple(table["image"].to_pylist())
        self.splits = np.array(table["split"].to_pylist(), dtype="U5")
        numbers = (self.table[name].to_numpy() for name in ("shard", "offset", "bytes", "group"))
        self.shards, self.offsets, self.sizes, self.groups = numbers
        self.digests = np.frombuffer(b"".join(table["digest"].to_pylist()), np.uint8).reshape(-1, DIGEST_BYTES)

    def __len__(self) -> int:
        return len(self.names)

    def listed(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the row and the class number of everything that a column lists."""
        column = self.table[name].combine_chunks()
        lengths = column.value_lengths().fill_null(0).to_numpy()
        return np.repeat(np.arange(len(self)), lengths), column.flatten().to_numpy()

    def labels(self, classes: Sequence[str], rows: NDArray[np.int64]) -> LabelTable:
        """Return the labels of some images."""
        place = np.full(len(self), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        parts = []
        for name, state in (("present", PRESENT), ("absent", ABSENT)):
            row, column = self.listed(name)
            kept = place[row] >= 0
            parts.append((place[row][kept], column[kept], np.full(int(kept.sum()), state, dtype=np.int8)))
        row, column, value = (np.concatenate(each) for each in zip(*parts, strict=True))
        return LabelTable.from_entries(row, column, value, classes, [self.names[each] for each in rows.tolist()])


def write_index(
    folder: Path,
    classes: Sequence[str],
    has_splits: bool,
    shards: Sequence[ShardEntry],
    rows: ImageRows,
    request: str | None = None,
) -> ShardIndex:
    """Write ``images.parquet`` and then ``index.json``, each atomically."""
    path = folder / IMAGES_FILE
    with atomic_path(path) as temporary:
        pq.write_table(rows.table, temporary, compression="zstd")
    index = ShardIndex(
        classes=tuple(classes),
        has_splits=has_splits,
        images_digest=file_digest(path).hex(),
        images_bytes=path.stat().st_size,
        shards=tuple(shards),
        request=request,
    )
    write_json(folder / INDEX_FILE, index.model_dump(mode="json", exclude_none=True))
    return index


def read_index(folder: Path) -> tuple[ShardIndex, ImageRows]:
    """Read the two files of a folder; ``RunError`` where they are damaged or do not belong together."""
    index = read_json(folder / INDEX_FILE, ShardIndex, format=FORMAT, remedy=REMEDY)
    path = folder / IMAGES_FILE
    try:
        if file_digest(path).hex() != index.images_digest:
            raise damaged(path, f"it is not the one that {INDEX_FILE} was written with", REMEDY)
    except OSError as error:
        raise RunError(f"{path} cannot be read ({(error.strerror or 'damaged').lower()}). {REMEDY}") from None
    rows = ImageRows(read_table(path, _COLUMNS, remedy=REMEDY))
    if (problem := _problem(index, rows)) is not None:
        raise damaged(path, problem, REMEDY)
    if not index.classes or len({*index.classes}) < len(index.classes):
        raise InputError(f"{folder / INDEX_FILE}: classes are unique names, at least one.")
    return index, rows


def _problem(index: ShardIndex, rows: ImageRows) -> str | None:
    numbers, entries = rows.shards, index.shards
    if len({entry.name for entry in entries}) < len(entries):
        return "two shards have one name"
    if not ((numbers >= 0) & (numbers < len(entries))).all():
        return "it names a shard that does not exist"
    if np.bincount(numbers, minlength=len(entries)).tolist() != [entry.count for entry in entries]:
        return f"its shards have other counts than in {INDEX_FILE}"
    ends = np.array([entry.bytes for entry in entries], dtype=np.int64)[numbers] - rows.offsets
    if (rows.offsets < 0).any() or (rows.sizes < 0).any() or (rows.sizes > ends).any():
        return "an image lies outside of its shard"
    if not np.isin(rows.splits, SPLITS).all():
        return "a split is not train, val or test"
    listed = np.concatenate([rows.listed(name)[1] for name in ("present", "absent")])
    if not ((listed >= 0) & (listed < len(index.classes))).all():
        return "it names a class that does not exist"
    return None


CACHE_FOLDER: Final = "shards"
_COPIES: Final = 2  # a digest that is wrong may be an error of the transfer
_LOCK_SECONDS: Final = 24 * 3600.0
_URL: Final = re.compile(r"(?:https?|s3)://[^\s\x00-\x1f]+")


def is_shard_url(text: str) -> bool:
    """Return whether a text is a URL that may hold shards: a folder of HTTP, HTTPS or S3, not a table or an archive."""
    if _URL.fullmatch(text) is None:
        return False
    path = PurePosixPath(urlsplit(text).path)
    return path.name == INDEX_FILE or not path.suffix[1:].isalpha()


def _address(url: str, name: str) -> str:
    return f"{url.rstrip('/')}/{name}"


@dataclass(frozen=True)
class ShardLocation:
    """The shards of an index, in a folder or at a URL."""

    root: Path | str
    entries: tuple[ShardEntry, ...]

    @property
    def remote(self) -> bool:
        """Whether the shards are at a URL."""
        return isinstance(self.root, str)

    def path(self, number: int, needed: Callable[[], bool] = lambda: True) -> Path:
        """Return the file of a shard; one of a URL is copied into the cache unless it is there or no longer needed."""
        entry = self.entries[number]
        if isinstance(self.root, Path):
            return self.root / entry.name
        path = self.cached(number)
        with suppress(OSError):
            if path.stat().st_size == entry.bytes:
                os.utime(path)  # the cache removes what was not used for the longest time
                return path
        make_folder(path.parent)
        with lock_folder(path.parent, "copying a shard", wait=_LOCK_SECONDS, name=f".{entry.digest}.lock"):
            if needed() and (not path.exists() or path.stat().st_size != entry.bytes):
                self._copy(self.root, entry, path)
                _make_room(path.parent, 0, kept=path)  # other processes may have copied shards at the same time
        return path

    def _copy(self, url: str, entry: ShardEntry, path: Path) -> None:
        _make_room(path.parent, entry.bytes)
        with atomic_path(path) as temporary:
            for _ in range(_COPIES):
                remote(_address(url, entry.name), "get_file", os.fspath(temporary))
                if file_digest(temporary).hex() == entry.digest:
                    _mark(path).unlink(missing_ok=True)
                    return
            _mark(path).touch()
            raise InputError(
                f"{_address(url, entry.name)} is damaged: its digest is not the one in its index. Upload it again, or "
                "leave it out: --on-bad-image skip."
            )

    def is_doubtful(self, number: int) -> bool:
        """Return whether a shard of a URL was damaged when it was last copied."""
        return _mark(self.cached(number)).exists()

    def cached(self, number: int) -> Path:
        """Return where the copy of a shard of a URL is, or will be."""
        return cache_folder() / CACHE_FOLDER / f"{self.entries[number].digest}.tar"


def _mark(path: Path) -> Path:
    return path.with_suffix(".damaged")  # when it was last copied


def _make_room(folder: Path, size: int, kept: Path | None = None) -> None:
    """Remove the shards that were not used for the longest time, but ``kept``, so that one more fits the limit."""
    limit = cache_limit().bytes
    remove_partials(folder, older_than=_LOCK_SECONDS)
    if limit is None:
        return
    files = []
    for path in folder.glob("[!.]*.tar"):  # not what is being copied
        with suppress(OSError):
            files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    total = size + sum(each[1] for each in files)
    for _, bytes_, path in sorted(files):
        if total > limit and path != kept:
            with suppress(OSError):
                path.unlink()
                total -= bytes_


class ShardUse(NamedTuple):
    """A shard by its number, and the first and the last image of a pass that are in it."""

    number: int
    first: int
    last: int


class ReadAhead:
    """A thread that copies shards into the cache in the order of need, up to ``ahead`` in advance, if there is room."""

    def __init__(self, location: ShardLocation, uses: Sequence[ShardUse], ahead: int) -> None:
        self._location, self._uses, self._ahead = location, uses, ahead
        self._read, self._asked, self._room = 0, 0, cache_limit().bytes
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        threading.Thread(target=self._run, name="shards", daemon=True).start()
        self.advance(0)

    def advance(self, images: int) -> None:
        """Note that so many more images have been read."""
        self._read += images
        while self._asked < len(self._uses) and self._may_copy(self._asked):
            self._queue.put(self._asked)
            self._asked += 1

    def stop(self) -> None:
        """Copy no further shard; one that is being copied is completed."""
        self._read = sys.maxsize
        self._queue.put(None)

    def _run(self) -> None:
        while (place := self._queue.get()) is not None:
            for other in self._needed(place):
                with suppress(OSError):
                    os.utime(self._location.cached(other.number))
            use = self._uses[place]
            if self._is_needed(use):
                with suppress(LabelGapError, OSError):  # raised where the image is read
                    self._location.path(use.number, partial(self._is_needed, use))

    def _is_needed(self, use: ShardUse) -> bool:
        return use.last >= self._read

    def _needed(self, place: int) -> list[ShardUse]:
        """Return the shards before a place that have images that are not read yet."""
        return [use for use in self._uses[:place] if self._is_needed(use)]

    def _may_copy(self, place: int) -> bool:
        begun = sum(use.first <= self._read for use in self._uses)
        if place < begun:
            return True
        sizes = [self._location.entries[use.number].bytes for use in (*self._needed(place), self._uses[place])]
        return place < begun + self._ahead and (self._room is None or sum(sizes) <= self._room)


LABEL_SUFFIX: Final = "json"
_MAX_LABEL_BYTES: Final = 16 << 20
MEMBER_NAME: Final = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)", re.DOTALL)
_LAYOUT: Final = (
    'An image is two members, 000017.jpg and 000017.json: {"present": […], "absent": […], "split": "train"}.'
)


class _Labels(BaseModel):
    """The label member of an image."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    present: list[str]
    absent: list[str] = []
    image: str | None = None
    split: str | None = None
    group: Annotated[int, Field(ge=-1, lt=2**62)] = -1


class ShardContent(NamedTuple):
    """A shard, and of each image the cells of ``images.parquet`` but the shard; splits may be "", labels are names."""

    entry: ShardEntry
    rows: list[tuple[Any, ...]]


def scan_shard(path: Path) -> ShardContent:
    """Read a shard from beginning to end; ``InputError`` where it is damaged, or an image has no labels."""
    try:
        digest, size = file_digest(path).hex(), path.stat().st_size
        with tarfile.open(path, "r:") as tar:
            found = [_read_member(tar, parts, path) for parts in _members(tar, path)]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{path} is damaged or truncated: {str(error) or 'not a tar file'}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    splits = {row[1] for row in found}
    split: Any = splits.pop() if len(splits) == 1 else ""
    try:
        entry = ShardEntry(name=path.name, split=split, count=len(found), bytes=size, digest=digest)
    except ValidationError:
        raise InputError(f"{str(path)!r} has no usable name: rename it, e.g. to train-000000.tar.") from None
    return ShardContent(entry, found)


def read_tar(path: Path) -> Iterator[dict[str, Any]]:
    """Yield name and bytes of every image of a tar file, with split and labels where such lie beside it."""
    with tarfile.open(path, "r:") as tar:
        for parts in _members(tar, path, labeled=False):
            row: dict[str, Any] = {"image": parts["image"].name, "bytes": _content(tar, parts["image"])}
            if LABEL_SUFFIX in parts and b'"present"' in _content(tar, parts[LABEL_SUFFIX]):
                parsed, split = _read_labels(tar, parts[LABEL_SUFFIX], path)
                row |= {"image": parsed.image or row["image"], "split": split or None}
                row |= {"present": parsed.present, "absent": parsed.absent}
            yield row


def _members(tar: tarfile.TarFile, path: Path, *, labeled: bool = True) -> list[dict[str, tarfile.TarInfo]]:
    """Return kind → member of every image and its labels; other members are ignored."""
    found: dict[str, dict[str, tarfile.TarInfo]] = {}
    for member in tar:
        match = MEMBER_NAME.fullmatch(member.name)
        if match is None or not member.isreg() or member.issparse():
            continue
        suffix = match[2].lower()
        kind = LABEL_SUFFIX if suffix == LABEL_SUFFIX else "image" if is_image_name(f"a.{suffix}") else ""
        if kind and found.setdefault(match[1], {}).setdefault(kind, member) is not member:
            raise InputError(f"{path}: {match[1]} has two members '{kind}'. {_LAYOUT}")
    for key, parts in found.items():
        if labeled and (missing := {"image", LABEL_SUFFIX} - parts.keys()):
            raise InputError(f"{path}: {key} has no {missing.pop()} member. {_LAYOUT}")
    return [parts for parts in found.values() if "image" in parts]


def _read_member(tar: tarfile.TarFile, parts: Mapping[str, tarfile.TarInfo], path: Path) -> tuple[Any, ...]:
    """Return the row of an image; see ``ShardContent``."""
    image = parts["image"]
    parsed, split = _read_labels(tar, parts[LABEL_SUFFIX], path)
    digest = hashlib.blake2b(_content(tar, image), digest_size=DIGEST_BYTES).digest()
    lists = ([*map(sys.intern, names)] for names in (parsed.present, parsed.absent))
    return (parsed.image or image.name, split, image.offset_data, image.size, digest, parsed.group, *lists)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def _read_labels(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> tuple[_Labels, str]:
    if member.size > _MAX_LABEL_BYTES:
        raise InputError(f"{path}: {member.name} has more than {_MAX_LABEL_BYTES:,} bytes.")
    try:
        parsed = _Labels.model_validate(parse_json(_content(tar, member)))
        if len({*parsed.present, *parsed.absent}) < len(parsed.present) + len(parsed.absent):
            raise ValueError("a class is listed twice")
        return parsed, SPLIT_NAMES[parsed.split.lower()] if parsed.split else ""
    except (ValueError, ValidationError, KeyError) as error:
        problem = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        reason = f"split {error}" if isinstance(error, KeyError) else str(error)
        reason = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" if problem else reason
        raise InputError(f"{path}: {member.name}: {truncate_text(reason, 200)}. {_LAYOUT}") from None


def join_contents(
    contents: Sequence[ShardContent], classes: Sequence[str] | None = None
) -> tuple[tuple[str, ...], ImageRows]:
    """Return the classes, those that occur, sorted, when None is given, and the images of several shards."""
    rows = [row for content in contents for row in content.rows]
    if classes is None:
        classes = sorted({name for row in rows for names in row[-2:] for name in names})
    number = {name: place for place, name in enumerate(classes)}
    shards = np.repeat(np.arange(len(contents)), [len(content.rows) for content in contents])
    names, splits, *others, present, absent = zip(*rows, strict=True) if rows else [()] * (len(_COLUMNS) - 1)
    lists = ([[number[name] for name in each] for each in column] for column in (present, absent))
    columns = [names, [split or "train" for split in splits], shards, *others, *lists]
    kinds = zip(columns, _COLUMNS.values(), strict=True)
    return tuple(classes), ImageRows(pa.table([pa.array(*each) for each in kinds], names=list(_COLUMNS)))


WINDOW: Final = 8  # shards of a URL whose images are shuffled together; the cache has to hold about three times as many
_ATTEMPTS: Final = 3


class ShardImages(DigestedImages):
    """Images of shards, in any order; features are cached by the digest of an image, as those of a file."""

    row_fields = ("shards", "offsets", "sizes", "digests")

    def __init__(self, location: ShardLocation, rows: ImageRows) -> None:
        self.location = location
        self.root = location.root
        self.names = rows.names
        self.shards, self.offsets, self.sizes, self.digests = rows.shards, rows.offsets, rows.sizes, rows.digests

    def __repr__(self) -> str:
        return f"ShardImages({len(self):,} in {len(np.unique(self.shards)):,} shards of {self.root})"

    def encoded(self, row: int) -> EncodedImage:
        """Return the bytes of image ``row``."""
        number, offset, size = (int(each[row]) for each in (self.shards, self.offsets, self.sizes))
        place = f"{self.root}/{self.location.entries[number].name}"
        for attempt in range(_ATTEMPTS):
            try:
                with self.location.path(number).open("rb", buffering=0) as file:
                    file.seek(offset)
                    content = file.read(size)
                break
            except FileNotFoundError:  # another process may have just removed it from the cache
                if attempt + 1 == _ATTEMPTS:
                    raise InputError(f"{place} does not exist any more.") from None
            except OSError as error:
                raise InputError(f"{place} cannot be read: {(error.strerror or str(error)).lower()}.") from None
        if len(content) < size:
            raise InputError(f"{place} is truncated: {self.names[row]} lies beyond its end. Copy it again.")
        return EncodedImage(content, f"{self.names[row]} in {place}")

    def shuffle(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return every row once, in a random order, of a URL's shards ``WINDOW`` at a time: each is needed shortly."""
        if not self.location.remote:
            return generator.permutation(len(self))
        by_shard = np.argsort(self.shards, kind="stable")
        parts = np.split(by_shard, np.flatnonzero(np.diff(self.shards[by_shard])) + 1)
        order = generator.permutation(len(parts)).tolist()
        windows = [order[start : start + WINDOW] for start in range(0, len(order), WINDOW)]
        shuffled = [generator.permutation(np.concatenate([parts[part] for part in window])) for window in windows]
        return np.concatenate([np.zeros(0, dtype=np.int64), *shuffled])

    @contextmanager
    def read_ahead(self, rows: NDArray[np.int64]) -> Iterator[ReadAhead | None]:
        """Copy the shards of a URL into the cache while the block runs, before their images are needed."""
        if not self.location.remote or not len(rows):
            yield None
            return
        needed, first = np.unique(self.shards[rows], return_index=True)
        last = len(rows) - 1 - np.unique(self.shards[rows][::-1], return_index=True)[1]
        order = np.argsort(first)
        uses = [ShardUse(*each) for each in np.stack([needed, first, last], axis=1)[order].tolist()]
        ahead = ReadAhead(self.location, uses, 2 * WINDOW)
        try:
            yield ahead
        finally:
            ahead.stop()


_REQUESTS_AT_ONCE: Final = 16
T = TypeVar("T", ShardEntry, Path)


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
    parts, images = {}, ShardImages(location, rows)
    for split in SPLITS:
        if len(members := kept[rows.splits[kept] == split]):
            groups, table = rows.groups[members], rows.labels(index.classes, members)
            parts[split] = Split(split, images.select(members), table, groups=groups if (groups >= 0).all() else None)
    data = Dataset.of(name, parts, findings)
    counts = count_labels([part.labels for part in parts.values()])
    split_findings = describe_splits({split: len(part) for split, part in parts.items()}, index.has_splits)
    rule = Note("labels as the shards list them: present, absent; all others are unknown")
    return replace(data, findings=(rule, counts, *findings, *split_findings))


def _open_url(url: str) -> tuple[ShardLocation, ImageRows, ShardIndex]:
    url = url.removesuffix(f"/{INDEX_FILE}").rstrip("/")
    with TemporaryDirectory(prefix="labelgap-") as temporary:
        for name in (INDEX_FILE, IMAGES_FILE):
            remote(_address(url, name), "get_file", os.fspath(Path(temporary) / name))
        try:
            index, rows = read_index(Path(temporary))
        except LabelGapError as error:
            raise InputError(str(error).replace(temporary, url)) from None
    return ShardLocation(url, index.shards), rows, index


def _check_sizes(location: ShardLocation) -> dict[str, str]:
    """Return name → problem of the shards that are missing at a URL, have another size, or were damaged before."""
    url = str(location.root)

    def check(number: int, entry: ShardEntry) -> str | None:
        size: int | None = remote(_address(url, entry.name), "size")
        if size is not None and size != entry.bytes:
            return _truncated(_address(url, entry.name), size, entry)
        if location.is_doubtful(number):
            location.path(number)
        return None

    return _checked(location.entries, check, _REQUESTS_AT_ONCE)


def _check_files(folder: Path, entries: Sequence[ShardEntry]) -> dict[str, str]:
    """Return name → problem of the shards that are missing, or not what their index says; what was read is cached."""
    key = hashlib.blake2b(os.fsencode(folder), digest_size=16).hexdigest()
    cache = cache_folder() / CACHE_FOLDER / f"{key}.json"
    known = (read_flat_json(cache) or {}) if cache.exists() else {}
    verified: dict[str, str] = {}

    def check(_: int, entry: ShardEntry) -> str | None:
        path = folder / entry.name
        status = path.stat()
        if status.st_size != entry.bytes:
            return _truncated(str(path), status.st_size, entry)
        state = f"{entry.digest} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
        if known.get(entry.name) != state and file_digest(path).hex() != entry.digest:
            return f"{path} is damaged: its digest is not the one in {INDEX_FILE}. Copy it again"
        verified[entry.name] = state
        return None

    broken = _checked(entries, check, cpu_count())
    if verified != known:
        with suppress(OSError, LabelGapError):  # the next one reads the shards again
            make_folder(cache.parent)
            write_flat_json(cache, verified)
    return broken


def _checked(shards: Sequence[T], check: Callable[[int, T], str | None], threads: int) -> dict[str, str]:
    """Return name → problem of the shards, by their entries or files, for which there is one."""

    def problem(number: int, shard: T) -> str | None:
        try:
            return check(number, shard)
        except InputError as error:
            return str(error).rstrip(".")
        except OSError as error:
            return f"{error.filename} cannot be read ({(error.strerror or str(error)).lower()})"

    with ThreadPoolExecutor(threads) as pool:
        found = zip(shards, pool.map(problem, range(len(shards)), shards), strict=True)
        return {shard.name: reason for shard, reason in found if reason is not None}


def _truncated(place: str, size: int, entry: ShardEntry) -> str:
    what = "is truncated" if size < entry.bytes else "is not what its index says"
    return f"{place} {what}: it has {size:,} bytes, not {entry.bytes:,}. Copy it again"


def _tars(folder: Path) -> list[Path]:
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

    found = dict[int, ShardContent]()

    def scan(number: int, path: Path) -> None:
        found[number] = scan_shard(path)

    broken = _checked(paths, scan, cpu_count())
    contents = [found[number] for number in sorted(found)]
    classes, rows = join_contents(contents)
    entries = tuple(content.entry for content in contents)
    has_splits = any(row[1] for content in contents for row in content.rows)
    if not broken:
        with suppress(OSError, LabelGapError):  # the next one reads the shards again
            make_folder(cached)
            write_index(cached, classes, has_splits, entries, rows)
    index = ShardIndex(classes=classes, has_splits=has_splits, images_digest="0" * 32, images_bytes=0, shards=entries)
    return index, rows, broken
