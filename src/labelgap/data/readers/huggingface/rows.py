"""Read the rows of a Hugging Face data set: labels, and where the images are; all problems are collected."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.files import file_digest
from labelgap.core.text import truncate_text
from labelgap.data.images import path_inside
from labelgap.data.readers.huggingface.columns import INVALID, LabelColumns, column_states, listed_classes
from labelgap.data.readers.huggingface.files import DataFile, SplitFiles
from labelgap.data.readers.image_paths import is_file
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.rows import is_no_class

_ROWS_SHOWN: Final = 20
_UNLABELED: Final = -1
"""What a column of one ``ClassLabel`` has where there is no label."""


@dataclass
class SplitRows:
    """What was read of one split; lists of classes, or states of the columns, and the images."""

    name: str
    listed: list[list[str]] = field(default_factory=list)
    unknown: list[NDArray[np.bool_]] = field(default_factory=list)
    states: list[NDArray[np.int8]] = field(default_factory=list)
    paths: list[str | None] = field(default_factory=list)
    external: list[str] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)


class RowReader:
    """Reads the rows of all splits, and collects their problems."""

    def __init__(self, root: Path, folder: Path, columns: LabelColumns, problems: ProblemList) -> None:
        self.root, self.folder, self.columns, self.problems = root, folder, columns, problems
        self.files: list[DataFile] = []
        self.splits: dict[str, SplitRows] = {}

    def read(self, name: str, split: SplitFiles) -> None:
        """Read a split: the labels, and where the images are."""
        rows = self.splits[name] = SplitRows(split.name or name)
        wanted = [self.columns.image, *self.columns.labels]
        for file in split.files:
            self.files.append(file)
            first = len(rows.places)
            try:
                for number, batch in enumerate(file.batches(wanted)):
                    place = len(rows.places) - first
                    self._read_labels(file, place, batch, rows)
                    self._read_images(file, place, number, batch.column(self.columns.image), rows)
            except InputError as error:
                self.problems.append(str(error).rstrip("."))
        if not rows.places:
            self.problems.append(f"{rows.name} has no rows")

    def _report(self, file: DataFile, row: int, message: str) -> None:
        self.problems.append(f"{file.path.name}, row {row}: {message}")

    def _read_labels(self, file: DataFile, first: int, batch: pa.RecordBatch, rows: SplitRows) -> None:
        if self.columns.lists:
            self._read_lists(file, first, batch.column(self.columns.labels[0]), rows)
            return
        states = np.stack([column_states(batch.column(name)) for name in self.columns.labels], axis=1)
        for number, name in enumerate(self.columns.labels):
            wrong = np.flatnonzero(states[:, number] == INVALID)
            cells = batch.column(name)
            rule = f"a label is 1, 0 or null (--ignore-columns {name} leaves the column out)"
            shown = wrong[:1] if is_no_class(len(wrong), len(cells)) else wrong[:_ROWS_SHOWN]
            for row in shown.tolist():
                self._report(file, first + row, f"{cells[row]} under {truncate_text(name)}: {rule}")
        rows.states.append(states)

    def _read_lists(self, file: DataFile, first: int, column: pa.Array, rows: SplitRows) -> None:
        places, entries, unknown = listed_classes(column)
        listed: list[list[str]] = [[] for _ in range(len(column))]
        names = self.columns.names
        for row, entry in zip(places.tolist(), entries, strict=True):
            if entry is None:
                self._report(file, first + row, "a list has null in it")
            elif isinstance(entry, str) and not entry.strip():
                self._report(file, first + row, "a list has a blank name in it")
            elif isinstance(entry, str):
                listed[row].append(entry)
            elif 0 <= entry < len(names):
                listed[row].append(names[entry])
            elif entry == _UNLABELED and not _is_nested(column):
                unknown[row] = True
            else:
                self._report(
                    file, first + row, f"there is no class {entry}: they are counted from 0 to {len(names) - 1}"
                )
        rows.listed += listed
        rows.unknown.append(unknown)

    def _read_images(self, file: DataFile, first: int, number: int, column: pa.Array, rows: SplitRows) -> None:
        contents, paths = (column.field(name) for name in ("bytes", "path"))
        known = pc.and_(column.is_valid(), contents.is_valid()).to_pylist()
        for row, path in enumerate(paths.to_pylist()):
            external = ""
            size, digest = 0, b"\0" * 16
            if known[row]:
                buffer = contents[row].as_buffer()
                size, digest = buffer.size, hashlib.blake2b(buffer, digest_size=16).digest()
                if not size:
                    self._report(file, first + row, "the image has 0 bytes")
            else:
                found = self._find(path)
                if isinstance(found, Path):
                    external, size, digest = str(found), found.stat().st_size, file_digest(found)
                else:
                    self._report(file, first + row, found)
            rows.paths.append(path)
            rows.external.append(external)
            rows.places.append((len(self.files) - 1, number, row))
            rows.sizes.append(size)
            rows.digests.append(digest)

    def _find(self, path: str | None) -> Path | str:
        """Return the file of an image without bytes, or what is wrong."""
        if not path:
            return "no image: neither bytes nor a path"
        place = self.folder / path
        if path_inside(self.folder, place) is None:
            return f"{truncate_text(path)} lies outside of {self.folder} (--images DIR says where images are)"
        return (
            place
            if is_file(place)
            else f"{truncate_text(str(place), 200)} does not exist (--images DIR says where images are)"
        )


def _is_nested(column: pa.Array) -> bool:
    return not pa.types.is_integer(column.type)
