"""Parse the rows of a file of labels: the same rules for CSV and Parquet, all problems in one error.

Wide: ``image,[split],class…`` with 1 (present), 0 (absent) or blank (unknown) in the cells; TRUE, yes, x work as well.
Lists: ``image,[split],present,[absent]`` with a separator between names, never escaped; a class in neither list is
unknown. A column ``group`` says which images belong together. Blanks around a cell or a name are ignored.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

import numpy as np

from labelgap.core.errors import InputError, ProblemsError, nearest
from labelgap.core.findings import Finding, Note
from labelgap.core.text import format_option, pluralize, truncate_text
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.cells import Cell, CellParser, TagListParser, blanks_between_tags
from labelgap.labels.io.class_names import apply_class_options, resolve_class_names
from labelgap.labels.io.findings import ColumnPerClass, ColumnsIgnored, ListsOfClasses
from labelgap.labels.io.header import SAMPLE_ROWS, HeaderColumns, holds_file_names, is_list_name, parse_header
from labelgap.labels.io.problems import MAX_PROBLEMS, ProblemList
from labelgap.labels.io.similar_names import describe_same_names
from labelgap.labels.io.table_file import SPLIT_NAMES, SPLITS, TableFile, TableOptions
from labelgap.labels.sparse import is_encodable
from labelgap.labels.table import LabelTable

Row = tuple[int, list[Cell]]
CheckImage = Callable[[str, int], str | None]  # of the name of an image and its line

_MIN_BAD_CELLS: Final = 10
"""From so many bad cells on, and more than half of a column, the column is reported instead of its cells."""
_MIN_ALL_BAD: Final = 3
"""From so many on, where no cell of the column is a state."""
_CELL_FORMAT: Final = "a cell is 1 (present), 0 (absent) or blank (unknown)"
_MINUS_ONE: Final = "; -1 is absent in some files and unknown in others: write 0 or nothing"
_MAX_NAME: Final = 4096
_BREAK: Final = re.compile("[\r\n\0]")
_ALL_KNOWN: Final = "every cell is 0 or 1, nothing is missing here; if 0 only means 'not tagged', add --zeros unknown"


def parse_rows(
    rows: Iterator[Row],
    options: TableOptions,
    problems: ProblemList,
    *,
    check_image: CheckImage = lambda name, line: None,
    classes: Sequence[str] | None = None,
    findings: Sequence[Finding] = (),
) -> TableFile:
    """Parse the rows of a file that are not blank, the header first, or raise one error with all problems.

    The producer of ``rows`` adds to ``problems`` the rows that cannot be split into cells. ``classes`` are all names of
    a table of lists; those that occur, sorted, when None.
    """
    path = problems.path
    line, header = next(rows, (0, []))
    problems.refuse()
    names = resolve_class_names(options)
    sample = list(islice(rows, SAMPLE_ROWS))
    rows = chain(sample, rows)
    cells = [cells for _, cells in sample]
    columns = parse_header(line, [str(cell) for cell in header], options, names, problems, cells)
    parser = _RowParser(options, check_image, columns, problems)
    checked = parser.checked(rows)
    table, cell_findings = parser.parse_lists(checked, classes) if columns.lists else parser.parse_wide(checked)
    lines = np.fromiter(parser.images.values(), dtype=np.int64, count=len(table))

    def refuse_conflicts(conflicts: Sequence[tuple[int, str]]) -> None:
        for row, name in conflicts:
            text = f"'{truncate_text(name)}' is present under one of its names and absent under another"
            problems.add(int(lines[row]), text)
        problems.refuse()

    table, revisions, class_findings = apply_class_options(table, options, names, columns.lists, refuse_conflicts)
    if not len(table.values):
        raise InputError(f"{path}: no label is known, all of its {len(table)} rows are blank. Tag a few images.")
    if not columns.lists and table.complete and options.zeros == "absent":
        cell_findings.append(Note(_ALL_KNOWN, "counts"))
    if columns.group is not None:
        cell_findings.append(Note("the column 'group' says which images belong together, it is no tag"))
    for written, split in parser.split_names.items():
        if written != split:
            cell_findings.append(Note(f"'{truncate_text(written)}' under split is read as {split}", "split"))
    if parser.headers:
        times = f"in line {parser.headers[0]:,}" if len(parser.headers) == 1 else f"{len(parser.headers):,} times"
        cell_findings.append(Note(f"the header is repeated {times}: left out", "source"))
    for name, role in columns.synonyms:
        cell_findings.append(Note(f"the column '{truncate_text(name)}' is read as '{role}'", "source"))
    if columns.ignored:
        cell_findings.append(ColumnsIgnored(columns.ignored))
    return TableFile(
        path=path,
        table=table,
        splits=tuple(parser.splits) if columns.split is not None else None,
        groups=tuple(parser.groups) if columns.group is not None else None,
        lines=lines,
        findings=(*cell_findings, *class_findings, *findings),
        unit=problems.unit,
        revisions=revisions,
    )


def is_no_class(bad: int, filled: int) -> bool:
    """Return whether so many cells of a column are no state that it cannot be a class.

    Example:
        >>> is_no_class(3, 3), is_no_class(3, 4), is_no_class(12, 20)
        (True, False, True)
    """
    return bad >= (_MIN_ALL_BAD if bad == filled else _MIN_BAD_CELLS) and 2 * bad > filled


def image_name_problem(name: str) -> str | None:
    """Return the problem with the name of an image that no path should have; None where there is none."""
    if len(name) > _MAX_NAME:
        return f"'{truncate_text(name)}': the name of an image has {len(name):,} characters"
    if _BREAK.search(name):
        return f"{truncate_text(repr(name))}: the name of an image has a line break or a NUL"
    if not is_encodable(name):
        return f"{truncate_text(ascii(name))}: the name of an image is not in UTF-8. Rename the file"
    return None


@dataclass
class _RowParser:
    """The columns, and the images, splits, groups, lines and problems so far; of repeated images both lines.

    ``split_names`` are other names of the splits, ``headers`` the lines in which the header is repeated.
    """

    options: TableOptions
    check_image: CheckImage
    columns: HeaderColumns
    problems: ProblemList
    images: dict[str, int] = field(default_factory=dict)
    splits: list[str] = field(default_factory=list)
    split_names: dict[str, str] = field(default_factory=dict)
    headers: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))
    repeated: list[tuple[int, int, int]] = field(default_factory=list)

    def refuse_problems(self, counts: Mapping[str, int]) -> None:
        """Raise one error with all problems, with a note about names of classes that are one; ``counts`` has all."""
        try:
            self.problems.refuse()
        except ProblemsError as error:
            names, merged = resolve_class_names(self.options), Counter[str]()
            for name, count in counts.items():
                merged[names.get(name, name)] += count
            if (note := describe_same_names(merged)) is not None:
                error.add_note(note)
            raise
        if not self.images:
            raise InputError(f"{self.problems.path} has a header and no rows: there is no image to learn from.")

    def checked(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Check the length, image and split of every row, and yield the rows of the right length."""
        columns, header = self.columns, list(self.columns.header)
        for line, cells in rows:
            if cells == header:
                self.headers.append(line)
                continue
            if len(cells) != len(header):
                hint = ": a list of tags needs quotes around it" if columns.lists and len(cells) > len(header) else ""
                self.problems.add(line, f"{len(cells)} cells where the header has {len(header)}{hint}")
                continue
            image = "" if columns.image_names is None else str(cells[columns.image_names])
            if not image:
                if columns.image_names is not None:
                    self.problems.add(line, "no image is named")
            elif (problem := image_name_problem(image)) is not None:
                self.problems.add(line, problem)
            elif (first := self.images.setdefault(image, line)) != line:
                self.repeated.append((len(self.problems), line, first))
                self.problems.add(
                    line, f"{truncate_text(image)} is listed again (first in {self.problems.unit} {first})"
                )
            elif (problem := self.check_image(image, line)) is not None:
                self.problems.add(line, problem)
            if columns.split is not None:
                written = str(cells[columns.split])
                self.splits.append(split := SPLIT_NAMES.get(written.lower(), written))
                if split in SPLITS:
                    self.split_names[written] = split
                else:
                    close = nearest(split, SPLITS)
                    hint = f". Did you mean '{close}'?" if close else ""
                    name = columns.header[columns.split]
                    self.problems.add(line, f"'{truncate_text(split)}' under {name}: it is train, val or test{hint}")
            if columns.group is not None:
                self.groups.append(str(cells[columns.group]))
            self.lines.append(line)
            yield line, cells

    def report_contradictions(self, labels: Callable[[int], Mapping[str, int]]) -> None:
        """Say where an image that is listed again has other labels; ``labels`` returns the known ones of a row."""
        for number, line, first in self.repeated:
            here, before = (labels(bisect_left(self.lines, each)) for each in (line, first))
            if names := [name for name, state in here.items() if before.get(name, state) != state]:
                more = f" and {pluralize(len(names) - 1, 'more tag')}" if len(names) > 1 else ""
                verb = "contradict" if more else "contradicts"
                self.problems.extend(number, f"; '{truncate_text(names[0])}'{more} {verb} it")

    def parse_wide(self, rows: Iterator[Row]) -> tuple[LabelTable, list[Finding]]:
        if self.options.unlisted != "unknown":
            raise InputError(
                f"{self.problems.path}: --unlisted is for lists; this is a table with a column per class. See --zeros."
            )
        class_columns = self.columns.class_columns
        cell_parser = CellParser(ABSENT if self.options.zeros == "absent" else UNKNOWN)
        ends, numbers, values = array("q", [0]), array("i"), array("b")
        filled, bad_counts = [0] * len(class_columns), [0] * len(class_columns)
        invalid: list[list[tuple[int, Cell]]] = [[] for _ in class_columns]
        for line, cells in rows:
            for column, number in enumerate(class_columns):
                if cell := cells[number]:
                    filled[column] += 1
                    value = cell_parser.code(cell) if isinstance(cell, str) else None
                    if value is None:
                        bad_counts[column] += 1
                        if bad_counts[column] <= MAX_PROBLEMS:
                            invalid[column].append((line, cell))
                    elif value != UNKNOWN:
                        numbers.append(column)
                        values.append(value)
            ends.append(len(values))
        names = [self.columns.header[number] for number in class_columns]
        for name, bad, share in zip(names, invalid, zip(bad_counts, filled, strict=True), strict=True):
            self.report_invalid_cells(name, bad, *share)

        def labels(row: int) -> dict[str, int]:
            span = slice(ends[row], ends[row + 1])
            return {names[column]: value for column, value in zip(numbers[span], values[span], strict=True)}

        self.report_contradictions(labels)
        self.refuse_problems(dict(zip(names, filled, strict=True)))
        table = LabelTable(np.asarray(ends), np.asarray(numbers), np.asarray(values), names, list(self.images))
        return table, [ColumnPerClass(self.options.zeros, *cell_parser.spellings())]

    def report_invalid_cells(self, name: str, bad: list[tuple[int, Cell]], count: int, filled: int) -> None:
        """Report cells that are no state: each of them, or the column where most of its cells are.

        A column without any state is not reported where no column names the images: it may be the one.
        """
        if self.columns.image_names is None and count == filled:
            return
        if not is_no_class(count, filled):
            for line, cell in bad:
                hint = _MINUS_ONE if str(cell) == "-1" else ""
                text = f"'{truncate_text(str(cell))}' under {truncate_text(name)}: {_CELL_FORMAT}{hint}"
                self.problems.add(line, text)
            return
        (line, cell), more = bad[0], count - 1
        renamed = format_option("rename", f"{name}=present")
        ignored = format_option("ignore-columns", name)
        hint = f"{ignored} leaves it out; if it lists tags, {renamed}"
        if holds_file_names([cell for _, cell in bad[:SAMPLE_ROWS]]):
            image = self.columns.header[self.columns.image or 0]
            named = f"{format_option('ignore-columns', image)} {format_option('rename', f'{name}=image')}"
            hint = f"it holds names of files: if these are the images, {named}; if not, {ignored}"
        elif is_list_name(name) and self.repeated:
            self.problems.fixable = False  # the states of several tags would be merged
            hint = (
                "a row per tag? A table has a row per image, with a column per tag. In Python: pandas.read_csv(…)"
                f".pivot(index='image', columns={name!r}, values=…).to_csv(…)"
            )
        example = f"'{truncate_text(str(cell))}' in {self.problems.unit} {line} and {more:,} more"
        text = f"the column '{truncate_text(name)}' does not look like a tag ({example}): {hint}"
        if all(str(cell) == "-1" for _, cell in bad):
            text = f"{example} under {truncate_text(name)}: {_CELL_FORMAT}{_MINUS_ONE}"
        self.problems.add(self.columns.line, text)

    def parse_lists(self, rows: Iterator[Row], classes: Sequence[str] | None) -> tuple[LabelTable, list[Finding]]:
        if self.options.zeros != "absent":
            raise InputError(
                f"{self.problems.path}: --zeros is for tables with a column per class; this has lists. See --unlisted."
            )
        numbers = (self.columns.present, self.columns.absent)
        cells = [(line, ["" if number is None else row[number] for number in numbers]) for line, row in rows]
        texts = (cell for _, both in cells for cell in both if isinstance(cell, str))
        parser = TagListParser(self.options.separator, texts)
        present, absent = list[list[str]](), list[list[str]]()
        for line, both in cells:
            listed, excluded = (parser.names(cell) if isinstance(cell, str) else cell for cell in both)
            present.append(listed)
            absent.append(excluded)
            for name in sorted({*listed} & {*excluded}):
                self.problems.add(line, f"'{truncate_text(name)}' is both under present and under absent")
        self.report_contradictions(
            lambda row: {**dict.fromkeys(present[row], PRESENT), **dict.fromkeys(absent[row], ABSENT)}
        )
        if len(self.repeated) > 1 and max(map(len, chain(present, absent))) == 1:
            hint = "a row per tag? A clean copy (--fix) has a row per image"
            if self.columns.absent is None:  # no row can contradict another: the other problems matter more
                again = f"this and {pluralize(len(self.repeated) - 1, 'other row')} list an image again"
                self.problems.merge([number for number, *_ in self.repeated], f"{again}: {hint}")
            else:
                self.problems.extend(self.repeated[0][0], f"; {hint}")
        self.refuse_problems(Counter(chain.from_iterable(present)) + Counter(chain.from_iterable(absent)))
        table = LabelTable.from_lists(
            present, absent, classes=classes, images=list(self.images), unlisted=self.options.unlisted
        )
        joined = blanks_between_tags(table.classes) if self.options.separator is None else []
        return table, [ListsOfClasses(self.options.unlisted), *parser.findings(), *joined]
