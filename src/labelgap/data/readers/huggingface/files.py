"""The files of a Hugging Face data set: which belong to which split, and their rows, some at a time.

``DatasetDict.save_to_disk``: ``dataset_dict.json``, and a folder per split. ``Dataset.save_to_disk``: ``state.json``,
``dataset_info.json`` and ``data-00000-of-00002.arrow`` …, Arrow streams. Parquet, as on the Hub:
``data/train-00000-of-00002.parquet`` …. The types of columns are in ``dataset_info.json`` or in the files themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError, RunError
from labelgap.core.stored import READ_ERRORS, parse_json, read_bytes
from labelgap.core.text import truncate_text
from labelgap.data.readers.image_paths import is_file
from labelgap.labels.io.problems import ProblemList

_PARQUET: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]{16})?\.parquet")
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of a complete Arrow stream."""
_STATE_FILES: Final = ("dataset_dict.json", "state.json", "dataset_info.json")
_MAX_JSON: Final = 64 << 20


@dataclass(frozen=True)
class DataFile:
    """One file of rows: an Arrow stream, or Parquet."""

    path: Path

    @property
    def parquet(self) -> bool:
        """Whether it is Parquet."""
        return self.path.suffix == ".parquet"

    def schema(self) -> pa.Schema:
        """Return the columns and the metadata; ``InputError`` for a file that is damaged or truncated."""
        with _Reading(self.path):
            if self.parquet:
                schema = pq.read_schema(self.path)
            else:
                _check_end(self.path)
                with pa.memory_map(str(self.path)) as source:
                    schema = pa.ipc.open_stream(source).schema
            if not all(schema.names) or len({*schema.names}) < len(schema.names):
                raise ValueError("a column has no name, or that of another")
        return schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows: a record batch, or a row group, at a time."""
        with _Reading(self.path):
            groups = pq.read_metadata(self.path).num_row_groups if self.parquet else len(_arrow_batches(self._key()))
            for group in range(groups):
                batch = self.batch(group, columns)
                batch.validate(full=True)
                yield batch

    def batch(self, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return one record batch or row group."""
        with _Reading(self.path):
            if self.parquet:
                return _parquet_batch(self._key(), number, tuple(columns))
            return _arrow_batches(self._key())[number].select(list(columns))

    def _key(self) -> tuple[str, int]:
        return str(self.path), self.path.stat().st_mtime_ns


