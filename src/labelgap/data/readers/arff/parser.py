"""Parse ARFF, dense and sparse, line by line.

``@relation``, then ``@attribute NAME TYPE`` per column, then ``@data`` with a row per line: all cells with commas
between them, or ``{number cell, …}`` with some columns, counted from 0. A column that a sparse row leaves out is 0, or
the *first* of its nominal values; ``?`` is missing.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, TextIO

from labelgap.core.text import truncate_text

_QUOTED: Final = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_ATTRIBUTE: Final = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{'\"]+)\s*(.*)", re.IGNORECASE | re.DOTALL)
_PIECE: Final = re.compile(rf"(?:{_QUOTED}|[^,'\"])*")
_COMMENT: Final = re.compile(rf"((?:{_QUOTED}|[^%'\"])*)%")
_SPARSE_CELL: Final = re.compile(r"(\d+)\s+(.*)", re.DOTALL)
_NUMERIC: Final = ("numeric", "real", "integer")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_MISSING: Final = math.nan
_MAX_NUMBER: Final = 3.4028234663852886e38
"""The largest number of single precision, which features have."""

Report = Callable[[int, str], None]
"""Takes a problem: its line, and what is wrong there."""


@dataclass(frozen=True)
class Attribute:
    """A column.

    Attributes:
        name: without quotes.
        kind: "numeric", "nominal" or "text" (strings and dates).
        values: what a nominal cell may be, in order.
        line: of its declaration.
    """

    name: str
    kind: str
    values: tuple[str, ...] = field(default=())
    line: int = field(default=0, compare=False)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {value: number for number, value in enumerate(self.values)}

    def parse(self, cell: str) -> float:
        """Return a cell as a number, that of its value where it is nominal; NaN where it is missing.

        Raises:
            ValueError: with what is wrong.
        """
        if cell == "?":
            return _MISSING
        if self.kind == "text":
            return 0.0
        if self.kind == "nominal":
            number = self._numbers.get(cell)
            number = self._numbers.get(unquote(cell)) if number is None else number
            if number is None:
                allowed = truncate_text(", ".join(self.values), 80)
                raise ValueError(f"'{truncate_text(cell)}' under {truncate_text(self.name)}: it is one of {allowed}")
            return number
        try:
            value = float(unquote(cell))
        except ValueError:
            value = math.inf
        if not abs(value) <= _MAX_NUMBER or "_" in cell:
            raise ValueError(f"'{truncate_text(cell)}' under {truncate_text(self.name)}: it is no number, or too large")
        return value


@dataclass(eq=False)
class ArffFile:
    """What an ARFF file holds; the cells of all rows in one sequence, those that are left out being 0.

    Attributes:
        path: the file.
        relation: the name in its first line, which in MEKA's files has options.
        relation_line: where it is.
        attributes: the columns.
        lines: the line of every row.
        ends: where the cells of every row end.
        columns: the column of every cell.
        cells: numbers; of nominal columns the number of the value; NaN where missing.
    """

    path: Path
    relation: str = ""
    relation_line: int = 1
    attributes: list[Attribute] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    columns: array[int] = field(default_factory=lambda: array("i"))
    cells: array[float] = field(default_factory=lambda: array("f"))


def parse_arff(path: Path, file: TextIO, report: Report) -> ArffFile:
    """Parse a file; rows with a problem are reported and left out."""
    found = ArffFile(path)
    lines = _code_lines(file)
    if not _parse_header(found, lines, report):
        return found
    any_row = False
    for number, line in lines:
        any_row = True
        try:
            cells = _sparse_cells(line, found) if line.startswith("{") else _dense_cells(line, found)
        except ValueError as error:
            report(number, str(error))
            continue
        for column, cell in cells:
            found.columns.append(column)
            found.cells.append(cell)
        found.lines.append(number)
        found.ends.append(len(found.cells))
    if not any_row:
        report(0, "there is no row after @data: is the file complete?")
    return found


def unquote(text: str) -> str:
    r"""Return a name or a value without the quotes around it and the backslashes within.

    Example:
        >>> unquote(r"'it\'s'"), unquote("plain")
        ("it's", 'plain')
    """
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


def _code_lines(file: TextIO) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither blank nor a comment, without comments at their end."""
    for number, line in enumerate(file, 1):
        line = line.strip()
        if "%" in line and (match := _COMMENT.match(line)) is not None:
            line = match[1].strip()
        if line:
            yield number, line


