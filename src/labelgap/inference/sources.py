"""Where the images of a prediction come from: the arguments of a command, or shards of a large source.

A shard is of a Parquet file, a tar file or loose images. It gives batches of columns: ``image``, a name; ``bytes`` or
``path``, what a ``Predictor`` reads; and where it has them ``split`` and the known labels, lists of ``present`` and
``absent`` names.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.utils import glob_translate

from labelgap.core.errors import InputError, LabelGapError, describe_missing_path
from labelgap.core.stored import READ_ERRORS, parse_json
from labelgap.data import dataset_names, describe_datasets
from labelgap.data.addresses import check_url, file_system, is_url, local_copy, remote, resolve_address
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import images_below, is_image_name, refuse_url
from labelgap.data.readers.shards import INDEX_FILE, ShardIndex, is_shard_folder, is_shard_url, read_tar

IMAGES_PER_SHARD: Final = 10_000
CONTENT: Final = ("bytes", "path", "url", "image")
"""Columns of a Parquet file that may hold the images: the first that is there."""
NAMES: Final = ("image", "path", "url", "id", "key")
LABELS: Final = {"split": pa.string(), "present": pa.list_(pa.string()), "absent": pa.list_(pa.string())}
_STATES: Final = ("ETag", "etag", "mtime")  # what the file systems tell of a file's content

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
    state: str  # a digest of the sizes and times of change, or what else is known of the content
    images: tuple[str, ...] = ()  # addresses, below the folder

    @property
    def names(self) -> str:
        """A digest of what it holds, by names."""
        return _digest((self.address, *self.images))

    @property
    def identity(self) -> str:
        """A digest of the names and the state."""
        return _digest((self.names, self.state))


def _digest(texts: Iterable[str]) -> str:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def source_digest(shards: Sequence[InputShard]) -> str:
    """Return a digest of the names of everything in some shards."""
    return _digest(shard.names for shard in shards)


def list_shards(source: str) -> list[InputShard]:
    """Return the shards of a source, always in the same order."""
    address = source.rstrip("/") if is_url(source) else os.path.abspath(source)  # noqa: PTH100 - workers may run elsewhere
    if is_url(address):
        check_url(address)
    matching = None
    if glob.has_magic(address) and not remote(address, "exists"):
        matching = re.compile(glob_translate(file_system(address)[1]))
        address = re.split(r"[*?\[]", address)[0].rpartition("/")[0]
    files = _files(address, matching)
    for suffix in (".parquet", ".tar"):
        if found := [file for file in files if _suffix(file) == suffix]:
            return [InputShard(number, file, files[file]) for number, file in enumerate(found)]
    images = [file for file in files if is_image_name(_name(file))]
    if not images:
        raise InputError(f"{source} holds no Parquet file, no tar file and no image.")
    parts = enumerate(batched(images, IMAGES_PER_SHARD))
    return [InputShard(number, address, _digest(map(files.__getitem__, part)), part) for number, part in parts]


def _name(address: str) -> str:
    return address.rpartition("/")[2]


def _suffix(address: str) -> str:
    return Path(_name(address)).suffix.lower()


def _files(address: str, matching: re.Pattern[str] | None) -> dict[str, str]:
    """Return address → state of a file, or of the files below a folder (that match), sorted, without hidden ones."""
    if _suffix(address) in (".parquet", ".tar"):
        return {address: _state(remote(address, "info"))}
    if _name(address) == INDEX_FILE or (not matching and remote(f"{address}/{INDEX_FILE}", "isfile")):
        folder = address.removesuffix(f"/{INDEX_FILE}")
        try:
            index = ShardIndex.model_validate(parse_json(remote(f"{folder}/{INDEX_FILE}", "cat_file")))
            return {f"{folder}/{entry.name}": entry.digest for entry in index.shards}
        except READ_ERRORS as error:
            raise InputError(f"{folder}/{INDEX_FILE} is no index of shards: {error}.") from None
    system, path = file_system(address)
    found = {
        system.unstrip_protocol(name) if is_url(address) else name: _state(info)
        for name, info in remote(address, "find", detail=True).items()
        if not any(part[:1] in "._" for part in name[len(path) :].split("/") if part)
        and (matching is None or any(map(matching.match, accumulate(name.split("/"), "{}/{}".format))))
    }
    return dict(sorted(found.items()))


def _state(info: Mapping[str, Any]) -> str:
    return f"{info.get('size')} {next((info[name] for name in _STATES if name in info), '')}"


def read_shard(shard: InputShard, size: int) -> Iterator[Batch]:
    """Yield batches of a shard in order, an empty one where it holds nothing; ``InputError`` where it is damaged."""
    if shard.images:
        below = len(shard.address) + 1
        yield from ({"image": [name[below:] for name in part], "path": part} for part in batched(shard.images, size))
        return
    with local_copy(shard.address) as path:
        try:
            if _suffix(shard.address) == ".tar":
                parts = batched(read_tar(path), size)
                for rows in chain([next(parts, ())], parts):
                    columns = {name: [row.get(name) for row in rows] for name in ("image", "bytes", *LABELS)}
                    yield columns | {name: pa.array(columns[name], kind) for name, kind in LABELS.items()}
            else:
                yield from _read_parquet(path, shard.address, size)
        except LabelGapError as error:
            raise InputError(str(error).replace(str(path), shard.address)) from None
        except (*READ_ERRORS, tarfile.TarError) as error:
            raise InputError(f"{shard.address} is damaged, or not what its name says: {error}.") from None


def _read_parquet(path: Path, address: str, size: int) -> Iterator[Batch]:
    """Yield the rows of a Parquet file of bytes, or of addresses as ``resolve_address`` reads them."""
    with pq.ParquetFile(path) as file:
        kinds: Mapping[str, pa.DataType] = {field.name: field.type for field in file.schema_arrow}
        content = next((name for name in CONTENT if name in kinds), None)
        if content is None:
            raise InputError(f"{address} has none of the columns {', '.join(CONTENT)}: it has {', '.join(kinds)}.")
        name = next((each for each in NAMES if each in kinds and _is_text(kinds[each])), None)
        row, folder = 0, address.rpartition("/")[0]
        wanted = dict.fromkeys((content, *([name] if name else []), *(each for each in LABELS if each in kinds)))
        empty = [] if file.metadata.num_rows else [pa.RecordBatch.from_pylist([], file.schema_arrow)]
        for part in chain(empty, file.iter_batches(size, columns=list(wanted))):
            items: list[Any] = part[content].to_pylist()
            if pa.types.is_struct(kinds[content]):  # as Hugging Face stores images
                items = [item and item.get("bytes") for item in items]
            names = part[name].to_pylist() if name else [None] * len(items)
            batch: Batch = {each: pa.array(part[each].to_pylist(), LABELS[each]) for each in LABELS if each in kinds}
            batch["image"] = [each or f"{_name(address)}:{row + at}" for at, each in enumerate(names)]
            if _is_text(kinds[content]):
                batch["path"] = [item and resolve_address(folder, item) for item in items]
            else:
                batch["bytes"] = items
            row += len(items)
            yield batch


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_LISTS: Final = (".txt", ".lst", ".list")
_TABLES: Final = (".csv", ".tsv", ".parquet", ".npz", ".json", ".arff")


def is_dataset_argument(text: str) -> bool:
    """Return whether an argument is DATA, rather than images; an unpublished folder is one of images."""
    path = Path(text).expanduser()
    if is_shard_url(text) or is_shard_folder(path):
        return True
    if path.is_dir():
        return any(reader.layout.find is not None and reader.recognizes(path) for reader in describe_datasets())
    if path.suffix.lower() in _TABLES:
        return True
    if path.exists() or glob.has_magic(text):
        return False
    return "=" in text or text in dataset_names()


def find_images(texts: Sequence[str], folder: str | os.PathLike[str] | None = None) -> FileImages:
    """Return the images of files, folders, patterns and lists (.txt, .lst, relative to ``folder``), in their order."""
    names = tuple(dict.fromkeys(name for text in texts for name in _expand(text, folder)))
    if not names:
        raise InputError(f"there is no image in {', '.join(texts)}: files ending in .jpg, .png, .webp and the like.")
    if not any(os.path.isabs(name) or os.pardir in Path(name).parts for name in names):  # noqa: PTH117 - faster for many
        return FileImages(".", names)
    files = [os.path.abspath(name) for name in names]  # noqa: PTH100 - faster for many, and no links to follow
    return FileImages(Path(files[0]).anchor, names, files)


def _expand(text: str, folder: str | os.PathLike[str] | None) -> Iterable[str]:
    refuse_url(text, "images")
    path = Path(text).expanduser()
    if path.is_dir():
        return images_below(path)
    if path.suffix.lower() in _LISTS and path.is_file():
        return _read_list(path, folder)
    if path.exists():
        if not is_image_name(path.name):
            raise InputError(f"{path} has no image suffix; a list of paths is a text file ending in .txt.")
        return [str(path)]
    if glob.has_magic(text):
        return _match(str(path))
    raise InputError(describe_missing_path(path))


def _match(pattern: str) -> Iterator[str]:
    for match in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - patterns may be absolute
        path = Path(match)
        if path.is_dir():
            if not pattern.endswith("**"):
                yield from images_below(path)
        elif is_image_name(path.name):
            yield str(path)


def _read_list(path: Path, folder: str | os.PathLike[str] | None) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line in file:
                if name := line.strip():
                    refuse_url(name, "images")
                    yield os.path.normpath(name if folder is None else Path(folder) / name)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8 ({error.reason}): it holds a path per line.") from None
