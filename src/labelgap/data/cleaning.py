"""Write a table that can be used: rows without a usable image are left out, rows of one image are merged.

Nothing is guessed about labels: what contradicts itself or is no state becomes unknown, and is named. The file itself
is never changed.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from labelgap.data.opening import recognize_format
from labelgap.data.readers.image_paths import ImageFinder
from labelgap.data.readers.table import ImageOptions, build_dataset, image_folder
from labelgap.data.scanning import ImageScan, cluster_ids, find_duplicates, scan_images
from labelgap.data.split import leaked_rows
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.classes import fold_case, is_near_spelling, resolve_class_names
from labelgap.labels.io.formats import OutputColumn, RawTable, read_raw_csv, read_raw_parquet
from labelgap.labels.io.parse import (
    SAMPLE_ROWS,
    UNSURE_COLUMN,
    Cell,
    CellParser,
    HeaderColumns,
    Row,
    TagLists,
    choose_spellings,
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
_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {"csv": (".csv", ".tsv"), "parquet": (".parquet",)}
_TABLE_OPTIONS: Final = tuple(each.name for each in fields(TableOptions))
_IMAGE_OPTIONS: Final = ("duplicates", "allow_leaks")
_CSV_OPTIONS: Final = ("encoding", "delimiter")

ChangeKind = Literal["left_out", "merged", "unknown", "split", "columns", "classes", "copies"]


@dataclass(frozen=True, order=True)
class Change:
    """One change of a table: its line (or row), its kind, and what was done and why.

    Kinds: "left_out" (a row), "merged" (rows of one image), "unknown" (a label that is now), "split" (a spelling),
    "columns" (left out or merged), "classes" (renamed), and "copies": images with the same content, only named.
    """

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
        **options: of ``load_csv`` and ``load_parquet``. ``rename`` and ``aliases`` are applied to the clean table.
    """
    out = Path(out)
    kind, path = _table_format(path)
    for name in options:
        if name not in (known := (*_TABLE_OPTIONS, *_IMAGE_OPTIONS, *_CSV_OPTIONS)):
            raise UnknownNameError("option", name, known)
    table_options = TableOptions(**{name: options[name] for name in _TABLE_OPTIONS if name in options})
    image_options = ImageOptions(**{name: options[name] for name in _IMAGE_OPTIONS if name in options})
    changes_path = out.with_name(f"{out.stem}.changes.csv")
    _check_output(path, (out, changes_path), kind, force)
    if kind == "csv":
        raw = read_raw_csv(path, table_options, **{name: options.get(name) for name in _CSV_OPTIONS})
    else:
        raw = read_raw_parquet(path)
    layout, rows, changes, data = _clean(raw, image_folder(path, images), table_options, image_options)
    with atomic_path(changes_path) as temporary, temporary.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow([raw.unit, "kind", "change"])
        writer.writerows(quote_formulas((change.line, change.kind, change.text)) for change in changes)
    raw.write(out, layout.output, rows, layout.names)
    proposals = tuple(each for each in data.findings if isinstance(each, SimilarClasses | MoreSimilarClasses))
    data = replace(data, name=out.name)
    return FixedTable(raw.path, raw.unit, out, changes_path, len(raw.rows), changes, proposals, data)


def _table_format(text: str | os.PathLike[str]) -> tuple[str, Path]:
    """Return the format of a table and its path, given the path or ``csv=path``."""
    name, _, place = os.fspath(text).partition("=")
    path = Path(text).expanduser()
    if name in _SUFFIXES and place and not path.exists():
        path = Path(place).expanduser()
    else:
        name = recognize_format(path) if path.exists() else ""
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    if name not in _SUFFIXES:
        raise InputError(f"{path} is read as {name}: only tables of labels, CSV and Parquet, can be fixed.")
    return name, path


def _check_output(path: Path, places: tuple[Path, Path], kind: str, force: bool) -> None:
    """Raise an error where the clean table, or the list of its changes, may not be written."""
    suffixes = dict.fromkeys([*_SUFFIXES[kind], path.suffix.lower()])
    if places[0].suffix.lower() not in suffixes:
        ends = " or ".join(suffixes)
        raise InputError(f"{places[0]}: the clean table has the format of {path}, so its name ends in {ends}.")
    for place in places:
        if place.exists() and place.samefile(path):
            raise InputError(f"{place} is the table itself, which is never overwritten. Write to another file.")
        if place.exists() and not force:
            raise InputError(f"{place} exists already. Write to another file, or replace it with --force.")


