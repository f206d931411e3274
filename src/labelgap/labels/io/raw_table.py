"""A file of labels as rows of cells, without a meaning, which can be written again in its own format."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError, Problem
from labelgap.core.files import atomic_path
from labelgap.core.text import quote_formula
from labelgap.labels.io.dialect import Dialect, detect_dialect, encoding_to_write, open_text
from labelgap.labels.io.header import is_header
from labelgap.labels.io.parquet import CLASSES_KEY, open_parquet, rows_of_cells, stored_classes, typed_cell
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.records import split_records
from labelgap.labels.io.rows import Row
from labelgap.labels.io.table_file import TableOptions

_PANDAS_KEY: Final = b"pandas"  # the index and the columns as they were


@dataclass(frozen=True)
class OutputColumn:
    """A column to write: its name, and the number of the column of the file whose place and type it takes."""

    name: str
    source: int


@dataclass(frozen=True)
class RawTable(ABC):
    """The cells of a file.

    Attributes:
        path: the file.
        unit: what the numbers of rows count: "line", or "row" in files without lines.
        line: the line of the header; 0 in files without lines.
        header: the names of the columns.
        rows: number and cells of every row that is not blank.
        unreadable: rows that cannot be split into cells.
        classes: all classes of a table of lists, where the file has such a list.
    """

    path: Path
    unit: str
    line: int
    header: list[str]
    rows: list[Row]
    unreadable: tuple[Problem, ...] = ()
    classes: tuple[str, ...] | None = None

    @abstractmethod
    def write(
        self, path: Path, columns: Sequence[OutputColumn], rows: Sequence[Row], renamed: Mapping[str, str]
    ) -> None:
        """Write other rows in the format of this file, atomically.

        Args:
            path: the new file.
            columns: what ``rows`` have, in this order.
            rows: the number of the row of this file that each row is made of, and its cells.
            renamed: classes that have another name now.
        """


@dataclass(frozen=True, kw_only=True)
class _RawCsv(RawTable):
    dialect: Dialect

    def write(
        self, path: Path, columns: Sequence[OutputColumn], rows: Sequence[Row], renamed: Mapping[str, str]
    ) -> None:
        """Keep delimiter, encoding, byte order mark, line ends, the line ``sep=``, and quotes around all cells."""
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


@dataclass(frozen=True)
class _RawParquet(RawTable):
    def write(
        self, path: Path, columns: Sequence[OutputColumn], rows: Sequence[Row], renamed: Mapping[str, str]
    ) -> None:
        """Keep the types of the columns, and the values of those whose cells are unchanged."""
        table = pq.read_table(self.path)
        places = [number - 1 for number, _ in rows]
        arrays = []
        for index, column in enumerate(columns):
            cells = [cells[index] for _, cells in rows]
            unchanged = all(
                cell == self.rows[place][1][column.source] for cell, place in zip(cells, places, strict=True)
            )
            original = table.column(column.source)
            arrays.append(
                original.take(places)
                if unchanged
                else pa.array([typed_cell(cell, original.type) for cell in cells], original.type)
            )
        metadata: dict[bytes, bytes] = {**(table.schema.metadata or {})}
        metadata.pop(_PANDAS_KEY, None)
        if self.classes is not None:
            classes = list(dict.fromkeys(renamed.get(name, name) for name in self.classes))
            metadata[CLASSES_KEY] = json.dumps(classes, ensure_ascii=False).encode()
        written = pa.table(arrays, names=[column.name for column in columns]).replace_schema_metadata(metadata)
        with atomic_path(path) as temporary:
            pq.write_table(written, temporary)


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
    return _RawCsv(path, "line", line, header, rows, problems.found, dialect=dialect)


def read_raw_parquet(path: Path) -> RawTable:
    """Read the cells of a Parquet file."""
    with open_parquet(path) as file:
        (line, header), *rows = rows_of_cells(file)
        classes = stored_classes(file.schema_arrow.metadata, path)
    kept = None if classes is None else tuple(classes)
    return _RawParquet(path, "row", line, [str(cell) for cell in header], rows, classes=kept)
