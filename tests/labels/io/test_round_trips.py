from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labelgap.core.errors import InputError
from labelgap.core.text import quote_formula
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revision, Revisions
from labelgap.labels.io.formats import open_csv, open_parquet_table, parse_table, read_csv
from labelgap.labels.io.rewrite import LabelChanges, RewriteResult, rewrite_table
from labelgap.labels.io.table_file import TableFile, TableOptions

LETTERS = "ab ,;\"'\n\r\t=+-@#é漢\U0001f600\u2028\x0b\ufeff\\0"
COLUMNS = {"image", "split", "group", "present"}
FEW = settings(max_examples=25)


@st.composite
def tables(
    draw: st.DrawFn,
    names: st.SearchStrategy[str],
    rows: int = 0,
    classes: int = 0,
    image_names: st.SearchStrategy[str] | None = None,
) -> LabelTable:
    shape = draw(st.integers(rows, 5)), draw(st.integers(classes, 4))
    states = st.sampled_from([PRESENT, ABSENT, UNKNOWN])
    dense = np.array(draw(st.lists(states, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])), dtype=np.int8)
    images, columns = (
        draw(st.lists(kind, min_size=size, max_size=size, unique=True))
        for kind, size in zip((names if image_names is None else image_names, names), shape, strict=True)
    )
    return LabelTable.from_dense(dense.reshape(shape), columns, images)


ANY_NAME = st.text(LETTERS, max_size=6)
CSV_NAME = ANY_NAME.map(str.strip).filter(lambda name: name and name.lower() not in COLUMNS)

IMAGE_NAME = CSV_NAME.filter(lambda name: not {*"\r\n"} & {*name})


def known(table: LabelTable) -> bool:
    return len(table.values) > 0