def _clean(
    raw: RawTable, folder: Path, options: TableOptions, image_options: ImageOptions
) -> tuple[_Layout, list[Row], tuple[Change, ...], Dataset]:
    """Return the layout of the clean table, its rows, all changes by line, and the data as they are read from it."""
    sample = [cells for _, cells in raw.rows[:SAMPLE_ROWS]]
    problems = ProblemList(raw.path, raw.unit)
    columns = parse_header(raw.line, raw.header, options, resolve_class_names(options), problems, sample)
    if columns.image is None or not (columns.lists or columns.class_columns):
        _parse(raw, [(raw.line, [*raw.header]), *raw.rows], options)  # raises one error with all problems
    rows, changes = _usable_rows(raw, columns)
    images = _check_images(raw, folder, rows)
    lost = images.problems
    changes += [Change(row.line, "left_out", lost[row.image]) for row in rows if row.image in lost]
    rows = [row for row in rows if row.image not in lost]
    layout = _Layout(raw, columns, rows, options)
    if not (columns.lists or layout.sources):
        _parse(raw, [(raw.line, [*raw.header]), *raw.rows], options)
    changes += [*layout.changes, *(change for row in rows for change in layout.read_labels(row))]
    rows, merged = _merge_rows(rows, images, layout)
    rows, copies = _separate_copies(rows, images, layout, image_options)
    _refuse_unwritable(raw, rows, layout)
    clean: list[Row] = [(row.line, layout.write_cells(row)) for row in rows]
    header: list[Cell] = [column.name for column in layout.output]
    remaining = replace(options, rename={}, aliases=None, classes=layout.renamed(options.classes))
    file = _parse(raw, [(raw.line, header), *clean], remaining, layout.renamed(raw.classes))
    try:
        data = build_dataset(file, folder, images.files, {}, image_options, images.findings, images.known_scan)
    except ProblemsError as error:
        raise _undecided(error) from None
    return layout, clean, tuple(sorted([*changes, *merged, *copies])), data


def _parse(
    raw: RawTable, rows: Sequence[Row], options: TableOptions, classes: Sequence[str] | None = None
) -> TableFile:
    """Parse rows as the readers do; what is still wrong is for the user to decide."""
    try:
        return parse_rows(iter(rows), options, ProblemList(raw.path, raw.unit), classes=classes)
    except ProblemsError as error:
        raise _undecided(error) from None


def _undecided(error: ProblemsError) -> ProblemsError:
    return ProblemsError(error.path, error.problems, "nothing was written: --fix cannot decide these", unit=error.unit)


def _refuse_unwritable(raw: RawTable, rows: Sequence[_TableRow], layout: _Layout) -> None:
    """Raise an error for labels that have to become unknown where a list cannot say so."""
    if not layout.columns.lists or layout.options.unlisted != "absent":
        return
    reason = "is present and absent; with --unlisted absent no list can say that it is unknown"
    problems = [Problem(row.line, f"'{truncate_text(name)}' {reason}") for row in rows for name in row.conflicts]
    if problems:
        raise _undecided(ProblemsError(raw.path, problems, unit=raw.unit))


@dataclass
class _TableRow:
    """One row: its line, its cells, its image, its known labels, and the classes that are present and absent.

    Such ``conflicts`` are unknown, whatever other rows say.
    """

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


def _usable_rows(raw: RawTable, columns: HeaderColumns) -> tuple[list[_TableRow], list[Change]]:
    """Return the rows that have all cells, an image and a split; an error where these are fewer than half."""
    changes = [Change(each.line, "left_out", each.message) for each in raw.unreadable]
    rows: list[_TableRow] = []
    spelled: list[Change] = []
    for line, raw_cells in raw.rows:
        problem = _problem(columns, raw_cells)
        cells = raw_cells[: len(columns.header)]  # a copy: the file keeps its own
        if problem is None and columns.split is not None:
            written, name = str(cells[columns.split]), columns.header[columns.split]
            split = _split_name(written)
            if split is None:
                problem = f"'{truncate_text(written)}' under {name} is none of {', '.join(SPLITS)}"
                problem += f" (no split? --ignore-columns {name})"
            elif split != written:
                cells[columns.split] = split
                spelled.append(Change(line, "split", f"'{truncate_text(written)}' under {name}: {split} now"))
        if problem is not None:
            changes.append(Change(line, "left_out", problem))
        else:
            assert columns.image is not None
            rows.append(_TableRow(line, cells, str(cells[columns.image])))
    if len(changes) > len(rows):
        problems = [Problem(change.line, change.text) for change in changes]
        outcome = "nothing was written: most of its rows would be left out"
        raise ProblemsError(raw.path, problems, outcome, unit=raw.unit)
    return rows, [*changes, *spelled]


