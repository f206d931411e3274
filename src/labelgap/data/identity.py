"""What data a run was trained on: the split of every image, and digests of its labels and its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.stored import column_values
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import ArrayImages, FeatureVectors, ImageSource, StoredImages
from labelgap.labels import LabelTable

TRAINED_BEFORE: Final = "trained before"  # in place of a split: an image that was trained on before the data changed
_CHANGED: Final = b"labelgap.changed"

COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "image": pa.string(),
    "split": pa.string(),
    "labels": pa.uint64(),
    "content": pa.uint64(),
}
"""The columns of ``DataIdentity.to_table``."""
DIGEST_COLUMN: Final[Mapping[str, pa.DataType]] = {"digest": pa.binary(16)}
"""A column that it has besides where the digest of an image is known."""


@dataclass(frozen=True)
class DataChanges:
    """How data differ from what they were."""

    added: int = 0  # images that are new
    removed: int = 0  # images that are gone
    moved: int = 0  # images in another split
    relabeled: int = 0  # images with other labels; all where classes were renamed or exchanged
    replaced: int = 0  # images with another content: bytes, or size where a digest is not known on both sides
    reordered: bool = False  # whether the images that remain come in another order

    @property
    def rows(self) -> bool:
        """Whether the rows of the label table have changed."""
        return bool(self.added or self.removed or self.moved or self.reordered)

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))

    def __str__(self) -> str:
        counts = [(self.added, "added"), (self.removed, "removed"), (self.moved, "moved to another split")]
        counts += [(self.relabeled, "relabeled"), (self.replaced, "replaced")]
        texts = [f"{pluralize(count, 'image')} {what}" for count, what in counts if count]
        return ", ".join([*texts, *(["the images reordered"] if self.reordered else [])]) or "no change"


@dataclass(frozen=True, eq=False)
class DataIdentity:
    """The images of a data set, in order."""

    images: tuple[str, ...]  # N names
    splits: tuple[str, ...]  # N names of splits
    labels: NDArray[np.uint64]  # ``(N,)`` uint64, a digest of the known labels by the names of classes
    content: NDArray[np.uint64]  # ``(N,)`` uint64, a digest of the bytes of an array, the size of a file
    digests: tuple[bytes | None, ...]  # N digests of bytes or pixels, whatever the name; None for one not read
    changed: bool = False  # whether the data have changed since the run was started, which was accepted

    @classmethod
    def of(cls, data: Dataset) -> DataIdentity:
        """Return the identity of a data set; files are not read, only their sizes."""
        return cls(
            tuple(name for split in data.splits for name in split.labels.images),
            tuple(split.name for split in data.splits for _ in range(len(split))),
            _concatenate(_label_digests(split) for split in data.splits),
            _concatenate(_content_digests(split.images) for split in data.splits),
            (None,) * sum(map(len, data.splits)),
        )

    @classmethod
    def from_table(cls, table: pa.Table) -> DataIdentity:
        """Return what ``to_table`` made a table of."""
        images, splits = (tuple(table[name].to_pylist()) for name in ("image", "split"))
        labels, content = (column_values(table[name]) for name in ("labels", "content"))
        digests = table["digest"].to_pylist() if "digest" in table.schema.names else [None] * len(images)
        return cls(images, splits, labels, content, tuple(digests), _CHANGED in (table.schema.metadata or {}))

    def to_table(self) -> pa.Table:
        """Return a table with ``COLUMNS``, and ``DIGEST_COLUMN`` where digests are known."""
        values = (self.images, self.splits, self.labels, self.content)
        arrays = [pa.array(value, kind) for value, kind in zip(values, COLUMNS.values(), strict=True)]
        table = pa.table(dict(zip(COLUMNS, arrays, strict=True)))
        for name, kind in DIGEST_COLUMN.items() if any(self.digests) else ():
            table = table.append_column(name, pa.array(self.digests, kind))
        return table.replace_schema_metadata({_CHANGED: b"1"}) if self.changed else table

    def digest(self) -> str:
        """Return a digest, by which processes compare their data; not of what each has read of them."""
        stream, table = pa.BufferOutputStream(), replace(self, digests=(None,) * len(self.images)).to_table()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        return hashlib.sha256(stream.getvalue()).hexdigest()

    def with_digests(self, digests: Mapping[int, bytes]) -> DataIdentity:
        """Return it with the digests of some rows."""
        return replace(self, digests=tuple(digests.get(row, known) for row, known in enumerate(self.digests)))

    def trained_rows(self) -> list[int]:
        """Return the rows of the images that were trained on, also before the data changed."""
        return [row for row, split in enumerate(self.splits) if split in ("train", TRAINED_BEFORE)]

    def _rows_trained_too(self, other: DataIdentity) -> set[int]:
        keys, digests = self.keys(), dict[tuple[str, int], set[bytes | None]]()
        for row in self.trained_rows():
            digests.setdefault(keys[row], set()).add(self.digests[row])
        found = enumerate(zip(other.keys(), other.digests, strict=True))
        return {
            row
            for row, (key, digest) in found
            if key in digests and (digest is None or not digests[key].isdisjoint((None, digest)))
        }

    def find_trained(self, now: DataIdentity) -> list[str | None]:
        """Return the name of the training image that each image of other data is, by digest if known, or None."""
        by_digest = {self.digests[row]: self.images[row] for row in reversed(self.trained_rows())}
        named = self._rows_trained_too(now)
        return [
            name if row in named else None if digest is None else by_digest.get(digest)
            for row, (name, digest) in enumerate(zip(now.images, now.digests, strict=True))
        ]

    def keys(self) -> list[tuple[str, int]]:
        """Return name and content of every image, in order."""
        return list(zip(self.images, self.content.tolist(), strict=True))

    def after(self, before: DataIdentity) -> DataIdentity:
        """Return these data with what was trained on before and is not in train any more."""
        kept = self._rows_trained_too(before)
        rows = [row for row in before.trained_rows() if row not in kept]
        return DataIdentity(
            (*self.images, *(before.images[row] for row in rows)),
            (*self.splits, *([TRAINED_BEFORE] * len(rows))),
            np.concatenate([self.labels, before.labels[rows]]),
            np.concatenate([self.content, before.content[rows]]),
            (*self.digests, *(before.digests[row] for row in rows)),
            changed=True,
        )

    def changes(self, now: DataIdentity) -> DataChanges:
        """Return how the data have changed from this identity to another; names may repeat in several splits."""
        before, after = self._by_name(), now._by_name()
        common = [name for name in before if name in after]
        old, new = (np.array([rows[name] for name in common], dtype=np.int64) for rows in (before, after))
        splits = [np.array(each.splits, dtype=object)[rows] for each, rows in ((self, old), (now, new))]
        digests = ((self.digests[one], now.digests[other]) for one, other in zip(old, new, strict=True))
        replaced = np.array([one != other and None not in (one, other) for one, other in digests], dtype=bool)
        return DataChanges(
            added=len(after) - len(common),
            removed=len(before) - len(common),
            moved=int((splits[0] != splits[1]).sum()),
            relabeled=int((self.labels[old] != now.labels[new]).sum()),
            replaced=int((replaced | (self.content[old] != now.content[new])).sum()),
            reordered=bool((np.diff(new[np.argsort(old)]) < 0).any()),
        )

    def _by_name(self) -> dict[tuple[str, int], int]:
        """Return the row of every name; a name that repeats is numbered."""
        seen: dict[str, int] = {}
        rows: dict[tuple[str, int], int] = {}
        for row, name in enumerate(self.images):
            if self.splits[row] == TRAINED_BEFORE:
                continue
            seen[name] = seen.get(name, -1) + 1
            rows[name, seen[name]] = row
        return rows


def _concatenate(parts: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return np.concatenate([np.zeros(0, dtype=np.uint64), *parts])


def _label_digests(split: Split) -> NDArray[np.uint64]:
    """Return a digest of the observed labels of every image, and of the true ones where they are kept."""
    observed = _table_digests(split.labels, "observed")
    return observed if split.truth is None else observed + _table_digests(split.truth, "truth")


def _table_digests(table: LabelTable, what: str) -> NDArray[np.uint64]:
    """Return for every row the sum of a hash of each of its known labels; the order of classes plays no part."""
    names = [f"{what}\0{value}\0{name}".encode("utf-8", "surrogatepass") for value in (0, 1) for name in table.classes]
    of_label = _digests(names).reshape(2, len(table.classes))
    total = np.zeros(len(table), dtype=np.uint64)
    np.add.at(total, table.rows, of_label[table.values, table.columns])
    return total


def _content_digests(images: ImageSource) -> NDArray[np.uint64]:
    if isinstance(images, StoredImages):
        sizes = np.zeros(len(images), dtype=np.uint64)
        for row in range(len(images)):
            with suppress(InputError):
                sizes[row] = images.encoded_size(row)
        return sizes
    if isinstance(images, FeatureVectors | ArrayImages):
        rows = images.vectors if isinstance(images, FeatureVectors) else images.array
        return _digests(np.ascontiguousarray(row).data for row in rows)
    return np.repeat(_digests([images.fingerprint().encode()]), len(images))


def _digests(contents: Iterable[bytes | memoryview]) -> NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
