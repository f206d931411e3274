"""CSV files of gigabytes, read in blocks: columns as Arrow arrays, and the line of every bad row."""

from __future__ import annotations

import codecs
import csv
import os
from array import array
from bisect import insort
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from labelgap.core.errors import ProblemsError
from labelgap.core.text import truncate_text
from labelgap.labels.io.problems import MAX_PROBLEMS, ProblemList

_BLOCK_BYTES: Final = 8 << 20
_MAX_LINES: Final = 10**10
_ID_LENGTH: Final = 16
_INVALID: Final = 255
_NIBBLES: Final = np.full(256, _INVALID, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)


class Block:
    """Some rows of a file.

    Attributes:
        columns: the columns that were asked for, as binary arrays.
        rows: which rows of the file these are, counted from 0 over those that have as many cells as the header.
    """

    def __init__(self, reader: BlockReader, columns: dict[str, pa.Array], rows: NDArray[np.uint32]) -> None:
        self._reader, self.columns, self.rows = reader, columns, rows

    def text(self, column: str, row: int) -> str:
        """Return a cell for a message."""
        return truncate_text(self.columns[column][row].as_py().decode("utf-8", "replace"))

    def report(self, row: int, message: str) -> None:
        """Add a problem of a row, counted from 0 within the block."""
        self._reader.report(self._reader.line(int(self.rows[row])), message)


class BlockReader:
    """Reads some columns of a CSV with a header, block by block.

    Args:
        path: the file.
        root: messages name the file relative to this folder.
        problems: gets the problems of the file.
    """

    def __init__(self, path: Path, root: Path, problems: ProblemList) -> None:
        self.path, self.problems = path, problems
        self.name = path.relative_to(root).as_posix()
        self._bad_rows: list[int] = []
        self._multiline = False
        self._first = (len(problems) + 1) * _MAX_LINES  # problems are sorted by file and line

    def report(self, line: int, message: str) -> None:
        """Add a problem of a line."""
        self.problems.add(self._first + line, f"{self.name}, line {line}: {message}")

    def line(self, row: int) -> int:
        """Return the first line of a row, one of ``Block.rows``."""
        number = row + 2
        for bad in self._bad_rows:
            if bad > number:
                break
            number += 1
        return self._line(number)

    def _line(self, number: int) -> int:
        """Return the first line of a row, counted from 1 with the header and bad rows."""
        return self._lines[number - 1] if self._multiline and number <= len(self._lines) else number

    @cached_property
    def header(self) -> list[str]:
        """The names of the columns; none, with a problem, where the file cannot be read."""
        try:
            with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                return next(csv.reader([file.readline(1 << 16)]), [])
        except OSError as error:
            self.report(1, f"cannot be read ({error.strerror or error})")
            return []

    def blocks(self, columns: Sequence[str], *, multiline: bool = False) -> Iterator[Block]:
        """Yield the rows that have as many cells as the header; the others are problems.

        Args:
            columns: to read.
            multiline: whether a quoted cell may contain line breaks.
        """
        self._multiline = multiline
        if wrong := [name for name in columns if self.header.count(name) != 1]:
            what = "is twice the" if wrong[0] in self.header else "is no"
            found = truncate_text(", ".join(self.header), 120)
            self.report(1, f"there {what} column {', '.join(wrong)}; the columns are {found or 'none'}")
            return
        rows = 0
        try:
            for batch in self._open(columns, multiline):
                yield self._block(batch, columns, rows)
                rows += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            if len(self.problems) >= MAX_PROBLEMS:
                self.problems.refuse()
            self.problems.append(f"{self.name} cannot be read ({truncate_text(str(error), 200)})")

    def _block(self, batch: pa.RecordBatch, columns: Sequence[str], start: int) -> Block:
        """Return the rows of a batch that are not blank."""
        blank = np.ones(batch.num_rows, dtype=bool)
        for column in batch.columns:
            if blank.any():
                blank &= pc.equal(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        filled = np.flatnonzero(~blank)
        if blank.any():
            batch = batch.take(pa.array(filled))
        arrays = {name: batch.column(number) for number, name in enumerate(columns)}
        return Block(self, arrays, (start + filled).astype(np.uint32))

    def _open(self, columns: Sequence[str], multiline: bool) -> Any:
        file = pa.OSFile(os.fspath(self.path))
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        # bytes that are no text are read as some: pyarrow prints a traceback where it cannot decode a bad row
        encoding = "utf8" if self._is_text else "latin-1"
        return arrow_csv.open_csv(
            file,
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, encoding=encoding),
            parse_options=arrow_csv.ParseOptions(
                invalid_row_handler=self._invalid, ignore_empty_lines=False, newlines_in_values=multiline
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(columns), column_types={name: pa.binary() for name in columns}
            ),
        )

    @cached_property
    def _is_text(self) -> bool:
        """Whether the whole file is UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            with self.path.open("rb") as file:
                while part := file.read(_BLOCK_BYTES):
                    decoder.decode(part)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return True

    @cached_property
    def _lines(self) -> array[int]:
        """The first line of every row; read where a row of a file with line breaks in cells has a problem."""
        lines = array("q", [1])
        with self.path.open(encoding="latin-1", newline="") as file, suppress(csv.Error):
            reader = csv.reader(file)
            for _ in reader:
                lines.append(reader.line_num + 1)
        return lines

    def _invalid(self, row: Any) -> str:
        """Note a row with another number of cells than the header."""
        number = int(row.number or 0)
        insort(self._bad_rows, number)
        hint = ": is the file truncated?" if row.actual_columns < row.expected_columns else ""
        if not self._is_text and not _is_utf8(row.text.encode("latin-1")):
            hint = ", and bytes that are no UTF-8 text: is the file damaged?"
        try:
            self.report(self._line(number), f"{row.actual_columns} of {row.expected_columns} cells{hint}")
        except ProblemsError:  # too many: pyarrow would print it and read on
            return "error"
        return "skip"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def parse_ids(block: Block, column: str = "ImageID") -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return image ids, 16 hexadecimal digits, as numbers, and which are valid; the others are problems."""
    cells = block.columns[column]
    valid = pc.equal(pc.binary_length(cells), _ID_LENGTH).to_numpy(zero_copy_only=False)
    chosen = cells if valid.all() else cells.filter(pa.array(valid))
    ids = np.zeros(len(cells), dtype=np.uint64)
    if len(chosen):
        fixed = chosen.cast(pa.binary(_ID_LENGTH))
        digits = np.frombuffer(fixed.buffers()[1], np.uint8, _ID_LENGTH * len(fixed), _ID_LENGTH * fixed.offset)
        digits, runs = _runs(digits.reshape(-1, _ID_LENGTH))  # the rows of an image follow each other
        numbers, hexadecimal = ids_from_digits(digits)
        ids[valid] = np.repeat(numbers, runs)
        valid[np.flatnonzero(valid)[~np.repeat(hexadecimal, runs)]] = False
    for row in np.flatnonzero(~valid).tolist():
        block.report(row, f"'{block.text(column, row)}' is not an image id: 16 hexadecimal digits in lower case")
    return ids, valid


