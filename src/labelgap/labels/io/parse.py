"""Parse the rows of a file of labels: the same rules for CSV and Parquet, all problems in one error."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, ProblemsError, UnknownNameError, nearest
from labelgap.core.findings import Finding, Note
from labelgap.core.text import format_option, pluralize, truncate_text
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.classes import apply_class_options, describe_same_names, resolve_class_names
from labelgap.labels.io.layout import (
    UNCERTAIN,
    Cell,
    CellParser,
    ListLayout,
    Statement,
    WideLayout,
    blanks_between_tags,
    parse_state,
)
from labelgap.labels.io.table_file import (
    LIST_COLUMNS,
    MAX_PROBLEMS,
    RESERVED_COLUMNS,
    SPLIT_NAMES,
    SPLITS,
    ProblemList,
    TableFile,
    TableOptions,
)
from labelgap.labels.sparse import is_encodable
from labelgap.labels.table import LabelTable

_IMAGE_NAMES: Final = ("img", "imagefile", "imageid", "imagename", "imagepath", "imgpath", "photo", "picture")
COLUMN_SYNONYMS: Final[Mapping[str, frozenset[str]]] = {
    "image": frozenset({"file", "filename", "filepath", "path", *_IMAGE_NAMES}),
    "split": frozenset({"datasplit", "partition", "subset"}),
}
"""Other names of reserved columns, in lower case and without blanks and marks. One of them counts where no column has
the name itself."""
LIST_SYNONYMS: Final = frozenset(
    {"categories", "category", "class", "classes", "keyword", "keywords", "label", "labels", "tag", "tags"}
)
"""Other names of ``present``. One counts where its cells are no states, and those of no other column are."""
SAMPLE_ROWS: Final = 1000  # rows whose cells decide that
UNSURE_COLUMN: Final = "unsure"
"""Beside lists: classes that a prediction did not decide. They are unknown, so the column is ignored."""


_FILE_NAME: Final = re.compile(r"[^.\s]\.[A-Za-z][A-Za-z0-9]{2,3}$")
_MAX_END: Final = 100
_PHOTO_NAME: Final = re.compile(r"[^.\s]\.(?:jpe?g|png|webp|gif|bmp|tiff?|heic|avif)$", re.IGNORECASE)


@dataclass(frozen=True)
class HeaderColumns:
    """The header, its line, and the indices of the columns of each kind; lists come before ``class_columns``."""

    line: int
    header: Sequence[str]
    image: int | None
    probable_image: int | None
    split: int | None
    group: int | None
    present: int | None
    absent: int | None
    class_columns: tuple[int, ...]
    ignored: tuple[str, ...]

    @property
    def image_names(self) -> int | None:
        """The column to check the names of images in."""
        return self.probable_image if self.image is None else self.image

    @property
    def class_names(self) -> dict[int, str]:
        """The columns with a class each, and their names."""
        return {number: self.header[number] for number in self.class_columns}

    @property
    def list_states(self) -> dict[int, int]:
        """The columns of lists, and the state of the classes in them."""
        listed = ((self.present, PRESENT), (self.absent, ABSENT))
        return {number: state for number, state in listed if number is not None}

    @property
    def lists(self) -> bool:
        """Whether the table has lists of classes, rather than a column per class."""
        return self.present is not None

    @property
    def synonyms(self) -> list[tuple[str, str]]:
        """The columns that were recognized by another name: that name, and the reserved one."""
        numbers = {"image": self.image, "split": self.split}
        named = [(self.header[number], role) for role, number in numbers.items() if number is not None]
        found = [(name, role) for name, role in named if _plain(name) in COLUMN_SYNONYMS[role]]
        if self.present is not None and _plain(self.header[self.present]) in LIST_SYNONYMS:
            found.append((self.header[self.present], "present"))
        return found


def is_reserved_name(name: str) -> bool:
    """Return whether a column of this name may be read as something else than a class."""
    reserved = {*RESERVED_COLUMNS, *LIST_COLUMNS, UNSURE_COLUMN, *LIST_SYNONYMS}
    return _plain(name) in reserved.union(*COLUMN_SYNONYMS.values())


def is_header(header: Iterable[str], options: TableOptions) -> bool:
    """Return whether one of these columns holds the names of the images."""
    return "image" in _column_roles([*header], options)


def parse_header(
    line: int,
    header: Sequence[str],
    options: TableOptions,
    names: Mapping[str, str],
    problems: ProblemList,
    sample: Sequence[Sequence[Cell]],
) -> HeaderColumns:
    """Find the reserved columns, those of classes (``names``: their final names), and those to ignore."""
    path, known, ignored_names = problems.path, {*header}, {*options.ignore_columns}
    if not header:
        raise InputError(f"{path} is empty: it needs a header line such as image,cat,dog and a row per image.")
    for name in options.ignore_columns:
        if name not in known:
            raise UnknownNameError("column", truncate_text(name), map(truncate_text, header))
    roles = _column_roles(header, options)
    if "image" not in roles and (photo := next((name for name in header if _PHOTO_NAME.search(name)), None)):
        place = f", line {line}" if line else ""
        raise InputError(
            f"{path}{place}: there is no header, since '{truncate_text(photo)}' is an image. Put a line before it that "
            "names the columns: 'image' for this one, and for the others a tag each, or 'present' for lists of tags."
        )
    unnamed = {number for number, name in enumerate(header) if not name and _holds_no_states(number, sample)}
    used = [number for number, name in enumerate(header) if name not in ignored_names and number not in unnamed]
    _recognize_lists(header, roles, used, sample)
    lists = any(roles[number] == "present" for number in used)
    special = (*RESERVED_COLUMNS, *(LIST_COLUMNS if lists else ()))
    position = {roles[number]: number for number in reversed(used) if roles[number] in special}
    rest = [number for number in used if roles[number] not in (*special, *((UNSURE_COLUMN,) if lists else ()))]
    probable = None
    if "image" not in position:
        probable = _column_of_files(rest, sample)
        probable = rest[0] if probable is None and lists and len(rest) == 1 else probable
        candidates = [header[probable]] if probable is not None else header
        problems.add(line, f"no column is called 'image'. {_hint(header, candidates)}")
        rest = [number for number in rest if number != probable]
    chosen = [] if lists else _select_columns(header, rest, options, names)
    problems.fixable &= "image" in position and bool(chosen or lists)
    for message in _header_problems(header, roles, used, rest if lists else (), special):
        problems.add(line, message)
    if not chosen and not lists:
        problems.add(line, "no class: after 'image' comes a column per class, or 'present'")
    kept = {*position.values(), *chosen, *(rest if lists else ())}
    ignored = tuple(name or f"column {number + 1}" for number, name in enumerate(header) if number not in kept)
    image, split, group, present, absent = (position.get(name) for name in (*RESERVED_COLUMNS, *LIST_COLUMNS))
    return HeaderColumns(line, header, image, probable, split, group, present, absent, tuple(chosen), ignored)


def _column_roles(header: Sequence[str], options: TableOptions) -> list[str]:
    """Return every column's new name, a reserved one in lower case; one that is not there goes to its only synonym."""
    renamed = [options.rename.get(name, name) for name in header]
    roles = [name.lower() if name.lower() in (*RESERVED_COLUMNS, *LIST_COLUMNS) else name for name in renamed]
    for role, synonyms in COLUMN_SYNONYMS.items():
        found = [number for number, name in enumerate(header) if _plain(name) in synonyms and name == roles[number]]
        found = [number for number in found if header[number] not in options.ignore_columns]
        if role not in roles and len(found) == 1:
            roles[found[0]] = role
    return roles


