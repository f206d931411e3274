"""Readers of stored files that anybody may have made or damaged: JSON, NumPy arrays, Parquet tables.

A reader checks sizes before it allocates, and ends in a value or in a ``RunError`` that names the file and the remedy.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final, TypeVar
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from labelgap.core.errors import RunError, nearest
from labelgap.core.text import escape_control, truncate_text

MAX_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys((".json", ".jsonl", ".md"), 64 << 20),  # parsed as a whole: values take eleven times as much
    **dict.fromkeys((".csv", ".html"), 4 << 30),
    **dict.fromkeys((".npy", ".npz", ".parquet", ".safetensors", ".sqlite"), 64 << 30),
    ".pt": 256 << 30,
}
"""The largest file of each kind that labelgap reads in a folder of results: far more than any that it writes."""
_MAX_OTHER_BYTES: Final = 1 << 30
MAX_JSON_VALUES: Final = 1 << 21  # values of a JSON document: two bytes of text can become an error of several hundred
_MAX_JSON_OBJECTS: Final = 1 << 18  # objects and lists of it: each takes kilobytes while it is validated
_MAX_ERRORS: Final = 1000
_MAX_HOLLOW_BYTES: Final = 64 << 20
_BYTES_PER_STORED: Final = 16  # of a larger file that is not hollow: some systems store zeros as holes
MAX_XML_DEPTH: Final = 20
SIGNATURE: Final = "signature"
"""Key of the signature in a document (``labelgap.core.trust``), which is not part of its content."""
_ROWS_PER_BYTE: Final = 16  # rows that a byte of a Parquet file may stand for: those of a real one differ
_TEXT_PER_BYTE: Final = 1000  # and bytes of text: a dictionary could repeat a long name without end
_CELLS_AT_ONCE: Final = 1 << 22  # cells that are in memory at once where only some rows are wanted

M = TypeVar("M", bound=BaseModel)
Arrays = dict[str, NDArray[np.generic]]

READ_ERRORS: Final = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, MemoryError, OverflowError),
    *(RecursionError, RuntimeError, SyntaxError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
    *(pa.ArrowException,),
)
"""What the libraries raise on damaged files."""


def damaged(path: Path, reason: object, remedy: str = "") -> RunError:
    """Return the error of a damaged file."""
    text = escape_control((str(reason).strip() or type(reason).__name__).splitlines()[0].rstrip("."))
    return RunError(f"{path} is damaged ({truncate_text(text, 200)})." + (f" {remedy}" if remedy else ""))


@contextmanager
def reading(path: Path, remedy: str = "") -> Iterator[None]:
    """Turn everything that a library raises on a damaged file into a ``RunError``."""
    try:
        yield
    except FileNotFoundError:
        raise RunError(f"{path} does not exist." + (f" {remedy}" if remedy else "")) from None
    except OSError as error:
        if error.errno is not None and not isinstance(error, EOFError):
            raise RunError(f"{path} cannot be read ({os.strerror(error.errno).lower()}).") from None
        raise damaged(path, error, remedy) from None
    except READ_ERRORS as error:
        raise damaged(path, error, remedy) from None


def size_limit(path: Path) -> int:
    """Return how many bytes a file of a folder of results may have, by its suffix."""
    return MAX_BYTES.get(path.suffix.lower(), _MAX_OTHER_BYTES)


def read_bytes(path: Path, *, limit: int | None = None, remedy: str = "") -> bytes:
    """Return the content of an ordinary file of at most ``limit`` bytes, by default ``size_limit``."""
    limit = size_limit(path) if limit is None else limit
    with reading(path, remedy), open_ordinary(path, limit) as file:
        if len(content := file.read(limit + 1)) > limit:
            raise ValueError(f"it has more than {limit:,} bytes")
    return content


def check_ordinary(path: Path, *, limit: int | None = None, remedy: str = "") -> None:
    """Refuse what ``open_ordinary`` refuses, or what is missing, before a library opens it that would wait."""
    with reading(path, remedy), open_ordinary(path, limit):
        pass


def parse_json(content: str | bytes, limit: int | None = MAX_JSON_VALUES) -> Any:
    """Return the value of JSON; ``ValueError`` for anything else, nesting without end, and more than so many values."""
    content = content.encode() if isinstance(content, str) else content
    if limit is not None and (
        content.count(b",") > limit or content.count(b"[") + content.count(b"{") > _MAX_JSON_OBJECTS
    ):
        raise ValueError(f"it has more than {limit:,} values, or {_MAX_JSON_OBJECTS:,} objects and lists")
    return from_json(content, allow_inf_nan=True)


class _ShallowTree(ElementTree.TreeBuilder):
    """Builds the tree of a document; deep nesting is an error."""

    depth = 0

    def start(self, tag: Any, attrs: Any) -> ElementTree.Element:
        self.depth += 1
        if self.depth > MAX_XML_DEPTH:
            raise ValueError(f"its elements are nested more than {MAX_XML_DEPTH} deep")
        return super().start(tag, attrs)

    def end(self, tag: str) -> ElementTree.Element:
        self.depth -= 1
        return super().end(tag)


def parse_xml(content: bytes) -> ElementTree.Element:
    """Return the root of an XML document without entities; ``ValueError`` for anything else."""
    if b"<!DOCTYPE" in content or b"\0" in content:  # a NUL: of UTF-16, which would hide the other
        raise ValueError("it has a document type, which may define entities, or is not in UTF-8")
    try:
        return ElementTree.fromstring(content, parser=ElementTree.XMLParser(target=_ShallowTree()))
    except (ElementTree.ParseError, LookupError) as error:
        raise ValueError(str(error)) from None


def read_json(
    path: Path,
    model: type[M],
    *,
    format: int | None = None,
    remedy: str = "",
    upgrade: Callable[[dict[str, Any]], None] | None = None,
) -> M:
    """Read JSON into a model, strictly: unknown keys, wrong types and another ``format`` are a ``RunError``.

    ``upgrade`` changes what an earlier version has written to what this one writes.
    """
    value = read_json_object(path, remedy=remedy)
    if format is not None and value.get("format") != format:
        found = truncate_text(repr(value.get("format")), 40)
        raise RunError(f"{path} is of format {found}; this version of labelgap reads format {format}.")
    value.pop(SIGNATURE, None)
    if upgrade is not None:
        upgrade(value)
    return validate(value, model, path, remedy)


def read_json_object(path: Path, *, remedy: str = "") -> dict[str, Any]:
    """Read JSON that has to be an object, whatever is in it."""
    content = read_bytes(path, remedy=remedy)
    with reading(path, remedy):
        value = parse_json(content)
    if not isinstance(value, dict):
        raise damaged(path, "it is not a JSON object", remedy)
    return value


def validate(value: Mapping[str, Any], model: type[M], path: Path, remedy: str = "") -> M:
    """Return an untrusted mapping as a model; a ``RunError`` names the file and every problem."""
    try:
        return model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        if error.error_count() > _MAX_ERRORS:
            raise damaged(path, f"{error.error_count():,} values are wrong", remedy) from None
        problems = "; ".join(validation_problem(item, model) for item in error.errors(include_url=False)[:5])
        raise RunError(f"{path}: {problems}." + (f" {remedy}" if remedy else "")) from None
    except (RecursionError, TypeError, ValueError) as error:
        raise damaged(path, error, remedy) from None


def validation_problem(item: Any, model: type[BaseModel]) -> str:
    """Return an error of pydantic in words: the setting, its value, and what is wrong with it."""
    key = truncate_text(".".join(str(part) for part in item["loc"]), 80)
    if item["type"] == "extra_forbidden":
        close = nearest(key, model.model_fields)
        return f"there is no setting '{key}'" + (f"; did you mean '{close}'?" if close else "")
    value = truncate_text(repr(item["input"]), 80)
    return f"{key}={value}: {validation_reason(item)}"


def validation_reason(item: Any) -> str:
    """Return what an error of pydantic says, as the end of a sentence."""
    message = truncate_text(item["msg"].removeprefix("Value error, ").rstrip("."), 300)
    return f"{message[:1].lower()}{message[1:]}"


def read_arrays(path: Path, *, limit: int = MAX_BYTES[".npz"], remedy: str = "") -> Arrays:
    """Read the arrays of an ``.npz``, or the one of an ``.npy`` under the name "array"; pickled objects are refused.

    What a header claims is compared with the size of the file before memory is allocated; checksums are verified.
    """
    with reading(path, remedy), open_ordinary(path, max(limit, size_limit(path))) as file:
        if file.read(4) != b"PK\x03\x04":
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            return {"array": _read_array(file, size, limit)}
        arrays: Arrays = {}
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"two arrays are called {name!r}")
                with archive.open(member) as stream:
                    arrays[name] = _read_array(stream, member.file_size, limit)
                    if stream.read(1):
                        raise ValueError(f"array {name!r} is longer than its header says")
                limit -= arrays[name].nbytes
        return arrays


def _read_array(file: IO[bytes], size: int, limit: int) -> NDArray[np.generic]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its version is {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read_header(file)
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
        raise ValueError("it holds objects, not numbers")
    if any(length < 0 for length in shape):
        raise ValueError("a length is negative")
    count = math.prod(shape)
    if count * dtype.itemsize > min(size, limit):
        raise ValueError(f"it claims {count * dtype.itemsize:,} bytes, which it does not have")
    content = file.read(count * dtype.itemsize)
    if len(content) != count * dtype.itemsize:
        raise ValueError("it is truncated")
    values = np.frombuffer(bytearray(content), dtype=dtype, count=count)
    letters = np.dtype("u4").newbyteorder(dtype.byteorder)
    if dtype.kind == "U" and int(values.view(letters).max(initial=0)) > sys.maxunicode:
        raise ValueError("it holds characters that do not exist")
    return values.reshape(shape, order="F" if fortran_order else "C")


def read_table(
    path: Path,
    schema: Mapping[str, pa.DataType],
    *,
    optional: Mapping[str, pa.DataType] | None = None,
    where: pc.Expression | None = None,
    remedy: str = "",
) -> pa.Table:
    """Read columns of a Parquet file, each of the type that ``schema`` gives, and those of ``optional`` that it has.

    Dictionaries are decoded. Of the rows, those of ``where`` are returned; the others are in memory a part at a time.
    """
    with reading(path, remedy), open_ordinary(path, size_limit(path)) as file:
        size = os.fstat(file.fileno()).st_size
        text = [name for name, kind in schema.items() if pa.types.is_string(kind)]
        with pq.ParquetFile(file, read_dictionary=text, page_checksum_verification=True) as parquet:
            found = parquet.schema_arrow
            schema = {**schema, **{name: kind for name, kind in (optional or {}).items() if name in found.names}}
            for name, kind in schema.items():
                if name not in found.names:
                    raise ValueError(f"it has no column {name!r}")
                actual = found.field(name).type
                actual = actual.value_type if pa.types.is_dictionary(actual) else actual
                if actual != kind:
                    raise ValueError(f"column {name!r} is of type {actual}, not {kind}")
            if not 0 <= parquet.metadata.num_rows <= _ROWS_PER_BYTE * size:
                raise ValueError(f"it claims {parquet.metadata.num_rows:,} rows, which it does not have")
            wanted = pa.schema([(name, schema[name]) for name in schema], metadata=found.metadata)
            if where is None:
                return _plain_table(parquet.read(columns=wanted.names), wanted, size)
            rows = max(1, _CELLS_AT_ONCE // max(len(wanted), 1))
            batches = (pa.table(batch) for batch in parquet.iter_batches(rows, columns=wanted.names))
            parts = [_plain_table(each, wanted, size).filter(where) for each in batches]
            return pa.concat_tables([pa.Table.from_batches([], wanted), *parts])


def _plain_table(table: pa.Table, schema: pa.Schema, size: int) -> pa.Table:
    """Return a table with the columns of a schema, without dictionaries; ``size`` is that of its file."""
    columns = (column for column in table.columns if pa.types.is_dictionary(column.type))
    chunks = (chunk for column in columns for chunk in column.chunks)
    lengths = (pc.take(pc.binary_length(chunk.dictionary), chunk.indices) for chunk in chunks)
    if sum(pc.sum(each).as_py() or 0 for each in lengths) > _TEXT_PER_BYTE * size:
        raise ValueError("its text is too long")
    table = table.select(schema.names).cast(schema)
    table.validate(full=True)
    return table


def column_values(column: pa.Array | pa.ChunkedArray, missing: float | None = None) -> NDArray[Any]:
    """Return a column of numbers or truth values without pandas, which pyarrow imports; empty cells are ``missing``."""
    column = column.cast(pa.uint8()) if (truth := pa.types.is_boolean(column.type)) else column
    column = column if missing is None or not column.null_count else pc.fill_null(column, missing)
    values = np.from_dlpack(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return values.view(np.bool_) if truth else values


def open_ordinary(path: Path, limit: int | None = None) -> BufferedReader:
    """Open an ordinary file, with a ``limit`` of so many bytes on the disk: no pipe, none of holes."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    state, problem = os.fstat(descriptor), ""
    if not stat.S_ISREG(state.st_mode):
        problem = "it is not an ordinary file"
    elif limit is not None and state.st_size > limit:
        problem = f"it has more than {limit:,} bytes"
    elif limit is not None and _is_mostly_holes(descriptor, state):
        problem = f"most of its {state.st_size:,} bytes are not on the disk"
    if problem:
        os.close(descriptor)
        raise ValueError(problem)
    return os.fdopen(descriptor, "rb")


def _is_mostly_holes(descriptor: int, state: os.stat_result) -> bool:
    """Return whether little of a large file is on the disk: its blocks are few, and the file system knows of a hole."""
    stored = 512 * getattr(state, "st_blocks", state.st_size)
    if state.st_size <= max(_MAX_HOLLOW_BYTES, _BYTES_PER_STORED * stored) or not hasattr(os, "SEEK_HOLE"):
        return False
    hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return hole < state.st_size
