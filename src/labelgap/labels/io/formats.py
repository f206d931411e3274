"""CSV and Parquet files of labels: read, written, and kept as rows of cells to be written again in their own format."""

from __future__ import annotations

import csv
import gc
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from labelgap.core.errors import InputError, LabelGapError, UnknownNameError, describe_missing_path
from labelgap.core.files import atomic_path
from labelgap.core.findings import Note
from labelgap.core.stored import READ_ERRORS, column_values, parse_json
from labelgap.core.text import quote_formula, truncate_text, unquote_formula
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.classes import apply_class_options
from labelgap.labels.io.dialect import (
    Dialect,
    detect_dialect,
    encoding_to_write,
    open_text,
    read_records,
    split_records,
)
from labelgap.labels.io.layout import Cell, CellParser, blanks_between_tags
from labelgap.labels.io.parse import (
    COLUMN_SYNONYMS,
    CheckImage,
    Row,
    image_name_problem,
    is_header,
    parse_rows,
    refuse_problems,
)
from labelgap.labels.io.table_file import RESERVED_COLUMNS, SPLITS, ProblemList, TableFile, TableOptions
from labelgap.labels.sparse import UniqueNames, compress_labels, label_width, starts_from_lengths, unique_names
from labelgap.labels.table import LabelTable

_MAX_HEADER: Final = 64
_MAX_IMAGE: Final = 4096
_BLOCK_LABELS: Final = 1 << 22
_TEXT: Final = {PRESENT: "1", ABSENT: "0", UNKNOWN: ""}


def read_csv(
    path: Path,
    options: TableOptions | None = None,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    check_image: CheckImage = lambda name, line: None,
) -> TableFile:
    """Read a CSV of labels, or raise one error with all its problems; encoding and delimiter are detected when None."""
    options = options or TableOptions()
    file = open_csv(path, options, encoding=encoding, delimiter=delimiter)
    return _read_plain_lists(file, options, check_image) or parse_table(file, options, check_image)


_LISTS: Final = (b"image,present", b"image,present,absent")
_UNPLAIN: Final = (*b"\"'|[]\x7f", *(b" ,", b", ", b" ;", b"; ", b" \n", b"\n ", b"\n,", b"\n\n", b"\nimage,present"))
"""What a CSV of lists does not have that is read column by column: quotes, other marks, blanks around names."""


def _read_plain_lists(file: RawTable, options: TableOptions, check_image: CheckImage) -> TableFile | None:
    """Read a plain CSV ``image,present[,absent]`` by its columns, several times as fast as by rows; None for others."""
    careful = options.rename or options.aliases or options.ignore_columns or options.zeros != "absent"
    if careful or options.separator not in (None, ";") or file.dialect is None or file.dialect.delimiter != ",":
        return None
    with file.path.open("rb") as opened:
        header = opened.readline(_MAX_HEADER).rstrip(b"\n")
        opened.seek(len(header))
        data = opened.read() if header in _LISTS and file.dialect.encoding == "utf-8-sig" else b""
    if len(data) < 2 or any(mark in data for mark in _UNPLAIN) or data[-1:] == b" ":
        return None
    if np.count_nonzero(np.frombuffer(data, np.uint8) < 32) != data.count(b"\n"):
        return None
    names = header.decode().split(",")
    try:
        if not data.isascii() and re.search(r"[^\S \n]", data.decode()):  # blanks of other alphabets
            return None
        content = arrow_csv.read_csv(
            pa.py_buffer(data).slice(1),
            arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=1 << 24),
            arrow_csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string()), strings_can_be_null=False),
        )
        longest = [pc.max(pc.binary_length(content[name])).as_py() for name in names]
        if longest[0] > _MAX_IMAGE or max(longest) > csv.field_size_limit():
            return None
        images = content["image"].to_pylist()
        lists = {name: _entries(pc.split_pattern(content[name], ";")) for name in names[1:]}
        classes = sorted({name for each in lists.values() for name in each.names if name})
        table = labels_of_lists(lists, classes, images)
    except (InputError, UnicodeDecodeError, pa.ArrowInvalid):
        return None
    if not len(table.values):
        return None
    problems = ProblemList(file.path)
    for line, image in enumerate(images, 2):
        if (problem := check_image(image, line)) is not None:
            problems.add(line, problem)
    refuse_problems(problems, dict(zip(classes, np.bincount(table.columns).tolist(), strict=True)))
    table = table.with_unknown_absent() if options.unlisted == "absent" else table
    rule = Note(f"lists of tags; a tag that is not listed is {options.unlisted}")
    joined = blanks_between_tags(classes) if options.separator is None else []
    table, revisions, found = apply_class_options(table, options, {}, classes)
    findings = (rule, *joined, *found, *file.dialect.findings)
    return TableFile(file.path, table, None, None, np.arange(2, len(table) + 2), findings, revisions=revisions)


