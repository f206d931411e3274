"""CSV files of labels: one row per image, wide or lists.

``labelgap.labels.io.records`` splits the text into cells, ``labelgap.labels.io.rows`` parses them; this module puts the
two together, and writes tables. A name that a spreadsheet would take for a formula is written with an apostrophe in
front (``quote_formula``), and read without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.files import atomic_path
from labelgap.core.text import quote_formula
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.dialect import detect_dialect, open_text
from labelgap.labels.io.header import COLUMN_SYNONYMS, RESERVED_COLUMNS, is_header
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.records import split_records
from labelgap.labels.io.rows import CheckImage, Row, image_name_problem, parse_rows
from labelgap.labels.io.table_file import SPLITS, TableFile, TableOptions
from labelgap.labels.table import LabelTable

_BLOCK: Final = 1 << 22
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
        step = max(1, min(1024, _BLOCK // max(len(table.classes), 1)))
        for start in range(0, len(table), step):
            block = table.batch(range(start, min(start + step, len(table)))).numpy()
            for row, codes in enumerate(block.tolist(), start):
                first = _quoted(table.images[row]) + (f",{_quoted(splits[row])}" if splits is not None else "")
                file.write(",".join([first, *map(_TEXT.__getitem__, codes)]) + "\n")


def _quoted(text: str) -> str:
    """Return a name as a cell."""
    text = quote_formula(text)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
