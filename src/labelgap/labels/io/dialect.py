"""The encoding and the delimiter of a CSV, detected and reported; a file that is partly UTF-8 is refused."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

from labelgap.core.errors import InputError, describe_missing_path
from labelgap.core.findings import Note
from labelgap.core.text import pluralize, unquote_formula
from labelgap.labels.io.table_file import ProblemList

SEPARATORS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
"""Characters that separate cells or class names, by the names that options accept."""

_DELIMITERS: Final = (",", ";", "\t", "|")
_SEP_LINE: Final = re.compile(r"sep=(.)[\r\n]*")  # what Excel writes, and reads, before the header
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SPREADSHEETS: Final = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # .xlsx (and .ods), .xls
_SAMPLE_SIZE: Final = 1 << 16
_MAX_TITLES: Final = 5  # lines before the header that may be a title or a comment


@dataclass(frozen=True)
class Dialect:
    """The format of a CSV; ``skip`` lines before the header only say the delimiter, ``findings`` what was detected."""

    encoding: str
    delimiter: str
    skip: int
    findings: tuple[Note, ...]


def detect_dialect(
    path: Path, encoding: str | None, delimiter: str | None, is_header: Callable[[list[str]], bool]
) -> Dialect:
    """Detect what is None: UTF-8, UTF-16 by its byte order mark, or else cp1252; the delimiter from the header."""
    codec = _detect_encoding(path) if encoding is None else _python_codec(encoding)
    findings: list[Note] = []
    if encoding is None and codec != "utf-8-sig":
        findings.append(Note(f"text in {codec} (--encoding says otherwise)", "source"))
    with open_text(path, codec) as file:
        start = list(islice(file, _MAX_TITLES + 1))
    sep_line = _SEP_LINE.fullmatch(start[0]) if start else None
    given = sep_line[1] if sep_line else None if delimiter is None else parse_separator(delimiter, "delimiter")
    skip, header = (1, given) if sep_line else _find_header(start, (given,) if given else _DELIMITERS, is_header)
    if skip and not sep_line:
        verb = "is" if skip == 1 else "are"
        findings.append(Note(f"{pluralize(skip, 'line')} before the header {verb} left out", "source"))
    if delimiter is not None:
        return Dialect(codec, parse_separator(delimiter, "delimiter"), skip, tuple(findings))
    detected = header or _detect_delimiter(path, codec, is_header)
    if detected != ",":
        findings.append(Note(f"{describe_separator(detected)} between cells (--delimiter says otherwise)", "source"))
    return Dialect(codec, detected, skip, tuple(findings))


def _find_header(
    lines: Sequence[str], delimiters: Sequence[str], is_header: Callable[[list[str]], bool]
) -> tuple[int, str | None]:
    """Return how many lines of one cell, or "#", come before the header, and its delimiter; (0, None) where unclear."""
    if any(is_header(_cells(line, delimiter)) for line in lines[:1] for delimiter in delimiters):
        return 0, None
    for delimiter in delimiters:
        for number, line in enumerate(lines):
            several = sum(map(bool, cells := _cells(line, delimiter))) > 1
            if several and number and is_header(cells) and any(map(str.strip, lines[:number])):
                return number, delimiter
            if (several or '"' in line) and not line.startswith("#"):
                break
    return 0, None


def _cells(line: str, delimiter: str) -> list[str]:
    return [unquote_formula(cell.strip().strip('"')) for cell in line.split(delimiter)]


@contextmanager
def open_text(path: Path, encoding: str) -> Iterator[TextIO]:
    """Open a text file; a file that cannot be read or decoded raises ``InputError``."""
    with _readable(path), path.open(encoding=encoding, newline="") as file:
        try:
            yield file
        except UnicodeEncodeError:  # of what the caller writes
            raise
        except UnicodeError:
            known = "UTF-8" if encoding == "utf-8-sig" else encoding
            line = _bad_line(path, encoding)
            raise InputError(
                f"{path}, line {line}: not {known} text. Save the table as 'CSV UTF-8', or name its --encoding."
            ) from None


def encoding_to_write(path: Path, encoding: str) -> str:
    """Return the encoding to write: UTF-8 with a byte order mark only where the file has one."""
    if encoding != "utf-8-sig":
        return encoding
    with path.open("rb") as file:
        return encoding if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else "utf-8"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise InputError(f"{path} is a pipe or a device, not a CSV file: a table is read several times. Save it.")
        yield
    except FileNotFoundError:
        raise InputError(describe_missing_path(path)) from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a CSV file.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from None


def _python_codec(encoding: str) -> str:
    try:
        found = codecs.lookup(encoding)
        "".encode(found.name)  # some codecs are from bytes to bytes
    except (LookupError, ValueError):
        raise InputError(f"encoding={encoding!r} is not known: utf-8, cp1252, utf-16 and such are.") from None
    return "utf-8-sig" if found.name == "utf-8" else found.name


def _detect_encoding(path: Path) -> str:
    with _readable(path), path.open("rb") as file:
        start = file.read(_SAMPLE_SIZE)
        if start.startswith(_UTF_16):
            return "utf-16"
        if start.startswith(_SPREADSHEETS):
            raise InputError(f"{path} is an Excel file, whatever its name says. Save it as 'CSV UTF-8' from Excel.")
        if b"\0" in start:
            number = start[: start.index(b"\0")].count(b"\n") + 1
            raise InputError(
                f"{path}, line {number}: not text (a zero byte), so it is no CSV file. Save the table as 'CSV UTF-8'."
            )
        file.seek(0)
        good, bad, undefined = start.startswith(codecs.BOM_UTF8), False, False
        for line in file:
            if not line.isascii():
                utf_8 = decodes(line, "utf-8")
                good, bad = good or utf_8, bad or not utf_8
                undefined = undefined or not (utf_8 or decodes(line, "cp1252"))
    # ``open_text`` reports a line that is neither
    return "cp1252" if bad and not good and not undefined else "utf-8-sig"


def decodes(line: bytes, encoding: str) -> bool:
    """Return whether bytes are text in an encoding."""
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _bad_line(path: Path, encoding: str) -> int:
    """Return the first line that does not decode; 1 for UTF-16, where bytes cannot be split into lines."""
    data = path.read_bytes()
    if data.startswith(_UTF_16):
        return 1
    lines = enumerate(data.split(b"\n"), 1)
    return next((number for number, line in lines if not decodes(line, encoding.removesuffix("-sig"))), 1)


def _detect_delimiter(path: Path, encoding: str, is_header: Callable[[list[str]], bool]) -> str:
    """Return the delimiter with which the first record is a header, else the one that gives most cells."""
    cell_counts: dict[str, int] = {}
    for delimiter in _DELIMITERS:
        with open_text(path, encoding) as file:
            _, cells = next(split_records(file, delimiter, 0, ProblemList(path)), (0, []))
        if len(cells) > 1 and is_header(cells):
            return delimiter
        cell_counts[delimiter] = len(cells)
    return max(cell_counts, key=lambda delimiter: cell_counts[delimiter] > 1 and cell_counts[delimiter], default=",")


def parse_separator(text: str, option: str) -> str:
    r"""Return the character that an option names: itself, ``\t``, or a word such as ``tab``."""
    separator = SEPARATORS.get(text.lower(), "\t" if text == "\\t" else text)
    if (
        not separator
        or "\n" in separator
        or "\r" in separator
        or (option == "delimiter" and (len(separator) > 1 or separator == '"'))
    ):
        raise InputError(f"{option}={text!r}: it must be one character, or one of {', '.join(SEPARATORS)}.")
    return separator


def describe_separator(separator: str) -> str:
    """Return the name of a separator, or its representation."""
    return next((name for name, known in SEPARATORS.items() if known == separator), repr(separator))


_TOO_LONG: Final = f"a cell has more than {csv.field_size_limit():,} characters"


def read_records(
    file: TextIO, delimiter: str, skip: int, problems: ProblemList
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield the number of the first line, the cells and the lines of every record; add what is none to the problems."""
    for _ in range(skip):
        file.readline()
    lines: list[str] = []  # of the current record
    reader = csv.reader(_recorded(file, lines), delimiter=delimiter, strict=True)
    while True:
        first = reader.line_num + skip + 1
        lines.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            opened, closed = _last_quote("".join(lines), delimiter)
            if opened is not None and not closed:
                problems.add(first + opened, "a quote is opened here and never closed; what follows was not read")
                problems.fixable = False
                return
            message = _TOO_LONG if "field limit" in str(error) else f"not a CSV row: {error}"
            if opened is not None and len(lines) > 1:
                message += f"; is the quote closed that is opened in line {first + opened}?"
            problems.add(first, message)
            continue
        yield first, cells, lines