def _recognize_lists(
    header: Sequence[str], roles: list[str], used: Sequence[int], sample: Sequence[Sequence[Cell]]
) -> None:
    """Make the only column with a synonym of ``present`` that one, if it holds names and no other column states."""
    open_columns = [number for number in used if roles[number] not in (*RESERVED_COLUMNS, *LIST_COLUMNS)]
    candidates = [number for number in open_columns if _plain(header[number]) in LIST_SYNONYMS]
    if "present" in roles or len(candidates) != 1 or roles[candidates[0]] != header[candidates[0]]:
        return
    for number in open_columns:
        codes = [parse_state(cell) for cell in _column(number, sample)]
        states, others = sum(code in (PRESENT, ABSENT) for code in codes), codes.count(None)
        if (others <= states) if number in candidates else (states > others):
            return
    roles[candidates[0]] = "present"


def _holds_no_states(number: int, sample: Sequence[Sequence[Cell]]) -> bool:
    """Return whether a column is blank, or most of its cells are no states, e.g. the numbers of the rows."""
    codes = [parse_state(cell) for cell in _column(number, sample)]
    return not codes or 2 * codes.count(None) > len(codes)


def _column(number: int, sample: Sequence[Sequence[Cell]]) -> list[Cell]:
    return [row[number] for row in sample if number < len(row) and row[number]]


