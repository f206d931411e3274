"""What the files of other tools are written from and read into: one table of all images, in three states."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelgap.core.errors import InputError
from labelgap.core.files import write_text
from labelgap.core.stored import parse_json
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import open_image
from labelgap.data.images import ArrayImages, FileImages, StoredImages
from labelgap.labels import ABSENT, PRESENT, LabelTable
from labelgap.labels.io.table_file import SPLIT_NAMES


@dataclass(frozen=True, eq=False)
class ExchangeTable:
    """The labels of all images, their splits if the file has any, and their paths (or names) below their folder."""

    table: LabelTable
    splits: tuple[str, ...] | None
    files: tuple[str, ...] = ()


def merge_splits(data: Dataset) -> ExchangeTable:
    """Concatenate the splits of a data set: the observed labels, never a hidden truth."""
    try:
        table = LabelTable.concatenate([split.labels for split in data.splits])
    except InputError as error:
        raise InputError(f"{data.name} cannot be written as one table: {error}") from None
    splits = tuple(split.name for split in data.splits for _ in range(len(split)))
    return ExchangeTable(table, splits, tuple(file for split in data.splits for file in _files_below(split)))


def _files_below(split: Split) -> Iterable[str]:
    source = split.images
    if not isinstance(source, FileImages):
        return split.labels.images
    below = (Path(os.path.relpath(source.path(row), source.root)) for row in range(len(source)))
    return (path.as_posix() for path in below)


def image_sizes(split: Split) -> Iterator[dict[str, int]]:
    """Yield the width and height of every image as it is stored, from its header alone; nothing where it has none."""
    source = split.images
    for row in range(len(split)):
        size = dict[str, int]()
        if isinstance(source, ArrayImages):
            height, width = source.array.shape[1:3]
            size = {"width": int(width), "height": int(height)}
        elif isinstance(source, StoredImages):
            # whatever is wrong with the file, the labels are written
            with suppress(Exception), open_image(source.encoded(row)) as image:
                size = {"width": image.width, "height": image.height}
        yield size


def known_class_names(table: LabelTable, row: int) -> tuple[list[str], list[str]]:
    """Return the names of the classes known to be present, and of those known to be absent, in an image."""
    entries = slice(int(table.starts[row]), int(table.starts[row + 1]))
    columns, values = table.columns[entries], table.values[entries]
    present, absent = ([table.classes[column] for column in columns[values == state]] for state in (PRESENT, ABSENT))
    return present, absent


def read_json(path: Path, what: str = "", keys: Iterable[str] = ()) -> Any:
    """Read a JSON file; where ``keys`` are given, check that it is an object that has them."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file.")
    try:
        value = parse_json(path.read_bytes(), limit=None)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as JSON: {truncate_text(str(error), 200)}.") from None
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        raise InputError(f"{path} is not {what}: it has no '{missing[0]}'.")
    return value


def write_compact_json(path: Path, value: Any) -> None:
    """Write JSON without blanks, atomically: these files are for machines, and have a list per image."""
    write_text(path, json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def from_lists(
    path: Path,
    present: list[list[str]],
    absent: list[list[str]],
    classes: Sequence[str] | None,
    images: Sequence[str],
    tags: Sequence[Sequence[str]],
    complete: Sequence[bool] | None = None,
) -> ExchangeTable:
    """Return the table of what was read from ``path``, in lists of class names per image.

    The classes are sorted when None. Splits are taken from the ``tags`` where each image has exactly one that names a
    split. Where an image is ``complete``, a class in neither list is absent.
    """
    if complete is not None:
        every = set(classes or ()).union(*present, *absent)
        absent = [
            [*out, *sorted(every.difference(here, out))] if seen else out
            for here, out, seen in zip(present, absent, complete, strict=True)
        ]
    try:
        table = LabelTable.from_lists(present, absent, classes=classes, images=images)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    named = [{SPLIT_NAMES[tag.lower()] for tag in each if tag.lower() in SPLIT_NAMES} for each in tags]
    splits = tuple(found.pop() for found in named) if all(len(found) == 1 for found in named) else None
    return ExchangeTable(table, splits)
