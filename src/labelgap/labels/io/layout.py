"""Cells and layouts of a table of labels: what the cells of a row say, and how they are made to say something else."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from labelgap.core.findings import Caution, Note
from labelgap.core.text import truncate_text
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.dialect import describe_separator, parse_separator

Cell = str | list[str]  # a list where the file itself has lists

_SPELLINGS: Final = {
    PRESENT: frozenset({"true", "t", "yes", "y", "x", "present", "✓", "✔"}),
    ABSENT: frozenset({"false", "f", "no", "n", "absent"}),
    UNKNOWN: frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?", "unknown"}),
}
_OPPOSITE: Final = {"1": "0", "1.0": "0.0", "true": "false", "t": "f", "yes": "no", "y": "n", "present": "absent"}
_NUMBER: Final = re.compile(r"([01])(?:[.,]0*)?")
_PLAIN: Final = frozenset({"", "0", "0.0", "1", "1.0"})
_DETECTED: Final = (";", "|", ",")
_MAX_BRACKETED: Final = 1 << 17


UNCERTAIN: Final = 2
"""The code of −1 in tables where it says that a label is uncertain, until it becomes ``TableOptions.minus_one``."""


class CellParser:
    """Parses the cells of a wide table, and records their spellings; a 0 is ``zero``, absent or unknown.

    −1 is no state, since it means absent in other tools, unless it is asked for as UNCERTAIN.
    """

    def __init__(self, zero: int = ABSENT, *, uncertain: bool = False) -> None:
        self._codes: dict[str, int | None] = dict.fromkeys(("-1", "-1.0"), UNCERTAIN) if uncertain else {}
        self._spellings: dict[int, list[str]] = {PRESENT: [], ABSENT: [], UNKNOWN: []}
        self._zero = zero

    def code(self, cell: Cell) -> int | None:
        """Return the code of a cell, or None where it is no state."""
        if not isinstance(cell, str):
            return None
        try:
            return self._codes[cell]
        except KeyError:
            code = parse_state(cell)
            if code is not None and cell not in _PLAIN:
                self._spellings[code].append(cell)
            return self._codes.setdefault(cell, self._zero if code == ABSENT else code)

    def spellings(self) -> list[list[str]]:
        """Return the other spellings of 1, of 0 and of blank that the cells have."""
        return list(self._spellings.values())


def parse_state(cell: Cell) -> int | None:
    """Return the state that a cell says, or None where it is none."""
    if not isinstance(cell, str):
        return None
    if (number := _NUMBER.fullmatch(cell)) is not None:
        return PRESENT if number[1] == "1" else ABSENT
    lower = cell.casefold()
    return next((state for state, spellings in _SPELLINGS.items() if lower in spellings), None)


def choose_spellings(parser: CellParser, columns: Iterable[Mapping[str, int]]) -> dict[int, str]:
    """Return how a table writes each state, given its cells: the most frequent way, or one that fits the others."""
    counts: dict[int | None, Counter[str]] = {state: Counter() for state in (PRESENT, ABSENT, UNKNOWN, None)}
    for cells in columns:
        for cell, count in cells.items():
            counts[parser.code(cell)][cell] += count
    present, absent, unknown = (
        next(iter(dict(counts[state].most_common(1))), None) for state in (PRESENT, ABSENT, UNKNOWN)
    )
    inverse = {no: yes for yes, no in _OPPOSITE.items()}
    return {
        PRESENT: _matching(absent, inverse, "1") if present is None else present,
        ABSENT: _matching(present, _OPPOSITE, "0") if absent is None else absent,
        UNKNOWN: unknown or "",
    }


def _matching(known: str | None, opposite: Mapping[str, str], default: str) -> str:
    if known is None or known.lower() not in opposite:
        return default
    word = opposite[known.lower()]
    return word.upper() if known.isupper() else word.capitalize() if known[0].isupper() else word


class TagLists:
    """Cells that list classes, ``cat;dog``, ``|``, ``,`` or ``['cat', 'dog']``; a separator of None is detected."""

    def __init__(self, separator: str | None, cells: Iterable[Cell] = ()) -> None:
        self._texts = [cell for cell in cells if cell and isinstance(cell, str)]
        self.detected = self.bracketed = False
        if separator is not None:
            self.separator = parse_separator(separator, "separator")
            return
        found: set[str] = set()
        for cell in self._texts:
            self.bracketed |= _parse_bracketed(cell) is not None
            for mark in _DETECTED:
                if mark not in found and mark in cell and sum(map(bool, map(str.strip, cell.split(mark)))) > 1:
                    found.add(mark)
        self.separator = next((mark for mark in _DETECTED if mark in found), ";")
        self.detected = bool(found)

    def names(self, cell: Cell) -> list[str]:
        """Return the names that a cell lists, without the blanks around them."""
        if not isinstance(cell, str):
            return list(cell)
        if self.bracketed and (names := _parse_bracketed(cell)) is not None:
            return names
        return [name for part in cell.split(self.separator) if (name := part.strip())]

    def cell(self, names: list[str], like: Cell) -> Cell:
        """Return a cell that lists classes, in the notation of the cell that it replaces."""
        if not isinstance(like, str):
            return names
        if self.bracketed:
            json_lists = any(text.startswith('["') for text in self._texts)
            return json.dumps(names, ensure_ascii=False) if json_lists else repr(names)
        return self._joint.join(names)

    @cached_property
    def _joint(self) -> str:
        pattern = re.compile(rf"\s*{re.escape(self.separator)}\s*")
        joints = Counter(joint for text in self._texts for joint in pattern.findall(text))
        return next(iter(dict(joints.most_common(1))), self.separator)

    def findings(self) -> list[Note]:
        """Return what was detected, unless it is what labelgap itself writes."""
        if self.bracketed:
            return [Note("lists written as ['a', 'b'] are read as such (--separator says otherwise)", "source")]
        if not self.detected or self.separator == ";":
            return []
        separator = describe_separator(self.separator)
        return [Note(f"{separator} between tags, as it seems (--separator says otherwise)", "source")]


def blanks_between_tags(classes: Sequence[str]) -> list[Caution]:
    """Find names whose words are all classes of their own: a blank may separate the tags of a list."""
    known = {*classes}
    found = [name for name in classes if len(words := name.split()) > 1 and all(word in known for word in words)]
    more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    each = f"{more}: each word of {'them' if more else 'it'} is a tag, too. --separator space if these are lists"
    return [Caution(f"'{truncate_text(name)}'{each}") for name in found[:1]]


def _parse_bracketed(cell: str) -> list[str] | None:
    """Return the names in a list as Python or JSON writes it, or None when the cell is no such list."""
    if not (cell.startswith("[") and cell.endswith("]")) or len(cell) > _MAX_BRACKETED:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes in names
            values = ast.literal_eval(cell)
        if not isinstance(values, list) or not all(isinstance(value, str | int | float) for value in values):
            return None
        return [name for value in values if (name := str(value).strip())]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: a layout has each once
class Statement:
    """A class as it is written, its state (None for a cell that is none), and the column and the text that say it."""

    name: str
    code: int | None
    number: int
    text: str


class WideLayout:
    """A column per class.

    Attributes:
        columns: the column numbers of classes, and their names as they are written.
        sources: the columns of every class, by its final name.
        cells: how often each cell occurs in a column, after ``count``.
        spelling: how the table writes each state, after ``count``.
    """

    def __init__(self, columns: Mapping[int, str], parser: CellParser) -> None:
        self.columns, self.parser = columns, parser
        self._statements: defaultdict[int, dict[str, Statement]] = defaultdict(dict)
        self.sources: dict[str, list[int]] = {}
        self.cells: dict[int, Counter[str]] = {}
        self.spelling: dict[int, str] = {}

    def count(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Count the cells of rows."""
        self.cells = {number: Counter() for number in self.columns}
        for row in rows:
            for number, count in self.cells.items():
                count[str(row[number])] += 1
        self.spelling = choose_spellings(self.parser, self.cells.values())

    def set_sources(self, names: Mapping[str, str], numbers: Iterable[int]) -> None:
        """Set the columns of classes; ``names`` are the final names of those that have another."""
        for number in numbers:
            name = self.columns[number]
            self.sources.setdefault(names.get(name, name), []).append(number)

    def statements(self, cells: Sequence[Cell]) -> list[Statement]:
        """Return what a row says, in every cell that is not blank."""
        found = []
        for number, name in self.columns.items():
            if cell := cells[number]:
                known = self._statements[number]
                try:
                    found.append(known[cell])  # type: ignore[index]
                except (KeyError, TypeError):  # a new cell, or a list
                    code, text = self.parser.code(cell), str(cell)
                    found.append(known.setdefault(text, Statement(name, code, number, text)))
        return found

    def set_label(self, cells: list[Cell], name: str, state: int) -> None:
        """Write a state into the columns of a class that say something, or into the first."""
        sources = self.sources[name]
        known = [number for number in sources if self.parser.code(cells[number]) != UNKNOWN]
        for number in known or sources[:1]:
            cells[number] = self.spelling[state]


class ListLayout:
    """Lists of classes; ``states`` are those of the columns that list them."""

    def __init__(self, states: Mapping[int, int], rows: Iterable[Sequence[Cell]], separator: str | None) -> None:
        self.states = dict(states)
        self._statements: defaultdict[int, dict[str, Statement]] = defaultdict(dict)
        self.notation = TagLists(separator, (row[number] for row in rows for number in states))

    def statements(self, cells: Sequence[Cell]) -> list[Statement]:
        """Return what a row says, in every name of a list."""
        found = []
        for number, state in self.states.items():
            known = self._statements[number]
            for name in self.notation.names(cells[number]):
                if (said := known.get(name)) is None:
                    said = known[name] = Statement(name, state, number, name)
                found.append(said)
        return found

    def set_label(self, cells: list[Cell], name: str, state: int, names: Mapping[str, str]) -> None:
        """Write a class into the list of its state, and into no other, by whatever of its ``names`` it is there."""
        for number, listed in self.states.items():
            before = self.notation.names(cells[number])
            after = [each for each in before if names.get(each, each) != name]
            after += [name] if listed == state else []
            if after != before:
                cells[number] = self.notation.cell(after, cells[number])