def _problem(columns: HeaderColumns, cells: Sequence[Cell]) -> str | None:
    """Return why a row cannot be used; blank cells after the last column do not matter."""
    count = len(columns.header)
    if [*cells] == [*columns.header]:
        return "the header once more"
    if len(cells) < count or any(cells[count:]):
        return f"{len(cells)} cells where the header has {count}"
    image = "" if columns.image is None else str(cells[columns.image])
    return image_name_problem(image) if image else "no image is named"


def _split_name(text: str) -> str | None:
    """Return the split that a cell means, also a misspelled one; or None."""
    lower = text.casefold()
    near = {split for name, split in SPLIT_NAMES.items() if is_near_spelling(lower, name)}
    return SPLIT_NAMES.get(lower, near.pop() if len(near) == 1 else None)


@dataclass(frozen=True, eq=False)
class _CheckedImages:
    """The images of a table: those that have a file, each once, and their scan.

    ``problems`` say why an image cannot be used, ``repeated`` which earlier name leads to the same file.
    """

    images: FileImages
    scan: ImageScan
    problems: dict[str, str]
    repeated: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def files(self) -> dict[str, str]:
        return dict(zip(self.images.names, self.images.files, strict=True))

    def known_scan(self, images: FileImages) -> ImageScan:
        """Return the scan of some of the images, without decoding them again."""
        place = {name: row for row, name in enumerate(self.images.names)}
        return self.scan.select(np.array([place[name] for name in images.names], dtype=np.int64))


def _check_images(raw: RawTable, folder: Path, rows: Sequence[_TableRow]) -> _CheckedImages:
    """Find and decode the image of every row; raise an error where the folder has none of them."""
    finder = ImageFinder(folder)
    problems: dict[str, str] = {}
    for row in rows:
        if row.image in finder.lines:
            continue
        problem = finder(row.image, row.line)
        if problem is not None and row.image not in finder.repeated and row.image not in finder.files:
            problems[row.image] = problem
    problems |= finder.skipped
    if rows and finder.missing == finder.checked:
        outcome = f"nothing was written. None of its images is in {folder}: where are they? (--images DIR)"
        missing = [Problem(finder.lines[name], problem) for name, problem in problems.items()]
        raise ProblemsError(raw.path, missing, outcome, unit=raw.unit)
    images = FileImages(folder, [*finder.files], [*finder.files.values()])
    scan = scan_images(images)
    problems |= {images.names[row]: reason for row, reason in scan.unreadable.items()}
    problems |= {name: problems[first] for name, first in finder.repeated.items() if first in problems}
    return _CheckedImages(images, scan, problems, finder.repeated, tuple(finder.findings()))


