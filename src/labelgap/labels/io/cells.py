"""What people write into the cells of a table: states in many words, and lists of tags in many notations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Final

from labelgap.core.errors import InputError
from labelgap.core.findings import Finding
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.findings import BracketedLists, SeparatorDetected

__all__ = ["CellParser", "SEPARATORS", "TagListParser", "describe_separator", "parse_separator"]

SEPARATORS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
"""Characters that separate cells or tags, under the names by which they can be asked for."""

_WORDS: Final = {
    PRESENT: frozenset({"true", "t", "yes", "y", "x"}),
    ABSENT: frozenset({"false", "f", "no", "n"}),
    UNKNOWN: frozenset({"", "na", "n/a", "nan", "null", "none"}),
}
_NUMBER: Final = re.compile(r"([01])(?:[.,]0*)?")
_PLAIN: Final = frozenset({"", "0", "0.0", "1", "1.0"})
_GUESSED: Final = (";", "|", ",")


class CellParser:
    """Reads the cells of a wide table, and remembers in which words they said it.

    Present is 1, 1.0, TRUE, yes or x; absent is 0, 0.0, FALSE or no; unknown is blank, NA, NaN or null; in any case.
    What is none of these is no state: −1 least of all, since elsewhere it means absent.

    Args:
        zero: what a 0 and its like say: ABSENT, or UNKNOWN where they only mean that nobody tagged it.

    Example:
        >>> states = CellParser()
        >>> [states.code(cell) for cell in ("1.0", "yes", "0", "", "maybe")]
        [1, 1, 0, -1, None]
        >>> states.spellings()
        (('yes',), (), ())
    """

    def __init__(self, zero: int = ABSENT) -> None:
        self._codes: dict[str, int | None] = {}
        self._met: dict[int, list[str]] = {PRESENT: [], ABSENT: [], UNKNOWN: []}
        self._zero = zero

    def code(self, cell: str) -> int | None:
        """Return the state that a cell says, or None when it says none."""
        try:
            return self._codes[cell]
        except KeyError:
            code = _state(cell)
            if code is not None and cell not in _PLAIN:
                self._met[code].append(cell)
            return self._codes.setdefault(cell, self._zero if code == ABSENT else code)

    def spellings(self) -> tuple[tuple[str, ...], ...]:
        """Return the other spellings of 1, of 0 and of blank that the cells have."""
        return tuple(tuple(self._met[state]) for state in (PRESENT, ABSENT, UNKNOWN))


def _state(cell: str) -> int | None:
    number = _NUMBER.fullmatch(cell)
    if number is not None:
        return PRESENT if number[1] == "1" else ABSENT
    low = cell.casefold()
    return next((state for state, words in _WORDS.items() if low in words), None)


class TagListParser:
    """Reads cells that list tags: ``cat;dog``, with ``|`` or ``,`` as well, or ``['cat', 'dog']``.

    Args:
        separator: what stands between the tags, or its name; guessed from all cells when None. A blank is never
            guessed, since tags have blanks in them.
        cells: all of them, to guess from.

    Example:
        >>> lists = TagListParser(None, ["cat", "owl | dog", ""])
        >>> lists.separator, lists.guessed, lists.names("owl | dog")
        ('|', True, ['owl', 'dog'])
    """

    def __init__(self, separator: str | None, cells: Iterable[str] = ()) -> None:
        self.guessed = separator is None
        self.bracketed = False
        if separator is not None:
            self.separator = parse_separator(separator, "separator")
            return
        found: set[str] = set()
        for cell in cells:
            self.bracketed |= _unpacked(cell) is not None
            found.update(mark for mark in _GUESSED if sum(map(bool, map(str.strip, cell.split(mark)))) > 1)
        self.separator = next((mark for mark in _GUESSED if mark in found), ";")
        self.guessed = bool(found)

    def names(self, cell: str) -> list[str]:
        """Return the tags that a cell lists; blanks around them do not count."""
        if self.bracketed and (names := _unpacked(cell)) is not None:
            return names
        return [name for part in cell.split(self.separator) if (name := part.strip())]

    def findings(self) -> list[Finding]:
        """Return what was detected, unless it is what labelgap itself writes."""
        if self.bracketed:
            return [BracketedLists()]
        if not self.guessed or self.separator == ";":
            return []
        return [SeparatorDetected(describe_separator(self.separator))]


def _unpacked(cell: str) -> list[str] | None:
    """Return the names in a list as Python or JSON writes it, or None when the cell is no such list."""
    if not (cell.startswith("[") and cell.endswith("]")):
        return None
    try:
        values = ast.literal_eval(cell)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if not isinstance(values, list) or not all(isinstance(value, str | int | float) for value in values):
        return None
    return [name for value in values if (name := str(value).strip())]


def parse_separator(text: str, option: str) -> str:
    r"""Return the character that an option names: itself, ``\t``, or a word such as ``tab``.

    Example:
        >>> parse_separator("semicolon", "delimiter"), parse_separator("\\t", "delimiter")
        (';', '\t')
    """
    mark = SEPARATORS.get(text.lower(), "\t" if text == "\\t" else text)
    if not mark or "\n" in mark or "\r" in mark or (option == "delimiter" and (len(mark) > 1 or mark == '"')):
        raise InputError(f"{option}={text!r}: it is one character, or one of {', '.join(SEPARATORS)}.")
    return mark


def describe_separator(mark: str) -> str:
    r"""Say a separating character so that it can be seen.

    Example:
        >>> describe_separator("\t"), describe_separator("/")
        ('tab', "'/'")
    """
    return next((name for name, known in SEPARATORS.items() if known == mark), repr(mark))