def split_records(
    file: TextIO, delimiter: str, skip: int, problems: ProblemList, padded: list[int] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the stripped cells of every record; problems and ``padded`` lines are added."""
    for number, written, lines in read_records(file, delimiter, skip, problems):
        cells = [cell.strip() for cell in written]
        if any(cells):
            if padded is not None and cells != written:
                padded += [number] * any(cell and raw[-1].isspace() for cell, raw in zip(cells, written, strict=True))
            quoted = any("'" in line for line in lines)
            yield number, [unquote_formula(cell) for cell in cells] if quoted else cells


def _recorded(file: TextIO, lines: list[str]) -> Iterator[str]:
    """Yield the lines of a file, and keep them until the list is cleared."""
    for line in file:
        lines.append(line)
        yield line


def _last_quote(record: str, delimiter: str) -> tuple[int | None, bool]:
    """Return in which line of a record its last quoted cell begins, or None, and whether the quote is closed."""
    opened, closed, mark = None, True, re.escape(delimiter)
    for cell in re.finditer(rf'(?:^|(?<=[{mark}\r\n]))"(?:[^"]++|"")*+("?)(?=([{mark}\r\n]|$)?)', record):
        opened, closed = record.count("\n", 0, cell.start()), bool(cell[1])
        if cell[2] is None:
            break
    return opened, closed