def holds_file_names(cells: Sequence[Cell]) -> bool:
    """Return whether most of these cells are names of files; of a long text its end decides."""
    names = sum(isinstance(cell, str) and _FILE_NAME.search(cell[-_MAX_END:]) is not None for cell in cells)
    return 2 * names > len(cells)


def _column_of_files(columns: Sequence[int], sample: Sequence[Sequence[Cell]]) -> int | None:
    """Return the only column of which most cells are names of files; None where there is none, or several."""
    found = [number for number in columns if holds_file_names(_column(number, sample))]
    return found[0] if len(found) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def _select_columns(
    header: Sequence[str], rest: Sequence[int], options: TableOptions, names: Mapping[str, str]
) -> list[int]:
    """Return the columns of classes; with ``options.classes`` only those, by their own or their final name."""
    if options.classes is None:
        return list(rest)
    selected = {names.get(name, name) for name in options.classes}
    found = [number for number in rest if names.get(header[number], header[number]) in selected]
    missing = selected - {names.get(header[number], header[number]) for number in found}
    if missing:
        raise UnknownNameError(
            "tag", truncate_text(min(missing)), [truncate_text(header[number]) for number in rest], "(--classes)"
        )
    return found


def _header_problems(
    header: Sequence[str],
    roles: Sequence[str],
    used: Sequence[int],
    beside_lists: Sequence[int],
    special: Sequence[str],
) -> Iterable[str]:
    seen, refused = set[str](), {*beside_lists}
    for number in used:
        name, role = header[number], roles[number]
        key = role if role in special else name
        if not name:
            yield f"column {number + 1} has no name"
        elif key in seen:
            yield f"the column '{truncate_text(name)}' is there twice"
        elif number in refused:
            yield (
                f"'{truncate_text(name)}' beside present: lists have image, split, group, present and absent; "
                f"{format_option('ignore-columns', name)} leaves it out"
            )
        seen.add(key)


def _hint(header: Sequence[str], candidates: Sequence[str]) -> str:
    several = [name for name in candidates if _plain(name) in COLUMN_SYNONYMS["image"]]
    close = candidates[0] if len(candidates) == 1 else nearest("image", candidates)
    if len(several) > 1:
        names = " and ".join(f"'{truncate_text(name)}'" for name in several[:2])
        hint = f"{names} could both be it: {format_option('rename', f'{several[0]}=image')} says which. "
    elif close:
        hint = f"Is '{truncate_text(close)}' it? {format_option('rename', f'{close}=image')}. "
    else:
        hint = "Say which it is with --rename NAME=image. "
    return f"{hint}The header reads {truncate_text(','.join(header), 200)}"


Row = tuple[int, list[Cell]]
CheckImage = Callable[[str, int], str | None]  # of the name of an image and its line

