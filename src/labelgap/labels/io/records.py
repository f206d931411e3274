"""The records of a CSV: its text split into cells, without a meaning yet.

Time and memory grow with the size of the file, whatever is in it: a quote that is never closed ends the reading.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

from labelgap.core.text import unquote_formula
from labelgap.labels.io.problems import ProblemList

_TOO_LONG: Final = f"a cell has more than {csv.field_size_limit():,} characters"


def split_records(file: TextIO, delimiter: str, skip: int, problems: ProblemList) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the cells of every record that is not blank; add what is no record to the problems.

    Blanks around a cell are removed, and the apostrophe that ``quote_formula`` puts before a formula.
    """
    for _ in range(skip):
        file.readline()
    lines: list[str] = []  # of the current record
    reader = csv.reader(_recorded(file, lines), delimiter=delimiter, strict=True)
    while True:
        first = reader.line_num + skip + 1
        lines.clear()
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            opened, closed = _last_quote(lines, delimiter)
            if opened is not None and not closed:
                problems.add(first + opened, "a quote is opened here and never closed; what follows was not read")
                problems.fixable = False
                return
            problems.add(first, _describe(error, first, opened, len(lines)))
            continue
        if any(cells):
            quoted = any("'" in line for line in lines)
            yield first, [unquote_formula(cell) for cell in cells] if quoted else cells


def raw_records(file: TextIO, delimiter: str, skip: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the text and the cells of every record of a file that is known to be in order, blank ones as well."""
    for _ in range(skip):
        file.readline()
    lines: list[str] = []
    for cells in csv.reader(_recorded(file, lines), delimiter=delimiter, strict=True):
        yield "".join(lines), cells
        lines.clear()


def _recorded(file: TextIO, lines: list[str]) -> Iterator[str]:
    """Yield the lines of a file, and keep them until the list is cleared."""
    for line in file:
        lines.append(line)
        yield line


def _describe(error: csv.Error, first: int, opened: int | None, lines: int) -> str:
    """Return the problem of a record in words; one over several lines has perhaps lost a quote."""
    message = _TOO_LONG if "field limit" in str(error) else f"not a CSV row: {error}"
    if opened is None or lines == 1:
        return message
    return f"{message}; is the quote closed that is opened in line {first + opened}?"


def _last_quote(lines: Sequence[str], delimiter: str) -> tuple[int | None, bool]:
    """Return in which line of a record its last quoted cell begins, or None, and whether the quote is closed.

    The search ends where the record does: at a closing quote that is followed by other text.
    """
    opened: int | None = None
    inside = False
    for number, line in enumerate(lines):
        place = 0  # in a quoted cell, or at the start of a cell
        while place < len(line):
            if inside:
                place = line.find('"', place) + 1
                if not place:
                    break
                if line.startswith('"', place):  # a doubled quote is one of the text
                    place += 1
                    continue
                inside = False
                if not line.startswith((delimiter, "\r", "\n"), place):
                    return opened, True
            elif line[place] == '"':
                inside, opened, place = True, number, place + 1
                continue
            place = line.find(delimiter, place) + 1
            if not place:
                break
    return opened, not inside