class _Layout:
    """How the rows hold labels, in a column per class or in lists: read, and written as the file does.

    Attributes:
        output: the columns of the clean table.
        names: the new name of every class that has one.
        sources: of a table with a column per class, the columns of every class by its new name.
        changes: of columns and of the names of classes.
    """

    def __init__(self, raw: RawTable, columns: HeaderColumns, rows: Sequence[_TableRow], options: TableOptions) -> None:
        self.raw, self.columns, self.options = raw, columns, options
        self.names: dict[str, str] = {}
        self.sources: dict[str, list[int]] = {}
        self.changes: list[Change] = []
        self.output: list[OutputColumn] = []
        (self._set_lists if columns.lists else self._set_classes)(rows)

    def _set_classes(self, rows: Sequence[_TableRow]) -> None:
        """Find the columns that hold states, and how the table spells these."""
        self.parser = CellParser(ABSENT if self.options.zeros == "absent" else UNKNOWN)
        cells_of: dict[int | None, Counter[str]] = {}
        bad, filled, present, remarks = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
        for row in rows:
            for number in self.columns.class_columns:
                if cell := row.cells[number]:
                    filled[number] += 1
                    code = self.parser.code(cell)
                    bad[number] += code is None and str(cell) != "-1"  # a state of some tables: absent or unknown
                    remarks[number] += code is None and len(str(cell).split()) > 1
                    present[number] += code == PRESENT
                    cells_of.setdefault(code, Counter())[str(cell)] += 1
        self.spelling = {**choose_spellings(cells_of), UNKNOWN: ""}
        classes = [
            number
            for number in self.columns.class_columns
            if self.raw.header[number]
            and not is_no_class(bad[number], filled[number])
            and not (bad[number] == filled[number] and (bad[number] > 1 or remarks[number]))
        ]
        counts: Counter[str] = Counter()
        for number in classes:
            counts[self.raw.header[number]] += present[number]
        self._rename(counts, {})
        holds_class = {*classes}
        for number, name in enumerate(self.raw.header):
            if number not in holds_class:
                self._keep_column(number)
                continue
            final = self.names.get(name, name)  # classes that have one name share the column of the first
            if final not in self.sources:
                self.output.append(OutputColumn(final, number))
            elif name in (self.raw.header[other] for other in self.sources[final]):
                self._change_column(f"the column '{truncate_text(name)}' is there twice: merged")
            self.sources.setdefault(final, []).append(number)

    def _set_lists(self, rows: Sequence[_TableRow]) -> None:
        """Find how the table lists classes."""
        columns = ((self.columns.present, PRESENT), (self.columns.absent, ABSENT))
        self.states = {number: state for number, state in columns if number is not None}
        self.notation = TagLists(self.options.separator, (row.cells[number] for row in rows for number in self.states))
        counts: Counter[str] = Counter(dict.fromkeys(self.raw.classes or (), 0))
        first_lines: dict[str, int] = {}
        for row in rows:
            for number, state in self.states.items():
                for name in self.notation.names(row.cells[number]):
                    counts[name] += state == PRESENT
                    first_lines.setdefault(name, row.line)
        self._rename(counts, first_lines)
        for name in self.names.values():
            if self.notation.names(name) != [name]:
                place = self.raw.path
                raise InputError(f"'{truncate_text(name)}' cannot be in a list of {place}: it would be several tags.")
        for number in range(len(self.raw.header)):
            self._keep_column(number)

    def _rename(self, present: Counter[str], first_lines: dict[str, int]) -> None:
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
            text = f"'{truncate_text(name)}' (present in {pluralize(count, 'image')}): {why} '{truncate_text(new)}'"
            self.changes.append(Change(first_lines.get(name, self.raw.line), "classes", text))

    def _change_column(self, text: str) -> None:
        self.changes.append(Change(self.raw.line, "columns", text))

    def _keep_column(self, number: int) -> None:
        """Keep a column that holds no class, or leave it out with a change."""
        columns, name = self.columns, self.raw.header[number]
        if number in (columns.image, columns.split, columns.group, columns.present, columns.absent):
            self.output.append(OutputColumn(self.options.rename.get(name, name), number))
            return
        kept = name == UNSURE_COLUMN if columns.lists else name and self.options.classes is not None
        if kept or name in self.options.ignore_columns:
            self.output.append(OutputColumn(name, number))
        elif not name:
            self._change_column(f"column {number + 1} has no name: left out")
        elif self.options.rename.get(name, name).lower() in (*RESERVED_COLUMNS, *LIST_COLUMNS):
            self._change_column(f"the column '{truncate_text(name)}' is there twice: the second is left out")
        else:
            hint = f"{format_option('ignore-columns', name)} keeps it"
            hint += "" if columns.lists else f"; if it lists tags, {format_option('rename', f'{name}=present')}"
            self._change_column(f"the column '{truncate_text(name)}' is no tag: left out ({hint})")

    @property
    def other_columns(self) -> list[OutputColumn]:
        """The columns of the clean table that hold neither labels nor images."""
        holds_labels = {self.columns.image, self.columns.present, self.columns.absent, *self.columns.class_columns}
        return [column for column in self.output if column.source not in holds_labels]

    def renamed(self, names: Sequence[str] | None) -> list[str] | None:
        """Return the new names of classes, each once."""
        return None if names is None else list(dict.fromkeys(self.names.get(name, name) for name in names))

    def _statements(self, cells: Sequence[Cell]) -> Iterator[tuple[str, int | None, int]]:
        """Yield the class, the state (None for a cell that is none) and the column of all that a row says."""
        if self.columns.lists:
            for number, state in self.states.items():
                for name in self.notation.names(cells[number]):
                    yield self.names.get(name, name), state, number
        for name, sources in self.sources.items():
            for number in sources:
                if cells[number]:
                    yield name, self.parser.code(cells[number]), number

    def read_labels(self, row: _TableRow) -> Iterator[Change]:
        """Add the known labels to a row, and yield what has to become unknown."""
        conflict = "is present in one of its columns and absent in another"
        conflict = "is both under present and under absent" if self.columns.lists else conflict
        for name, code, number in self._statements(row.cells):
            if code is None:
                where = truncate_text(self.raw.header[number])
                text = f"'{truncate_text(str(row.cells[number]))}' under {where} is no state: unknown now"
                yield Change(row.line, "unknown", text)
            elif code != UNKNOWN and not row.add_label(name, code):
                yield Change(row.line, "unknown", f"'{truncate_text(name)}' {conflict}: unknown now")

    def write_cells(self, row: _TableRow) -> list[Cell]:
        """Return the cells of the clean table; those that say what they said before are as they were."""
        cells: list[Cell] = []
        for column in self.output:
            cell, sources = row.cells[column.source], self.sources.get(column.name, ())
            if self.columns.lists and column.source in self.states:
                names = [name for name, label in row.labels.items() if label == self.states[column.source]]
                cell = cell if {*self.notation.names(cell)} == {*names} else self.notation.cell(names, cell)
            elif column.source in sources:
                state = row.labels.get(column.name, UNKNOWN)
                same = (cell for number in sources if self.parser.code(cell := row.cells[number] or "") == state)
                cell = next(same, self.spelling[state])
            cells.append(cell)
        return cells


