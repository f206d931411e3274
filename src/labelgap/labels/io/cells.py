"""The cells of a table: states in many spellings, and lists of class names in many notations."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from labelgap.core.errors import InputError
from labelgap.core.findings import Note
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.findings import ListsWithBlanks

Cell = str | list[str]  # a list where the file itself has lists

SEPARATORS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
"""Characters that separate cells or class names, by the names that options accept."""

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


class CellParser:
    """Parses the cells of a wide table, and records their spellings.

    Present is 1, 1.0, TRUE, yes or x; absent is 0, 0.0, FALSE or no; unknown is blank, ?, NA, NaN or null; in any case.
    Anything else is no state; −1 neither, since it means absent in other tools.

    Args:
        zero: the code of 0 and its spellings: ABSENT, or UNKNOWN where 0 only means that nobody tagged it.

    Example:
        >>> parser = CellParser()
        >>> [parser.code(cell) for cell in ("1.0", "yes", "0", "", "maybe")]
        [1, 1, 0, -1, None]
        >>> parser.spellings()
        (('yes',), (), ())
    """

    def __init__(self, zero: int = ABSENT) -> None:
        self._codes: dict[str, int | None] = {}
        self._spellings: dict[int, list[str]] = {PRESENT: [], ABSENT: [], UNKNOWN: []}
        self._zero = zero

    def code(self, cell: str) -> int | None:
        """Return the code of a cell, or None where it is no state."""
        try:
            return self._codes[cell]
        except KeyError:
            code = _state(cell)
            if code is not None and cell not in _PLAIN:
                self._spellings[code].append(cell)
            return self._codes.setdefault(cell, self._zero if code == ABSENT else code)

    def spellings(self) -> tuple[tuple[str, ...], ...]:
        """Return the other spellings of 1, of 0 and of blank that the cells have."""
        return tuple(tuple(self._spellings[state]) for state in (PRESENT, ABSENT, UNKNOWN))


def _state(cell: str) -> int | None:
    number = _NUMBER.fullmatch(cell)
    if number is not None:
        return PRESENT if number[1] == "1" else ABSENT
    lower = cell.casefold()
    return next((state for state, spellings in _SPELLINGS.items() if lower in spellings), None)


def choose_spellings(counts: Mapping[int | None, Counter[str]]) -> dict[int, str]:
    """Return how a table writes each state, given its cells by state: the most frequent, or one that fits the others.

    Example:
        >>> choose_spellings({PRESENT: Counter({"TRUE": 7, "1": 2}), UNKNOWN: Counter({"NA": 3})})
        {1: 'TRUE', 0: 'FALSE', -1: 'NA'}
    """
    present, absent, unknown = (
        next(iter(dict(counts.get(state, Counter[str]()).most_common(1))), None) for state in (PRESENT, ABSENT, UNKNOWN)
    )
    inverse = {no: yes for yes, no in _OPPOSITE.items()}
    return {
        PRESENT: _matching(absent, inverse, "1") if present is None else present,
        ABSENT: _matching(present, _OPPOSITE, "0") if absent is None else absent,
        UNKNOWN: unknown or "",
    }


def _matching(known: str | None, opposite: Mapping[str, str], default: str) -> str:
    """Return the opposite of a spelling, in the same case.

    Example:
        >>> _matching("TRUE", _OPPOSITE, "0"), _matching("x", _OPPOSITE, "0")
        ('FALSE', '0')
    """
    if known is None or known.lower() not in opposite:
        return default
    word = opposite[known.lower()]
    return word.upper() if known.isupper() else word.capitalize() if known[0].isupper() else word


class TagListParser:
    """Parses cells that list classes: ``cat;dog``, with ``|`` or ``,`` as well, or ``['cat', 'dog']``.

    Args:
        separator: between the names, or its own name; detected from all cells when None. A blank is never detected,
            since class names contain blanks.
        cells: all cells, for the detection.

    Example:
        >>> parser = TagListParser(None, ["cat", "owl | dog", ""])
        >>> parser.separator, parser.detected, parser.names("owl | dog")
        ('|', True, ['owl', 'dog'])
    """

    def __init__(self, separator: str | None, cells: Iterable[str] = ()) -> None:
        self.detected = separator is None
        self.bracketed = False
        if separator is not None:
            self.separator = parse_separator(separator, "separator")
            return
        found: set[str] = set()
        for cell in cells:
            self.bracketed |= _parse_bracketed(cell) is not None
            found.update(
                candidate for candidate in _DETECTED if sum(map(bool, map(str.strip, cell.split(candidate)))) > 1
            )
        self.separator = next((candidate for candidate in _DETECTED if candidate in found), ";")
        self.detected = bool(found)

    def names(self, cell: str) -> list[str]:
        """Return the names that a cell lists, without the blanks around them."""
        if self.bracketed and (names := _parse_bracketed(cell)) is not None:
            return names
        return [name for part in cell.split(self.separator) if (name := part.strip())]

    def findings(self) -> list[Note]:
        """Return what was detected, unless it is what labelgap itself writes."""
        if self.bracketed:
            return [Note("lists written as ['a', 'b'] are read as such (--separator says otherwise)", "source")]
        if not self.detected or self.separator == ";":
            return []
        separator = describe_separator(self.separator)
        return [Note(f"{separator} between tags, as it seems (--separator says otherwise)", "source")]


class ListNotation:
    """How the cells of a table list classes."""

    def __init__(self, separator: str | None, cells: Iterable[str]) -> None:
        texts = [cell for cell in cells if cell]
        self.parser = TagListParser(separator, texts)
        pattern = re.compile(rf"\s*{re.escape(self.parser.separator)}\s*")
        joints = Counter(joint for text in texts for joint in pattern.findall(text))
        self.joint = next(iter(dict(joints.most_common(1))), self.parser.separator)
        self.json = any(text.startswith('["') for text in texts)

    def names(self, cell: Cell) -> list[str]:
        """Return the classes that a cell lists."""
        return self.parser.names(cell) if isinstance(cell, str) else list(cell)

    def cell(self, names: list[str], like: Cell) -> Cell:
        """Return a cell that lists classes, in the notation of the cell that it replaces."""
        if not isinstance(like, str):
            return names
        if self.parser.bracketed:
            return json.dumps(names, ensure_ascii=False) if self.json else repr(names)
        return self.joint.join(names)


def blanks_between_tags(classes: Sequence[str]) -> list[ListsWithBlanks]:
    """Find names whose words are all classes of their own: a blank may separate the tags of a list.

    Example:
        >>> print(*blanks_between_tags(["dog", "dog cat", "cat", "polar bear", "bear"]))
        'dog cat': each word of it is a tag, too. --separator space if these are lists
    """
    known = {*classes}
    found = [name for name in classes if len(words := name.split()) > 1 and all(word in known for word in words)]
    return [ListsWithBlanks(tuple(found))] if found else []


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


def parse_separator(text: str, option: str) -> str:
    r"""Return the character that an option names: itself, ``\t``, or a word such as ``tab``.

    Example:
        >>> parse_separator("semicolon", "delimiter"), parse_separator("\\t", "delimiter")
        (';', '\t')
    """
    separator = SEPARATORS.get(text.lower(), "\t" if text == "\\t" else text)
    if (
        not separator
        or "\n" in separator
        or "\r" in separator
        or (option == "delimiter" and (len(separator) > 1 or separator == '"'))
    ):
        raise InputError(f"{option}={text!r}: it is one character, or one of {', '.join(SEPARATORS)}.")
    return separator


def describe_separator(separator: str) -> str:
    r"""Return the name of a separator, or its representation.

    Example:
        >>> describe_separator("\t"), describe_separator("/")
        ('tab', "'/'")
    """
    return next((name for name, known in SEPARATORS.items() if known == separator), repr(separator))
