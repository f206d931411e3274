"""CSV files of labels: one row per image, wide or lists.

This module splits a text into rows of cells, and writes tables; ``labelgap.labels.io.rows`` parses the cells.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from labelgap.core.errors import InputError, Problem, UnknownNameError
from labelgap.core.files import atomic_path
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.dialect import detect_dialect, open_text
from labelgap.labels.io.header import RESERVED_COLUMNS, is_header
from labelgap.labels.io.rows import CheckImage, Row, parse_rows
from labelgap.labels.io.table_file import SPLITS, TableFile, TableOptions
from labelgap.labels.table import LabelTable

__all__ = ["SPLITS", "TableFile", "TableOptions", "read_csv", "read_csv_table", "write_csv"]

_TEXT: Final = {PRESENT: "1", ABSENT: "0", UNKNOWN: ""}


def read_csv(
    path: Path,
    options: TableOptions | None = None,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    check_image: CheckImage = lambda name: None,
) -> TableFile:
    """Read a CSV of labels, or raise one error with all its problems; encoding and delimiter are detected when None."""
    options = options or TableOptions()
    dialect = detect_dialect(path, encoding, delimiter, lambda header: is_header(header, options))
    problems: list[Problem] = []
    with open_text(path, dialect.encoding) as file:
        rows = _rows(file, dialect.delimiter, dialect.skip, problems)
        return parse_rows(path, rows, options, check_image=check_image, problems=problems, findings=dialect.findings)


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
    for name in table.classes:
        if name.lower() in (*RESERVED_COLUMNS, "present"):
            raise InputError(f"a CSV cannot hold the class '{name}': that column means something else. Use Parquet.")
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        header = ["image", *(["split"] if splits is not None else []), *table.classes]
        file.write(",".join(map(_quoted, header)) + "\n")
        for start in range(0, len(table), 1024):
            block = table.batch(range(start, min(start + 1024, len(table)))).numpy()
            for row, codes in enumerate(block.tolist(), start):
                first = _quoted(table.images[row]) + (f",{_quoted(splits[row])}" if splits is not None else "")
                file.write(",".join([first, *map(_TEXT.__getitem__, codes)]) + "\n")


def _rows(file: TextIO, delimiter: str, skip: int, problems: list[Problem]) -> Iterator[Row]:
    """Yield the line and the cells of every record that is not blank; add what is no record to the problems."""
    for _ in range(skip):
        file.readline()
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + skip + 1
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(Problem(line, f"not a CSV row: {error}"))
            continue
        if any(cells):
            yield line, [*cells]


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