_MIN_BAD_CELLS: Final = 10
"""From so many bad cells on, and more than half of a column, the column is reported instead of its cells."""
_MIN_ALL_BAD: Final = 3  # from so many on, where no cell of the column is a state
_CELL_FORMAT: Final = "a cell is 1 (present), 0 (absent) or blank (unknown)"
_MINUS_ONE: Final = "; -1 is absent in some files and unknown in others: write 0 or nothing"
_MAX_NAME: Final = 4096
_SPELLINGS_SHOWN: Final = 4
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
    """Parse rows, the header first, or raise one error with all problems; ``classes`` are all names of lists."""
    path = problems.path
    line, header = next(rows, (0, []))
    problems.refuse()
    names = resolve_class_names(options)
    sample = list(islice(rows, SAMPLE_ROWS))
    rows = chain(sample, rows)
    cells = [cells for _, cells in sample]
    columns = parse_header(line, [str(cell) for cell in header], options, names, problems, cells)
    if columns.lists and options.zeros != "absent":
        raise InputError(f"{path}: --zeros is for tables with a column per class; this has lists. See --unlisted.")
    if not columns.lists and options.unlisted != "unknown":
        raise InputError(f"{path}: --unlisted is for lists; this is a table with a column per class. See --zeros.")
    parser = _RowParser(options, check_image, columns, problems, names)
    checked = parser.checked(rows)
    if columns.lists:
        listed = [*checked]  # all of them say what separates their names
        lists = ListLayout(columns.list_states, (cells for _, cells in listed), options.separator)
        table = parser.parse(listed, lists, classes)
        joined = blanks_between_tags(table.classes) if options.separator is None else []
        rule = Note(f"lists of tags; a tag that is not listed is {options.unlisted}")
        cell_findings: list[Finding] = [rule, *lists.notation.findings(), *joined]
    else:
        zero = ABSENT if options.zeros == "absent" else UNKNOWN
        cell_parser = CellParser(zero, uncertain=options.minus_one is not None)
        table = parser.parse(checked, WideLayout(columns.class_names, cell_parser), None)
        cell_findings = [Note(f"a column per tag; {_describe_states(cell_parser, options.zeros)}")]
    table, revisions, class_findings = apply_class_options(table, options, names, parser.index)
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
        cell_findings.append(Note(f"columns left out: {truncate_text(', '.join(columns.ignored), 200)}"))
    return TableFile(
        path=path,
        table=table,
        splits=tuple(parser.splits) if columns.split is not None else None,
        groups=tuple(parser.groups) if columns.group is not None else None,
        lines=np.fromiter(parser.images.values(), dtype=np.int64, count=len(table)),
        findings=(*cell_findings, *class_findings, *findings),
        unit=problems.unit,
        revisions=revisions,
        uncertain=parser.uncertain,
    )


def _describe_states(parser: CellParser, zeros: str) -> str:
    present, absent, unknown = (
        f" (or {', '.join(spellings[:_SPELLINGS_SHOWN])})" if spellings else "" for spellings in parser.spellings()
    )
    return f"1{present} = present, 0{absent} = {zeros}, blank{unknown} = unknown"


def is_no_class(bad: int, filled: int) -> bool:
    """Return whether so many cells of a column are no state that it cannot be a class."""
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


def refuse_problems(problems: ProblemList, counts: Mapping[str, int]) -> None:
    """Raise one error with all problems, with a note about names of classes that are one; ``counts`` has all."""
    try:
        problems.refuse()
    except ProblemsError as error:
        if (note := describe_same_names(counts)) is not None:
            error.add_note(note)
        raise


