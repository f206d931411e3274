"""A Hugging Face data set: images in its rows, labels as lists of classes, as vectors or as a column per class.

The package ``datasets`` is not needed: pyarrow reads the files that ``save_to_disk`` writes, and Parquet as on the Hub.
A live ``datasets.Dataset`` is saved in the cache first: its rows may be selected, shuffled or in memory, and a run on
them can be opened again.

Reference: Lhoest et al., "Datasets: A Community Library for Natural Language Processing", EMNLP 2021.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import file_digest, make_folder
from labelgap.core.findings import Finding, Note
from labelgap.core.stored import READ_ERRORS, parse_json, read_json, reading
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import EncodedImage
from labelgap.data.findings import count_labels, describe_splits
from labelgap.data.images import DigestedImages, path_inside
from labelgap.data.readers.common import DatasetLayout, FileProblems, RequiredFile, find_root
from labelgap.data.readers.image_paths import is_file
from labelgap.data.readers.table import image_folder
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io.parse import image_name_problem, is_no_class
from labelgap.labels.io.table_file import SPLIT_NAMES, SPLITS, check_choice

_PARQUET: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]{16})?\.parquet")
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # the last bytes of a complete Arrow stream
_STATE_FILES: Final = ("dataset_dict.json", "state.json", "dataset_info.json")


def _check_name(name: str) -> str:
    if Path(name).name != name or name in ("", "..") or "\0" in name:
        raise ValueError("it is a name in this folder")
    return name


_FileName = Annotated[str, AfterValidator(_check_name)]


class _Dict(BaseModel):
    """The content of ``dataset_dict.json``."""

    splits: list[_FileName]


class _SavedFile(BaseModel):
    filename: _FileName


class _State(BaseModel):
    """The part of ``state.json`` that is used."""

    data_files: list[_SavedFile] = Field(alias="_data_files", min_length=1)
    indices: Any = Field(None, alias="_indices_data_files")


class _Info(BaseModel):
    """The part of ``dataset_info.json`` that is used: the types of columns."""

    features: dict[str, Any] | None = None


M = TypeVar("M", bound=BaseModel)


def _read_schema(path: Path) -> pa.Schema:
    with reading(path, _REMEDY):
        if path.suffix == ".parquet":
            schema = pq.read_schema(path)
        else:
            with path.open("rb") as file:
                file.seek(-min(len(_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
                if file.read() != _END:
                    raise ValueError("it is truncated, or no Arrow stream")
            schema = pa.ipc.open_stream(pa.memory_map(str(path))).schema
        if not all(schema.names) or len({*schema.names}) < len(schema.names):
            raise ValueError("a column has no name, or that of another")
    return schema


_REMEDY: Final = "Copy it again."


def _read_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file: a record batch, or a row group, at a time."""
    with reading(path, _REMEDY):
        parquet, key = path.suffix == ".parquet", (str(path), path.stat().st_mtime_ns)
        for number in range(pq.read_metadata(path).num_row_groups if parquet else len(_arrow_batches(*key))):
            batch = _read_batch(*key, number, tuple(columns))
            batch.validate(full=True)
            yield batch


