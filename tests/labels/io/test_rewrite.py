from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelgap.labels import ABSENT, PRESENT, UNKNOWN, Revision, Revisions
from labelgap.labels.io.formats import open_csv, open_parquet_table, read_csv
from labelgap.labels.io.rewrite import LabelChanges, RewriteResult, rewrite_table
from labelgap.labels.io.table_file import TableOptions

WIDE = "image,note,cat,dog\nb.jpg,a b,1,\na.jpg,,,0\nc.jpg,x,,\n"
LISTS = "file;tags;not\nb.jpg;cat, dog;\na.jpg;;owl\nc.jpg;owl;cat,dog\n"
CHANGES: LabelChanges = {"a.jpg": {"cat": PRESENT, "dog": UNKNOWN}, "c.jpg": {"cat": ABSENT}}
LIST_OPTIONS = TableOptions(rename={"file": "image", "tags": "present", "not": "absent"})

CSV_CASES: dict[str, tuple[str, TableOptions, LabelChanges, str]] = {
    "wide": (
        WIDE,
        TableOptions(ignore_columns=["note"]),
        CHANGES,
        "image,note,cat,dog\nb.jpg,a b,1,\na.jpg,,1,\nc.jpg,x,0,\n",
    ),
    "words, blank lines, blanks and a quote": (
        'image\tcat\tdog\r\n\r\n "b.jpg" \tTRUE\t\r\na.jpg\t\t\r\n',
        TableOptions(),
        {"a.jpg": {"cat": ABSENT, "dog": PRESENT}},
        'image\tcat\tdog\r\n\r\n "b.jpg" \tTRUE\t\r\na.jpg\tFALSE\tTRUE\r\n',
    ),
    "everything quoted": (
        '"image","cat"\n"b.jpg","yes"\n"a.jpg","NA"',
        TableOptions(),
        {"a.jpg": {"cat": ABSENT}},
        '"image","cat"\n"b.jpg","yes"\n"a.jpg","no"',
    ),
    "lists with names of their own": (
        LISTS,
        LIST_OPTIONS,
        {"a.jpg": {"cat": PRESENT, "owl": PRESENT}, "b.jpg": {"dog": ABSENT}, "c.jpg": {"owl": UNKNOWN}},
        "file;tags;not\nb.jpg;cat;dog\na.jpg;cat, owl;\nc.jpg;;cat,dog\n",
    ),
    "lists without absent": (
        "image,present\na.jpg,cat|owl\nb.jpg,\n",
        TableOptions(),
        {"b.jpg": {"owl": PRESENT, "cat": ABSENT}},
        "image,present,absent\na.jpg,cat|owl,\nb.jpg,owl,cat\n",
    ),
    "predictions, with what they left unsure": (
        "image,present,unsure,absent\na.jpg,cat,dog;owl,\nb.jpg,cat;owl,,\n",
        TableOptions(),
        {"a.jpg": {"owl": PRESENT, "cat": UNKNOWN}},
        "image,present,unsure,absent\na.jpg,owl,dog;cat,\nb.jpg,cat;owl,,\n",
    ),
    "bracketed lists": (
        "image,present,absent\na.jpg,\"['cat', 'owl']\",[]\nb.jpg,[],['cat']\n",
        TableOptions(),
        {"a.jpg": {"owl": ABSENT}, "b.jpg": {"cat": PRESENT}},
        "image,present,absent\na.jpg,['cat'],['owl']\nb.jpg,['cat'],[]\n",
    ),
    "renamed classes": (
        "image,dog,Dog\na.jpg,,1\nb.jpg,,\n",
        TableOptions(rename={"dog": "Dog"}),
        {"a.jpg": {"Dog": ABSENT}, "b.jpg": {"Dog": PRESENT}},
        "image,dog,Dog\na.jpg,,0\nb.jpg,1,\n",
    ),
}


