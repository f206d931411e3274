"""Write a table of labels again with some labels changed, in its own format.

Lists stay lists and wide tables stay wide; rows, columns, delimiter, encoding, line ends, spellings and the separator
of lists are those of the source. A row of a CSV without a changed label is copied as it is, letter by letter.

Three things the source may have no room for: lists without a column ``absent`` get one where a label became absent; in
a wide table whose 0 means unknown, such cells become blank, so that 0 can say absent; and a class that is new gets a
column at the end of a wide table, unknown where no label of it changes.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path
from labelgap.core.text import quote_formula, truncate_text, unquote_formula
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.classes import resolve_class_names
from labelgap.labels.io.dialect import detect_dialect, encoding_to_write, open_text, raw_records
from labelgap.labels.io.formats import CLASSES_KEY, column_cells, open_parquet, stored_classes, typed_cell
from labelgap.labels.io.parse import (
    SAMPLE_ROWS,
    UNSURE_COLUMN,
    Cell,
    CellParser,
    TagLists,
    choose_spellings,
    is_header,
    parse_header,
)
from labelgap.labels.io.table_file import ProblemList, TableOptions

LabelChanges = Mapping[str, Mapping[str, int]]
"""image → class → new code, of labels that change."""


@dataclass(frozen=True)
class RewriteResult:
    """What a table could not hold as it was.

    Whether lists got a column of absent classes; whether 0 meant unknown, and is absent in the new table; and how many
    labels should become unknown and stayed, since a class that is not listed is absent.
    """

    absent_added: bool
    zeros_cleared: bool
    kept: int


def rewrite_csv(
    source: Path,
    out: Path,
    changes: LabelChanges,
    options: TableOptions,
    *,
    added: Sequence[str] = (),
    encoding: str | None = None,
    delimiter: str | None = None,
) -> RewriteResult:
    """Write a CSV again with some labels changed; it was read with the same options, so it has no problems.

    ``added`` are classes that the table does not have yet.
    """
    dialect = detect_dialect(source, encoding, delimiter, lambda header: is_header(header, options))
    text = (dialect.delimiter, dialect.skip)
    with open_text(source, dialect.encoding) as file:
        rows = (_stripped(cells) for _, cells in raw_records(file, *text))
        editor = _LabelEditor(source, rows, changes, options, added)
    codec = encoding_to_write(source, dialect.encoding)
    try:
        with (
            open_text(source, dialect.encoding) as file,
            atomic_path(out) as temporary,
            temporary.open("w", newline="", encoding=codec) as target,
        ):
            _copy_records(file, target, editor, *text)
    except UnicodeEncodeError as error:
        letters = truncate_text(error.object[error.start : error.end])
        raise InputError(
            f"{source} is in {codec}, which cannot write '{letters}'. Write to a .parquet file, or save the table in "
            "UTF-8 first."
        ) from None
    return editor.result()


def rewrite_parquet(
    source: Path, out: Path, changes: LabelChanges, options: TableOptions, *, added: Sequence[str] = ()
) -> RewriteResult:
    """Write a Parquet file again with some labels changed; types of columns and metadata stay. See ``rewrite_csv``."""
    with open_parquet(source) as file:
        table = pa.concat_tables(file.read_row_group(number) for number in range(file.num_row_groups))
    columns = [[cell for chunk in column.chunks for cell in column_cells(chunk)] for column in table.columns]
    schema = pq.read_schema(source)
    rows: list[list[Cell]] = [[name.strip() for name in schema.names], *map(list, zip(*columns, strict=True))]
    editor = _LabelEditor(source, iter(rows), changes, options, added)
    values = [column.to_pylist() for column in table.columns]
    like = editor.columns.present if editor.columns.lists else editor.columns.class_columns[0]
    for name in editor.new_columns:
        values.append([None] * table.num_rows)
        schema = schema.append(pa.field(name, schema.field(like).type))
    if (classes := stored_classes(schema.metadata, source)) is not None:
        classes += [name for name in added if name not in classes]
        listed = json.dumps(classes, ensure_ascii=False).encode()
        schema = schema.with_metadata({**schema.metadata, CLASSES_KEY: listed})
    for number, cells in enumerate(rows[1:]):
        edited = editor.edit(cells)
        for column, cell in enumerate(edited):
            if column >= len(cells) or cell != cells[column]:
                values[column][number] = typed_cell(cell, schema.field(column).type)
    arrays = [pa.array(cells, field.type) for cells, field in zip(values, schema, strict=True)]
    with atomic_path(out) as temporary:
        pq.write_table(pa.table(arrays, schema=schema), temporary)
    return editor.result()


class _LabelEditor:
    """Changes labels in rows of cells, in the notation that the table has; every row gets ``new_columns`` at its end.

    ``rows`` are the header, and all rows that are not blank; ``added`` are classes that the table may not have yet.
    """

    def __init__(
        self,
        path: Path,
        rows: Iterator[Sequence[Cell]],
        changes: LabelChanges,
        options: TableOptions,
        added: Sequence[str] = (),
    ) -> None:
        self.path, self.changes, self.options = path, changes, options
        self.names = resolve_class_names(options)
        rows = (row for row in rows if any(row))
        header = [str(cell) for cell in next(rows)]
        sample = list(islice(rows, SAMPLE_ROWS))
        rows = chain(sample, rows)
        self.columns = parse_header(0, header, options, self.names, ProblemList(path), sample)
        self.kept = 0
        self.new_columns: list[str] = []
        self.absent_added = False
        (self._set_lists if self.columns.lists else self._set_wide)(header, rows, added)

    def _set_wide(self, header: list[str], rows: Iterator[Sequence[Cell]], added: Sequence[str]) -> None:
        """Find the columns of every class, also of the added ones, and how the table spells each state."""
        self._class_columns: dict[str, list[int]] = {}
        for number in self.columns.class_columns:
            self._class_columns.setdefault(self.names.get(header[number], header[number]), []).append(number)
        self._states = CellParser()
        counts: dict[int | None, Counter[str]] = {state: Counter() for state in (PRESENT, ABSENT, UNKNOWN, None)}
        for row in rows:
            for number in self.columns.class_columns:
                counts[self._states.code(row[number])][str(row[number])] += 1
        self.spelling = choose_spellings(counts)
        for name in added:
            if name in self._class_columns:
                continue
            if name not in header:  # a column of its name may be there that is not used
                self.new_columns.append(name)
            place = header.index(name) if name in header else len(header) + len(self.new_columns) - 1
            self._class_columns[name] = [place]

    def _set_lists(self, header: list[str], rows: Iterator[Sequence[Cell]], added: Sequence[str]) -> None:
        """Find how the table lists classes, and whether absent ones need a column."""
        present, absent = self.columns.present, self.columns.absent
        self._unsure = next((number for number, name in enumerate(header) if name.lower() == UNSURE_COLUMN), None)
        if absent is None and self.options.unlisted == "unknown":
            self.absent_added = any(ABSENT in labels.values() for labels in self.changes.values())
        if self.absent_added and "absent" in map(str.lower, header):
            raise InputError(
                f"{self.path} has a column 'absent' that is not used, so absent labels have no place in it."
            )
        self.new_columns = ["absent"] if self.absent_added else []
        listed = [number for number in (present, absent) if number is not None]
        self.notation = TagLists(self.options.separator, (row[number] for row in rows for number in listed))
        for name in added:
            if self.notation.names(self.notation.cell([name], "")) != [name]:
                raise InputError(
                    f"{self.path} has '{self.notation.separator}' between names, so its lists cannot hold "
                    f"'{truncate_text(name)}'. Write to another format: .csv from .parquet, or .parquet from .csv."
                )

    def result(self) -> RewriteResult:
        """Return what the table could not hold."""
        return RewriteResult(self.absent_added, self.options.zeros == "unknown", self.kept)

    def edit(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells of a row with the changes to its image."""
        assert self.columns.image is not None  # the table was read
        changes = self.changes.get(str(cells[self.columns.image]), {})
        return self._edit_lists(list(cells), changes) if self.columns.lists else self._edit_wide(list(cells), changes)

    def _edit_wide(self, cells: list[Cell], changes: Mapping[str, int]) -> list[Cell]:
        cells += [self.spelling[UNKNOWN]] * len(self.new_columns)
        if self.options.zeros == "unknown":
            for number in self.columns.class_columns:
                cells[number] = self.spelling[UNKNOWN] if self._states.code(cells[number]) == ABSENT else cells[number]
        for name, code in changes.items():
            places = self._class_columns.get(name, [])
            if not places:
                raise InputError(f"{self.path} has no column '{truncate_text(name)}': add one, for the labels of it.")
            known = [number for number in places if self._states.code(cells[number]) != UNKNOWN]
            for number in known or places[:1]:
                cells[number] = self.spelling[code]
        return cells

    def _edit_lists(self, cells: list[Cell], changes: Mapping[str, int]) -> list[Cell]:
        places = {PRESENT: self.columns.present, ABSENT: self.columns.absent, UNKNOWN: self._unsure}
        if self.absent_added:
            places[ABSENT] = len(cells)
            cells.append("" if isinstance(cells[self.columns.present or 0], str) else [])
        for name, code in changes.items():
            if code == UNKNOWN and self.options.unlisted == "absent":
                self.kept += 1
                continue
            for state, place in places.items():
                if place is None:
                    continue
                before = self.notation.names(cells[place])
                after = [each for each in before if self.names.get(each, each) != name]
                after += [name] if state == code else []
                if after != before:
                    cells[place] = self.notation.cell(after, cells[place])
        return cells


