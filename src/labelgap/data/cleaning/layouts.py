"""How the rows of a table hold labels, a column per class or lists: reading and writing them as the file does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import format_option, pluralize, truncate_text
from labelgap.data.cleaning.changes import Change
from labelgap.data.cleaning.table_row import TableRow
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.cells import Cell, CellParser, ListNotation, choose_spellings
from labelgap.labels.io.class_names import resolve_class_names
from labelgap.labels.io.header import LIST_COLUMNS, RESERVED_COLUMNS, UNSURE_COLUMN, HeaderColumns
from labelgap.labels.io.raw_table import OutputColumn, RawTable
from labelgap.labels.io.rows import is_no_class
from labelgap.labels.io.similar_names import fold_case
from labelgap.labels.io.table_file import TableOptions


class Layout(ABC):
    """The labels of a table.

    Args:
        raw: the file.
        columns: its columns.
        rows: those that are used.
        options: how to read it; renames and aliases are applied.

    Attributes:
        output: the columns of the clean table.
        names: the new name of every class that has one.
        changes: of columns and of the names of classes.
    """

    output: list[OutputColumn]

    def __init__(self, raw: RawTable, columns: HeaderColumns, rows: Sequence[TableRow], options: TableOptions) -> None:
        self.raw = raw
        self.columns = columns
        self.options = options
        self.names: dict[str, str] = {}
        self.changes: list[Change] = []

    @property
    def has_classes(self) -> bool:
        """Whether a column can hold labels."""
        return True

    @property
    def other_columns(self) -> list[OutputColumn]:
        """The columns of the clean table that hold neither labels nor images."""
        holds_labels = {self.columns.image, self.columns.present, self.columns.absent, *self.columns.class_columns}
        return [column for column in self.output if column.source not in holds_labels]

    @property
    def chosen_classes(self) -> list[str] | None:
        """The classes that the options choose, by their new names."""
        chosen = self.options.classes
        return None if chosen is None else list(dict.fromkeys(self.names.get(name, name) for name in chosen))

    @property
    def all_classes(self) -> list[str] | None:
        """All classes by their new names, where the file has a list of them."""
        names = self.raw.classes
        return None if names is None else list(dict.fromkeys(self.names.get(name, name) for name in names))

    @abstractmethod
    def read_labels(self, row: TableRow) -> Iterator[Change]:
        """Add the known labels to a row, and yield what has to become unknown."""

    @abstractmethod
    def write_cells(self, row: TableRow) -> list[Cell]:
        """Return the cells of the clean table; those that say what they said before are as they were."""

    def rename(self, present: Counter[str], first_lines: dict[str, int]) -> None:
        """Set the new names of classes: those that the options give, and one spelling for variants of case."""
        given = resolve_class_names(self.options)
        for old in self.options.rename:
            if old not in present and old not in self.raw.header:
                raise UnknownNameError("tag", truncate_text(old), map(truncate_text, present), "(--rename OLD=NEW)")
        totals: Counter[str] = Counter()
        for name, count in present.items():
            totals[given.get(name, name)] += count
        folded = fold_case(totals)
        for name, count in present.items():
            new = given.get(name, name)
            new = folded.get(new, new)
            if new == name:
                continue
            self.names[name] = new
            why = "renamed to" if name in given else "another spelling of"
            counted = pluralize(count, "image")
            text = f"'{truncate_text(name)}' (present in {counted}): {why} '{truncate_text(new)}'"
            self.changes.append(Change(first_lines.get(name, self.raw.line), "classes", text))

    def output_column(self, number: int) -> OutputColumn | None:
        """Return a column that holds no class, or None where it is left out."""
        columns, name = self.columns, self.raw.header[number]
        reserved = (columns.image, columns.split, columns.group, columns.present, columns.absent)
        if number in reserved:
            return OutputColumn(self.options.rename.get(name, name), number)
        kept = name == UNSURE_COLUMN if columns.lists else name and self.options.classes is not None
        if kept or name in self.options.ignore_columns:
            return OutputColumn(name, number)
        if not name:
            text = f"column {number + 1} has no name: left out"
        elif self.options.rename.get(name, name).lower() in (*RESERVED_COLUMNS, *LIST_COLUMNS):
            text = f"the column '{truncate_text(name)}' is there twice: the second is left out"
        else:
            hint = f"{format_option('ignore-columns', name)} keeps it"
            hint += "" if columns.lists else f"; if it lists tags, {format_option('rename', f'{name}=present')}"
            text = f"the column '{truncate_text(name)}' is no tag: left out ({hint})"
        self.changes.append(Change(self.raw.line, "columns", text))
        return None


class WideLayout(Layout):
    """A column per class."""

    def __init__(self, raw: RawTable, columns: HeaderColumns, rows: Sequence[TableRow], options: TableOptions) -> None:
        super().__init__(raw, columns, rows, options)
        self.parser = CellParser(ABSENT if options.zeros == "absent" else UNKNOWN)
        cells_of: dict[int | None, Counter[str]] = {}
        bad, filled, present, remarks = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
        for row in rows:
            for number in columns.class_columns:
                if cell := row.cells[number]:
                    filled[number] += 1
                    code = self.code(cell)
                    bad[number] += code is None and str(cell) != "-1"  # a state of some tables: absent or unknown
                    remarks[number] += code is None and len(str(cell).split()) > 1
                    present[number] += code == PRESENT
                    cells_of.setdefault(code, Counter())[str(cell)] += 1
        self.spelling = {**choose_spellings(cells_of), UNKNOWN: ""}
        classes = [number for number in columns.class_columns if raw.header[number]]
        classes = [
            number
            for number in classes
            if not is_no_class(bad[number], filled[number])
            and not (bad[number] == filled[number] and (bad[number] > 1 or remarks[number]))
        ]
        counts: Counter[str] = Counter()
        for number in classes:
            counts[raw.header[number]] += present[number]
        self.rename(counts, {})
        self._set_columns(classes)

    def _set_columns(self, classes: Sequence[int]) -> None:
        """Set the output: classes that have one name share the column of the first."""
        self.sources: dict[str, list[int]] = {}
        self.output = []
        holds_class = {*classes}
        for number, name in enumerate(self.raw.header):
            if number not in holds_class:
                if column := self.output_column(number):
                    self.output.append(column)
                continue
            final = self.names.get(name, name)
            if final not in self.sources:
                self.output.append(OutputColumn(final, number))
            elif name in (self.raw.header[other] for other in self.sources[final]):
                text = f"the column '{truncate_text(name)}' is there twice: merged"
                self.changes.append(Change(self.raw.line, "columns", text))
            self.sources.setdefault(final, []).append(number)

    @property
    def has_classes(self) -> bool:
        """See ``Layout``."""
        return bool(self.sources)

    def code(self, cell: Cell) -> int | None:
        """Return the state of a cell, or None where it is none."""
        return self.parser.code(cell) if isinstance(cell, str) else None

    def read_labels(self, row: TableRow) -> Iterator[Change]:
        """See ``Layout``."""
        for name, sources in self.sources.items():
            for number in sources:
                if not (cell := row.cells[number]):
                    continue
                code = self.code(cell)
                if code is None:
                    text = f"'{truncate_text(str(cell))}' under {truncate_text(self.raw.header[number])} is no state"
                    yield Change(row.line, "unknown", f"{text}: unknown now")
                elif code != UNKNOWN and not row.add_label(name, code):
                    yield Change(
                        row.line,
                        "unknown",
                        f"'{truncate_text(name)}' is present in one of its columns and absent in another: unknown now",
                    )

    def write_cells(self, row: TableRow) -> list[Cell]:
        """See ``Layout``."""
        cells: list[Cell] = []
        for column in self.output:
            sources = self.sources.get(column.name, ())
            if column.source not in sources:
                cells.append(row.cells[column.source])
                continue
            state = row.labels.get(column.name, UNKNOWN)
            same = (cell for number in sources if self.code(cell := row.cells[number] or "") == state)
            cells.append(next(same, self.spelling[state]))
        return cells


class ListLayout(Layout):
    """Lists of classes: ``present`` and perhaps ``absent``."""

    def __init__(self, raw: RawTable, columns: HeaderColumns, rows: Sequence[TableRow], options: TableOptions) -> None:
        super().__init__(raw, columns, rows, options)
        self.states = {
            number: state
            for number, state in ((columns.present, PRESENT), (columns.absent, ABSENT))
            if number is not None
        }
        texts = [cell for row in rows for number in self.states if isinstance(cell := row.cells[number], str)]
        self.notation = ListNotation(options.separator, texts)
        counts: Counter[str] = Counter(dict.fromkeys(raw.classes or (), 0))
        first_lines: dict[str, int] = {}
        for row in rows:
            for number, state in self.states.items():
                for name in self.notation.names(row.cells[number]):
                    counts[name] += state == PRESENT
                    first_lines.setdefault(name, row.line)
        self.rename(counts, first_lines)
        for name in self.names.values():
            if self.notation.parser.names(name) != [name]:
                raise InputError(
                    f"'{truncate_text(name)}' cannot be in a list of {raw.path}: it would be several tags."
                )
        self.output = [column for number in range(len(raw.header)) if (column := self.output_column(number))]

    def read_labels(self, row: TableRow) -> Iterator[Change]:
        """See ``Layout``."""
        for number, state in self.states.items():
            for name in self.notation.names(row.cells[number]):
                final = self.names.get(name, name)
                if not row.add_label(final, state):
                    yield Change(
                        row.line,
                        "unknown",
                        f"'{truncate_text(final)}' is both under present and under absent: unknown now",
                    )

    def write_cells(self, row: TableRow) -> list[Cell]:
        """See ``Layout``."""
        cells: list[Cell] = []
        for column in self.output:
            cell = row.cells[column.source]
            if column.source in self.states:
                state = self.states[column.source]
                names = [name for name, label in row.labels.items() if label == state]
                cell = cell if {*self.notation.names(cell)} == {*names} else self.notation.cell(names, cell)
            cells.append(cell)
        return cells