def parse_table(file: RawTable, options: TableOptions, check_image: CheckImage) -> TableFile:
    """Parse an open table."""
    problems, padded = ProblemList(file.path, file.unit), list[int]()
    findings = file.dialect.findings if file.dialect else ()
    collected = gc.isenabled()
    gc.disable()  # rows make no cycles, and the collector would look at millions of them again and again
    try:
        with closing(file.rows(problems, padded)) as rows:
            found = parse_rows(
                rows,
                options,
                problems,
                check_image=check_image,
                classes=file.classes,
                findings=findings,
            )
    finally:
        if collected:
            gc.enable()
    if padded:
        text = f"blanks at the end of cells are left out, first in line {padded[0]:,} (lines: {len(padded):,})"
        found = replace(found, findings=(*found.findings, Note(text, "source")))
    return found


def read_csv_table(path: Path, *, zeros: str = "absent", unlisted: str = "unknown") -> LabelTable:
    """See ``LabelTable.from_csv``."""
    return read_csv(path, TableOptions(zeros=zeros, unlisted=unlisted, separator=";")).table


def write_csv(table: LabelTable, path: Path, splits: Sequence[str] | None = None) -> None:
    """See ``LabelTable.to_csv``."""
    if splits is not None and len(splits) != len(table):
        raise InputError(f"{len(splits)} splits were given for {len(table)} images.")
    for name in set(splits if splits is not None else ()).difference(SPLITS):
        raise UnknownNameError("split", name, SPLITS)
    for kind, names in (("image", table.images), ("class", table.classes)):
        for name in names:
            if name != name.strip() or not name:
                raise InputError(f"a CSV cannot hold the {kind} {name!r}: blanks around a name are lost. Use Parquet.")
    for name in table.images:
        if (problem := image_name_problem(name)) is not None:
            raise InputError(f"a CSV cannot hold this image: {problem}.")
    for name in table.classes:
        if name.lower() in (*RESERVED_COLUMNS, *COLUMN_SYNONYMS["split"], "present"):
            raise InputError(f"a CSV cannot hold the class '{name}': that column means something else. Use Parquet.")
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        header = ["image", *(["split"] if splits is not None else []), *table.classes]
        file.write(",".join(map(_quoted, header)) + "\n")
        step = max(1, min(1024, _BLOCK_LABELS // max(len(table.classes), 1)))
        for start in range(0, len(table), step):
            block = table.batch(range(start, min(start + step, len(table)))).numpy()
            for row, codes in enumerate(block.tolist(), start):
                first = _quoted(table.images[row]) + (f",{_quoted(splits[row])}" if splits is not None else "")
                file.write(",".join([first, *map(_TEXT.__getitem__, codes)]) + "\n")


def _quoted(text: str) -> str:
    text = quote_formula(text)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


CLASSES_KEY: Final = b"labelgap.classes"  # where the metadata of a file have the names of all classes, in their order
_BATCH_CELLS: Final = 1 << 20
_ROWS_PER_BYTE: Final = 16
"""Rows that a byte of a file may stand for: the names of images differ, so they need more than that."""
_UNPACKED_BYTES: Final = 1 << 30
_UNPACKED_PER_BYTE: Final = 100  # bytes that a file may unpack to: so many, and so many for each of its own
_BLOCK_ROWS: Final = 1 << 13
_STATES = {"present": PRESENT, "absent": ABSENT}
_ENTRIES: Final = [f"{name}.list.element" for name in _STATES]  # what repeats in a file; the names of images do not
_NO_NAMES: Final = "it must hold lists of class names, each of them a string."


def write_table(table: LabelTable, path: Path) -> None:
    """See ``LabelTable.to_parquet``; the class names and their order are in the file's metadata."""
    columns = {"image": pa.array(table.images, pa.string())}
    names = pa.array(table.classes, pa.string())
    for name, state in _STATES.items():
        chosen = table.values == state
        starts = starts_from_lengths(chosen)[table.starts]
        entries = pa.DictionaryArray.from_arrays(pa.array(table.columns[chosen]), names)
        columns[name] = pa.LargeListArray.from_arrays(pa.array(starts), entries)
    metadata = {CLASSES_KEY: json.dumps(table.classes, ensure_ascii=False).encode()}
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), temporary, use_dictionary=_ENTRIES)


