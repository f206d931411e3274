"""Write a table that can be used: what contradicts itself or is no state becomes unknown; nothing is guessed."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from labelgap.core.errors import InputError, Problem, ProblemsError, UnknownNameError
from labelgap.core.files import atomic_path
from labelgap.core.findings import Finding
from labelgap.core.text import format_option, pluralize, quote_formulas, truncate_text
from labelgap.data.dataset import Dataset
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import ImageFinder
from labelgap.data.readers.table import ImageOptions, build_dataset, image_folder, open_table
from labelgap.data.registry import recognize_format
from labelgap.data.scanning import cluster_ids, find_duplicates, scan_images
from labelgap.data.split import leaked_rows
from labelgap.data.writers.formats import refuse_overwriting
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.classes import fold_case, is_near_spelling, resolve_class_names
from labelgap.labels.io.formats import OutputColumn, RawTable
from labelgap.labels.io.layout import Cell, CellParser, ListLayout, WideLayout
from labelgap.labels.io.parse import (
    SAMPLE_ROWS,
    UNSURE_COLUMN,
    Row,
    image_name_problem,
    is_no_class,
    parse_header,
    parse_rows,
)
from labelgap.labels.io.table_file import (
    LIST_COLUMNS,
    RESERVED_COLUMNS,
    SPLIT_NAMES,
    SPLITS,
    MoreSimilarClasses,
    ProblemList,
    SimilarClasses,
    TableFile,
    TableOptions,
)

_CLASSES_SHOWN: Final = 5
_TABLES: Final = ("csv", "parquet")
_TABLE_OPTIONS: Final = tuple(each.name for each in fields(TableOptions))
_IMAGE_OPTIONS: Final = ("duplicates", "allow_leaks")
_CSV_OPTIONS: Final = ("encoding", "delimiter")

ChangeKind = Literal["left_out", "merged", "images", "unknown", "split", "columns", "classes", "blanks", "copies"]


@dataclass(frozen=True, order=True)
class Change:
    """One change of a table: its line (or row), its kind, and what was done and why; "copies" are only named."""

    line: int
    kind: ChangeKind
    text: str


@dataclass(frozen=True)
class FixedTable:
    """What ``clean_table`` wrote; ``proposals`` are classes that are perhaps one, about which nothing was done."""

    source: Path
    unit: str
    path: Path
    changes_path: Path
    rows: int
    changes: tuple[Change, ...]
    proposals: tuple[Finding, ...]
    data: Dataset

    def to_json(self) -> dict[str, Any]:
        """Return everything but the data as plain values."""
        paths = {name: str(getattr(self, name)) for name in ("source", "path", "changes_path")}
        return {
            "format": 1,
            "unit": self.unit,
            **paths,
            "rows": self.rows,
            "images": sum(map(len, self.data.splits)),
            "classes": list(self.data.classes),
            "changes": [asdict(change) for change in self.changes],
            "proposals": [proposal.to_json() for proposal in self.proposals],
        }


def clean_table(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    accept_suggestions: bool = False,
    **options: Any,
) -> FixedTable:
    """Write a clean copy of a CSV or Parquet table of labels, in the same layout, and a list of all changes.

    Left out are rows whose image is missing or cannot be read, rows that are no rows, columns that hold no classes,
    and, where the table has a split, images of train and val with a copy in test. Rows of one image are merged: a
    label that one of them knows is known, and one that they contradict each other about becomes unknown. Spellings
    that differ in case become the most frequent one. All of this is in ``changes``, with its line.

    Args:
        path: the table; it is never changed.
        out: the clean table, of the same format.
        images: the folder that the names of images are relative to; that of the table when None.
        force: whether existing files may be replaced.
        accept_suggestions: whether the name of an image without a file becomes that of the only file with a near name.
        **options: of ``load_table``. ``rename`` and ``aliases`` are applied to the clean table.
    """
    out = Path(out)
    path = _table_path(path)
    for name in options:
        if name not in (known := (*_TABLE_OPTIONS, *_IMAGE_OPTIONS, *_CSV_OPTIONS)):
            raise UnknownNameError("option", name, known)
    table_options = TableOptions.of(options)
    image_options = ImageOptions(**{name: options[name] for name in _IMAGE_OPTIONS if name in options})
    changes_path = out.with_name(f"{out.stem}.changes.csv")
    source = open_table(path, options)
    _check_output(source, (out, changes_path), force)
    cleaner = _Cleaner(source, image_folder(path, images), table_options, image_options, accept_suggestions)
    data = replace(cleaner.clean(), name=out.name)
    changes = tuple(sorted(cleaner.changes))
    with atomic_path(changes_path) as temporary, temporary.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow([source.unit, "kind", "change"])
        writer.writerows(quote_formulas((change.line, change.kind, change.text)) for change in changes)
    rows, classes = cleaner.written, cleaner.renamed(source.classes)
    source.write(out, cleaner.output, lambda line, _: rows.get(line), classes, strip=True)
    proposals = tuple(each for each in data.findings if isinstance(each, SimilarClasses | MoreSimilarClasses))
    return FixedTable(source.path, source.unit, out, changes_path, cleaner.rows_read, changes, proposals, data)


def _table_path(text: str | os.PathLike[str]) -> Path:
    name, _, place = os.fspath(text).partition("=")
    path = Path(text).expanduser()
    if name in _TABLES and place and not path.exists():
        path = Path(place).expanduser()
    elif path.exists() and (name := recognize_format(path)[0]) not in _TABLES:
        raise InputError(f"{path} is read as {name}: only tables of labels, CSV and Parquet, can be fixed.")
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    return path


def _check_output(source: RawTable, places: tuple[Path, Path], force: bool) -> None:
    suffixes = dict.fromkeys([*([".csv", ".tsv"] if source.dialect else [".parquet"]), source.path.suffix.lower()])
    if places[0].suffix.lower() not in suffixes:
        ends = " or ".join(suffixes)
        raise InputError(f"{places[0]}: the clean table has the format of {source.path}, so its name ends in {ends}.")
    for place in places:
        refuse_overwriting([source.path], place, force)


@dataclass
class _TableRow:
    """One row; its ``conflicts``, classes that are present and absent, are unknown, whatever other rows say."""

    line: int
    cells: list[Cell]
    image: str
    labels: dict[str, int] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)

    def add_label(self, name: str, state: int) -> bool:
        """Add a known label; return whether it agrees with what is known. If not, the label becomes unknown."""
        if name in self.conflicts or self.labels.setdefault(name, state) == state:
            return True
        del self.labels[name]
        self.conflicts.add(name)
        return False


class _Cleaner:
    """Walks over the rows of a table, and mends each or leaves it out; ``output`` and ``written`` are the result."""

    def __init__(
        self, source: RawTable, folder: Path, options: TableOptions, image_options: ImageOptions, accept: bool
    ) -> None:
        self.source, self.folder, self.options, self.image_options = source, folder, options, image_options
        self.accept_suggestions = accept
        problems = ProblemList(source.path, source.unit)
        self.padded: list[int] = []
        rows = source.rows(problems, self.padded)
        first = next(rows, (0, []))
        found = [*rows]
        if not problems.fixable:
            problems.refuse()
        self.whole, self.rows_read = [first, *found], len(found)
        self.header_line, self.header = first[0], [str(cell) for cell in first[1]]
        self.given_names = resolve_class_names(options)
        header_problems = ProblemList(source.path, source.unit)
        sample = [cells for _, cells in found[:SAMPLE_ROWS]]
        self.columns = parse_header(first[0], self.header, options, self.given_names, header_problems, sample)
        self.changes = [Change(each.line, "left_out", each.message) for each in problems.found]
        self.names: dict[str, str] = {}
        self.output: list[OutputColumn] = []
        self.written: dict[int, list[Cell]] = {}

    def clean(self) -> Dataset:
        if self.columns.image is None or not (self.columns.lists or self.columns.class_columns):
            self._parse(self.whole, self.options)  # raises one error with all problems
        rows, images = self._check_images(self._usable_rows())
        layout = self._list_layout(rows) if self.columns.lists else self._wide_layout(rows)
        for row in rows:
            self._read_labels(row, layout)
        rows = self._separate_copies(self._merge_rows(rows, images.repeated), images)
        self._refuse_unwritable(rows)
        for row in rows:
            self._mend(row, layout)
            self.written[row.line] = [row.cells[column.source] for column in self.output]
        kept = {self.header_line, *self.written}
        self.changes += [Change(line, "blanks", "removed at the end of cells") for line in self.padded if line in kept]
        header: list[Cell] = [column.name for column in self.output]
        options = replace(self.options, rename={}, aliases=None, classes=self.renamed(self.options.classes))
        file = self._parse(
            [(self.header_line, header), *self.written.items()], options, self.renamed(self.source.classes)
        )
        try:
            return build_dataset(file, self.folder, images.files, {}, self.image_options, images.findings())
        except ProblemsError as error:
            raise _undecided(error) from None

    def renamed(self, names: Sequence[str] | None) -> list[str] | None:
        return None if names is None else list(dict.fromkeys(self.names.get(name, name) for name in names))

    def _change(self, line: int, kind: ChangeKind, text: str) -> None:
        self.changes.append(Change(line, kind, text))

    def _parse(self, rows: Sequence[Row], options: TableOptions, classes: Sequence[str] | None = None) -> TableFile:
        """Parse rows as the readers do; what is still wrong is for the user to decide."""
        try:
            return parse_rows(iter(rows), options, ProblemList(self.source.path, self.source.unit), classes=classes)
        except ProblemsError as error:
            raise _undecided(error) from None

    def _usable_rows(self) -> list[_TableRow]:
        """Return the rows that have all cells, an image and a split; an error where these are fewer than half."""
        rows, spelled, split_column = list[_TableRow](), list[Change](), self.columns.split
        assert self.columns.image is not None
        for line, cells in self.whole[1:]:
            problem = self._row_problem(cells)
            cells = cells[: len(self.header)]  # blank cells after the last column do not matter
            if problem is None and split_column is not None:
                written, name = str(cells[split_column]), self.header[split_column]
                split = _split_name(written)
                if split is None:
                    problem = f"'{truncate_text(written)}' under {name} is none of {', '.join(SPLITS)}"
                    problem += f" (no split? --ignore-columns {name})"
                elif split != written:
                    cells[split_column] = split
                    spelled.append(Change(line, "split", f"'{truncate_text(written)}' under {name}: {split} now"))
            if problem is not None:
                self._change(line, "left_out", problem)
            else:
                rows.append(_TableRow(line, cells, str(cells[self.columns.image])))
        if len(self.changes) > len(rows):
            problems = [Problem(change.line, change.text) for change in self.changes]
            outcome = "nothing was written: most of its rows would be left out"
            raise ProblemsError(self.source.path, problems, outcome, unit=self.source.unit)
        self.changes += spelled
        return rows

    def _row_problem(self, cells: Sequence[Cell]) -> str | None:
        count = len(self.header)
        if cells == self.header:
            return "the header once more"
        if len(cells) < count or any(cells[count:]):
            return f"{len(cells)} cells where the header has {count}"
        image = str(cells[self.columns.image or 0])
        return image_name_problem(image) if image else "no image is named"

    def _check_images(self, rows: Sequence[_TableRow]) -> tuple[list[_TableRow], ImageFinder]:
        """Return the rows whose images are found and can be decoded; an error where the folder has none of them."""
        finder = ImageFinder(self.folder)
        problems: dict[str, str] = {}
        for row in rows:
            if row.image in finder.lines:
                continue
            problem = finder(row.image, row.line)
            if problem is not None and row.image not in finder.repeated and row.image not in finder.files:
                problems[row.image] = problem
        problems |= finder.skipped
        if self.accept_suggestions:
            self._accept_suggestions(rows, finder, problems)
        if rows and finder.missing == finder.checked:
            outcome = f"nothing was written. None of its images is in {self.folder}: where are they? (--images DIR)"
            missing = [Problem(finder.lines[name], problem) for name, problem in problems.items()]
            raise ProblemsError(self.source.path, missing, outcome, unit=self.source.unit)
        images = FileImages(self.folder, [*finder.files], [*finder.files.values()])
        problems |= {images.names[row]: reason for row, reason in scan_images(images).unreadable.items()}
        problems |= {name: problems[first] for name, first in finder.repeated.items() if first in problems}
        self.changes += [Change(row.line, "left_out", problems[row.image]) for row in rows if row.image in problems]
        return [row for row in rows if row.image not in problems], finder

    def _accept_suggestions(self, rows: Sequence[_TableRow], finder: ImageFinder, problems: dict[str, str]) -> None:
        """Give misspelled images the files that no other row names, and take them off the problems."""
        claims = Counter([*finder.suggested.values(), *finder.files.values()])
        accepted = {name: file for name, file in finder.suggested.items() if claims[file] == 1}
        for row in rows:
            name, file = row.image, accepted.get(row.image)
            if file is None or (name in problems and finder(file, row.line) is not None):
                continue
            problems.pop(name, None)
            self._change(row.line, "images", f"{truncate_text(name)} does not exist: {truncate_text(file)} now")
            row.image = row.cells[self.columns.image or 0] = file

    def _wide_layout(self, rows: Sequence[_TableRow]) -> WideLayout:
        parser = CellParser(ABSENT if self.options.zeros == "absent" else UNKNOWN)
        layout = WideLayout(self.columns.class_names, parser)
        layout.count(row.cells for row in rows)
        layout.spelling[UNKNOWN] = ""
        present: Counter[str] = Counter()
        classes = []
        for number, cells in layout.cells.items():
            bad = {cell: count for cell, count in cells.items() if parser.code(cell) is None}
            wrong = sum(count for cell, count in bad.items() if cell != "-1")  # a state of some tables
            filled, remark = cells.total() - cells[""], any(len(cell.split()) > 1 for cell in bad)
            no_state = wrong == filled and (wrong > 1 or remark)
            if self.header[number] and not is_no_class(wrong, filled) and not no_state:
                classes.append(number)
                present[self.header[number]] += sum(n for cell, n in cells.items() if parser.code(cell) == PRESENT)
        self._rename(present, {})
        layout.columns = {number: self.header[number] for number in classes}
        layout.set_sources(self.names, classes)
        if not classes:
            self._parse(self.whole, self.options)
        seen, holds_class = set[str](), {*classes}
        for number, name in enumerate(self.header):
            final = self.names.get(name, name)  # classes that have one name share the column of the first
            if number not in holds_class:
                self._keep_column(number)
            elif layout.sources[final][0] == number:
                self.output.append(OutputColumn(final, number))
            elif name in seen:
                self._change(self.header_line, "columns", f"the column '{truncate_text(name)}' is there twice: merged")
            seen |= {name} if number in holds_class else set()
        return layout

    def _list_layout(self, rows: Sequence[_TableRow]) -> ListLayout:
        layout = ListLayout(self.columns.list_states, (row.cells for row in rows), self.options.separator)
        present: Counter[str] = Counter(dict.fromkeys(self.source.classes or (), 0))
        first_lines: dict[str, int] = {}
        for row in rows:
            for said in layout.statements(row.cells):
                present[said.name] += said.code == PRESENT
                first_lines.setdefault(said.name, row.line)
        self._rename(present, first_lines)
        for name in self.names.values():
            if layout.notation.names(name) != [name]:
                place = self.source.path
                raise InputError(f"'{truncate_text(name)}' cannot be in a list of {place}: it would be several tags.")
        for number in range(len(self.header)):
            self._keep_column(number)
        return layout

    def _rename(self, present: Counter[str], first_lines: Mapping[str, int]) -> None:
        """Set the new names of classes: those that the options give, and one spelling for variants of case."""
        given = self.given_names
        for old in self.options.rename:
            if old not in present and old not in self.header:
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
            text = f"'{truncate_text(name)}' (present in {pluralize(count, 'image')}): {why} '{truncate_text(new)}'"
            self._change(first_lines.get(name, self.header_line), "classes", text)

    def _keep_column(self, number: int) -> None:
        columns, name, options = self.columns, self.header[number], self.options
        reserved = (columns.image, columns.split, columns.group, columns.present, columns.absent)
        kept = name == UNSURE_COLUMN if columns.lists else name and options.classes is not None
        final = options.rename.get(name, name)
        if number in reserved or kept or name in options.ignore_columns:
            self.output.append(OutputColumn(final if number in reserved else name, number))
            return
        if not name:
            text = f"column {number + 1} has no name: left out"
        elif final.lower() in (*RESERVED_COLUMNS, *LIST_COLUMNS):
            text = f"the column '{truncate_text(name)}' is there twice: the second is left out"
        else:
            hint = f"{format_option('ignore-columns', name)} keeps it"
            hint += "" if columns.lists else f"; if it lists tags, {format_option('rename', f'{name}=present')}"
            text = f"the column '{truncate_text(name)}' is no tag: left out ({hint})"
        self._change(self.header_line, "columns", text)

    def _read_labels(self, row: _TableRow, layout: WideLayout | ListLayout) -> None:
        """Add the known labels to a row; what is no state, or contradicts itself, becomes unknown."""
        conflict = "is present in one of its columns and absent in another"
        conflict = "is both under present and under absent" if self.columns.lists else conflict
        for said in layout.statements(row.cells):
            name = self.names.get(said.name, said.name)
            if said.code is None:
                where = truncate_text(self.header[said.number])
                text = f"'{truncate_text(said.text)}' under {where} is no state: unknown now"
                self._change(row.line, "unknown", text)
            elif said.code != UNKNOWN and not row.add_label(name, said.code):
                self._change(row.line, "unknown", f"'{truncate_text(name)}' {conflict}: unknown now")

    def _mend(self, row: _TableRow, layout: WideLayout | ListLayout) -> None:
        """Make the cells of a row say its labels; those that say them already stay as they are."""
        if isinstance(layout, WideLayout):
            for name, (first, *others) in layout.sources.items():  # the clean table has the first of them
                state = row.labels.get(name, UNKNOWN)
                cells = (row.cells[number] for number in (first, *others))
                same = (cell for cell in cells if layout.parser.code(cell) == state)
                row.cells[first] = next(same, layout.spelling[state])
            return
        for number, state in layout.states.items():
            names = [name for name, label in row.labels.items() if label == state]
            if {*layout.notation.names(row.cells[number])} != {*names}:
                row.cells[number] = layout.notation.cell(names, row.cells[number])

    def _merge_rows(self, rows: Sequence[_TableRow], repeated: Mapping[str, str]) -> list[_TableRow]:
        """Merge the rows of one image into the first: what one of them knows is known, contradictions are unknown."""
        firsts: dict[str, _TableRow] = {}
        for row in rows:
            first = firsts.setdefault(repeated.get(row.image, row.image), row)
            if first is not row:
                self._merge(first, row)
        return list(firsts.values())

    def _merge(self, first: _TableRow, row: _TableRow) -> None:
        name, place = truncate_text(row.image), f"{self.source.unit} {first.line}"
        same = (row.labels, row.conflicts) == (first.labels, first.conflicts)
        added = [each for each in row.labels if each not in first.labels and each not in first.conflicts]
        conflicts = [each for each, state in row.labels.items() if not first.add_label(each, state)]
        for each in row.conflicts - first.conflicts:
            first.labels.pop(each, None)
            first.conflicts.add(each)
        text = f"{name} is listed again (first in {place}): merged"
        text += ", the labels are the same" if same else f", {pluralize(len(added), 'label')} added" if added else ""
        columns = self.columns
        holds_labels = {columns.image, columns.present, columns.absent, *columns.class_columns}
        for column in self.output:
            before, here = first.cells[column.source], row.cells[column.source]
            if column.source in holds_labels or not here or here == before:
                continue
            if before:
                text += f"; {truncate_text(column.name)} stays '{truncate_text(str(before))}'"
            else:
                first.cells[column.source] = here
        self._change(row.line, "merged", text)
        for each in conflicts:
            self._change(row.line, "unknown", f"'{truncate_text(each)}' of {name} contradicts {place}: unknown now")

    def _separate_copies(self, rows: list[_TableRow], finder: ImageFinder) -> list[_TableRow]:
        """Name the images that are copies of others; of copies in several splits keep those in the last (test, val)."""
        names = [row.image for row in rows]
        images = FileImages(self.folder, names, [finder.files[name] for name in names])
        pairs = find_duplicates(images, scan_images(images), self.image_options.duplicates)
        for first, second, exact in zip(pairs.first, pairs.second, pairs.exact, strict=True):
            self._name_copy(rows[first], rows[second], exact)
        split = self.columns.split
        if split is None or self.image_options.allow_leaks:
            return rows
        order = np.array([SPLITS.index(str(row.cells[split])) for row in rows], dtype=np.int64)
        leaked = leaked_rows(cluster_ids(pairs, len(rows)), -order)
        for row, other in leaked.items():
            here, there = (f"{truncate_text(rows[each].image)} ({rows[each].cells[split]})" for each in (row, other))
            text = f"{here} is a copy of {there}, {self.source.unit} {rows[other].line}"
            self._change(rows[row].line, "left_out", text)
        return [row for number, row in enumerate(rows) if number not in leaked]

    def _name_copy(self, first: _TableRow, second: _TableRow, exact: bool) -> None:
        """Add the change that names two images that are copies, and the classes on which their labels disagree."""
        relation = "has the same content as" if exact else "looks the same as"
        place = f"{self.source.unit} {first.line}"
        text = f"{truncate_text(second.image)} {relation} {truncate_text(first.image)} ({place})"
        differ = [name for name, state in second.labels.items() if first.labels.get(name, state) != state]
        if differ:
            more = " …" if len(differ) > _CLASSES_SHOWN else ""
            text += f"; their labels contradict each other: {truncate_text(', '.join(differ[:_CLASSES_SHOWN]))}{more}"
        self._change(second.line, "copies", text)

    def _refuse_unwritable(self, rows: Sequence[_TableRow]) -> None:
        """Raise an error for labels that have to become unknown where a list cannot say so."""
        if not self.columns.lists or self.options.unlisted != "absent":
            return
        reason = "is present and absent; with --unlisted absent no list can say that it is unknown"
        problems = [Problem(row.line, f"'{truncate_text(name)}' {reason}") for row in rows for name in row.conflicts]
        if problems:
            raise _undecided(ProblemsError(self.source.path, problems, unit=self.source.unit))


def _undecided(error: ProblemsError) -> ProblemsError:
    return ProblemsError(error.path, error.problems, "nothing was written: --fix cannot decide these", unit=error.unit)


def _split_name(text: str) -> str | None:
    """Return the split that a cell means, also a misspelled one; or None."""
    lower = text.casefold()
    near = {split for name, split in SPLIT_NAMES.items() if is_near_spelling(lower, name)}
    return SPLIT_NAMES.get(lower, near.pop() if len(near) == 1 else None)
