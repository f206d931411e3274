"""Where the images of a large prediction come from: Parquet files, tar files or loose images, divided into shards.

A source is a folder, a bucket or a file, by its path or URL. A Parquet file or a tar file is a shard; loose images are
shards of ``IMAGES_PER_SHARD``, in the order of their names. A shard gives batches of columns: ``image``, a name;
``bytes`` or ``path``, what a ``Predictor`` reads; and where it has them ``split`` and the known labels, lists of
``present`` and ``absent`` names.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.stored import READ_ERRORS, parse_json
from labelgap.data.addresses import file_system, is_url, local_copy, remote
from labelgap.data.readers.image_paths import is_image_name
from labelgap.data.readers.shards import INDEX_FILE, LABEL_SUFFIX, MEMBER_NAME

IMAGES_PER_SHARD: Final = 10_000
CONTENT: Final = ("bytes", "path", "url", "image")
"""Columns of a Parquet file that may hold the images: the first that is there."""
NAMES: Final = ("image", "path", "url", "id", "key")
LABELS: Final = ("split", "present", "absent")

Batch = dict[str, Any]
T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield items a batch at a time, as ``itertools.batched`` of Python 3.12."""
    iterator = iter(items)
    while part := tuple(islice(iterator, size)):
        yield part


@dataclass(frozen=True)
class InputShard:
    """A part of a source: a file, or some of the images of a folder."""

    number: int
    address: str  # of the file, or of the folder
    images: tuple[str, ...] = ()  # addresses, below the folder

    @property
    def identity(self) -> str:
        """A digest of what it holds, by names."""
        return hashlib.blake2b("\0".join((self.address, *self.images)).encode(), digest_size=16).hexdigest()


def list_shards(source: str) -> list[InputShard]:
    """Return the shards of a source, always in the same order."""
    address = source.rstrip("/") if is_url(source) else os.path.abspath(source)  # noqa: PTH100 - workers may run elsewhere
    files = [address] if _suffix(address) in (".parquet", ".tar") else _files_below(address)
    for suffix in (".parquet", ".tar"):
        if found := [file for file in files if _suffix(file) == suffix]:
            return [InputShard(number, file) for number, file in enumerate(found)]
    images = [file for file in files if is_image_name(_name(file))]
    if not images:
        raise InputError(f"{source} holds no Parquet file, no tar file and no image.")
    return [InputShard(number, address, part) for number, part in enumerate(batched(images, IMAGES_PER_SHARD))]


def _name(address: str) -> str:
    return address.rpartition("/")[2]


def _suffix(address: str) -> str:
    return Path(_name(address)).suffix.lower()


def _files_below(address: str) -> list[str]:
    """Return the addresses of all files below a folder, sorted, without hidden ones."""
    if _name(address) == INDEX_FILE or (is_url(address) and _is_file(f"{address}/{INDEX_FILE}")):
        folder = address.removesuffix(f"/{INDEX_FILE}")
        try:
            index = parse_json(remote(f"{folder}/{INDEX_FILE}", "cat_file"))
            return [f"{folder}/{entry['name']}" for entry in index["shards"]]
        except READ_ERRORS as error:
            raise InputError(f"{folder}/{INDEX_FILE} is no index of shards: {error}.") from None
    system, path = file_system(address)
    found = remote(address, "find")
    inside = (name[len(path) :].split("/") for name in found)
    names = [
        name for name, parts in zip(found, inside, strict=True) if not any(part[:1] in "._" for part in parts if part)
    ]
    return sorted(map(system.unstrip_protocol, names) if is_url(address) else names)


def _is_file(address: str) -> bool:
    try:
        return bool(remote(address, "isfile"))
    except InputError:
        return False


def read_shard(shard: InputShard, size: int) -> Iterator[Batch]:
    """Yield batches of a shard in order; ``InputError`` where it is damaged."""
    if shard.images:
        below = len(shard.address) + 1
        yield from ({"image": [name[below:] for name in part], "path": part} for part in batched(shard.images, size))
        return
    with local_copy(shard.address) as path:
        try:
            read = (
                _read_tar(path, size) if _suffix(shard.address) == ".tar" else _read_parquet(path, shard.address, size)
            )
            yield from read
        except LabelGapError:
            raise
        except (*READ_ERRORS, tarfile.TarError, EOFError) as error:
            raise InputError(f"{shard.address} is damaged, or not what its name says: {error}.") from None


def _read_tar(path: Path, size: int) -> Iterator[Batch]:
    """Yield the images of a tar file, with the labels that lie beside each."""
    with tarfile.open(path, "r:") as tar:
        images = (row for key, members in groupby(tar, _key) if key and (row := _read_members(tar, members)))
        for rows in batched(images, size):
            yield {name: [row.get(name) for row in rows] for name in ("image", "bytes", *LABELS)}


def _key(member: tarfile.TarInfo) -> str:
    match = MEMBER_NAME.fullmatch(member.name)
    return match[1] if match is not None and member.isreg() and not member.issparse() else ""


def _read_members(tar: tarfile.TarFile, members: Iterable[tarfile.TarInfo]) -> Batch:
    """Return an image and its labels; nothing where there is no image."""
    row: Batch = {}
    for member in members:
        suffix = member.name.rpartition(".")[2].lower()
        content = (tar.extractfile(member) or io.BytesIO()).read()
        if suffix == LABEL_SUFFIX:
            stored = parse_json(content)
            row |= {name: stored[name] for name in ("image", *LABELS) if isinstance(stored, dict) and name in stored}
        elif is_image_name(f"a.{suffix}"):
            row = {"image": member.name, **row, "bytes": content}
    return row if "bytes" in row else {}


def _read_parquet(path: Path, address: str, size: int) -> Iterator[Batch]:
    """Yield the rows of a Parquet file of bytes or of addresses, which may be relative to its folder."""
    with pq.ParquetFile(path) as file:
        kinds: Mapping[str, pa.DataType] = {field.name: field.type for field in file.schema_arrow}
        content = next((name for name in CONTENT if name in kinds), None)
        if content is None:
            raise InputError(f"{address} has none of the columns {', '.join(CONTENT)}: it has {', '.join(kinds)}.")
        name = next((each for each in NAMES if each in kinds and pa.types.is_string(kinds[each])), None)
        columns, row, folder = [each for each in LABELS if each in kinds], 0, address.rpartition("/")[0]
        wanted = dict.fromkeys((content, *([name] if name else []), *columns))
        for part in file.iter_batches(size, columns=list(wanted)):
            items: Sequence[Any] = part[content].to_pylist()
            if pa.types.is_struct(kinds[content]):  # as Hugging Face stores images
                items = [item and (item.get("bytes") or item.get("path")) for item in items]
            is_text = any(isinstance(item, str) for item in items)
            batch = {each: part[each].to_pylist() for each in columns}
            batch["image"] = (
                part[name].to_pylist() if name else [f"{_name(address)}:{row + at}" for at in range(len(items))]
            )
            batch["path" if is_text else "bytes"] = [_join(folder, item) for item in items] if is_text else items
            row += len(items)
            yield batch


def _join(folder: str, item: str | None) -> str | None:
    return item if item is None or is_url(item) or item.startswith("/") else f"{folder}/{item}"


def source_digest(shards: Sequence[InputShard]) -> str:
    """Return a digest of the names of everything in some shards."""
    return hashlib.blake2b("".join(shard.identity for shard in shards).encode(), digest_size=16).hexdigest()
