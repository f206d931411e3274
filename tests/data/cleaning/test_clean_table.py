"""A clean copy of a table: what is left out, merged and renamed, each with its line, in the layout of the original."""

from __future__ import annotations

import csv
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.sample_photos import write_small_photos

from labelgap.core.errors import InputError, ProblemsError, UnknownNameError
from labelgap.data import load
from labelgap.data.cleaning import FixedTable, clean_table


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six photos beside the table, one that cannot be decoded, and the folder is the current one."""
    monkeypatch.chdir(tmp_path)
    write_small_photos(tmp_path, 6)
    (tmp_path / "broken.jpg").write_text("no image")
    return tmp_path


def fix(text: str, out: str = "clean.csv", **options: Any) -> FixedTable:
    Path("tags.csv").write_text(text, encoding="utf-8", newline="")
    return clean_table("tags.csv", out, **options)


def said(fixed: FixedTable, *kinds: str) -> list[tuple[int, str]]:
    return [(change.line, change.text) for change in fixed.changes if change.kind in kinds]


def clean() -> str:
    return Path("clean.csv").read_bytes().decode()


def test_rows_without_a_usable_image_are_left_out_with_the_reason(folder: Path) -> None:
    fixed = fix(
        "image,cat,dog\n00.jpg,1,0\ngone.jpg,1,\nbroken.jpg,,1\n,1,\n01.jpg,0\n../x.jpg,1,\n02.jpg,0,1,,\n"
        '"03.jpg"x,1,1\n04.jpg,1,\nhttp://a.b/c.jpg,1,\n05.jpg,,1\n01.jpg,,0\n03.jpg,,0\n'
    )
    assert clean() == "image,cat,dog\n00.jpg,1,0\n02.jpg,0,1\n04.jpg,1,\n05.jpg,,1\n01.jpg,,0\n03.jpg,,0\n"
    reasons = said(fixed, "left_out")
    assert [line for line, _ in reasons] == [3, 4, 5, 6, 7, 9, 11] and len(fixed.changes) == 7
    starts = ["gone.jpg does not exist", str(folder / "broken.jpg"), "no image is named", "2 cells where the header"]
    assert all(text.startswith(start) for (_, text), start in zip(reasons, starts, strict=False))
    with Path("clean.changes.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["line", "kind", "change"] and len(rows) == 8 and rows[1][:2] == ["3", "left_out"]
    assert [name for split in fixed.data.splits for name in split.labels.images]


def test_rows_of_one_image_are_merged_and_contradictions_become_unknown(folder: Path) -> None:
    fixed = fix(
        "image,split,cat,dog,owl,notes\n"
        "00.jpg,train,yes,no,,first\n"
        "01.jpg,train,,,yes,\n"
        "00.jpg,train,yes,no,,first\n"
        "00.jpg,train,no,,no,other\n"
        "./00.jpg,val,yes,,,\n"
        "01.jpg,train,no,,,late\n"
        "02.jpg,val,no,yes,,\n",
        ignore_columns=["notes"],
    )
    expected = (
        "image,split,cat,dog,owl,notes\n00.jpg,train,,no,no,first\n01.jpg,train,no,,yes,late\n02.jpg,val,no,yes,,\n"
    )
    assert clean() == expected
    assert said(fixed, "merged") == [
        (4, "00.jpg is listed again (first in line 2): merged, the labels are the same"),
        (5, "00.jpg is listed again (first in line 2): merged, 1 label added; notes stays 'first'"),
        (6, "./00.jpg is listed again (first in line 2): merged; split stays 'train'"),
        (7, "01.jpg is listed again (first in line 3): merged, 1 label added"),
    ]
    assert said(fixed, "unknown") == [(5, "'cat' of 00.jpg contradicts line 2: unknown now")]


def test_a_header_in_between_is_no_row_even_if_a_photo_has_its_name(folder: Path) -> None:
    (folder / "image.jpg").write_bytes((folder / "00.jpg").read_bytes())
    fixed = fix("My photos\nimage,cat,dog\n00.jpg,1,\nimage,cat,dog\n01.jpg,,1\n")
    assert said(fixed, "left_out") == [(4, "the header once more")] and len(fixed.changes) == 1
    assert clean() == "My photos\nimage,cat,dog\n00.jpg,1,\n01.jpg,,1\n"


def test_cells_columns_and_splits_that_nobody_can_read(folder: Path) -> None:
    rows = [
        f"{number:02d}.jpg,{split},{cat},,a note,{dog}"
        for number, (split, cat, dog) in enumerate(
            [("Train", "1", "1"), ("tarin", "maybe", ""), ("valid", "0", "1"), ("", "1", ""), ("test", "", "0")]
        )
    ]
    fixed = fix("\n".join(["path,subset,cat,,remarks,cat", *rows]) + "\n")
    assert clean() == "path,subset,cat\n00.jpg,train,1\n01.jpg,train,\n02.jpg,val,\n04.jpg,test,0\n"
    assert [(change.line, change.kind, change.text) for change in fixed.changes] == [
        (1, "columns", "column 4 has no name: left out"),
        (1, "columns", "the column 'cat' is there twice: merged"),
        (
            1,
            "columns",
            "the column 'remarks' is no tag: left out (--ignore-columns remarks keeps it; if it lists tags, "
            "--rename remarks=present)",
        ),
        (2, "split", "'Train' under subset: train now"),
        (3, "split", "'tarin' under subset: train now"),
        (3, "unknown", "'maybe' under cat is no state: unknown now"),
        (4, "split", "'valid' under subset: val now"),
        (4, "unknown", "'cat' is present in one of its columns and absent in another: unknown now"),
        (5, "left_out", "'' under subset is none of train, val, test (no split? --ignore-columns subset)"),
    ]


def test_a_single_remark_is_no_tag_and_a_single_misspelled_state_is_one(folder: Path) -> None:
    fixed = fix("path,cat,notes,dog,split,split\n00.jpg,1,nice at night,,train,val\n01.jpg,0,,yess,train,\n")
    assert clean() == "path,cat,dog,split\n00.jpg,1,,train\n01.jpg,0,,train\n"
    assert fixed.to_json()["images"] == 2 and len(said(fixed, "columns")) == 2


def test_a_tag_with_minus_ones_stays_and_they_are_unknown(folder: Path) -> None:
    assert len(said(fix("image,cat\n00.jpg,1\n01.jpg,-1\n02.jpg,-1\n03.jpg,-1\n"), "unknown")) == 3
    assert clean() == "image,cat\n00.jpg,1\n01.jpg,\n02.jpg,\n03.jpg,\n"


def test_variants_of_case_become_the_most_frequent_and_a_misspelling_is_only_proposed(folder: Path) -> None:
    lists = ["person;Dog", "person; dog", "person;dog", "person", "person", "preson;DOG"]
    rows = [f"{number:02d}.jpg,{tags}" for number, tags in enumerate(lists)]
    text = "\n".join(["image,present", *rows]) + "\n"
    fixed = fix(text)
    assert [line.partition(",")[2] for line in clean().splitlines()[1:]] == [
        "person;dog", "person; dog", "person;dog", "person", "person", "preson;dog",
    ]  # fmt: skip
    assert said(fixed, "classes") == [
        (2, "'Dog' (present in 1 image): another spelling of 'dog'"),
        (7, "'DOG' (present in 1 image): another spelling of 'dog'"),
    ]
    assert [*map(str, fixed.proposals)] == ["'person' (5) and 'preson' (1) look like one tag: --rename preson=person"]
    renamed = fix(text, force=True, rename={"preson": "person"})
    assert not renamed.proposals and clean().endswith("05.jpg,person;dog\n")
    assert said(renamed, "classes")[-1] == (7, "'preson' (present in 1 image): renamed to 'person'")
    with pytest.raises(UnknownNameError, match="there is no tag 'pesron'"):
        fix(text, force=True, rename={"pesron": "person"})
    with pytest.raises(InputError, match="it would be several tags"):
        fix(text, force=True, rename={"preson": "a;b"})


def test_wide_columns_of_one_class_share_the_first_and_keep_what_each_knows(folder: Path) -> None:
    fixed = fix("image,Dog,cat,dog\n00.jpg,1,1,\n01.jpg,,0,1\n02.jpg,,,1\n03.jpg,0,,1\n")
    assert clean() == "image,dog,cat\n00.jpg,1,1\n01.jpg,1,0\n02.jpg,1,\n03.jpg,,\n"
    assert said(fixed, "classes") == [(1, "'Dog' (present in 1 image): another spelling of 'dog'")]
    assert [line for line, _ in said(fixed, "unknown")] == [5]


def test_lists_that_contradict_each_other_name_the_class_in_neither_list(folder: Path) -> None:
    text = "image,present,absent\n00.jpg,cat|dog,owl\n00.jpg,owl|bat,cow\n01.jpg,cat,cat|dog\n02.jpg,owl,\n"
    fixed = fix(text)
    assert clean() == "image,present,absent\n00.jpg,cat|dog|bat,cow\n01.jpg,,dog\n02.jpg,owl,\n"
    assert said(fixed, "unknown") == [
        (3, "'owl' of 00.jpg contradicts line 2: unknown now"),
        (4, "'cat' is both under present and under absent: unknown now"),
    ]
    with pytest.raises(ProblemsError, match="nothing was written: --fix cannot decide these") as caught:
        fix(text, "other.csv", unlisted="absent")
    assert [problem.line for problem in caught.value.problems] == [2, 4] and not Path("other.csv").exists()


def test_copies_are_named_and_leave_train_where_they_are_in_test(folder: Path) -> None:
    for name in ("copy.jpg", "again.jpg"):
        Path(name).write_bytes(Path("01.jpg").read_bytes())
    fixed = fix("image,cat\n00.jpg,1\n01.jpg,1\ncopy.jpg,0\nagain.jpg,1\n")
    assert said(fixed, "copies") == [
        (4, "copy.jpg has the same content as 01.jpg (line 3); their labels contradict each other: cat"),
        (5, "again.jpg has the same content as 01.jpg (line 3)"),
    ]
    assert clean() == Path("tags.csv").read_text(), "they are only named"
    text = "image,split,cat\n00.jpg,train,1\n01.jpg,train,1\ncopy.jpg,test,0\nagain.jpg,val,1\n02.jpg,val,0\n"
    fixed = fix(text, force=True)
    assert said(fixed, "left_out") == [
        (3, "01.jpg (train) is a copy of copy.jpg (test), line 4"),
        (5, "again.jpg (val) is a copy of copy.jpg (test), line 4"),
    ]
    assert clean() == "image,split,cat\n00.jpg,train,1\ncopy.jpg,test,0\n02.jpg,val,0\n"
    fix(text, force=True, allow_leaks=True)
    assert clean() == text


@pytest.mark.parametrize(
    ("header", "row", "codec"),
    [
        ("sep=;\r\nimage;present;who\r\n", "{};['Käse', 'dog'];\"a; b\"\r\n", "utf-8-sig"),
        ("who\timage\tpresent\n", '"say ""no"""\t{}\tKäse, dog\n', "cp1252"),
        ('"image","who","Käse"\n', '"{}","x y","1"\n', "utf-8"),
        ("image,Käse,dog,who\n", "{},TRUE,FALSE,x y\n", "utf-16"),
    ],
)
def test_the_clean_table_is_written_as_the_original_is(folder: Path, header: str, row: str, codec: str) -> None:
    rows = [row.format(f"{number:02d}.jpg") for number in range(4)]
    Path("tags.csv").write_bytes((header + "".join([*rows, rows[2], row.format("gone.jpg")])).encode(codec))
    clean_table("tags.csv", "clean.csv", ignore_columns=["who"])
    assert Path("clean.csv").read_bytes() == (header + "".join(rows)).encode(codec)


