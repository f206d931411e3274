"""One table of all splits and the split of every row: what labelgap exchanges with other tools."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelgap.core.errors import InputError
from labelgap.core.files import write_text
from labelgap.core.stored import parse_json
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.labels import ABSENT, PRESENT, LabelTable


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
    return ExchangeTable(table, splits, tuple(file for split in data.splits for file in _files(split)))


def _files(split: Split) -> Iterable[str]:
    source = split.images
    if not isinstance(source, FileImages):
        return split.labels.images
    below = (Path(os.path.relpath(source.path(row), source.root)) for row in range(len(source)))
    return (path.as_posix() for path in below)


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
        value = parse_json(path.read_bytes())
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
