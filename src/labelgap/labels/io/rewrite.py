"""Write a table of labels again with some labels changed, in its own format; other rows stay letter by letter.

Three things the source may have no room for: lists without a column ``absent`` get one; in a wide table whose 0 means
unknown, such cells become blank; and a new class gets a column at the end of a wide table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from labelgap.core.errors import InputError
from labelgap.core.text import truncate_text
from labelgap.labels.codes import ABSENT, UNKNOWN
from labelgap.labels.io.classes import resolve_class_names
from labelgap.labels.io.formats import OutputColumn, RawTable
from labelgap.labels.io.layout import Cell, CellParser, ListLayout, WideLayout
from labelgap.labels.io.parse import SAMPLE_ROWS, UNSURE_COLUMN, parse_header
from labelgap.labels.io.table_file import ProblemList, TableOptions

LabelChanges = Mapping[str, Mapping[str, int]]  # image → class → new code, of labels that change


class NewImage(NamedTuple):
    """A row to append: what it has under image, split and group."""

    image: str
    split: str = "train"
    group: str = ""


@dataclass(frozen=True)
class RewriteResult:
    """What a table could not hold: a column of absent classes, 0 for absent, labels that a list cannot make unknown."""

    absent_added: bool
    zeros_cleared: bool
    kept: int


def rewrite_table(
    source: RawTable,
    out: Path,
    changes: LabelChanges,
    options: TableOptions,
    *,
    added: Sequence[str] = (),
    images: Sequence[NewImage] = (),
) -> RewriteResult:
    """Write a table again with some labels changed, classes and ``images`` added, read with the same options."""
    editor = _LabelEditor(source, changes, options, added)
    classes = None if source.classes is None else list(dict.fromkeys([*source.classes, *added]))
    appended = [editor.edit(0, editor.new_row(image)) for image in images]
    source.write(out, editor.columns, editor.edit, classes, appended=appended)
    return RewriteResult(editor.absent_added, options.zeros == "unknown", editor.kept)


class _LabelEditor:
    """Changes labels in rows of cells; every row gets the new ``columns`` at its end."""

    def __init__(
        self, source: RawTable, changes: LabelChanges, options: TableOptions, added: Sequence[str] = ()
    ) -> None:
        self.path, self.changes, self.options = source.path, changes, options
        rows = (cells for _, cells in source.rows())
        self.header = [str(cell) for cell in next(rows)]
        sample = list(islice(rows, SAMPLE_ROWS))
        every_row = chain(sample, rows)
        self.names = resolve_class_names(options)
        found = parse_header(0, self.header, options, self.names, ProblemList(source.path), sample)
        assert found.image is not None  # the table was read
        self.image, self.kept, self.absent_added = found.image, 0, False
        self.places, self.sample = (found.image, found.split, found.group), sample[0]
        self.columns = [OutputColumn(name, number) for number, name in enumerate(self.header)]
        self.layout: WideLayout | ListLayout
        if found.present is not None:
            self.layout = lists = ListLayout(found.list_states, every_row, options.separator)
            self._prepare_lists(lists, found.present, added)
        else:
            self.layout = wide = WideLayout(found.class_names, CellParser())
            wide.count(every_row)
            self._prepare_wide(wide, added)

    def _prepare_wide(self, layout: WideLayout, added: Sequence[str]) -> None:
        layout.set_sources(self.names, layout.columns)
        for name in added:
            if name in layout.sources:
                continue
            if name not in self.header:  # a column of its name may be there that is not used
                self.columns.append(OutputColumn(name, next(iter(layout.columns)), new=True))
            layout.sources[name] = [[column.name for column in self.columns].index(name)]

    def _prepare_lists(self, layout: ListLayout, present: int, added: Sequence[str]) -> None:
        if ABSENT not in layout.states.values() and self.options.unlisted == "unknown":
            self.absent_added = any(ABSENT in labels.values() for labels in self.changes.values())
        if self.absent_added:
            if "absent" in map(str.lower, self.header):
                raise InputError(
                    f"{self.path} has a column 'absent' that is not used, so absent labels have no place in it."
                )
            layout.states[len(self.columns)] = ABSENT
            self.columns.append(OutputColumn("absent", present, new=True))
        layout.states |= {number: UNKNOWN for number, name in enumerate(self.header) if name.lower() == UNSURE_COLUMN}
        for name in added:
            if layout.notation.names(layout.notation.cell([name], "")) != [name]:
                raise InputError(
                    f"{self.path} has '{layout.notation.separator}' between names, so its lists cannot hold "
                    f"'{truncate_text(name)}'. Write to another format: .csv from .parquet, or .parquet from .csv."
                )

    def new_row(self, image: NewImage) -> list[Cell]:
        """Return the cells of a row without labels; an ``InputError`` where the table has no column for its split."""
        blank = self.layout.spelling[UNKNOWN] if isinstance(self.layout, WideLayout) else ""
        classes = self.layout.columns if isinstance(self.layout, WideLayout) else {}
        cells: list[Cell] = [blank if n in classes else type(cell)() for n, cell in enumerate(self.sample)]
        for name, value, unset, place in zip(image._fields, image, ("", "train", ""), self.places, strict=True):
            if place is not None:
                cells[place] = value
            elif value != unset:
                raise InputError(
                    f"{image.image} is of the {name} '{truncate_text(value)}', and {self.path} has no column '{name}': "
                    "leave that column out of the new table, or train anew on one table with all images."
                )
        return cells

    def edit(self, number: int, cells: list[Cell]) -> list[Cell]:
        new = self.columns[len(self.header) :]
        if cells == self.header:  # once more
            return [*cells, *(column.name for column in new)]
        changes = self.changes.get(str(cells[self.image]), {})
        if isinstance(self.layout, ListLayout):
            cells += [type(cells[column.source])() for column in new]
            for name, code in changes.items():
                if code == UNKNOWN and self.options.unlisted == "absent":
                    self.kept += 1
                else:
                    self.layout.set_label(cells, name, code, self.names)
            return cells
        blank, parser = self.layout.spelling[UNKNOWN], self.layout.parser
        if self.options.zeros == "unknown":
            cells = [
                blank if n in self.layout.columns and parser.code(cell) == ABSENT else cell
                for n, cell in enumerate(cells)
            ]
        cells += [blank] * len(new)
        for name, code in changes.items():
            if name not in self.layout.sources:
                raise InputError(f"{self.path} has no column '{truncate_text(name)}': add one, for the labels of it.")
            self.layout.set_label(cells, name, code)
        return cells
