"""CSV and Parquet files of labels: read, written, and kept as rows of cells to be written again in their own format."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.errors import InputError, LabelGapError, Problem, UnknownNameError, describe_missing_path
from labelgap.core.files import atomic_path
from labelgap.core.stored import READ_ERRORS, parse_json
from labelgap.core.text import quote_formula
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.dialect import Dialect, detect_dialect, encoding_to_write, open_text, split_records
from labelgap.labels.io.parse import (
    COLUMN_SYNONYMS,
    Cell,
    CellParser,
    CheckImage,
    Row,
    image_name_problem,
    is_header,
    parse_rows,
)
from labelgap.labels.io.table_file import RESERVED_COLUMNS, SPLITS, ProblemList, TableFile, TableOptions
from labelgap.labels.sparse import starts_from_lengths
from labelgap.labels.table import LabelTable

_BLOCK_LABELS: Final = 1 << 22
_TEXT: Final = {PRESENT: "1", ABSENT: "0", UNKNOWN: ""}


def read_csv(
    path: Path,
    options: TableOptions | None = None,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    check_image: CheckImage = lambda name, line: None,
) -> TableFile:
    """Read a CSV of labels, or raise one error with all its problems; encoding and delimiter are detected when None."""
    options = options or TableOptions()
    dialect = detect_dialect(path, encoding, delimiter, lambda header: is_header(header, options))
    problems = ProblemList(path)
    with open_text(path, dialect.encoding) as file:
        records = split_records(file, dialect.delimiter, dialect.skip, problems)
        rows: Iterator[Row] = ((line, [*cells]) for line, cells in records)
        return parse_rows(rows, options, problems, check_image=check_image, findings=dialect.findings)


def read_csv_table(path: Path, *, zeros: str = "absent", unlisted: str = "unknown") -> LabelTable:
    """See ``LabelTable.from_csv``."""
    return read_csv(path, TableOptions(zeros=zeros, unlisted=unlisted, separator=";")).table


def write_csv(table: LabelTable, path: Path, splits: Sequence[str] | None = None) -> None:
    """See ``LabelTable.to_csv``."""
    if splits is not None and len(splits) != len(table):
        raise InputError(f"{len(splits)} splits were given for {len(table)} images.")
    for name in set(splits if splits is not None else ()).difference(SPLITS):
        raise UnknownNameError("split", name, SPLITS)
    for kind, names in (("image", table.images), ("class", table.classes)):
        for name in names:
            if name != name.strip() or not name:
                raise InputError(f"a CSV cannot hold the {kind} {name!r}: blanks around a name are lost. Use Parquet.")
    for name in table.images:
        if (problem := image_name_problem(name)) is not None:
            raise InputError(f"a CSV cannot hold this image: {problem}.")
    for name in table.classes:
        if name.lower() in (*RESERVED_COLUMNS, *COLUMN_SYNONYMS["split"], "present"):
            raise InputError(f"a CSV cannot hold the class '{name}': that column means something else. Use Parquet.")
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        header = ["image", *(["split"] if splits is not None else []), *table.classes]
        file.write(",".join(map(_quoted, header)) + "\n")
        step = max(1, min(1024, _BLOCK_LABELS // max(len(table.classes), 1)))
        for start in range(0, len(table), step):
            block = table.batch(range(start, min(start + step, len(table)))).numpy()
            for row, codes in enumerate(block.tolist(), start):
                first = _quoted(table.images[row]) + (f",{_quoted(splits[row])}" if splits is not None else "")
                file.write(",".join([first, *map(_TEXT.__getitem__, codes)]) + "\n")


def _quoted(text: str) -> str:
    """Return a name as a cell."""
    text = quote_formula(text)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


CLASSES_KEY: Final = b"labelgap.classes"
"""Where the metadata of a file have the names of all classes, in their order."""
_BATCH_CELLS: Final = 1 << 20
_ROWS_PER_BYTE: Final = 16
"""Rows that a byte of a file may stand for: the names of images differ, so they need more than that."""
_UNPACKED_BYTES: Final = 1 << 30
_UNPACKED_PER_BYTE: Final = 100
"""Bytes that a file may unpack to: so many, and so many for each of its own."""
_STATES = {"present": PRESENT, "absent": ABSENT}


def write_table(table: LabelTable, path: Path) -> None:
    """See ``LabelTable.to_parquet``; the class names and their order are in the file's metadata."""
    columns = {"image": pa.array(table.images, pa.string())}
    names = pa.array(table.classes, pa.string())
    for name, state in _STATES.items():
        chosen = table.values == state
        starts = starts_from_lengths(chosen)[table.starts]
        entries = pa.DictionaryArray.from_arrays(pa.array(table.columns[chosen]), names)
        columns[name] = pa.LargeListArray.from_arrays(pa.array(starts), entries)
    metadata = {CLASSES_KEY: json.dumps(table.classes, ensure_ascii=False).encode()}
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), temporary)