def _merge_rows(
    rows: Sequence[_TableRow], images: _CheckedImages, layout: _Layout
) -> tuple[list[_TableRow], list[Change]]:
    """Merge the rows of one image into the first: what one of them knows is known, contradictions are unknown."""
    firsts: dict[str, _TableRow] = {}
    changes: list[Change] = []
    for row in rows:
        first = firsts.setdefault(images.repeated.get(row.image, row.image), row)
        if first is not row:
            changes += _merge(first, row, layout)
    return list(firsts.values()), changes


def _merge(first: _TableRow, row: _TableRow, layout: _Layout) -> Iterator[Change]:
    """Merge a row into the first one of its image."""
    name, place = truncate_text(row.image), f"{layout.raw.unit} {first.line}"
    same = (row.labels, row.conflicts) == (first.labels, first.conflicts)
    added = [each for each in row.labels if each not in first.labels and each not in first.conflicts]
    conflicts = [each for each, state in row.labels.items() if not first.add_label(each, state)]
    for each in row.conflicts - first.conflicts:
        first.labels.pop(each, None)
        first.conflicts.add(each)
    text = f"{name} is listed again (first in {place}): merged"
    text += ", the labels are the same" if same else f", {pluralize(len(added), 'label')} added" if added else ""
    for column in layout.other_columns:
        before, here = first.cells[column.source], row.cells[column.source]
        if not before:
            first.cells[column.source] = here
        elif here and here != before:
            text += f"; {truncate_text(column.name)} stays '{truncate_text(str(before))}'"
    yield Change(row.line, "merged", text)
    for each in conflicts:
        yield Change(row.line, "unknown", f"'{truncate_text(each)}' of {name} contradicts {place}: unknown now")


def _separate_copies(
    rows: Sequence[_TableRow], images: _CheckedImages, layout: _Layout, options: ImageOptions
) -> tuple[list[_TableRow], list[Change]]:
    """Name the images that are copies of others; of copies in several splits keep those in the last (test, val)."""
    files, unit, split = images.files, layout.raw.unit, layout.columns.split
    chosen = FileImages(images.images.root, [row.image for row in rows], [files[row.image] for row in rows])
    pairs = find_duplicates(chosen, images.known_scan(chosen), options.duplicates)
    changes = [
        _describe_copy(rows[first], rows[second], exact, unit)
        for first, second, exact in zip(pairs.first.tolist(), pairs.second.tolist(), pairs.exact.tolist(), strict=True)
    ]
    if split is None or options.allow_leaks:
        return list(rows), changes
    order = np.array([SPLITS.index(str(row.cells[split])) for row in rows], dtype=np.int64)
    leaked = leaked_rows(cluster_ids(pairs, len(rows)), -order)
    for row, other in leaked.items():
        here, there = (f"{truncate_text(rows[each].image)} ({rows[each].cells[split]})" for each in (row, other))
        changes.append(Change(rows[row].line, "left_out", f"{here} is a copy of {there}, {unit} {rows[other].line}"))
    return [row for number, row in enumerate(rows) if number not in leaked], changes


def _describe_copy(first: _TableRow, second: _TableRow, exact: bool, unit: str) -> Change:
    """Return the change that names two images that are copies, and the classes on which their labels disagree."""
    relation = "has the same content as" if exact else "looks the same as"
    text = f"{truncate_text(second.image)} {relation} {truncate_text(first.image)} ({unit} {first.line})"
    differ = [name for name, state in second.labels.items() if first.labels.get(name, state) != state]
    if differ:
        more = " …" if len(differ) > _CLASSES_SHOWN else ""
        text += f"; their labels contradict each other: {truncate_text(', '.join(differ[:_CLASSES_SHOWN]))}{more}"
    return Change(second.line, "copies", text)
