"""CSV files of labels: one row per image, wide or lists, every problem told at once.

Wide: ``image,[split],class…`` with 1 (present), 0 (absent) or blank (unknown) in the cells; 1.0 and 0.0 mean the same.
Lists: ``image,[split],present,[absent]`` with ``;`` between names, never escaped; a class in neither list is unknown.
A column ``group`` says which images belong together. Spaces around a cell or a name do not count.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError, UnknownNameError, nearest
from labelgap.core.files import atomic_path
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.lists import table_from_lists
from labelgap.labels.table import LabelTable

__all__ = ["SPLITS", "TableFile", "read_csv", "write_csv"]

SPLITS: Final = ("train", "val", "test")

_NOT_CLASSES: Final = ("image", "split", "group")
_LISTS: Final = ("present", "absent")
_TEXT: Final = {PRESENT: "1", ABSENT: "0", UNKNOWN: ""}
Row = tuple[int, list[str]]  # a line of the file and its cells


@dataclass(frozen=True)
class TableFile:
    """A file of labels as it was understood.

    Attributes:
        path: the file.
        table: its labels.
        splits: the split of every row, or None when the file names none.
        groups: the group of every row, or None when the file has no such column.
        lines: the line of the file in which every row stands.
        form: "wide" or "lists".
        rules: in words, how cells and gaps were read.
    """

    path: Path
    table: LabelTable
    splits: tuple[str, ...] | None
    groups: tuple[str, ...] | None
    lines: NDArray[np.int64]
    form: Literal["wide", "lists"]
    rules: tuple[str, ...]


@dataclass
class _Reading:
    """What has been gathered so far, the bad with the good."""

    path: Path
    check_image: Callable[[str], str | None]
    header: list[str] = field(default_factory=list)
    position: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    images: dict[str, int] = field(default_factory=dict)
    splits: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def problem(self, line: int, message: str) -> None:
        self.problems.append(Problem(line, message))

    def refuse_problems(self) -> None:
        if self.problems:
            raise ProblemsError(self.path, self.problems)
        if not self.images:
            raise InputError(f"{self.path} has a header and no rows: there is no image to learn from.")


def read_csv(
    path: Path,
    *,
    zeros: str = "absent",
    unlisted: str = "unknown",
    check_image: Callable[[str], str | None] = lambda name: None,
) -> TableFile:
    """Read a CSV of labels, or raise one error with everything that is wrong with it.

    Args:
        path: the file, UTF-8 with or without a byte-order mark.
        zeros: what a 0 in a wide table says: "absent" or "unknown" ("nobody tagged it").
        unlisted: what a class in neither list of a lists table is: "unknown" or "absent".
        check_image: says what is wrong with an image's name, or None; what it says is told with all other problems.
    """
    _one_of("zeros", zeros, ("absent", "unknown"))
    _one_of("unlisted", unlisted, ("unknown", "absent"))
    reading = _Reading(path, check_image)
    with _opened(path) as file:
        rows = _rows(reading, _with_header(reading, _records(reading, file)))
        form: Literal["wide", "lists"] = "lists" if "present" in reading.position else "wide"
        if form == "wide" and unlisted != "unknown":
            raise InputError(f"{path}: --unlisted is for lists; this is a table with a column per class. See --zeros.")
        if form == "lists" and zeros != "absent":
            raise InputError(f"{path}: --zeros is for tables with a column per class; this has lists. See --unlisted.")
        table = _read_wide(reading, rows, zeros) if form == "wide" else _read_lists(reading, rows, unlisted)
    if not len(table.values):
        raise InputError(
            f"{path}: nothing is known at all, every one of its {len(table)} rows is blank. Tag a few images."
        )
    splits = tuple(reading.splits) if "split" in reading.position else None
    groups = tuple(reading.groups) if "group" in reading.position else None
    lines = np.fromiter(reading.images.values(), dtype=np.int64, count=len(table))
    return TableFile(path, table, splits, groups, lines, form, _rules(table, form, zeros, unlisted, groups is not None))


def write_csv(table: LabelTable, path: Path, splits: Sequence[str] | None = None) -> None:
    """Write a wide CSV; see ``LabelTable.to_csv``. A name that would not be read back as it is, is refused."""
    if splits is not None and len(splits) != len(table):
        raise InputError(f"{len(splits)} splits were given for {len(table)} images.")
    for name in set(splits if splits is not None else ()).difference(SPLITS):
        raise UnknownNameError("split", name, SPLITS)
    for kind, names in (("image", table.images), ("class", table.classes)):
        for name in names:
            if name != name.strip() or not name:
                raise InputError(f"a CSV cannot hold the {kind} {name!r}: blanks around a name are lost. Use Parquet.")
    for name in table.classes:
        if name.lower() in (*_NOT_CLASSES, "present"):
            raise InputError(f"a CSV cannot hold the class '{name}': that column means something else. Use Parquet.")
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        header = ["image", *(["split"] if splits is not None else []), *table.classes]
        file.write(",".join(map(_quoted, header)) + "\n")
        for start in range(0, len(table), 1024):
            block = table.batch(range(start, min(start + 1024, len(table)))).numpy()
            for row, codes in enumerate(block.tolist(), start):
                first = _quoted(table.images[row]) + (f",{_quoted(splits[row])}" if splits is not None else "")
                file.write(",".join([first, *map(_TEXT.__getitem__, codes)]) + "\n")


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        file = path.open(encoding="utf-8-sig", newline="")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a CSV file.") from None
    with file:
        try:
            yield file
        except UnicodeDecodeError:
            lines = enumerate(path.read_bytes().split(b"\n"), 1)
            line = next(number for number, text in lines if text.decode(errors="ignore").encode() != text)
            raise InputError(f"{path}, line {line}: not UTF-8 text. Save the table as 'CSV UTF-8'.") from None


def _records(reading: _Reading, file: TextIO) -> Iterator[Row]:
    """Yield the first line and the cells of every record that is not blank."""
    reader = csv.reader(file, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            reading.problem(line, f"not a CSV row: {error}")
            continue
        if any(cells):
            yield line, cells


def _with_header(reading: _Reading, records: Iterator[Row]) -> Iterator[Row]:
    """Take the header from the records and find the columns with a meaning of their own; return the other records."""
    line, header = next(records, (0, []))
    if reading.problems:
        raise ProblemsError(reading.path, reading.problems)
    if not header:
        raise InputError(f"{reading.path} is empty: it needs a header line such as image,cat,dog and a row per image.")
    lowered = [name.lower() for name in header]
    meant = (*_NOT_CLASSES, *(_LISTS if "present" in lowered else ()))
    reading.header, reading.position = header, {name: lowered.index(name) for name in meant if name in lowered}
    if "image" not in reading.position:
        raise InputError(f"{reading.path}, line {line}: no column is called 'image'. {_header_hint(header)}")
    seen: set[str] = set()
    for number, (name, low) in enumerate(zip(header, lowered, strict=True), 1):
        key = low if low in meant else name
        if not name:
            reading.problem(line, f"column {number} has no name")
        elif key in seen:
            reading.problem(line, f"the column '{_short(name)}' is there twice")
        elif "present" in meant and low not in meant:
            reading.problem(
                line, f"'{_short(name)}' beside present: lists have image, split, group, present and absent"
            )
        seen.add(key)
    return records


def _header_hint(header: list[str]) -> str:
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            return f"Its cells are separated by {name}: save the table with commas."
    close = nearest("image", header)
    hint = f"Is '{_short(close)}' it? Rename it. " if close else ""
    return f"{hint}The header reads {_short(','.join(header), 200)}"


def _rows(reading: _Reading, records: Iterator[Row]) -> Iterator[Row]:
    """Check the length, image and split of every record, and pass on those whose cells can be looked at."""
    position = reading.position
    for line, cells in records:
        if len(cells) != len(reading.header):
            reading.problem(line, f"{len(cells)} cells where the header has {len(reading.header)}")
            continue
        image = cells[position["image"]]
        if not image:
            reading.problem(line, "no image is named")
        elif (first := reading.images.setdefault(image, line)) != line:
            reading.problem(line, f"{_short(image)} is listed again (first in line {first})")
        elif (wrong := reading.check_image(image)) is not None:
            reading.problem(line, wrong)
        if "split" in position:
            split = cells[position["split"]]
            if split not in SPLITS:
                close = nearest(split, SPLITS)
                hint = f". Did you mean '{close}'?" if close else ""
                reading.problem(line, f"'{_short(split)}' under split: it is train, val or test{hint}")
            reading.splits.append(split)
        if "group" in position:
            reading.groups.append(cells[position["group"]])
        yield line, cells


def _read_wide(reading: _Reading, rows: Iterator[Row], zeros: str) -> LabelTable:
    apart = set(reading.position.values())
    numbers = [number for number in range(len(reading.header)) if number not in apart]
    if not numbers:
        raise InputError(f"{reading.path}: no class: after 'image' comes a column per class, or 'present'.")
    zero = ABSENT if zeros == "absent" else UNKNOWN
    meaning = {"1": PRESENT, "1.0": PRESENT, "0": zero, "0.0": zero}
    lengths, columns, values = array("q"), array("i"), array("b")
    for line, cells in rows:
        for column, number in enumerate(numbers):
            if cell := cells[number]:
                value = meaning.get(cell)
                if value is None:
                    where = f"'{_short(cell)}' under {_short(reading.header[number])}"
                    reading.problem(line, f"{where}: a cell is 1 (present), 0 (absent) or blank (unknown)")
                elif value != UNKNOWN:
                    columns.append(column)
                    values.append(value)
        lengths.append(len(values))
    reading.refuse_problems()
    starts = np.concatenate([[0], np.asarray(lengths)])
    classes = [reading.header[number] for number in numbers]
    return LabelTable(starts, np.asarray(columns), np.asarray(values), classes, list(reading.images))


def _read_lists(reading: _Reading, rows: Iterator[Row], unlisted: str) -> LabelTable:
    present: list[list[str]] = []
    absent: list[list[str]] = []
    for line, cells in rows:
        present.append(_names(cells[reading.position["present"]]))
        absent.append(_names(cells[reading.position["absent"]]) if "absent" in reading.position else [])
        for name in sorted({*present[-1]} & {*absent[-1]}):
            reading.problem(line, f"'{_short(name)}' is both under present and under absent")
    reading.refuse_problems()
    return table_from_lists(present, absent, images=list(reading.images), unlisted=unlisted)


def _names(cell: str) -> list[str]:
    return [name for part in cell.split(";") if (name := part.strip())]


def _rules(table: LabelTable, form: str, zeros: str, unlisted: str, grouped: bool) -> tuple[str, ...]:
    if form == "lists":
        rules = [f"lists of tags; a tag that is not listed is {unlisted}"]
    else:
        rules = [f"a column per tag; 1 = present, 0 = {zeros}, blank = unknown"]
    if form == "wide" and table.complete:
        rules.append("every cell is 0 or 1, nothing is missing here; if 0 only means 'not tagged', add --zeros unknown")
    return (*rules, "the column 'group' says which images belong together, it is no tag") if grouped else tuple(rules)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name}={value!r}: it is {' or '.join(repr(choice) for choice in allowed)}.")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


def _short(text: str, most: int = 60) -> str:
    """Put a text on one line of bounded length, for a message."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