@dataclass
class _RowParser:
    """The columns, and the images, splits, groups, lines and problems so far; ``names`` are the final ones."""

    options: TableOptions
    check_image: CheckImage
    columns: HeaderColumns
    problems: ProblemList
    names: Mapping[str, str]
    index: dict[str, int] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    splits: list[str] = field(default_factory=list)
    split_names: dict[str, str] = field(default_factory=dict)
    headers: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))
    repeated: list[tuple[int, int, int]] = field(default_factory=list)
    uncertain: int = 0

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
                    self.problems.add(
                        line, f"'{truncate_text(split)}' under {name}: it must be train, val or test{hint}"
                    )
            if columns.group is not None:
                self.groups.append(str(cells[columns.group]))
            self.lines.append(line)
            yield line, cells

    def parse(self, rows: Iterable[Row], layout: WideLayout | ListLayout, stored: Sequence[str] | None) -> LabelTable:
        """Collect the labels of checked rows; rows repeat a few statements, and each is looked at once."""
        said: defaultdict[Statement, int] = defaultdict(count().__next__)
        numbers, ends = array("i"), array("q", [0])
        for _, cells in rows:
            numbers.extend(map(said.__getitem__, layout.statements(cells)))
            ends.append(len(numbers))
        statements, entries = [*said], np.asarray(numbers)
        wide = layout.columns if isinstance(layout, WideLayout) else {}
        self.report_invalid_cells(statements, entries, ends, wide)
        codes = [self.options.minus_one if each.code == UNCERTAIN else each.code for each in statements]
        self.uncertain = int(np.isin(entries, [said[each] for each in statements if each.code == UNCERTAIN]).sum())
        listed = [each.name for each, code in zip(statements, codes, strict=True) if code in (PRESENT, ABSENT)]
        if stored is not None and (unknown := {*listed}.difference(stored)):
            raise UnknownNameError("class", min(unknown), stored)
        written = dict.fromkeys(stored or wide.values() or listed)
        classes = [*dict.fromkeys(self.names.get(name, name) for name in written)]
        if not wide and (stored is None or self.names.keys() & {*stored}):
            classes.sort()
        number = {name: column for column, name in enumerate(classes)}
        self.index = {name: number[self.names.get(name, name)] for name in written}
        # a label as one whole number: its row, its column, its state
        terms = np.array(
            [
                2 * self.index[each.name] + code if code in (PRESENT, ABSENT) else -1
                for each, code in zip(statements, codes, strict=True)
            ],
            dtype=np.int64,
        )
        labels = np.repeat(np.arange(len(ends) - 1) * 2 * len(classes), np.diff(ends))
        labels += terms[entries]
        labels = labels[terms[entries] >= 0]
        labels.sort(kind="stable")  # nearly sorted already
        labels = labels[np.append(labels[:1] >= 0, labels[1:] > labels[:-1])]
        places, values = labels // 2, (labels % 2).astype(np.int8)
        for place in places[1:][places[1:] == places[:-1]].tolist():
            row, column = divmod(place, len(classes))
            of_label = [n for n in numbers[ends[row] : ends[row + 1]] if terms[n] // 2 == column]
            again = len({statements[n].name for n in of_label}) < len(of_label)
            both = "present under one of its names and absent under another"
            both = "both under present and under absent" if again else both
            if not (again and wide):  # the header's problem says it
                self.problems.add(self.lines[row], f"'{truncate_text(classes[column])}' is {both}")
        starts = np.searchsorted(places, np.arange(len(ends)) * len(classes))
        columns = (places % max(len(classes), 1)).astype(np.int32)
        self.report_repeated(
            lambda row: {
                classes[terms[n] // 2]: terms[n] % 2 for n in numbers[ends[row] : ends[row + 1]] if terms[n] >= 0
            },
            row_per_tag=not wide and np.diff(starts).max(initial=0) == 1,
        )
        self.refuse_problems(dict(zip(classes, np.bincount(columns, minlength=len(classes)).tolist(), strict=True)))
        table = LabelTable(starts, columns, values, classes, [*self.images])
        return table.with_unknown_absent() if self.options.unlisted == "absent" else table

    def report_repeated(self, labels: Callable[[int], Mapping[str, int]], row_per_tag: bool) -> None:
        """Say where an image that is listed again has other labels; ``labels`` returns the known ones of a row."""
        for number, line, first in self.repeated:
            here, before = (labels(bisect_left(self.lines, each)) for each in (line, first))
            if names := [name for name, state in here.items() if before.get(name, state) != state]:
                more = f" and {pluralize(len(names) - 1, 'more tag')}" if len(names) > 1 else ""
                verb = "contradict" if more else "contradicts"
                self.problems.extend(number, f"; '{truncate_text(names[0])}'{more} {verb} it")
        if len(self.repeated) > 1 and row_per_tag:
            hint = "a row per tag? A clean copy (--fix) has a row per image"
            if self.columns.absent is None:  # no row can contradict another: the other problems matter more
                again = f"this and {pluralize(len(self.repeated) - 1, 'other row')} list an image again"
                self.problems.merge([number for number, *_ in self.repeated], f"{again}: {hint}")
            else:
                self.problems.extend(self.repeated[0][0], f"; {hint}")

    def refuse_problems(self, counts: Mapping[str, int]) -> None:
        """Raise one error with all problems, or where there is no row."""
        refuse_problems(self.problems, counts)
        if not self.images:
            raise InputError(f"{self.problems.path} has a header and no rows: there is no image to learn from.")

    def report_invalid_cells(
        self,
        statements: Sequence[Statement],
        entries: NDArray[np.int32],
        ends: Sequence[int],
        wide: Mapping[int, str],
    ) -> None:
        """Report cells that are no state, of every column that has some; ``ends`` are where rows end in entries."""
        bad = np.array([each.code is None for each in statements], dtype=bool)
        if not bad.any():
            return
        number = np.array([each.number for each in statements])[entries]
        filled = np.bincount(number).tolist()
        places = np.flatnonzero(bad[entries])
        places = places[np.argsort(number[places], kind="stable")]
        for group in np.split(places, np.flatnonzero(np.diff(number[places])) + 1):
            column, rows = int(number[group[0]]), np.searchsorted(ends, group[:MAX_PROBLEMS], side="right") - 1
            texts = [statements[entry].text for entry in entries[group[:MAX_PROBLEMS]]]
            cells = list(zip(map(self.lines.__getitem__, rows), texts, strict=True))
            self.report_invalid_column(wide[column], cells, len(group), filled[column])

    def report_invalid_column(self, name: str, bad: list[tuple[int, str]], count: int, filled: int) -> None:
        """Report cells that are no state: each of them, or the column where most of its cells are."""
        if self.columns.image_names is None and count == filled:  # it may be the one that names the images
            return
        if not is_no_class(count, filled):
            for line, cell in bad:
                hint = _MINUS_ONE if cell == "-1" else ""
                text = f"'{truncate_text(cell)}' under {truncate_text(name)}: {_CELL_FORMAT}{hint}"
                self.problems.add(line, text)
            return
        (line, cell), more, ignored = bad[0], count - 1, format_option("ignore-columns", name)
        hint = f"{ignored} leaves it out; if it lists tags, {format_option('rename', f'{name}=present')}"
        if holds_file_names([cell for _, cell in bad[:SAMPLE_ROWS]]):
            image = self.columns.header[self.columns.image or 0]
            named = f"{format_option('ignore-columns', image)} {format_option('rename', f'{name}=image')}"
            hint = f"it holds names of files: if these are the images, {named}; if not, {ignored}"
        elif _plain(name) in LIST_SYNONYMS and self.repeated:
            self.problems.fixable = False  # the states of several tags would be merged
            hint = (
                "a row per tag? A table has a row per image, with a column per tag. In Python: pandas.read_csv(…)"
                f".pivot(index='image', columns={name!r}, values=…).to_csv(…)"
            )
        example = f"'{truncate_text(cell)}' in {self.problems.unit} {line} and {more:,} more"
        text = f"the column '{truncate_text(name)}' does not look like a tag ({example}): {hint}"
        if all(cell == "-1" for _, cell in bad):
            text = f"{example} under {truncate_text(name)}: {_CELL_FORMAT}{_MINUS_ONE}"
        self.problems.add(self.columns.line, text)