def read_table(path: Path) -> LabelTable:
    """See ``LabelTable.from_parquet``; without class names in the metadata they are those that occur, sorted."""
    file = _opened(path)
    lists = {
        name: _flat(file.column(name), f"{path}, column '{name}'") for name in _STATES if name in file.schema.names
    }
    found = {names[number] for _, numbers, names in lists.values() for number in np.unique(numbers).tolist()}
    classes = stored_classes(file.schema.metadata, path) or sorted(found)
    number = {name: column for column, name in enumerate(classes)}
    unknown = sorted(found - number.keys())
    if unknown:
        raise InputError(f"{path} lists the class '{unknown[0]}', which its own list of classes does not have.")
    columns = [
        np.asarray([number.get(name, 0) for name in names], dtype=np.int64)[numbers]
        for _, numbers, names in lists.values()
    ]
    rows = [rows for rows, _, _ in lists.values()]
    values = [np.full(len(entries), _STATES[name], dtype=np.int8) for name, (entries, _, _) in lists.items()]
    images = pc.cast(file.column("image"), pa.large_string()).to_pylist()  # a dictionary takes 20 times as long
    try:
        return LabelTable.from_entries(
            np.concatenate(rows), np.concatenate(columns), np.concatenate(values), classes, images
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_parquet(
    path: Path, options: TableOptions | None = None, *, check_image: CheckImage = lambda name, line: None
) -> TableFile:
    """Read a Parquet file of labels, wide or lists, or raise one error with all its problems; rows count from 1."""
    with open_parquet(path) as file:
        classes = stored_classes(file.schema_arrow.metadata, path)
        options = options or TableOptions()
        for column in file.schema_arrow:
            holds_images = pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0
            if holds_images and column.name in ("image", "img"):
                raise InputError(
                    f"{path}: its column '{column.name}' holds images, as a Hugging Face data set does. Name its "
                    f"folder, which is read as huggingface: {path.parent}"
                )
        return parse_rows(
            rows_of_cells(file), options, ProblemList(path, "row"), check_image=check_image, classes=classes
        )


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file that anybody may have made; what cannot be read is an ``InputError``, in the block as well.

    Texts are read as dictionaries, so that one that occurs a million times is in memory once. A file that claims to be
    far larger than it is when it is unpacked is refused before it is.
    """
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise InputError(f"{path} is not a file." if path.exists() else describe_missing_path(path))
        with pq.ParquetFile(path) as file:
            _check_claims(file.metadata, path)
            texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            yield file
    except LabelGapError:
        raise
    except READ_ERRORS as error:
        raise InputError(f"{path} cannot be read as Parquet ({' '.join(str(error).split())[:200]}).") from None


def _check_claims(metadata: pq.FileMetaData, path: Path) -> None:
    """Raise an error for a file that says that it has far more rows or bytes than its size allows."""
    size = path.stat().st_size
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    unpacked = sum(max(group.total_byte_size, 0) for group in groups)
    if not 0 <= metadata.num_rows <= _ROWS_PER_BYTE * size:
        raise ValueError(f"it claims {metadata.num_rows:,} rows")
    if unpacked > _UNPACKED_BYTES + _UNPACKED_PER_BYTE * size:
        raise ValueError(f"its {size:,} bytes would become {unpacked:,}")


def rows_of_cells(file: pq.ParquetFile) -> Iterator[Row]:
    """Yield the names of the columns, then the cells of every row, as strings or lists of strings."""
    yield 0, [name.strip() for name in file.schema_arrow.names]
    number, size = 0, max(1, min(8192, _BATCH_CELLS // max(file.metadata.num_columns, 1)))
    for group in range(file.num_row_groups):  # dictionaries inside of lists cannot be read over several
        for batch in file.iter_batches(batch_size=size, row_groups=[group]):
            for cells in zip(*map(column_cells, batch.columns), strict=True):
                number += 1
                yield number, list(cells)


def column_cells(column: pa.Array) -> list[Cell]:
    """Convert a column to the cells of a CSV; a type that no CSV has becomes its name, which is no state."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        words = column_cells(column.dictionary)
        return ["" if index is None else words[index] for index in column.indices.to_pylist()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [[str(name) for name in names or () if name is not None] for names in column.to_pylist()]
    try:
        texts = pc.fill_null(pc.cast(column, pa.large_string()), "").to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return [f"({kind})"] * len(column)
    return [text.strip() for text in texts]


def typed_cell(cell: Cell, kind: pa.DataType) -> Any:
    """Return an edited cell as a value of a Parquet column."""
    if not isinstance(cell, str):
        return cell
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [cell] if cell else []
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return cell or None
    state = CellParser().code(cell)
    return None if state in (None, UNKNOWN) else bool(state) if pa.types.is_boolean(kind) else state


def _opened(path: Path) -> pa.Table:
    with open_parquet(path) as opened:
        groups = [opened.read_row_group(number) for number in range(opened.num_row_groups)]
        file = pa.concat_tables(groups) if groups else opened.read()
        file.validate(full=True)
    missing = [name for name in ("image", "present") if name not in file.schema.names]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}': it needs image, present and perhaps absent.")
    unnamed = pc.index(file.column("image").is_null(), True).as_py()
    if unnamed >= 0:
        raise InputError(f"{path}, row {unnamed}: no image is named.")
    return file


def stored_classes(metadata: Any, path: Path) -> list[str] | None:
    """Return the class names that ``write_table`` stored in a file, or None."""
    stored = (metadata or {}).get(CLASSES_KEY)
    if stored is None:
        return None
    try:
        classes = parse_json(stored)
    except ValueError:
        classes = None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputError(f"{path}: its list of classes is damaged.")
    return classes


def _flat(column: pa.ChunkedArray, where: str) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Return the row of every entry in a column of lists, the index of its name, and all names."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        raise InputError(f"{where}: it must hold lists of class names, not {kind}.")
    rows, numbers, names = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], list[str]()
    before = 0
    for chunk in column.chunks:
        lengths = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy()
        rows.append(np.repeat(np.arange(before, before + len(chunk)), lengths))
        entries = chunk.flatten()
        if not pa.types.is_dictionary(entries.type):
            entries = entries.dictionary_encode()
        if entries.null_count or entries.dictionary.null_count or not _is_text(entries.type.value_type):
            raise InputError(f"{where}: it must hold lists of class names, each of them a string.")
        numbers.append(entries.indices.to_numpy().astype(np.int64) + len(names))
        names += entries.dictionary.to_pylist()
        before += len(chunk)
    return np.concatenate(rows), np.concatenate(numbers), names


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