def test_parquet_keeps_its_types_and_its_list_of_classes(folder: Path) -> None:
    names = ["00.jpg", "gone.jpg", "01.jpg", "00.jpg", "02.jpg"]
    wide = pa.table(
        {
            "image": names,
            "split": ["train", "train", "Train", "train", "val"],
            "cat": pa.array([True, True, None, None, False]),
            "dog": pa.array([None, 1, 0, 1, 1], pa.int8()),
            "Dog": pa.array([None, None, 1.0, None, None], pa.float32()),
            "size": pa.array([1, 2, 3, 4, 5], pa.int64()),
        }
    )
    pq.write_table(wide, "wide.parquet")
    fixed = clean_table("wide.parquet", "clean.parquet", ignore_columns=["size"])
    assert said(fixed, "left_out") == [(2, "gone.jpg does not exist")] and fixed.unit == "row"
    written = pq.read_table("clean.parquet")
    assert written.schema == wide.drop_columns(["Dog"]).schema
    assert written.to_pydict() == {
        "image": ["00.jpg", "01.jpg", "02.jpg"],
        "split": ["train", "train", "val"],
        "cat": [True, None, False],
        "dog": [1, None, 1],
        "size": [1, 3, 5],
    }
    data = load("csv", _csv("image,present\n00.jpg,Cat\n01.jpg,cat;dog\n02.jpg,cat\n"))
    data.train.labels.to_parquet("lists.parquet")
    clean_table("lists.parquet", "clean-lists.parquet")
    assert "Cat" not in load("clean-lists.parquet").classes