def _parse_header(found: ArffFile, lines: Iterator[tuple[int, str]], report: Report) -> bool:
    """Parse everything up to ``@data``; return whether it is there and in order."""
    good, last = True, 0
    seen: dict[str, int] = {}
    for number, line in lines:
        last = number
        keyword = line.split(None, 1)[0].lower()
        if keyword == "@data":
            if not found.attributes:
                report(number, "there is no @attribute before @data")
            return good and bool(found.attributes)
        if keyword == "@relation":
            found.relation, found.relation_line = unquote(line[len("@relation") :].strip()), number
            continue
        try:
            attribute = _parse_attribute(line, number)
            if (first := seen.setdefault(attribute.name, number)) != number:
                raise ValueError(f"'{truncate_text(attribute.name)}' is declared again (first in line {first})")
            found.attributes.append(attribute)
        except ValueError as error:
            report(number, str(error))
            good = False
    report(last, "the file ends before @data: is it complete?")
    return False


def _parse_attribute(line: str, number: int) -> Attribute:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise ValueError(f"'{truncate_text(line)}': a line before @data is @relation NAME or @attribute NAME TYPE")
    name, kind = unquote(match[1]), match[2].strip()
    if kind.startswith("{"):
        if not kind.endswith("}"):
            raise ValueError(f"the values of '{truncate_text(name)}' have no closing brace")
        values = tuple(map(unquote, _split(kind[1:-1])))
        if len({*values}) < len(values) or not all(values):
            raise ValueError(f"a value of '{truncate_text(name)}' is there twice, or is blank")
        return Attribute(name, "nominal", values, number)
    word = kind.lower().split(None, 1)[0] if kind else ""
    if word in _NUMERIC:
        return Attribute(name, "numeric", line=number)
    if word in ("string", "date"):
        return Attribute(name, "text", line=number)
    raise ValueError(
        f"'{truncate_text(name)}' is of type '{truncate_text(kind)}': numeric, string, date or {{values}} are read"
    )


def _split(text: str) -> list[str]:
    """Split at the commas that are not in quotes; ``ValueError`` where a quote is not closed."""
    if "'" not in text and '"' not in text:
        return [part.strip() for part in text.split(",")]
    parts, place = list[str](), 0
    while True:
        match = _PIECE.match(text, place)
        assert match is not None  # it matches nothing, too
        parts.append(match[0].strip())
        place = match.end() + 1
        if place > len(text):
            return parts
        if text[place - 1] != ",":
            raise ValueError("a quote is opened and never closed")


def _dense_cells(line: str, found: ArffFile) -> list[tuple[int, float]]:
    cells, attributes = _split(line), found.attributes
    if len(cells) != len(attributes):
        raise ValueError(f"{len(cells)} cells where there are {len(attributes)} attributes")
    numbers = [attribute.parse(cell) for attribute, cell in zip(attributes, cells, strict=True)]
    return [(column, number) for column, number in enumerate(numbers) if number]


def _sparse_cells(line: str, found: ArffFile) -> list[tuple[int, float]]:
    if not line.endswith("}"):
        raise ValueError("a sparse row has no closing brace: is the file complete?")
    cells: dict[int, float] = {}
    for part in _split(line[1:-1]) if line[1:-1].strip() else ():
        match = _SPARSE_CELL.fullmatch(part)
        if match is None:
            raise ValueError(f"'{truncate_text(part)}': a cell of a sparse row is a number of a column and its value")
        column = int(match[1][:12])
        if column >= len(found.attributes):
            raise ValueError(f"there is no column {column}: they are counted from 0 to {len(found.attributes) - 1}")
        if column in cells:
            raise ValueError(f"column {column} is there twice")
        cells[column] = found.attributes[column].parse(match[2].strip())
    return list(cells.items())
