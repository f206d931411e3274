"""Parse the rows of a file of labels: the same rules for CSV and Parquet, all problems in one error.

Wide: ``image,[split],class…`` with 1 (present), 0 (absent) or blank (unknown) in the cells; TRUE, yes, x work as well.
Lists: ``image,[split],present,[absent]`` with a separator between names, never escaped; a class in neither list is
unknown. A column ``group`` says which images belong together. Blanks around a cell or a name are ignored.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError, nearest
from labelgap.core.findings import Finding
from labelgap.core.text import format_option, truncate_text
from labelgap.labels.codes import ABSENT, UNKNOWN
from labelgap.labels.io.cells import CellParser, TagListParser
from labelgap.labels.io.class_options import ResolvedTable, apply_class_options, resolve_class_names
from labelgap.labels.io.findings import AllCellsKnown, ColumnPerClass, ColumnsIgnored, GroupColumn, ListsOfClasses
from labelgap.labels.io.header import HeaderColumns, parse_header
from labelgap.labels.io.table_file import SPLITS, TableFile, TableOptions
from labelgap.labels.table import LabelTable

__all__ = ["Cell", "CheckImage", "Row", "parse_rows"]

Cell = str | list[str]  # a list where the file itself has lists
Row = tuple[int, list[Cell]]
CheckImage = Callable[[str], str | None]

_MIN_BAD_CELLS: Final = 10
"""From so many bad cells on, and more than half of a column, the column is reported instead of its cells."""
_CELL_FORMAT: Final = "a cell is 1 (present), 0 (absent) or blank (unknown)"


@dataclass
class _Parser:
    """The columns, and the images, splits, groups and problems so far."""

    path: Path
    unit: str
    check_image: CheckImage
    columns: HeaderColumns
    problems: list[Problem]
    images: dict[str, int] = field(default_factory=dict)
    splits: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def add_problem(self, line: int, message: str) -> None:
        self.problems.append(Problem(line, message))

    def refuse_problems(self) -> None:
        if self.problems:
            raise ProblemsError(self.path, self.problems, unit=self.unit)
        if not self.images:
            raise InputError(f"{self.path} has a header and no rows: there is no image to learn from.")


def parse_rows(
    path: Path,
    rows: Iterator[Row],
    options: TableOptions,
    *,
    check_image: CheckImage = lambda name: None,
    problems: list[Problem] | None = None,
    classes: Sequence[str] | None = None,
    unit: str = "line",
    findings: Sequence[Finding] = (),
) -> TableFile:
    """Parse the rows of a file, the header first, or raise one error with all problems.

    Args:
        path: the file, for messages.
        rows: (line, cells) of every row that is not blank.
        options: how to parse them.
        check_image: returns the problem of an image's name, or None.
        problems: list to which the producer of ``rows`` adds rows that cannot be split into cells.
        classes: all class names of a table of lists, where the file has them; those that occur, sorted, when None.
        unit: what the numbers of ``rows`` count.
        findings: of the file so far.
    """
    problems = [] if problems is None else problems
    line, header = next(rows, (0, []))
    if problems:
        raise ProblemsError(path, problems, unit=unit)
    names = resolve_class_names(options)
    columns = parse_header(path, line, [str(cell) for cell in header], options, names, problems)
    parser = _Parser(path, unit, check_image, columns, problems)
    form: Literal["wide", "lists"] = "lists" if columns.lists else "wide"
    parse = _parse_lists if columns.lists else _parse_wide
    table, cell_findings = parse(parser, _checked(parser, rows), options, classes)
    lines = np.fromiter(parser.images.values(), dtype=np.int64, count=len(table))
    resolved = apply_class_options(
        table, options, names, form, lambda conflicts: _refuse_conflicts(parser, lines, conflicts)
    )
    if not len(resolved.table.values):
        raise InputError(f"{path}: no label is known, all of its {len(table)} rows are blank. Tag a few images.")
    splits = tuple(parser.splits) if columns.split is not None else None
    groups = tuple(parser.groups) if columns.group is not None else None
    findings = (*_findings(resolved, form, options, columns, cell_findings), *findings)
    return TableFile(path, resolved.table, splits, groups, lines, form, findings, unit, resolved.revisions)


def _checked(parser: _Parser, rows: Iterator[Row]) -> Iterator[Row]:
    """Check the length, image and split of every row, and yield the rows of the right length."""
    columns = parser.columns
    for line, cells in rows:
        if len(cells) != len(columns.header):
            parser.add_problem(line, f"{len(cells)} cells where the header has {len(columns.header)}")
            continue
        image = str(cells[columns.image])
        if not image:
            parser.add_problem(line, "no image is named")
        elif (first := parser.images.setdefault(image, line)) != line:
            parser.add_problem(line, f"{truncate_text(image)} is listed again (first in {parser.unit} {first})")
        elif (problem := parser.check_image(image)) is not None:
            parser.add_problem(line, problem)
        if columns.split is not None:
            split = str(cells[columns.split])
            if split not in SPLITS:
                close = nearest(split, SPLITS)
                hint = f". Did you mean '{close}'?" if close else ""
                parser.add_problem(line, f"'{truncate_text(split)}' under split: it is train, val or test{hint}")
            parser.splits.append(split)
        if columns.group is not None:
            parser.groups.append(str(cells[columns.group]))
        yield line, cells


def _parse_wide(
    parser: _Parser, rows: Iterator[Row], options: TableOptions, classes: Sequence[str] | None
) -> tuple[LabelTable, list[Finding]]:
    if options.unlisted != "unknown":
        raise InputError(
            f"{parser.path}: --unlisted is for lists; this is a table with a column per class. See --zeros."
        )
    columns = parser.columns
    cell_parser = CellParser(ABSENT if options.zeros == "absent" else UNKNOWN)
    lengths, numbers, values = array("q"), array("i"), array("b")
    filled = [0] * len(columns.class_columns)
    invalid: list[list[tuple[int, Cell]]] = [[] for _ in columns.class_columns]
    for line, cells in rows:
        for column, number in enumerate(columns.class_columns):
            if cell := cells[number]:
                filled[column] += 1
                value = cell_parser.code(cell) if isinstance(cell, str) else None
                if value is None:
                    invalid[column].append((line, cell))
                elif value != UNKNOWN:
                    numbers.append(column)
                    values.append(value)
        lengths.append(len(values))
    for column, bad in enumerate(invalid):
        _report_invalid_cells(parser, columns.header[columns.class_columns[column]], bad, filled[column])
    parser.refuse_problems()
    starts = np.concatenate([[0], np.asarray(lengths)])
    names = [columns.header[number] for number in columns.class_columns]
    table = LabelTable(starts, np.asarray(numbers), np.asarray(values), names, list(parser.images))
    return table, [ColumnPerClass(options.zeros, *cell_parser.spellings())]


def _report_invalid_cells(parser: _Parser, name: str, bad: list[tuple[int, Cell]], filled: int) -> None:
    """Report cells that are no state: each of them, or the column where most of its cells are."""
    if len(bad) < _MIN_BAD_CELLS or 2 * len(bad) <= filled:
        for line, cell in bad:
            parser.add_problem(line, f"'{truncate_text(str(cell))}' under {truncate_text(name)}: {_CELL_FORMAT}")
        return
    (line, cell), more = bad[0], len(bad) - 1
    renamed = format_option("rename", f"{name}=present")
    hint = f"{format_option('ignore-columns', name)} leaves it out; if it lists tags, {renamed}"
    example = f"'{truncate_text(str(cell))}' in {parser.unit} {line} and {more:,} more"
    parser.add_problem(
        parser.columns.line, f"the column '{truncate_text(name)}' does not look like a tag ({example}): {hint}"
    )


def _parse_lists(
    parser: _Parser, rows: Iterator[Row], options: TableOptions, classes: Sequence[str] | None
) -> tuple[LabelTable, list[Finding]]:
    if options.zeros != "absent":
        raise InputError(
            f"{parser.path}: --zeros is for tables with a column per class; this has lists. See --unlisted."
        )
    columns = parser.columns
    cells: list[tuple[int, Cell, Cell]] = []
    for line, row in rows:
        assert columns.present is not None
        cells.append((line, row[columns.present], row[columns.absent] if columns.absent is not None else ""))
    texts = (cell for _, *both in cells for cell in both if isinstance(cell, str))
    lists = TagListParser(options.separator, texts)
    present, absent = list[list[str]](), list[list[str]]()
    for line, *both in cells:
        listed, excluded = (lists.names(cell) if isinstance(cell, str) else cell for cell in both)
        present.append(listed)
        absent.append(excluded)
        for name in sorted({*listed} & {*excluded}):
            parser.add_problem(line, f"'{truncate_text(name)}' is both under present and under absent")
    parser.refuse_problems()
    images = list(parser.images)
    table = LabelTable.from_lists(present, absent, classes=classes, images=images, unlisted=options.unlisted)
    return table, [ListsOfClasses(options.unlisted), *lists.findings()]


def _refuse_conflicts(parser: _Parser, lines: NDArray[np.int64], conflicts: Sequence[tuple[int, str]]) -> None:
    """Report rows in which a class is present under one of its names and absent under another."""
    for row, name in conflicts:
        parser.add_problem(
            int(lines[row]), f"'{truncate_text(name)}' is present under one of its names and absent under another"
        )
    parser.refuse_problems()


def _findings(
    resolved: ResolvedTable, form: str, options: TableOptions, columns: HeaderColumns, cells: Sequence[Finding]
) -> tuple[Finding, ...]:
    findings = list(cells)
    if form == "wide" and resolved.table.complete and options.zeros == "absent":
        findings.append(AllCellsKnown())
    if columns.group is not None:
        findings.append(GroupColumn())
    if columns.ignored:
        findings.append(ColumnsIgnored(tuple(columns.ignored)))
    return (*findings, *resolved.findings)