def rewrite(source: Path, out: Path, changes: LabelChanges, options: TableOptions) -> RewriteResult:
    raw = open_parquet_table(source) if source.suffix == ".parquet" else open_csv(source, options)
    return rewrite_table(raw, out, changes, options)


@pytest.mark.parametrize("case", CSV_CASES)
def test_only_the_changed_cells_of_a_csv_change(tmp_path: Path, case: str) -> None:
    text, options, changes, expected = CSV_CASES[case]
    source, out = tmp_path / "tags.csv", tmp_path / "new.csv"
    source.write_text(text, newline="")
    rewrite(source, out, {}, options)
    assert out.read_bytes() == source.read_bytes()
    rewrite(source, out, changes, options)
    assert out.read_bytes() == expected.encode()
    made = [Revision(image, name, code, "review") for image in changes for name, code in changes[image].items()]
    people = Revisions(made)
    assert read_csv(out, options).table == read_csv(source, options).table.revised(people)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_the_encoding_stays(tmp_path: Path, encoding: str) -> None:
    source, out = tmp_path / "tags.csv", tmp_path / "new.csv"
    source.write_bytes("image,Café\né.jpg,1\na.jpg,\n".encode(encoding))
    rewrite(source, out, {"a.jpg": {"Café": ABSENT}}, TableOptions())
    assert out.read_bytes() == "image,Café\né.jpg,1\na.jpg,0\n".encode(encoding)


def test_zeros_that_meant_unknown_become_blank_so_that_zero_can_say_absent(tmp_path: Path) -> None:
    source, out = tmp_path / "tags.csv", tmp_path / "new.csv"
    source.write_text("image,cat,dog\na.jpg,1,0\nb.jpg,0,0\n")
    result = rewrite(source, out, {"b.jpg": {"dog": ABSENT}}, TableOptions(zeros="unknown"))
    assert result.zeros_cleared and out.read_text() == "image,cat,dog\na.jpg,1,\nb.jpg,,0\n"


def test_a_label_stays_where_the_lists_have_no_word_for_unknown(tmp_path: Path) -> None:
    source, out = tmp_path / "tags.csv", tmp_path / "new.csv"
    source.write_text("image,present\na.jpg,cat;dog\nb.jpg,dog\n")
    changes = {"a.jpg": {"cat": UNKNOWN, "dog": ABSENT}}
    result = rewrite(source, out, changes, TableOptions(unlisted="absent"))
    assert result.kept == 1 and not result.absent_added
    assert out.read_text() == "image,present\na.jpg,cat\nb.jpg,dog\n"


def test_a_parquet_file_keeps_types_other_columns_and_metadata(tmp_path: Path) -> None:
    columns = {
        "image": pa.array(["b.jpg", "a.jpg"]),
        "taken": pa.array([2021, 2022], pa.int16()),
        "cat": pa.array([True, None]),
        "dog": pa.array([None, 0.0]),
    }
    wide = pa.table(columns).replace_schema_metadata({"mine": "kept"})
    lists = pa.table({"image": ["b.jpg", "a.jpg"], "present": [["cat"], []]})
    options = TableOptions(ignore_columns=["taken"])
    source, out = tmp_path / "tags.parquet", tmp_path / "new.parquet"
    pq.write_table(wide, source)
    rewrite(source, out, {}, options)
    assert pq.read_table(out).equals(wide, check_metadata=True)
    rewrite(source, out, {"a.jpg": {"cat": ABSENT, "dog": UNKNOWN}, "b.jpg": {"dog": PRESENT}}, options)
    new = pq.read_table(out)
    assert new.schema.equals(wide.schema, check_metadata=True)
    assert new["cat"].to_pylist() == [True, False] and new["dog"].to_pylist() == [1.0, None]
    pq.write_table(lists, source)
    rewrite(source, out, {"b.jpg": {"cat": ABSENT}, "a.jpg": {"cat": PRESENT}}, TableOptions())
    new = pq.read_table(out)
    assert new["present"].to_pylist() == [[], ["cat"]] and new["absent"].to_pylist() == [["cat"], []]