def read_table(path: Path) -> LabelTable:
    """See ``LabelTable.from_parquet``; without class names in the metadata they are those that occur, sorted."""
    file = _opened(path)
    for name in (name for name in _STATES if name in file.schema.names):
        _check_lists(file.column(name).type, f"{path}, column '{name}'")
    entries = list_entries(file)
    for name, listed in entries.items():
        if (listed.numbers < 0).any():
            raise InputError(f"{path}, column '{name}': {_NO_NAMES}")
    found = {name for listed in entries.values() for name in listed.names}
    classes = stored_classes(file.schema.metadata, path) or sorted(found)
    if unknown := sorted(found.difference(classes)):
        raise InputError(f"{path} lists the class '{unknown[0]}', which its own list of classes does not have.")
    try:
        return labels_of_lists(entries, classes, _image_names(file.column("image")))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _image_names(column: pa.ChunkedArray) -> Sequence[str]:
    """Return the names of all images; one that is repeated is refused before it is written out again and again."""
    if not pa.types.is_dictionary(column.type):
        column = pc.cast(column, pa.large_string())
        ascending = pc.all(pc.greater(column[1:], column[:-1]), min_count=0).as_py()  # so that none is repeated
        return UniqueNames(column.to_pylist()) if ascending else column.to_pylist()
    names = list[str]()
    for chunk in column.chunks:
        numbers = column_values(pc.cast(chunk.indices, pa.int64()))
        used = np.bincount(numbers, minlength=len(chunk.dictionary))
        if len(repeated := np.flatnonzero(used > 1)):
            unique_names([chunk.dictionary[int(repeated[0])].as_py()] * 2, "image")
        names += pc.cast(chunk.dictionary.take(chunk.indices), pa.large_string()).to_pylist()
    return UniqueNames(names) if column.num_chunks == 1 else names


class ListEntries(NamedTuple):
    """A column of lists: how many entries each row has, the number of the name of each, -1 for null, and the names."""

    lengths: NDArray[np.int64]
    numbers: NDArray[np.int32]
    names: list[str]


def list_entries(table: pa.Table) -> dict[str, ListEntries]:
    """Return the entries of each column of lists, ``present`` and ``absent``; each name is looked up once a chunk."""
    return {name: _entries(table[name]) for name in _STATES if name in table.column_names}


def _entries(column: pa.ChunkedArray) -> ListEntries:
    number: defaultdict[str, int] = defaultdict(count().__next__)
    parts = [(np.empty(0, np.int64), np.empty(0, np.int32))]
    for chunk in column.chunks:
        entries = chunk.flatten()
        if not pa.types.is_dictionary(entries.type):
            entries = pc.cast(entries, pa.large_string()).dictionary_encode()
        indices = column_values(pc.cast(entries.indices, pa.int32()), -1)
        used = np.zeros(len(entries.dictionary) + 1, dtype=np.bool_)
        used[indices] = True
        words = zip(used.tolist(), entries.dictionary.to_pylist(), strict=False)
        numbers = [number[word] if seen and word is not None else -1 for seen, word in words]
        lengths = column_values(pc.cast(pc.list_value_length(chunk), pa.int64()), 0)
        if numbers != [*range(len(numbers))]:
            indices = np.array([*numbers, -1], dtype=np.int32)[indices]
        parts.append((lengths, indices))
    lengths, indices = parts[1] if len(parts) == 2 else map(np.concatenate, zip(*parts, strict=True))
    return ListEntries(lengths, indices, [*number])