def _csv(text: str) -> str:
    Path("lists.csv").write_text(text)
    return "lists.csv"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,cat\n00.jpg,1\n01.jpg\n02.jpg\n", "most of its rows would be left out"),
        ("image,split,cat\n00.jpg,1,1\n01.jpg,2,1\n02.jpg,train,1\n", "most of its rows would be left out"),
        ("image,cat\nx.jpg,1\ny.jpg,0\n", r"None of its images is in \.: where are they"),
        ("Datei,cat\n00.jpg,1\n01.jpg,yep\n02.jpg,1\n", r"2 problems, nothing was written(.|\n)*no column is called"),
        ('image,cat\n00.jpg,1\n"01.jpg,1\n02.jpg,0\n', "a quote is opened here and never closed"),
        ("image,group,split,cat\n00.jpg,a,train,1\n01.jpg,a,test,0\n", "is of one group with"),
        ("image,cat\n00.jpg,\n", "no label is known"),
        ("image,Schlagworte\n00.jpg,a;b\n01.jpg,c\n", "'a;b' under Schlagworte: a cell is 1"),
    ],
)
def test_what_needs_a_decision_is_refused_and_nothing_is_written(folder: Path, text: str, message: str) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(InputError, match=message):
        fix(text)
    assert sorted(folder.iterdir()) == sorted([*before, folder / "tags.csv"])


