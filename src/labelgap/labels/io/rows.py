"""From the rows of any file of labels to a table: the same rules for CSV and Parquet, every problem told at once.

Wide: ``image,[split],class…`` with 1 (present), 0 (absent) or blank (unknown) in the cells; TRUE, yes, x do as well.
Lists: ``image,[split],present,[absent]`` with a separator between names, never escaped; a class in neither list is
unknown. A column ``group`` says which images belong together. Blanks around a cell or a name do not count.
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

_MANY: Final = 10
_CELL: Final = "a cell is 1 (present), 0 (absent) or blank (unknown)"


@dataclass
class _Reading:
    """What has been gathered so far, the bad with the good."""

    path: Path
    unit: str
    check_image: CheckImage
    columns: HeaderColumns
    problems: list[Problem]
    images: dict[str, int] = field(default_factory=dict)
    splits: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def problem(self, line: int, message: str) -> None:
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
    """Read the rows of a file, the header first, or raise one error with everything that is wrong with them.

    Args:
        path: the file, for messages.
        rows: (line, cells) of every row that is not blank.
        options: how to understand them.
        check_image: says what is wrong with an image's name, or None; what it says is told with all other problems.
        problems: where whoever makes the rows puts those that are none.
        classes: all class names of a lists table, where the file knows them; those that occur, sorted, when None.
        unit: what the numbers of ``rows`` count.
        findings: about the file so far.
    """
    problems = [] if problems is None else problems
    line, header = next(rows, (0, []))
    if problems:
        raise ProblemsError(path, problems, unit=unit)
    names = resolve_class_names(options)
    columns = parse_header(path, line, [str(cell) for cell in header], options, names, problems)
    reading = _Reading(path, unit, check_image, columns, problems)
    form: Literal["wide", "lists"] = "lists" if columns.lists else "wide"
    read = _read_lists if columns.lists else _read_wide
    table, said = read(reading, _checked(reading, rows), options, classes)
    lines = np.fromiter(reading.images.values(), dtype=np.int64, count=len(table))
    settled = apply_class_options(table, options, names, form, lambda torn: _refuse_torn(reading, lines, torn))
    if not len(settled.table.values):
        raise InputError(
            f"{path}: nothing is known at all, every one of its {len(table)} rows is blank. Tag a few images."
        )
    splits = tuple(reading.splits) if columns.split is not None else None
    groups = tuple(reading.groups) if columns.group is not None else None
    findings = (*_findings(settled, form, options, columns, said), *findings)
    return TableFile(path, settled.table, splits, groups, lines, form, findings, unit, settled.revisions)


def _checked(reading: _Reading, rows: Iterator[Row]) -> Iterator[Row]:
    """Check the length, image and split of every row, and pass on those whose cells can be looked at."""
    columns = reading.columns
    for line, cells in rows:
        if len(cells) != len(columns.header):
            reading.problem(line, f"{len(cells)} cells where the header has {len(columns.header)}")
            continue
        image = str(cells[columns.image])
        if not image:
            reading.problem(line, "no image is named")
        elif (first := reading.images.setdefault(image, line)) != line:
            reading.problem(line, f"{truncate_text(image)} is listed again (first in {reading.unit} {first})")
        elif (wrong := reading.check_image(image)) is not None:
            reading.problem(line, wrong)
        if columns.split is not None:
            split = str(cells[columns.split])
            if split not in SPLITS:
                close = nearest(split, SPLITS)
                hint = f". Did you mean '{close}'?" if close else ""
                reading.problem(line, f"'{truncate_text(split)}' under split: it is train, val or test{hint}")
            reading.splits.append(split)
        if columns.group is not None:
            reading.groups.append(str(cells[columns.group]))
        yield line, cells


def _read_wide(
    reading: _Reading, rows: Iterator[Row], options: TableOptions, classes: Sequence[str] | None
) -> tuple[LabelTable, list[Finding]]:
    if options.unlisted != "unknown":
        raise InputError(
            f"{reading.path}: --unlisted is for lists; this is a table with a column per class. See --zeros."
        )
    columns = reading.columns
    states = CellParser(ABSENT if options.zeros == "absent" else UNKNOWN)
    lengths, numbers, values = array("q"), array("i"), array("b")
    filled = [0] * len(columns.tags)
    strange: list[list[tuple[int, Cell]]] = [[] for _ in columns.tags]
    for line, cells in rows:
        for column, number in enumerate(columns.tags):
            if cell := cells[number]:
                filled[column] += 1
                value = states.code(cell) if isinstance(cell, str) else None
                if value is None:
                    strange[column].append((line, cell))
                elif value != UNKNOWN:
                    numbers.append(column)
                    values.append(value)
        lengths.append(len(values))
    for column, bad in enumerate(strange):
        _tell_strange(reading, columns.header[columns.tags[column]], bad, filled[column])
    reading.refuse_problems()
    starts = np.concatenate([[0], np.asarray(lengths)])
    names = [columns.header[number] for number in columns.tags]
    table = LabelTable(starts, np.asarray(numbers), np.asarray(values), names, list(reading.images))
    return table, [ColumnPerClass(options.zeros, *states.spellings())]


def _tell_strange(reading: _Reading, name: str, bad: list[tuple[int, Cell]], filled: int) -> None:
    """Tell cells that are no state: each of them, or the whole column where most are."""
    if len(bad) < _MANY or 2 * len(bad) <= filled:
        for line, cell in bad:
            reading.problem(line, f"'{truncate_text(str(cell))}' under {truncate_text(name)}: {_CELL}")
        return
    (line, cell), more = bad[0], len(bad) - 1
    renamed = format_option("rename", f"{name}=present")
    hint = f"{format_option('ignore-columns', name)} leaves it out; if it lists tags, {renamed}"
    found = f"'{truncate_text(str(cell))}' in {reading.unit} {line} and {more:,} more"
    reading.problem(
        reading.columns.line, f"the column '{truncate_text(name)}' does not look like a tag ({found}): {hint}"
    )


def _read_lists(
    reading: _Reading, rows: Iterator[Row], options: TableOptions, classes: Sequence[str] | None
) -> tuple[LabelTable, list[Finding]]:
    if options.zeros != "absent":
        raise InputError(
            f"{reading.path}: --zeros is for tables with a column per class; this has lists. See --unlisted."
        )
    columns = reading.columns
    cells: list[tuple[int, Cell, Cell]] = []
    for line, row in rows:
        assert columns.present is not None
        cells.append((line, row[columns.present], row[columns.absent] if columns.absent is not None else ""))
    texts = (cell for _, *both in cells for cell in both if isinstance(cell, str))
    lists = TagListParser(options.separator, texts)
    present, absent = list[list[str]](), list[list[str]]()
    for line, *both in cells:
        yes, no = (lists.names(cell) if isinstance(cell, str) else cell for cell in both)
        present.append(yes)
        absent.append(no)
        for name in sorted({*yes} & {*no}):
            reading.problem(line, f"'{truncate_text(name)}' is both under present and under absent")
    reading.refuse_problems()
    images = list(reading.images)
    table = LabelTable.from_lists(present, absent, classes=classes, images=images, unlisted=options.unlisted)
    return table, [ListsOfClasses(options.unlisted), *lists.findings()]


def _refuse_torn(reading: _Reading, lines: NDArray[np.int64], torn: Sequence[tuple[int, str]]) -> None:
    """Tell rows that say present under one of a tag's names and absent under another."""
    for row, name in torn:
        reading.problem(
            int(lines[row]), f"'{truncate_text(name)}' is present under one of its names and absent under another"
        )
    reading.refuse_problems()


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