def labels_of_lists(
    entries: Mapping[str, ListEntries], classes: Sequence[str], images: Sequence[str] | int
) -> LabelTable:
    """Return the labels that columns of lists name; other names than these classes are left out."""
    count, named = (images, None) if isinstance(images, int) else (len(images), images)
    classes = unique_names(classes, "class")
    place, width = {name: column for column, name in enumerate(classes)}, label_width(classes)
    lists: list[tuple[ListEntries, NDArray[np.int32], NDArray[np.int64]]] = []
    for state, listed in entries.items():
        codes = [2 * place[name] + _STATES[state] if name in place else -1 for name in listed.names]
        lists.append((listed, np.array([*codes, -1], dtype=np.int32), starts_from_lengths(listed.lengths)))
    step = min(_BLOCK_ROWS, np.iinfo(np.int32).max // width)  # the labels of few rows stay in the processor's cache
    first = np.arange(step, dtype=np.int32) * width
    known, most = np.zeros(count, dtype=np.int64), sum(len(listed.numbers) for listed in entries.values())
    columns, values, filled = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int8), 0
    for start in range(0, count, step):
        end, parts = min(start + step, count), list[NDArray[np.int32]]()
        for (lengths, numbers, _), column, starts in lists:
            labels, own = column.take(numbers[starts[start] : starts[end]], mode="wrap"), lengths[start:end]
            rows = np.repeat(first[: end - start], own)
            if (left_out := labels < 0).any():
                labels, rows = labels[~left_out], rows[~left_out]
                own = np.bincount(rows // width, minlength=len(own))
            labels += rows
            known[start:end] += own
            parts.append(labels)
        labels = np.concatenate(parts)
        block = slice(filled, filled := filled + len(labels))
        columns[block], values[block] = compress_labels(labels, classes, start)
    for array in (columns, values):
        array.resize(filled, refcheck=False)
        array.flags.writeable = False  # so that the table need not copy them
    return LabelTable(starts_from_lengths(known), columns, values, classes, named)


def read_parquet(
    path: Path, options: TableOptions | None = None, *, check_image: CheckImage = lambda name, line: None
) -> TableFile:
    """Read a Parquet file of labels, wide or lists, or raise one error with all its problems; rows count from 1."""
    return parse_table(open_parquet_table(path), options or TableOptions(), check_image)


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file that anybody may have made; false claims of size are refused.

    Texts that the file has as dictionaries are read so: a long one may stand for any number of rows.
    """
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise InputError(f"{path} is not a file." if path.exists() else describe_missing_path(path))
        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            _check_claims(groups, file.metadata.num_rows, path)
            texts = {field.name for field in file.schema_arrow if _is_text(field.type)}
            chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
            repeated = {chunk.path_in_schema for chunk in chunks if any("DICT" in each for each in chunk.encodings)}
        with pq.ParquetFile(path, read_dictionary=texts & repeated) as file:
            yield file
    except LabelGapError:
        raise
    except READ_ERRORS as error:
        raise InputError(f"{path} cannot be read as Parquet ({' '.join(str(error).split())[:200]}).") from None


def _check_claims(groups: Sequence[pq.RowGroupMetaData], rows: int, path: Path) -> None:
    """Raise an error for a file that says that it has far more rows or bytes than its size allows."""
    size = path.stat().st_size
    unpacked = sum(max(group.total_byte_size, 0) for group in groups)
    if not 0 <= rows <= _ROWS_PER_BYTE * size:
        raise ValueError(f"it claims {rows:,} rows")
    if unpacked > _UNPACKED_BYTES + _UNPACKED_PER_BYTE * size:
        raise ValueError(f"its {size:,} bytes would become {unpacked:,}")


def rows_of_cells(file: pq.ParquetFile) -> Iterator[Row]:
    """Yield the names of the columns, then the cells of every row, as strings or lists of strings."""
    yield 0, [name.strip() for name in file.schema_arrow.names]
    number, size = 0, max(1, min(8192, _BATCH_CELLS // max(file.metadata.num_columns, 1)))
    for group in range(file.num_row_groups):  # dictionaries inside of lists cannot be read over several
        for batch in file.iter_batches(batch_size=size, row_groups=[group]):
            for cells in zip(*map(column_cells, batch.columns), strict=True):
                number += 1
                yield number, list(cells)


def column_cells(column: pa.Array) -> list[Cell]:
    """Convert a column to the cells of a CSV; a type that no CSV has becomes its name, which is no state."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        words = column_cells(column.dictionary)
        return ["" if index is None else words[index] for index in column.indices.to_pylist()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [[str(name) for name in names or () if name is not None] for names in column.to_pylist()]
    try:
        texts = pc.fill_null(pc.cast(column, pa.large_string()), "").to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return [f"({kind})"] * len(column)
    return [text.strip() for text in texts]


def typed_cell(cell: Cell, kind: pa.DataType) -> Any:
    """Return an edited cell as a value of a Parquet column."""
    if not isinstance(cell, str):
        return cell
    if _is_list(kind):
        return [cell] if cell else []
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return cell or None
    state = CellParser().code(cell)
    return None if state in (None, UNKNOWN) else bool(state) if pa.types.is_boolean(kind) else state


def _opened(path: Path) -> pa.Table:
    with open_parquet(path) as opened:
        file = _whole(opened)
        file.validate(full=True)
    missing = [name for name in ("image", "present") if name not in file.schema.names]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}': it needs image, present and perhaps absent.")
    if len(unnamed := np.flatnonzero(column_values(file.column("image").is_null()))):
        raise InputError(f"{path}, row {unnamed[0]}: no image is named.")
    return file


def _whole(file: pq.ParquetFile) -> pa.Table:
    """Read a file by its row groups: dictionaries inside of lists cannot be read over several."""
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    return pa.concat_tables(groups) if groups else file.read()


def stored_classes(metadata: Any, path: Path) -> list[str] | None:
    """Return the class names that ``write_table`` stored in a file, or None."""
    stored = (metadata or {}).get(CLASSES_KEY)
    if stored is None:
        return None
    try:
        classes = parse_json(stored)
    except ValueError:
        classes = None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputError(f"{path}: its list of classes is damaged.")
    return classes


def _check_lists(kind: pa.DataType, where: str) -> None:
    if not _is_list(kind):
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        raise InputError(f"{where}: it must hold lists of class names, not {kind}.")
    if not _is_text(kind.value_type.value_type if pa.types.is_dictionary(kind.value_type) else kind.value_type):
        raise InputError(f"{where}: {_NO_NAMES}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


class OutputColumn(NamedTuple):
    """A column to write: its name, the number of the column of the file whose type it takes, and whether it is new."""

    name: str
    source: int
    new: bool = False


EditRow = Callable[[int, list[Cell]], list[Cell] | None]
"""Gives the cells to write for a row, whose number (or line) and cells it takes; None leaves the row out."""


@dataclass(frozen=True)
class RawTable:
    """A file of labels as rows of cells: what is parsed, and what is written again in its own format."""

    path: Path
    dialect: Dialect | None = None
    classes: tuple[str, ...] | None = None

    @property
    def unit(self) -> str:
        """What the numbers of rows count: "line", or "row" in files without lines."""
        return "row" if self.dialect is None else "line"

    def rows(self, problems: ProblemList | None = None, padded: list[int] | None = None) -> Generator[Row, None, None]:
        """Yield the header, then number and cells of every row that is not blank; others are added to ``problems``."""
        if self.dialect is None:
            with open_parquet(self.path) as file:
                yield from rows_of_cells(file)
            return
        problems = ProblemList(self.path) if problems is None else problems
        with open_text(self.path, self.dialect.encoding) as text:
            for line, cells in split_records(text, self.dialect.delimiter, self.dialect.skip, problems, padded):
                yield line, [*cells]

    def write(
        self,
        path: Path,
        columns: Sequence[OutputColumn],
        edit: EditRow,
        classes: Sequence[str] | None = None,
        *,
        strip: bool = False,
        appended: Sequence[Sequence[Cell]] = (),
    ) -> None:
        """Write the table with other columns, edited rows and ``appended`` ones in its own format, atomically.

        A row of a CSV without a change keeps its text, letter by letter; Parquet keeps the types of columns.
        """
        if self.dialect is None:
            table = self._edited(columns, edit, classes, appended)
            with atomic_path(path) as temporary:
                pq.write_table(table, temporary)
            return
        codec = encoding_to_write(self.path, self.dialect.encoding)
        try:
            with (
                open_text(self.path, self.dialect.encoding) as source,
                atomic_path(path) as temporary,
                temporary.open("w", newline="", encoding=codec) as target,
            ):
                target.writelines(self._edited_records(source, columns, edit, strip, appended))
        except UnicodeEncodeError as error:
            letters = truncate_text(error.object[error.start : error.end])
            raise InputError(
                f"{self.path} is in {codec}, which cannot write '{letters}'. Write to a .parquet file, or save the "
                "table in UTF-8 first."
            ) from None

    def _edited_records(
        self,
        source: TextIO,
        columns: Sequence[OutputColumn],
        edit: EditRow,
        strip: bool,
        appended: Sequence[Sequence[Cell]],
    ) -> Iterator[str]:
        """Yield the text of the edited rows; that of a row that does not change stays as it is."""
        assert self.dialect is not None
        delimiter, header, end, newline = self.dialect.delimiter, True, "\n", "\n"
        quoting: Literal[0, 1] = csv.QUOTE_MINIMAL
        yield from (source.readline() for _ in range(self.dialect.skip))
        for line, written, lines in read_records(source, delimiter, 0, ProblemList(self.path)):
            text = "".join(lines)
            end = text[len(text.rstrip("\r\n")) :]
            newline = end or newline
            cells: list[Cell] = [unquote_formula(cell.strip()) for cell in written]
            if not any(cells):
                yield text
                continue
            body = text.rstrip("\r\n")
            edited: list[Cell] | None = [column.name for column in columns]
            if header:
                header = False
                quoting = csv.QUOTE_ALL if _record(written, delimiter, csv.QUOTE_ALL) == body else quoting
            else:
                edited = edit(line + self.dialect.skip, [*cells])
            if edited is None:
                continue
            changed = [
                (written[column.source].rstrip() if strip else written[column.source])
                if not column.new and column.source < len(cells) and cell == cells[column.source]
                else quote_formula(str(cell))
                for cell, column in zip(edited, columns, strict=True)
            ]
            if changed[: len(written)] == written:  # as it is, perhaps with more cells
                more = _record(["", *changed[len(written) :]], delimiter, quoting)
                yield body + more.removeprefix('""') + text[len(body) :]
            else:
                yield _record(changed, delimiter, quoting) + text[len(body) :]
        if appended and not end:
            yield newline
        for row in appended:
            yield _record([quote_formula(str(cell)) for cell in row], delimiter, quoting) + newline

    def _edited(
        self,
        columns: Sequence[OutputColumn],
        edit: EditRow,
        classes: Sequence[str] | None,
        appended: Sequence[Sequence[Cell]],
    ) -> pa.Table:
        with open_parquet(self.path) as file:
            table = _whole(file).cast(pq.read_schema(self.path))
        rows = [*self.rows()][1:]
        edited = [(number - 1, cells, after) for number, cells in rows if (after := edit(number, [*cells])) is not None]
        arrays, schema_fields = [], []
        for index, column in enumerate(columns):
            field, values = table.schema.field(column.source), table.column(column.source)
            changed = {
                row: typed_cell(after[index], field.type)
                for row, (_, cells, after) in enumerate(edited)
                if column.new or after[index] != cells[column.source]
            }
            more = [typed_cell(row[index], field.type) for row in appended]
            # lists of several dictionaries cannot be selected from
            if changed or more or column.new or _is_list(field.type):
                before = values.to_pylist()
                new = [changed.get(row, before[place]) for row, (place, _, _) in enumerate(edited)]
                arrays.append(pa.array([*new, *more], field.type))
            else:
                arrays.append(values.take([place for place, _, _ in edited]))
            schema_fields.append(field.with_name(column.name))
        metadata: dict[bytes, bytes] = {**(table.schema.metadata or {})}
        if schema_fields != [*table.schema] or appended or len(edited) != table.num_rows:
            metadata.pop(b"pandas", None)  # the index and the columns as they were
        if self.classes is not None and classes is not None:
            metadata[CLASSES_KEY] = json.dumps([*classes], ensure_ascii=False).encode()
        return pa.table(arrays, schema=pa.schema(schema_fields, metadata or None))


def _record(cells: Sequence[str], delimiter: str, quoting: Literal[0, 1]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter, quoting=quoting, lineterminator="").writerow(cells)
    return buffer.getvalue()


def open_csv(
    path: Path, options: TableOptions, *, encoding: str | None = None, delimiter: str | None = None
) -> RawTable:
    """Return a CSV as a table of cells; encoding and delimiter are detected when None."""
    return RawTable(path, detect_dialect(path, encoding, delimiter, lambda header: is_header(header, options)))


def open_parquet_table(path: Path) -> RawTable:
    """Return a Parquet file as a table of cells; a data set of Hugging Face is an error that says so."""
    with open_parquet(path) as file:
        for column in file.schema_arrow:
            holds_images = pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0
            if holds_images and column.name in ("image", "img"):
                raise InputError(
                    f"{path}: its column '{column.name}' holds images, as a Hugging Face data set does. Name its "
                    f"folder, which is read as huggingface: {path.parent}"
                )
        classes = stored_classes(file.schema_arrow.metadata, path)
    return RawTable(path, classes=None if classes is None else tuple(classes))