@FEW
@given(tables(CSV_NAME, rows=1, classes=1, image_names=IMAGE_NAME).filter(known), st.booleans())
def test_through_a_wide_csv(table: LabelTable, with_splits: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        table.to_csv(path, splits=["val"] * len(table) if with_splits else None)
        assert LabelTable.from_csv(path) == table


@FEW
@given(tables(ANY_NAME))
def test_through_parquet(table: LabelTable) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table.to_parquet(Path(folder) / "a.parquet")
        assert LabelTable.from_parquet(Path(folder) / "a.parquet") == table


def lists(table: LabelTable, state: int) -> list[list[str]]:
    return [[table.classes[column] for column in np.flatnonzero(row == state)] for row in table.to_dense()]


@FEW
@given(tables(ANY_NAME))
def test_through_lists(table: LabelTable) -> None:
    present, absent = lists(table, PRESENT), lists(table, ABSENT)
    assert LabelTable.from_lists(present, absent, classes=table.classes, images=table.images) == table
    filled = np.where(table.to_dense() == UNKNOWN, ABSENT, table.to_dense())
    listed = LabelTable.from_lists(present, absent, classes=table.classes, images=table.images, unlisted="absent")
    assert listed == LabelTable.from_dense(filled, table.classes, table.images)


def unchanged(name: str) -> bool:
    return quote_formula(name) == name


LISTED_NAME = CSV_NAME.filter(lambda name: ";" not in name and unchanged(name))


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


@FEW
@given(tables(LISTED_NAME, rows=1, image_names=IMAGE_NAME.filter(unchanged)).filter(known))
def test_through_a_csv_of_lists(table: LabelTable) -> None:
    rows = zip(table.images, lists(table, PRESENT), lists(table, ABSENT), strict=True)
    lines = [",".join(map(quoted, (image, ";".join(yes), " ; ".join(no)))) for image, yes, no in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text("\n".join(["image,present,absent", *lines]), encoding="utf-8", newline="")
        found = LabelTable.from_csv(path)
    known_of = zip(table.classes, table.counts().unknown, strict=True)
    mentioned = sorted(name for name, count in known_of if count < len(table))
    assert found.classes == tuple(mentioned)
    assert found.images == table.images
    columns = [table.classes.index(name) for name in mentioned]
    assert (found.to_dense() == table.to_dense()[:, columns]).all()


@FEW
@given(tables(CSV_NAME, rows=1, classes=1, image_names=IMAGE_NAME).filter(known), st.data())
def test_through_a_csv_with_changed_labels(table: LabelTable, data: st.DataObject) -> None:
    states = st.sampled_from([PRESENT, ABSENT, UNKNOWN])
    labels = st.dictionaries(st.sampled_from(table.classes), states)
    changes = data.draw(st.dictionaries(st.sampled_from(table.images), labels))
    people = [Revision(image, name, code, "review") for image in changes for name, code in changes[image].items()]
    wanted = table.revised(Revisions(people))
    assume(known(wanted))
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "a.csv", Path(folder) / "b.csv"
        table.to_csv(source)
        rewrite_table(open_csv(source, TableOptions()), out, changes, TableOptions())
        assert LabelTable.from_csv(out) == wanted


PLAIN = st.lists(st.sampled_from(["cat", "dog", "big dog", "é"]), max_size=3, unique=True).map(";".join)
TRICKY = [*";,|[]'\" \t\r\n\0\x1c\xa0=0", "\n\n", "cat;cat", "a.jpg", "image,present\n", "\ufeff", "x" * 5000]


@st.composite
def files_of_lists(draw: st.DrawFn) -> str:
    header = draw(st.sampled_from(["image,present", "image,present,absent"]))
    rows = [[f"{row}.jpg", *(draw(PLAIN) for _ in header.split(",")[1:])] for row in range(draw(st.integers(0, 4)))]
    text = "\n".join([header, *map(",".join, rows)]) + draw(st.sampled_from(["", "\n"]))
    for mark in draw(st.lists(st.sampled_from(TRICKY), max_size=2)):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + mark + text[place:]
    return text


@settings(max_examples=100)
@given(files_of_lists(), st.sampled_from([None, ";"]), st.sampled_from(["unknown", "absent"]))
def test_columns_of_lists_are_read_as_their_rows_are(text: str, separator: str | None, unlisted: str) -> None:
    def outcome(read: Callable[[], TableFile]) -> object:
        try:
            found = read()
            return {**vars(found), "lines": found.lines.tolist(), "revisions": [*found.revisions]}
        except InputError as error:
            return str(error), getattr(error, "__notes__", None)

    def check(name: str, line: int) -> str | None:
        return f"{line} is missing" if name.startswith("3") else None

    options = TableOptions(separator=separator, unlisted=unlisted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text(text, encoding="utf-8", newline="")
        by_rows = outcome(lambda: parse_table(open_csv(path, options), options, check))
        assert outcome(lambda: read_csv(path, options, check_image=check)) == by_rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "labels.parquet"


def write(file: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), file)
    return file


def test_a_file_is_plain_to_read_for_others(file: Path) -> None:
    LabelTable.from_dense([[1, 0, -1], [1, 1, -1]], ["cat", "dog", "owl"], ["a.jpg", "b.jpg"]).to_parquet(file)
    rows = pq.read_table(file).to_pylist()
    assert rows == [
        {"image": "a.jpg", "present": ["cat"], "absent": ["dog"]},
        {"image": "b.jpg", "present": ["cat", "dog"], "absent": []},
    ]


def test_files_of_other_programs_are_read_and_their_classes_sorted(file: Path) -> None:
    strings = pa.list_(pa.string())
    write(file, image=[1, 2, 3], present=pa.array([["owl"], None, ["cat", "owl"]], strings), width=[3, 4, 5])
    table = LabelTable.from_parquet(file)
    assert table.classes == ("cat", "owl")
    assert table.images == ("1", "2", "3")
    assert table.to_dense().tolist() == [[-1, 1], [-1, -1], [1, 1]]


def test_lists_may_come_in_pieces_with_words_of_their_own(file: Path) -> None:
    words = pa.dictionary(pa.int8(), pa.large_string())
    pieces = []
    for ends, codes, texts in (([0, 1, 1], [0], ["owl"]), ([0, 1, 2], [0, 1], ["cat", "owl"])):
        indices, values = pa.array(codes, words.index_type), pa.array(texts, words.value_type)
        pieces.append(pa.ListArray.from_arrays(ends, pa.DictionaryArray.from_arrays(indices, values)))
    schema = pa.schema([("image", pa.string()), ("present", pa.list_(words)), ("absent", pa.list_(pa.string()))])
    with pq.ParquetWriter(file, schema) as writer:
        for number, piece in enumerate(pieces):
            names = [f"{number}{place}" for place in range(2)]
            absent = pa.array([["dog"], ["dog"]], pa.list_(pa.string()))
            writer.write_table(pa.table([pa.array(names), piece, absent], schema=schema))
    table = LabelTable.from_parquet(file)
    assert table.classes == ("cat", "dog", "owl")
    assert table.to_dense().tolist() == [[-1, 0, 1], [-1, 0, -1], [1, 0, -1], [-1, 0, 1]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": ["a"]}, "'present'"),
        ({"present": [["a"]]}, "'image'"),
        *(({"image": ["a"], "present": each}, "'present'") for each in (["cat;dog"], [[1]], [["a", None]])),
        ({"image": ["a", None], "present": [["a"], ["a"]]}, "row 1: "),
        ({"image": ["a", "a"], "present": [["a"], ["a"]]}, "'a'"),
        ({"image": ["a"], "present": [["cat"]], "absent": [["cat"]]}, "row 0 .* 'cat'"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(file: Path, columns: Any, message: str) -> None:
    with pytest.raises(InputError, match=r"labels\.parquet.*" + message):
        LabelTable.from_parquet(write(file, **columns))


def test_what_is_no_parquet_or_outside_of_its_own_list_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match=file.name):
        LabelTable.from_parquet(file)
    file.write_text("image,cat\n")
    with pytest.raises(InputError, match=file.name):
        LabelTable.from_parquet(file)
    columns = pa.table({"image": ["a"], "present": [["dog"]]})
    pq.write_table(columns.replace_schema_metadata({b"labelgap.classes": b'["cat"]'}), file)
    with pytest.raises(InputError, match="'dog'"):
        LabelTable.from_parquet(file)


@pytest.mark.parametrize("encoded", [True, False], ids=["dictionary", "plain"])
@pytest.mark.parametrize("names", ["abcd", "dbca"])
def test_images_in_any_order_and_several_row_groups_are_read_and_a_repeated_one_is_refused(
    tmp_path: Path, names: str, encoded: bool
) -> None:
    def read(images: str) -> LabelTable:
        content = pa.table({"image": [*images], "present": [["cat"]] * len(images)})
        pq.write_table(content, tmp_path / "a.parquet", row_group_size=2, use_dictionary=encoded)
        return LabelTable.from_parquet(tmp_path / "a.parquet")

    assert read(names).images == (*names,)
    for repeated in (names + names[-1], names + names[0], names[:1] + names):
        with pytest.raises(InputError, match="is listed twice"):
            read(repeated)


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