def test_neither_the_original_nor_an_existing_file_is_replaced(folder: Path) -> None:
    text = "image,cat\n00.jpg,1\ngone.jpg,0\n"
    fix(text)
    with pytest.raises(InputError, match=r"clean\.csv exists already.* --force"):
        fix(text)
    Path("clean.csv").unlink()
    with pytest.raises(InputError, match=r"clean\.changes\.csv exists already"):
        fix(text)
    Path("link.csv").symlink_to("tags.csv")
    for place in ("tags.csv", "link.csv"):
        with pytest.raises(InputError, match="is the data itself, which is never overwritten"):
            fix(text, place, force=True)
    with pytest.raises(InputError, match=r"its name ends in \.csv or \.tsv"):
        fix(text, "clean.parquet")
    with pytest.raises(InputError, match=r"the folder .* does not exist"):
        fix(text, "nowhere/clean.csv")
    assert Path("tags.csv").read_text() == text


@pytest.mark.parametrize("seed", range(8))
def test_a_clean_table_is_read_as_it_was_understood_and_needs_no_further_change(folder: Path, seed: int) -> None:
    random = Random(seed)
    names = [f"{number:02d}.jpg" for number in range(6)] * 4 + [
        "./01.jpg",
        "02",
        "gone.jpg",
        "broken.jpg",
        "",
        "b\n.jpg",
    ]
    tags = ["cat", "Cat", "=sum", "two  words", "Two words", 'q"t', "a'b", "preson"]
    columns = ["present", "absent"] if seed % 2 else random.sample(tags, 5)
    header = ["File name", "subset", *columns, *(["", "remarks"] if seed % 3 else [])]
    lines = [header]
    for _ in range(20):
        lists = ["|".join(random.choices(tags, k=random.randint(0, 3))) for _ in columns]
        cells = lists if seed % 2 else random.choices(["1", "0", "", "yes", "NA", "dgo"], [9, 9, 9, 4, 4, 1], k=5)
        split = random.choice(["train", "train", "val", "Test", "valid"])
        lines.append([random.choice(names), split, *cells, *(["", "=1 + 1"] if seed % 3 else [])])
        lines[-1] = lines[-1][: random.choice([len(header)] * 15 + [3])]
    with Path("tags.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=";\t,"[seed % 3]).writerows(lines)
    fixed = clean_table("tags.csv", "clean.csv", ignore_columns=["remarks"] if seed % 3 == 1 else [])
    data = load("csv", "clean.csv", ignore_columns=["remarks"] if seed % 3 == 1 else [])
    assert [split.labels for split in data.splits] == [split.labels for split in fixed.data.splits]
    again = clean_table("clean.csv", "again.csv", ignore_columns=["remarks"] if seed % 3 == 1 else [])
    assert not again.changes and Path("again.csv").read_bytes() == Path("clean.csv").read_bytes()


def test_only_tables_can_be_fixed(folder: Path) -> None:
    for tag in ("cat", "dog"):
        write_small_photos(folder / "sorted" / tag, 1)
    with pytest.raises(InputError, match="is read as folder: only tables of labels"):
        clean_table("sorted", "clean.csv")
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        clean_table("none.csv", "clean.csv")
    with pytest.raises(UnknownNameError, match="Did you mean 'ignore_columns'"):
        fix("image,cat\n00.jpg,1\n", ignore_colums=["x"])
    Path("tags.txt").write_text("image,cat\n00.jpg,1\n")
    assert clean_table("csv=tags.txt", "clean.txt").path == Path("clean.txt")


def test_the_only_file_of_a_near_name_is_taken_on_request(folder: Path) -> None:
    write_small_photos(folder, 11)
    for number, name in enumerate(("harbour-5", "harbours-5", "lighthouse", "windmill", "cathedral"), 6):
        (folder / f"{number:02d}.jpg").rename(folder / f"{name}.jpg")
    text = (
        "image,cat\n00.jpg,1\n01.jpg,0\n02.jpg,1\n03.jpg,1\nligthouse.jpg,1\nharbou-5.jpg,1\nwindmil.jpg,0\n"
        "windmilll.jpg,1\ncathedral.jpg,0\ncatedral.jpg,1\n"
    )
    assert [line for line, _ in said(fix(text), "left_out")] == [6, 7, 8, 9, 11]
    fixed = fix(text, "taken.csv", accept_suggestions=True)
    assert [line for line, _ in said(fixed, "images")] == [6]
    assert [line for line, _ in said(fixed, "left_out")] == [7, 8, 9, 11], (
        "two files, two names, or a file that is listed"
    )
    assert Path("taken.csv").read_text().splitlines()[5:] == ["lighthouse.jpg,1", "cathedral.jpg,0"]
    assert "lighthouse.jpg" in fixed.data.train.labels.images
    (folder / "lighthouse.jpg").write_bytes(b"")
    fixed = fix(text, "empty.csv", accept_suggestions=True)
    assert [line for line, _ in said(fixed, "left_out")] == [6, 7, 8, 9, 11] and not said(fixed, "images")