def _runs(digits: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the rows that differ from the one before, and how often each follows itself."""
    halves = digits.view(np.uint64)
    first = np.flatnonzero(np.append(True, (halves[1:] != halves[:-1]).any(axis=1)))
    return digits[first], np.diff(first, append=len(digits))


def ids_from_digits(digits: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return ``(n, 16)`` ASCII digits as numbers, and which are hexadecimal."""
    nibbles = _NIBBLES[digits]
    packed = (nibbles[:, 0::2] << 4) | (nibbles[:, 1::2] & 15)
    return packed.view(">u8")[:, 0].astype(np.uint64), (nibbles != _INVALID).all(axis=1)


def format_ids(ids: NDArray[np.uint64]) -> list[str]:
    """Return numbers as image ids.

    Example:
        >>> format_ids(np.array([0x60E3121C7305], dtype=np.uint64))
        ['000060e3121c7305']
    """
    text = ids.astype(">u8").tobytes().hex()
    return [text[start : start + _ID_LENGTH] for start in range(0, len(text), _ID_LENGTH)]


def parse_numbers(block: Block, column: str, low: float, high: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return numbers, and which of them lie in a range; the others are problems."""
    cells = block.columns[column]
    try:
        values = cells.cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        values = np.array([_number(cell) for cell in cells.to_pylist()], dtype=np.float64)
    valid = (values >= low) & (values <= high)
    for row in np.flatnonzero(~valid).tolist():
        block.report(row, f"{column} '{block.text(column, row)}' is not a number from {low:g} to {high:g}")
    return values, valid


def _number(cell: bytes) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