def _read_batch(path: str, changed: int, number: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return one record batch or row group of a file, given when it was changed."""
    if path.endswith(".parquet"):
        return _parquet_batch(path, changed, number, columns)
    return _arrow_batches(path, changed)[number].select(list(columns))


@lru_cache(maxsize=256)
def _arrow_batches(path: str, changed: int) -> list[pa.RecordBatch]:
    """Return the batches of a stream, which stay on the disk until they are used."""
    return list(pa.ipc.open_stream(pa.memory_map(path)))


@lru_cache(maxsize=8)
def _parquet_batch(path: str, changed: int, number: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    with pq.ParquetFile(path) as file:
        table = file.read_row_group(number, columns=list(columns)).combine_chunks()
    batches = table.to_batches()
    if len(batches) > 1:
        raise ValueError(f"row group {number} has more than 2 GB: write smaller ones")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


@dataclass(frozen=True)
class SplitFiles:
    """The files of a split, in order; without a name where the data set has no splits."""

    name: str
    files: tuple[Path, ...]
    features: dict[str, Any]


def find_huggingface(path: Path) -> Path | None:
    """Return the folder of a data set that a path leads to, or None."""
    if path.is_file() and path.name in _STATE_FILES:
        path = path.parent
    saved = (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()
    return path if saved or _parquet_files(path) else None


def find_files(root: Path, problems: FileProblems) -> list[SplitFiles]:
    """Return the files of every split; what is missing is added to the problems.

    ``DatasetDict.save_to_disk``: ``dataset_dict.json``, and a folder per split. ``Dataset.save_to_disk``:
    ``state.json``, ``dataset_info.json`` and ``data-00000-of-00002.arrow`` …, Arrow streams. Parquet, as on the Hub:
    ``data/train-00000-of-00002.parquet`` …. The types of columns are in ``dataset_info.json`` or in the files
    themselves.
    """
    if (root / "dataset_dict.json").is_file():
        saved = _read_json(root / "dataset_dict.json", _Dict, problems)
        return [_saved_split(root / name, name, problems) for name in saved.splits] if saved else []
    return [_saved_split(root, "", problems)] if (root / "state.json").is_file() else _parquet_splits(root, problems)


def _read_json(path: Path, model: type[M], problems: FileProblems) -> M | None:
    try:
        return read_json(path, model)
    except RunError as error:
        problems.add(path, truncate_text(str(error), 300))
    return None


def _saved_split(folder: Path, name: str, problems: FileProblems) -> SplitFiles:
    """Return what ``Dataset.save_to_disk`` wrote into the folder of a split, or into the root itself."""
    state = _read_json(folder / "state.json", _State, problems)
    info = _read_json(folder / "dataset_info.json", _Info, problems)
    if state is not None and state.indices:
        problems.add(folder / "state.json", "saved by an old version, with rows in another order; save again")
    files = tuple(folder / each.filename for each in (state.data_files if state else ()))
    for file in files:
        if not is_file(file):
            problems.add(file, "does not exist")
    return SplitFiles(name, files, (info.features if info else None) or {})


def _parquet_files(root: Path) -> list[tuple[str, int, int, Path]]:
    """Return split, number, count and path of Parquet files in the folder ``data``, or in the folder itself."""
    for folder in (root / "data", root):
        if folder.is_dir():
            with os.scandir(folder) as entries:
                matches = [match for entry in entries if (match := _PARQUET.fullmatch(entry.name))]
            if matches:
                return sorted((match[1], int(match[2]), int(match[3]), folder / match[0]) for match in matches)
    return []


def _parquet_splits(root: Path, problems: FileProblems) -> list[SplitFiles]:
    splits = []
    for name, group in groupby(_parquet_files(root), key=lambda each: each[0]):
        _, numbers, counts, files = zip(*group, strict=True)
        if len({*counts}) > 1 or len({*numbers}) < len(numbers):
            problems.add(files[0], "beside it are files of another version; keep those of one")
        for number in sorted({*range(counts[0])} - {*numbers})[:100]:
            problems.add(files[0].with_name(f"{name}-{number:05d}-of-{counts[0]:05d}.parquet"), "does not exist")
        splits.append(SplitFiles(name, files, {}))
    return splits


INVALID: Final = 2  # the code of a cell that is no state


@dataclass(frozen=True)
class LabelColumns:
    """Where the images and labels are: in one column of lists (or of one class each), or in a column per class.

    ``names`` are the classes that numbers in lists stand for, empty where lists hold names. ``vectors``: lists have a
    state for every class.
    """

    image: str
    labels: tuple[str, ...]
    lists: bool
    vectors: bool
    names: tuple[str, ...]
    ignored: tuple[str, ...]


def choose_columns(split: SplitFiles, ignored: Sequence[str]) -> LabelColumns:
    """Choose the columns of a split by their types, or raise an error that names the candidates."""
    schemas = [_read_schema(file) for file in split.files]
    schema = schemas[0]
    for file, other in zip(split.files, schemas, strict=True):
        if other.names != schema.names or other.types != schema.types:
            raise InputError(f"{file.name} has other columns")
    try:
        features = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        features = None
    features = features if isinstance(features, dict) else split.features
    left = [name for name in schema.names if name not in ignored]
    images = [name for name in left if _is_image(schema.field(name).type, features.get(name))]
    found = {name: _class_names(schema.field(name).type, features.get(name)) for name in left}
    lists = {name: names for name, names in found.items() if names is not None}
    states = [name for name in left if _is_state(schema.field(name).type)]
    vectors = [name for name in left if _is_list(kind := schema.field(name).type) and _is_state(kind.value_type)]
    vectors = [] if lists else vectors
    if not images:
        raise InputError(f"it has no column of images ({{bytes, path}}), only {_join(schema.names)}")
    for what, candidates in (("images", images), ("classes", [*lists]), ("states", vectors)):
        if len(candidates) > 1:
            several = f"several columns of {what} ({_join(candidates)})"
            raise InputError(f"it has {several}: --ignore-columns leaves some out")
    label, names = next(iter(lists.items()), ("", ()))
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(f"it has a column '{label}' with the class '{truncate_text(repeated[0])}' twice")
    if not lists and not vectors and not states:
        raise InputError(
            "it has no column of labels: lists of ClassLabel, of names or of states, or a column of bool or int per "
            f"class; only {_join(schema.names)}"
        )
    chosen = (label,) if lists else tuple(vectors or states)
    rest = tuple(name for name in left if name not in (*images, *chosen))
    return LabelColumns(images[0], chosen, bool(lists), bool(vectors), names, rest)


def _join(names: Iterable[str]) -> str:
    return ", ".join(truncate_text(name) for name in list(names)[:10])


def _is_image(kind: pa.DataType, feature: Any) -> bool:
    if isinstance(feature, dict) and feature.get("_type") not in (None, "Image"):
        return False
    parts = {kind.field(n).name: kind.field(n).type for n in range(kind.num_fields)} if pa.types.is_struct(kind) else {}
    binary = (pa.binary(), pa.large_binary())
    return parts.keys() == {"bytes", "path"} and parts["bytes"] in binary and parts["path"] in _TEXT


_TEXT: Final = (pa.string(), pa.large_string())


def _is_state(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _class_names(kind: pa.DataType, feature: Any) -> tuple[str, ...] | None:
    """Return the names of a column of classes: empty where it holds them itself; None where it is no such column.

    ``datasets`` has written lists as ``Sequence``, ``List`` and ``LargeList``, and as a JSON list of one type.
    """
    if _is_list(kind):
        kind = kind.value_type
        if kind in _TEXT:
            return ()
        feature = next(iter(feature), None) if isinstance(feature, list) else (feature or {}).get("feature")
    if not (isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and pa.types.is_integer(kind)):
        return None
    names, count = feature.get("names"), feature.get("num_classes")
    if not isinstance(names, list):
        names = range(count) if isinstance(count, int) and 0 < count < 1_000_000 else None
    return None if names is None else tuple(map(str, names))


def column_states(column: pa.Array) -> NDArray[np.int8]:
    """Return the states of a column of one class: 1, 0, and null or NaN for unknown; ``INVALID`` for anything else."""
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)  # large numbers are no states
    conditions = [np.isnan(values), values == PRESENT, values == ABSENT]
    return np.select(conditions, [UNKNOWN, PRESENT, ABSENT], INVALID).astype(np.int8)


class StoredImage(NamedTuple):
    """Where an image is: its file, batch and row; the path that its row names, and the file that this leads to."""

    file: int
    batch: int
    row: int
    path: str | None
    external: str
    size: int
    digest: bytes


class RowImages(DigestedImages):
    """Images in rows of files, read on access; ``column`` has structs of bytes and path."""

    row_fields = ("places", "paths", "sizes", "digests")

    def __init__(
        self, root: Path, column: str, files: Sequence[Path], names: Sequence[str], images: Sequence[StoredImage]
    ) -> None:
        self.root, self.column, self.data_files, self.names = root, column, tuple(files), tuple(names)
        self.places = np.array([each[:3] for each in images], dtype=np.int64)
        self.paths = tuple(each.external for each in images)
        self.sizes = np.array([each.size for each in images], dtype=np.int64)
        self.digests = np.frombuffer(b"".join(each.digest for each in images), dtype=np.uint8).reshape(-1, 16)

    def __repr__(self) -> str:
        return f"RowImages({len(self):,} in {len(np.unique(self.places[:, 0])):,} files of {self.root})"

    def encoded(self, row: int) -> Path | EncodedImage:
        """Return the bytes of image ``row``, or the path of its file."""
        if self.paths[row]:
            return Path(self.paths[row])
        number, batch, place = self.places[row].tolist()
        file = self.data_files[number]
        where = f"{self.names[row]} in {file}"
        try:
            rows = _read_batch(str(file), file.stat().st_mtime_ns, batch, (self.column,))
            return EncodedImage(rows.column(0).field("bytes")[place].as_buffer().to_pybytes(), where)
        except READ_ERRORS:
            raise InputError(f"{where} cannot be read: the file has changed since it was loaded.") from None

    def shuffle(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return every row once: row groups, which are unpacked as a whole, are shuffled, then the images of a few."""
        if not any(file.suffix == ".parquet" for file in self.data_files):
            return generator.permutation(len(self))
        _, batch = np.unique(self.places[:, :2], axis=0, return_inverse=True)
        rank = generator.permutation(int(batch.max(initial=-1)) + 1)[batch.ravel()]
        return np.lexsort((generator.random(len(self)), rank // _WINDOW))


_WINDOW = 4  # row groups whose images are shuffled together; the cache holds twice as many


_ROWS_SHOWN: Final = 20
_UNLABELED: Final = -1  # what a column of one ``ClassLabel`` has where there is no label


@dataclass
class SplitRows:
    """What was read of one split: lists of classes (None: nothing is known), or states of the columns; and images."""

    name: str
    listed: list[list[str] | None] = field(default_factory=list)
    states: list[NDArray[np.int8]] = field(default_factory=list)
    images: list[StoredImage] = field(default_factory=list)


class RowReader:
    """Reads the rows of all splits, and collects their problems."""

    def __init__(self, folder: Path, columns: LabelColumns, problems: FileProblems) -> None:
        self.folder, self.columns, self.problems = folder, columns, problems
        self.files: list[Path] = []
        self.width = 0  # of vectors

    def read(self, name: str, split: SplitFiles) -> SplitRows:
        """Read a split: the labels, and where the images are."""
        rows = SplitRows(split.name or name)
        for file in split.files:
            self.files.append(file)
            first = len(rows.images)
            try:
                for number, batch in enumerate(_read_batches(file, (self.columns.image, *self.columns.labels))):
                    place = len(rows.images) - first
                    if self.columns.lists:
                        self._read_lists(place, batch.column(self.columns.labels[0]), rows)
                    elif self.columns.vectors:
                        self._read_vectors(place, batch.column(self.columns.labels[0]), rows)
                    else:
                        self._read_states(place, batch, rows)
                    self._read_images(place, number, batch.column(self.columns.image), rows)
            except RunError as error:
                self.problems.add(file, str(error))
        if not rows.images:
            self.problems.add(self.files[-1], f"{rows.name} has no rows")
        return rows

    def _report(self, row: int, message: str) -> None:
        self.problems.add(self.files[-1], message, f"row {row}")

    def _read_states(self, first: int, batch: pa.RecordBatch, rows: SplitRows) -> None:
        states = np.stack([column_states(batch.column(name)) for name in self.columns.labels], axis=1)
        for number, name in enumerate(self.columns.labels):
            wrong = np.flatnonzero(states[:, number] == INVALID)
            cells = batch.column(name)
            rule = f"a label is 1, 0 or null (--ignore-columns {name} leaves the column out)"
            shown = wrong[:1] if is_no_class(len(wrong), len(cells)) else wrong[:_ROWS_SHOWN]
            for row in shown.tolist():
                self._report(first + row, f"{cells[row]} under {truncate_text(name)}: {rule}")
        rows.states.append(states)

    def _read_vectors(self, first: int, column: pa.Array, rows: SplitRows) -> None:
        """Read a state for every class; null in place of a list is all unknown."""
        lengths = pc.list_value_length(column).drop_null().to_numpy()
        self.width = self.width or int(lengths.max(initial=0))
        states = np.full((len(column), self.width), UNKNOWN, dtype=np.int8)
        known, values = column.is_valid().to_numpy(zero_copy_only=False), column_states(column.drop_null().flatten())
        if (lengths != self.width).any():
            return self._report(first, f"a list has {int(lengths[lengths != self.width][0])} states, not {self.width}")
        states[known] = values.reshape(-1, self.width)
        for row in np.flatnonzero((states == INVALID).any(axis=1))[:_ROWS_SHOWN].tolist():
            self._report(first + row, f"{column[row]}: a label is 1, 0 or null")
        rows.states.append(states)

    def _read_lists(self, first: int, column: pa.Array, rows: SplitRows) -> None:
        single, names = not _is_list(column.type), self.columns.names
        for row, cell in enumerate(column.to_pylist(), first):
            if cell is None or (single and cell == _UNLABELED):
                rows.listed.append(None)
                continue
            listed: list[str] = []
            for entry in [cell] if single else cell:
                if isinstance(entry, str) and entry.strip():
                    listed.append(entry)
                elif isinstance(entry, int) and 0 <= entry < len(names):
                    listed.append(names[entry])
                elif isinstance(entry, int):
                    self._report(row, f"there is no class {entry}: they are counted from 0 to {len(names) - 1}")
                else:
                    self._report(row, f"a list has {'null' if entry is None else 'a blank name'} in it")
            rows.listed.append(listed)

    def _read_images(self, first: int, batch: int, column: pa.Array, rows: SplitRows) -> None:
        contents, paths = (column.field(name) for name in ("bytes", "path"))
        known = pc.and_(column.is_valid(), contents.is_valid()).to_pylist()
        for row, path in enumerate(paths.to_pylist()):
            external, size, digest = "", 0, b"\0" * 16
            if known[row]:
                buffer = contents[row].as_buffer()
                size, digest = buffer.size, hashlib.blake2b(buffer, digest_size=16).digest()
                if not size:
                    self._report(first + row, "the image has 0 bytes")
            else:
                found = self._find(path)
                if isinstance(found, Path):
                    external, size, digest = str(found), found.stat().st_size, file_digest(found)
                else:
                    self._report(first + row, found)
            rows.images.append(StoredImage(len(self.files) - 1, batch, row, path, external, size, digest))

    def _find(self, path: str | None) -> Path | str:
        if not path:
            return "no image: neither bytes nor a path"
        place = self.folder / path
        if path_inside(self.folder, place) is None:
            return f"{truncate_text(path)} lies outside of {self.folder} (--images DIR says where images are)"
        if is_file(place):
            return place
        return f"{truncate_text(str(place), 200)} does not exist (--images DIR says where images are)"


def load_huggingface(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    unlisted: str = "unknown",
    classes: Sequence[str] | None = None,
    ignore_columns: Sequence[str] = (),
) -> Dataset:
    """Read what ``save_to_disk`` wrote, or Parquet files as on the Hub.

    Labels are a column of lists of ``ClassLabel`` or of names, a column of one ``ClassLabel``, a column of lists with a
    state for every class of ``classes`` in this order (else numbers name them), or a column of bool or int for each
    class, where null is unknown.

    Args:
        path: the folder.
        images: the folder of images whose rows have a path and no bytes; the data set's own when not given.
        unlisted: the state of a class that a list does not have: "unknown" or "absent"; null in place of a list is
            always unknown.
        classes: the classes to use, in this order; all of them when not given.
        ignore_columns: columns that are neither images nor labels.
    """
    check_choice("unlisted", unlisted, ("unknown", "absent"))
    root = find_root(Path(path), HUGGINGFACE_LAYOUT)
    problems = FileProblems(root)
    found = find_files(root, problems)
    problems.refuse()
    splits, left_out = _name_splits(root, found)
    columns = _choose(splits, ignore_columns, problems)
    if unlisted != "unknown" and not columns.lists:
        raise InputError(f"{root}: --unlisted is for lists; this data set has a column per class.")
    reader = RowReader(image_folder(root / "_", images), columns, problems)
    parts = {name: reader.read(name, files) for name, files in splits.items()}
    problems.refuse()
    rule = "a column per class; true or 1 = present, false or 0 = absent, null = unknown"
    rule = "a list of a state per class" + rule[len("a column per class") :] if columns.vectors else rule
    rule = f"lists of tags; a tag that is not listed is {unlisted}" if columns.lists else rule
    findings = [*left_out, Note(rule)]
    if columns.ignored:
        findings.append(Note(f"columns left out: {truncate_text(', '.join(columns.ignored), 200)}"))
    all_names = columns.names or sorted(
        {name for rows in parts.values() for each in rows.listed for name in each or ()}
    )
    own: Sequence[str] = all_names if columns.lists else columns.labels
    if columns.vectors:
        own = [*map(str, range(reader.width))] if classes is None else classes
        if len(own) != reader.width:
            raise InputError(f"{root} has {reader.width} states in a row, and these are {len(own)} classes.")
    if missing := sorted({*(classes or ())} - {*own}):
        raise InputError(f"{root} has no class '{truncate_text(missing[0])}' (classes).")
    made: dict[str, Split] = {}
    for (split, rows), names in zip(parts.items(), _image_names(list(parts.values())), strict=True):
        if columns.lists:
            lists = [each or [] for each in rows.listed]
            table = LabelTable.from_lists(lists, classes=all_names, images=names, unlisted=unlisted)
            table = table.keep(np.array([each is not None for each in rows.listed])[table.rows])
        else:
            table = LabelTable.from_dense(np.concatenate(rows.states), own, names)
        source = RowImages(root.absolute(), columns.image, reader.files, names, rows.images)
        made[split] = Split(split, source, table if classes is None else table.with_classes(classes))
    sizes, has_splits = {split: len(part) for split, part in made.items()}, any(split.name for split in found)
    counts = count_labels([part.labels for part in made.values()])
    return Dataset.of(root.resolve().name, made, (*findings, counts, *describe_splits(sizes, has_splits)))


def save_live(data: Any) -> Path:
    """Return a folder of the cache to which a ``datasets.Dataset`` or ``DatasetDict`` is saved, under its digest."""
    parts = data if isinstance(data, Mapping) else {"": data}
    text = "".join(f"{name} {part._fingerprint} " for name, part in parts.items())
    folder = cache_folder() / "datasets" / hashlib.sha256(text.encode()).hexdigest()[:32]
    make_folder(folder.parent)
    if not folder.exists():
        with TemporaryDirectory(dir=folder.parent) as temporary:
            data.save_to_disk(f"{temporary}/data")
            with suppress(FileExistsError):
                Path(temporary, "data").rename(folder)
    return folder


def _name_splits(root: Path, found: Sequence[SplitFiles]) -> tuple[dict[str, SplitFiles], list[Finding]]:
    """Return the files by our names of splits; a data set without splits is train."""
    splits: dict[str, SplitFiles] = {}
    others: list[str] = []
    for split in found:
        name = SPLIT_NAMES.get(split.name.lower()) if split.name else "train"
        if name is None:
            others.append(split.name)
        elif name in splits:
            raise InputError(f"{root} has {splits[name].name} and {split.name}: which one is {name}? Remove the other.")
        else:
            splits[name] = split
    if "train" not in splits:
        names = ", ".join(split.name for split in found)
        raise InputError(f"{root} has no split train; it has {names or 'none'}.")
    left_out = f"the splits {', '.join(map(truncate_text, others[:5]))} are left out: train, val and test are read"
    return {name: splits[name] for name in SPLITS if name in splits}, [Note(left_out, "split")] if others else []


def _choose(splits: Mapping[str, SplitFiles], ignored: Sequence[str], problems: FileProblems) -> LabelColumns:
    chosen: dict[str, LabelColumns] = {}
    for name, split in splits.items():
        try:
            chosen[name] = choose_columns(split, ignored)
            if chosen[name] != chosen.get("train", chosen[name]):
                raise InputError("it has other columns or classes than train")
        except LabelGapError as error:
            problems.add(split.files[0], str(error))
    problems.refuse()
    return chosen["train"]


def _image_names(splits: Sequence[SplitRows]) -> list[list[str]]:
    """Return the names of images: their paths where all have one of their own, else the split and the row."""
    paths = [[image.path or "" for image in rows.images] for rows in splits]
    every = [path for each in paths for path in each]
    if len({*every}) == len(every) and all(path and image_name_problem(path) is None for path in every):
        return paths
    return [[f"{rows.name}-{row:06d}" for row in range(len(rows.images))] for rows in splits]


HUGGINGFACE_LAYOUT: Final = DatasetLayout(
    "any data set of images of the Hugging Face Hub (huggingface.co/datasets), or your own, saved by `datasets`",
    "that of the data set: its page, or README.md, names it",
    "NAME/",
    (
        RequiredFile(
            "dataset_dict.json",
            "what save_to_disk wrote, with a folder per split",
            ("state.json", "data/train-*-of-*.parquet", "train-*-of-*.parquet"),
        ),
        RequiredFile("train/state.json", "the names of the files", optional=True),
        RequiredFile("train/dataset_info.json", "the types of the columns", optional=True),
        RequiredFile("train/data-*-of-*.arrow", "the rows", optional=True),
    ),
    find_huggingface,
    (
        "Tried on folders that datasets 2.14 and 5.2 wrote.",
        "Labels: a list of ClassLabel or names (see --unlisted), one ClassLabel, or a bool or int per class.",
    ),
)