class _Reading:
    """Turns what pyarrow raises on a damaged file into ``InputError``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, READ_ERRORS) and not isinstance(error, InputError):
            reason = truncate_text(" ".join(str(error).split()), 200)
            raise InputError(f"{self.path} cannot be read ({reason}): copy it again.") from None


def _check_end(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(-min(len(_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
        if file.read() != _END:
            raise ValueError("it is truncated, or no Arrow stream")


@lru_cache(maxsize=256)
def _arrow_batches(key: tuple[str, int]) -> list[pa.RecordBatch]:
    """Return the batches of a stream, which stay on the disk until they are used."""
    return list(pa.ipc.open_stream(pa.memory_map(key[0])))


@lru_cache(maxsize=8)
def _parquet_batch(key: tuple[str, int], number: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    with pq.ParquetFile(key[0]) as file:
        table = file.read_row_group(number, columns=list(columns)).combine_chunks()
    batches = table.to_batches()
    if len(batches) > 1:
        raise ValueError(f"row group {number} has more than 2 GB: write smaller ones")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


@dataclass(frozen=True)
class SplitFiles:
    """The files of a split.

    Attributes:
        name: as the data set has it; empty where it has no splits.
        files: in order.
        features: the types of columns in ``dataset_info.json``; empty where there is none.
    """

    name: str
    files: tuple[DataFile, ...]
    features: dict[str, Any]


def find_huggingface(path: Path) -> Path | None:
    """Return the folder of a data set that a path leads to, or None."""
    if path.is_file() and path.name in _STATE_FILES:
        path = path.parent
    saved = (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()
    return path if saved or _parquet_files(path) else None


def find_files(root: Path, problems: ProblemList) -> list[SplitFiles]:
    """Return the files of every split; what is missing is added to the problems."""
    if (root / "dataset_dict.json").is_file():
        names = _read_json(root / "dataset_dict.json", problems).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) and _is_plain(name) for name in names):
            problems.add(0, "dataset_dict.json: 'splits' is a list of folders")
            return []
        return [_saved_split(root / name, name, f"{name}/", problems) for name in names]
    if (root / "state.json").is_file():
        return [_saved_split(root, "", "", problems)]
    return _parquet_splits(root, problems)


def _is_plain(name: str) -> bool:
    return bool(name) and Path(name).name == name and name not in (".", "..")


def _read_json(path: Path, problems: ProblemList) -> dict[str, Any]:
    try:
        value = parse_json(read_bytes(path, limit=_MAX_JSON))
    except (RunError, ValueError) as error:
        problems.append(truncate_text(f"{path.name} cannot be read ({error})", 300))
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is no JSON object")
    return value if isinstance(value, dict) else {}


def _saved_split(folder: Path, name: str, shown: str, problems: ProblemList) -> SplitFiles:
    """Return what ``Dataset.save_to_disk`` wrote into a folder."""
    for needed in ("state.json", "dataset_info.json"):
        if not is_file(folder / needed):
            problems.append(f"{truncate_text(shown)}{needed} does not exist")
    if not is_file(folder / "state.json"):
        return SplitFiles(name, (), {})
    state = _read_json(folder / "state.json", problems)
    if state.get("_indices_data_files"):
        problems.append(f"{shown}state.json: saved by an old version, with rows in another order; save again")
    info = _read_json(folder / "dataset_info.json", problems) if (folder / "dataset_info.json").is_file() else {}
    listed = state.get("_data_files")
    names = [each.get("filename") if isinstance(each, dict) else None for each in listed or ()]
    if not names or not all(isinstance(each, str) and _is_plain(each) for each in names):
        problems.append(f"{shown}state.json: '_data_files' is a list of files in its folder")
        return SplitFiles(name, (), {})
    for each in names:
        if not is_file(folder / str(each)):
            problems.append(f"{shown}{truncate_text(str(each))} does not exist")
    features = info.get("features")
    return SplitFiles(
        name, tuple(DataFile(folder / str(each)) for each in names), features if isinstance(features, dict) else {}
    )


def _parquet_files(root: Path) -> list[tuple[str, int, int, Path]]:
    """Return split, number, count and path of Parquet files in the folder ``data``, or in the folder itself."""
    for folder in (root / "data", root):
        if folder.is_dir():
            with os.scandir(folder) as entries:
                matches = [match for entry in entries if (match := _PARQUET.fullmatch(entry.name))]
            if matches:
                return sorted((match[1], int(match[2]), int(match[3]), folder / match[0]) for match in matches)
    return []


def _parquet_splits(root: Path, problems: ProblemList) -> list[SplitFiles]:
    splits: dict[str, list[tuple[int, int, Path]]] = {}
    for name, number, count, path in _parquet_files(root):
        splits.setdefault(name, []).append((number, count, path))
    for name, files in splits.items():
        counts = {count for _, count, _ in files}
        numbers = sorted(number for number, _, _ in files)
        if len(counts) > 1 or len({*numbers}) < len(numbers):
            problems.append(f"{name}-*.parquet: files of several versions are there; keep those of one")
            continue
        count = counts.pop()
        for number in sorted({*range(count)} - {*numbers})[:100]:
            problems.append(f"{name}-{number:05d}-of-{count:05d}.parquet does not exist")
    return [SplitFiles(name, tuple(DataFile(path) for *_, path in sorted(files)), {}) for name, files in splits.items()]


def read_columns(split: SplitFiles) -> tuple[pa.Schema, dict[str, Any]]:
    """Return the columns of a split, which all of its files have, and their types in Hugging Face's words."""
    first: pa.Schema | None = None
    for file in split.files:
        schema = file.schema()
        if first is None:
            first = schema
        elif schema.names != first.names or schema.types != first.types:
            raise InputError(f"{file.path} has other columns than {split.files[0].path.name}.")
    assert first is not None
    stored = (first.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = parse_json(stored)["info"]["features"]
    except (ValueError, KeyError, TypeError):
        features = None
    return first, features if isinstance(features, dict) else split.features