def _stripped(cells: Sequence[str]) -> list[Cell]:
    """Return cells as they are read: without blanks around them and the apostrophe before a formula."""
    return [unquote_formula(cell.strip()) for cell in cells]


def _copy_records(file: TextIO, target: TextIO, editor: _LabelEditor, delimiter: str, skip: int) -> None:
    """Copy a CSV; the text of a row that does not change stays as it is."""
    target.writelines(file.readline() for _ in range(skip))
    header: list[Cell] | None = None
    quoted = False
    for raw, cells in raw_records(file, delimiter, 0):
        plain = _stripped(cells)
        if not any(plain):
            target.write(raw)
            continue
        body = raw.rstrip("\r\n")
        if header is None:
            header, quoted = plain, _record(cells, delimiter, csv.QUOTE_ALL) == body
        if plain == header:  # the first time, or once more
            edited: list[Cell] = [*plain, *editor.new_columns]
        else:
            edited = editor.edit(plain)
        changed = [
            cells[number] if number < len(plain) and cell == plain[number] else quote_formula(str(cell))
            for number, cell in enumerate(edited)
        ]
        quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
        if changed[: len(cells)] == cells:  # as it is, perhaps with more cells
            text = body + _record(["", *changed[len(cells) :]], delimiter, quoting).removeprefix('""')
        else:
            text = _record(changed, delimiter, quoting)
        target.write(text + raw[len(body) :])


def _record(cells: Sequence[str], delimiter: str, quoting: Any) -> str:
    """Return the text of a row, without its end."""
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter, quoting=quoting, lineterminator="").writerow(cells)
    return buffer.getvalue()
