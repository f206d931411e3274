"""Whatever is in a table: it is read whole, or refused with a reason; never a traceback, never a row that is lost."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from labelgap.core.errors import LabelGapError, ProblemsError
from labelgap.labels.io.formats import read_csv, read_parquet
from labelgap.labels.io.table_file import TableFile, TableOptions

NAMES = st.sampled_from(
    ["image", "Image", "split", "group", "present", "absent", "cat", "Cat", "cats", "dög", "", " x "]
)
STATES = st.sampled_from(
    ["1", "0", "", "x", "TRUE", "no", "1.0", "NA", "train", "val", "cat;dog", "a|b", "-1", '"', "é"]
)
CELLS = st.one_of(STATES, st.text(max_size=6))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "zeros": st.sampled_from(["absent", "unknown"]),
        "unlisted": st.sampled_from(["absent", "unknown"]),
        "separator": st.sampled_from([";", "|", "space"]),
        "classes": st.sampled_from([("cat",), ("dog", "cat")]),
        "ignore_columns": st.sampled_from([("cat",), ("group",)]),
        "rename": st.sampled_from([{"cat": "Cat"}, {"Image": "image"}, {"cat": "present"}]),
    },
)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    """A header that often makes sense, and rows that often have its length."""
    header = draw(st.lists(NAMES, max_size=5).map(lambda names: ["image", *names] if len(names) % 4 else names))
    rows = draw(st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=6))
    if header[:1] == ["image"] and draw(st.booleans()):
        rows = [[f"{number}.jpg", *row[1:]] for number, row in enumerate(rows)]
    return [header, *rows]


def checked(file: TableFile, rows: int) -> None:
    assert len(file.table) == rows == len(file.lines) == len(set(file.table.images))
    assert all(groups is None or len(groups) == rows for groups in (file.splits, file.groups))
    assert file.findings


@settings(max_examples=20)
@given(table=tables(), delimiter=st.sampled_from([",", ";", "\t"]), options=OPTIONS)
def test_every_row_of_a_csv_is_read_or_it_is_refused(
    table: list[list[str]], delimiter: str, options: dict[str, Any]
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(table)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tags.csv"
        path.write_text(text.getvalue(), encoding="utf-8", errors="surrogatepass", newline="")
        try:
            file = read_csv(path, TableOptions(**options), delimiter=delimiter)
        except LabelGapError as error:
            lines = text.getvalue().count("\n") + text.getvalue().count("\r") + 1
            if isinstance(error, ProblemsError):
                assert all(1 <= problem.line <= lines for problem in error.problems)
            return
    checked(file, sum(any(cell.strip() for cell in row) for row in table) - 1)


@settings(max_examples=40)
@given(data=st.binary(max_size=200), start=st.sampled_from([b"", b"image,cat\na.jpg,1\n", b"image;present\na;x\n"]))
def test_no_bytes_make_the_csv_reader_stumble(data: bytes, start: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tags.csv"
        path.write_bytes(start + data)
        try:
            checked(file := read_csv(path), len(file.table))
        except LabelGapError as error:
            assert "tags.csv" in str(error)


COLUMNS = st.sampled_from(
    [
        st.one_of(st.none(), st.booleans()),
        st.one_of(st.none(), st.integers(-2, 2)),
        st.one_of(st.none(), st.floats(allow_nan=True)),
        st.one_of(st.none(), STATES),
        st.one_of(st.none(), st.lists(st.one_of(st.none(), st.sampled_from(["cat", "dog", "", "a;b"])), max_size=3)),
        st.one_of(st.none(), st.binary(max_size=3)),
        st.one_of(st.none(), st.fixed_dictionaries({"a": st.integers(0, 3)})),
    ]
)


@st.composite
def arrow_tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(0, 6))
    names = draw(st.lists(NAMES, max_size=4))
    columns = [pa.array(draw(st.lists(draw(COLUMNS), min_size=count, max_size=count))) for _ in names]
    images = pa.array([f"{number}.jpg" if draw(st.integers(0, 9)) else None for number in range(count)], pa.string())
    return pa.Table.from_arrays([images, *columns], names=["image", *names])


@settings(max_examples=40)
@given(table=arrow_tables(), options=OPTIONS)
def test_every_row_of_a_parquet_file_is_read_or_the_file_is_refused(table: pa.Table, options: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tags.parquet"
        pq.write_table(table, path)
        try:
            file = read_parquet(path, TableOptions(**options))
        except LabelGapError as error:
            if isinstance(error, ProblemsError):
                assert all(0 <= problem.line <= table.num_rows for problem in error.problems)
            return
    checked(file, table.num_rows)


@settings(max_examples=40)
@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=5), cut=st.floats(0, 1))
def test_no_damaged_parquet_file_makes_the_reader_stumble(places: list[tuple[float, int]], cut: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tags.parquet"
        pq.write_table(pa.table({"image": ["a.jpg", "b.jpg"], "cat": [1, 0]}), path)
        data = bytearray(path.read_bytes())
        for place, value in places:
            data[int(place * (len(data) - 1))] = value
        path.write_bytes(bytes(data[: int(cut * len(data))] if cut < 0.3 else data))
        try:
            checked(file := read_parquet(path), len(file.table))
        except LabelGapError as error:
            assert "tags.parquet" in str(error)