class OutputColumn(NamedTuple):
    """A column to write: its name, and the number of the column of the file whose place and type it takes."""

    name: str
    source: int


@dataclass(frozen=True)
class RawTable:
    """The cells of a file.

    Number and cells of every row that is not blank, and the rows that cannot be split into cells.

    ``line`` is that of the header, 0 in files without lines; ``classes`` are all classes of a table of lists, where the
    file has such a list; ``dialect`` is that of a CSV, None for Parquet.
    """

    path: Path
    line: int
    header: list[str]
    rows: list[Row]
    unreadable: tuple[Problem, ...] = ()
    classes: tuple[str, ...] | None = None
    dialect: Dialect | None = None

    @property
    def unit(self) -> str:
        """What the numbers of rows count: "line", or "row" in files without lines."""
        return "row" if self.dialect is None else "line"

    def write(
        self, path: Path, columns: Sequence[OutputColumn], rows: Sequence[Row], renamed: Mapping[str, str]
    ) -> None:
        """Write other rows in the format of this file, atomically: each has the number of the row that it is made of.

        A CSV keeps delimiter, encoding, byte order mark, line ends, the line ``sep=``, and quotes around all cells;
        Parquet the types of the columns, and the values of those whose cells are unchanged. ``renamed`` are classes
        that have another name now.
        """
        if self.dialect is None:
            table = self._parquet(columns, rows, renamed)
            with atomic_path(path) as temporary:
                pq.write_table(table, temporary)
            return
        delimiter, encoding = self.dialect.delimiter, encoding_to_write(self.path, self.dialect.encoding)
        with open_text(self.path, self.dialect.encoding) as source:
            before = [source.readline() for _ in range(self.dialect.skip)]
            first = source.readline()
        line_end = next((end for end in ("\r\n", "\n", "\r") if first.endswith(end)), "\n")
        all_quoted = first.rstrip("\r\n") == delimiter.join(f'"{name}"' for name in self.header)
        quoting: Literal[0, 1] = csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL
        try:
            with atomic_path(path) as temporary, temporary.open("w", newline="", encoding=encoding) as file:
                file.writelines(before)
                writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=line_end)
                writer.writerow([quote_formula(column.name) for column in columns])
                writer.writerows([quote_formula(str(cell)) for cell in cells] for _, cells in rows)
        except UnicodeEncodeError as error:
            text = error.object[error.start : error.end]
            raise InputError(f"{text!r} cannot be written in {encoding}, the encoding of {self.path}.") from None

    def _parquet(self, columns: Sequence[OutputColumn], rows: Sequence[Row], renamed: Mapping[str, str]) -> pa.Table:
        table, places = pq.read_table(self.path), [number - 1 for number, _ in rows]
        arrays = []
        for index, column in enumerate(columns):
            cells, original = [cells[index] for _, cells in rows], table.column(column.source)
            if cells == [self.rows[place][1][column.source] for place in places]:
                arrays.append(original.take(places))
            else:
                arrays.append(pa.array([typed_cell(cell, original.type) for cell in cells], original.type))
        metadata: dict[bytes, bytes] = {**(table.schema.metadata or {})}
        metadata.pop(b"pandas", None)  # the index and the columns as they were
        if self.classes is not None:
            classes = list(dict.fromkeys(renamed.get(name, name) for name in self.classes))
            metadata[CLASSES_KEY] = json.dumps(classes, ensure_ascii=False).encode()
        return pa.table(arrays, names=[column.name for column in columns]).replace_schema_metadata(metadata)


def read_raw_csv(
    path: Path, options: TableOptions, *, encoding: str | None = None, delimiter: str | None = None
) -> RawTable:
    """Read the cells of a CSV; a quote that is never closed is an error, since the rest of the file is not read."""
    dialect = detect_dialect(path, encoding, delimiter, lambda header: is_header(header, options))
    problems = ProblemList(path)
    with open_text(path, dialect.encoding) as file:
        records = split_records(file, dialect.delimiter, dialect.skip, problems)
        line, header = next(records, (0, []))
        rows: list[Row] = [(line, [*cells]) for line, cells in records]
    if not problems.fixable:
        problems.refuse()
    return RawTable(path, line, header, rows, problems.found, dialect=dialect)


def read_raw_parquet(path: Path) -> RawTable:
    """Read the cells of a Parquet file."""
    with open_parquet(path) as file:
        (line, header), *rows = rows_of_cells(file)
        classes = stored_classes(file.schema_arrow.metadata, path)
    kept = None if classes is None else tuple(classes)
    return RawTable(path, line, [str(cell) for cell in header], rows, classes=kept)
