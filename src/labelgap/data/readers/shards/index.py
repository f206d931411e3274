"""``index.json`` and ``images.parquet``: what is in the shards of a folder, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path, file_digest, write_json
from labelgap.core.stored import damaged, read_json, read_table
from labelgap.labels import ABSENT, PRESENT, LabelTable
from labelgap.labels.io.table_file import SPLITS

INDEX_FILE: Final = "index.json"
IMAGES_FILE: Final = "images.parquet"
UNFINISHED_FILE: Final = "unfinished.json"
"""In the folder while shards are written; it says which."""
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
    """A shard.

    Attributes:
        name: of its file, in the folder of the index.
        split: of its images; "" where they are of several.
        count: of its images.
        bytes: of the file.
        digest: of the file; see ``file_digest``.
    """

    name: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*\.tar$")]
    split: Literal["train", "val", "test", ""]
    count: _Count
    bytes: _Count
    digest: _Digest


class ShardIndex(_Strict):
    """The content of ``index.json``.

    Attributes:
        format: of the index.
        classes: names, in the order of the columns.
        has_splits: whether the images have splits of their own; else all are train.
        images_digest: of ``images.parquet``.
        images_bytes: its size.
        shards: in the order of their numbers.
        request: a digest of the data and options that they were written for; None where it is not known.
    """

    format: Literal[1] = 1
    classes: tuple[str, ...]
    has_splits: bool
    images_digest: _Digest
    images_bytes: _Count
    shards: tuple[ShardEntry, ...]
    request: _Digest | None = None


@dataclass(frozen=True, eq=False)
class ImageRows:
    """The images of shards, N of them, in the order of the shards.

    Attributes:
        names: of the images; unique within a split.
        splits: ``(N,)`` train, val or test.
        shards: ``(N,)`` number of the shard.
        offsets: ``(N,)`` where the image begins in its shard.
        sizes: ``(N,)`` bytes of the image.
        digests: ``(N, 16)`` of the bytes of the image.
        groups: ``(N,)`` a number of images that folds keep together; -1 where nothing is known.
        starts: ``(2, N + 1)`` where the classes of each image begin, of the present and of the absent ones.
        columns: class numbers of the present, and of the absent labels.
    """

    names: tuple[str, ...]
    splits: NDArray[np.str_]
    shards: NDArray[np.int32]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    digests: NDArray[np.uint8]
    groups: NDArray[np.int64]
    starts: NDArray[np.int64]
    columns: tuple[NDArray[np.int32], NDArray[np.int32]]

    def __len__(self) -> int:
        return len(self.names)

    def labels(self, classes: Sequence[str], rows: NDArray[np.int64]) -> LabelTable:
        """Return the labels of some images."""
        place = np.full(len(self), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        parts = []
        for starts, columns, state in zip(self.starts, self.columns, (PRESENT, ABSENT), strict=True):
            row = place[np.repeat(np.arange(len(self)), np.diff(starts))]
            parts.append((row[row >= 0], columns[row >= 0], np.full(int((row >= 0).sum()), state, dtype=np.int8)))
        row, column, value = (np.concatenate([part[number] for part in parts]) for number in range(3))
        return LabelTable.from_entries(row, column, value, classes, [self.names[each] for each in rows.tolist()])

    def to_table(self) -> pa.Table:
        """Return the columns of ``images.parquet``."""
        lists = [
            pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(columns, pa.int32()))
            for starts, columns in zip(self.starts, self.columns, strict=True)
        ]
        buffer = pa.py_buffer(np.ascontiguousarray(self.digests).tobytes())
        digests = pa.FixedSizeBinaryArray.from_buffers(pa.binary(DIGEST_BYTES), len(self), [None, buffer])
        plain = (self.names, self.splits.tolist(), self.shards, self.offsets, self.sizes)
        arrays = [pa.array(values, kind) for values, kind in zip(plain, _COLUMNS.values(), strict=False)]
        return pa.table(dict(zip(_COLUMNS, [*arrays, digests, pa.array(self.groups), *lists], strict=True)))

    @classmethod
    def from_table(cls, table: pa.Table) -> ImageRows:
        """Return the images of what ``to_table`` made."""
        table = table.combine_chunks()
        numbers = (table[name].to_numpy() for name in ("shard", "offset", "bytes", "group"))
        shards, offsets, sizes, groups = (np.ascontiguousarray(each) for each in numbers)
        digests = np.frombuffer(b"".join(table["digest"].to_pylist()), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        starts, columns = [], []
        for name in ("present", "absent"):
            lengths = table[name].combine_chunks().value_lengths().fill_null(0).to_numpy()
            starts.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
            columns.append(table[name].combine_chunks().flatten().to_numpy())
        splits = np.array(table["split"].to_pylist(), dtype="U5")
        names = tuple(table["image"].to_pylist())
        return cls(names, splits, shards, offsets, sizes, digests, groups, np.stack(starts), (columns[0], columns[1]))


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
        pq.write_table(rows.to_table(), temporary, compression="zstd")
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
    rows = ImageRows.from_table(read_table(path, _COLUMNS, remedy=REMEDY))
    if (problem := _problem(index, rows)) is not None:
        raise damaged(path, problem, REMEDY)
    if not index.classes or len({*index.classes}) < len(index.classes):
        raise InputError(f"{folder / INDEX_FILE}: classes are unique names, at least one.")
    return index, rows


def _problem(index: ShardIndex, rows: ImageRows) -> str | None:
    """Return what is wrong with the rows of an index, or None."""
    numbers = rows.shards
    if len({entry.name for entry in index.shards}) < len(index.shards):
        return "two shards have one name"
    if len(rows) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(index.shards):
        return "it names a shard that does not exist"
    if np.bincount(numbers, minlength=len(index.shards)).tolist() != [entry.count for entry in index.shards]:
        return f"its shards have other counts than in {INDEX_FILE}"
    ends = np.array([entry.bytes for entry in index.shards], dtype=np.int64)[numbers] - rows.offsets
    if (rows.offsets < 0).any() or (rows.sizes < 0).any() or (rows.sizes > ends).any():
        return "an image lies outside of its shard"
    if not np.isin(rows.splits, SPLITS).all():
        return "a split is not train, val or test"
    if any(len(each) and not 0 <= each.min() <= each.max() < len(index.classes) for each in rows.columns):
        return "it names a class that does not exist"
    return None
