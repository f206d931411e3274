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


def lines(fixed: FixedTable, *kinds: str) -> list[int]:
    return [change.line for change in fixed.changes if change.kind in kinds]


def clean() -> str:
    return Path("clean.csv").read_bytes().decode()


CASES: dict[str, tuple[str, str, dict[str, list[int]]]] = {
    "rows without a usable image": (
        "image,cat,dog\n00.jpg,1,0\ngone.jpg,1,\nbroken.jpg,,1\n,1,\n01.jpg,0\n../x.jpg,1,\n02.jpg,0,1,,\n"
        '"03.jpg"x,1,1\n04.jpg,1,\nhttp://a.b/c.jpg,1,\n05.jpg,,1\n01.jpg,,0\n03.jpg,,0\n',
        "image,cat,dog\n00.jpg,1,0\n02.jpg,0,1\n04.jpg,1,\n05.jpg,,1\n01.jpg,,0\n03.jpg,,0\n",
        {"left_out": [3, 4, 5, 6, 7, 9, 11]},
    ),
    "rows of one image, with contradictions": (
        "image,split,cat,dog,owl,notes\n00.jpg,train,yes,no,,first\n01.jpg,train,,,yes,\n00.jpg,train,yes,no,,first\n"
        "00.jpg,train,no,,no,other\n./00.jpg,val,yes,,,\n01.jpg,train,no,,,late\n02.jpg,val,no,yes,,\n",
        "image,split,cat,dog,owl,notes\n00.jpg,train,,no,no,first\n01.jpg,train,no,,yes,late\n02.jpg,val,no,yes,,\n",
        {"merged": [4, 5, 6, 7], "unknown": [5]},
    ),
    "a header in between, and a photo of its name": (
        "My photos\nimage,cat,dog\n00.jpg,1,\nimage,cat,dog\n01.jpg,,1\n",
        "My photos\nimage,cat,dog\n00.jpg,1,\n01.jpg,,1\n",
        {"left_out": [4]},
    ),
    "cells, columns and splits that nobody can read": (
        "path,subset,cat,,remarks,cat\n00.jpg,Train,1,,a note,1\n01.jpg,tarin,maybe,,a note,\n"
        "02.jpg,valid,0,,a note,1\n03.jpg,,1,,a note,\n04.jpg,test,,,a note,0\n",
        "path,subset,cat\n00.jpg,train,1\n01.jpg,train,\n02.jpg,val,\n04.jpg,test,0\n",
        {"columns": [1, 1, 1], "split": [2, 3, 4], "unknown": [3, 4], "left_out": [5]},
    ),
    "a single remark is no tag, and a single misspelled state is one": (
        "path,cat,notes,dog,split,split\n00.jpg,1,nice at night,,train,val\n01.jpg,0,,yess,train,\n",
        "path,cat,dog,split\n00.jpg,1,,train\n01.jpg,0,,train\n",
        {"columns": [1, 1], "unknown": [3]},
    ),
    "minus ones are unknown": (
        "image,cat\n00.jpg,1\n01.jpg,-1\n02.jpg,-1\n03.jpg,-1\n",
        "image,cat\n00.jpg,1\n01.jpg,\n02.jpg,\n03.jpg,\n",
        {"unknown": [3, 4, 5]},
    ),
    "columns of one class share the first": (
        "image,Dog,cat,dog\n00.jpg,1,1,\n01.jpg,,0,1\n02.jpg,,,1\n03.jpg,0,,1\n",
        "image,dog,cat\n00.jpg,1,1\n01.jpg,1,0\n02.jpg,1,\n03.jpg,,\n",
        {"classes": [1], "unknown": [5]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_read_is_left_out_merged_or_unknown_each_with_its_line(folder: Path, case: str) -> None:
    text, expected, changes = CASES[case]
    (folder / "image.jpg").write_bytes((folder / "00.jpg").read_bytes())
    fixed = fix(text, ignore_columns=["notes"] if "split,cat" in text else [])
    assert clean() == expected
    kinds = {change.kind for change in fixed.changes}
    assert {kind: lines(fixed, kind) for kind in kinds - {"copies"}} == changes
    with Path("clean.changes.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["line", "kind", "change"] and len(rows) == 1 + len(fixed.changes)
    assert fixed.to_json()["images"] == sum(map(len, fixed.data.splits))


def test_variants_of_case_become_the_most_frequent_and_a_misspelling_is_only_proposed(folder: Path) -> None:
    lists = ["person;Dog", "person; dog", "person;dog", "person", "person", "preson;DOG"]
    rows = [f"{number:02d}.jpg,{tags}" for number, tags in enumerate(lists)]
    text = "\n".join(["image,present", *rows]) + "\n"
    fixed = fix(text)
    assert [line.partition(",")[2] for line in clean().splitlines()[1:]] == [
        "person;dog", "person; dog", "person;dog", "person", "person", "preson;dog",
    ]  # fmt: skip
    assert lines(fixed, "classes") == [2, 7]
    assert [str(each).partition("--rename ")[2] for each in fixed.proposals] == ["preson=person"]
    renamed = fix(text, force=True, rename={"preson": "person"})
    assert not renamed.proposals and clean().endswith("05.jpg,person;dog\n")
    assert lines(renamed, "classes") == [2, 7, 7]
    with pytest.raises(UnknownNameError, match="'pesron'"):
        fix(text, force=True, rename={"pesron": "person"})
    with pytest.raises(InputError, match="several"):
        fix(text, force=True, rename={"preson": "a;b"})


def test_lists_that_contradict_each_other_name_the_class_in_neither_list(folder: Path) -> None:
    text = "image,present,absent\n00.jpg,cat|dog,owl\n00.jpg,owl|bat,cow\n01.jpg,cat,cat|dog\n02.jpg,owl,\n"
    fixed = fix(text)
    assert clean() == "image,present,absent\n00.jpg,cat|dog|bat,cow\n01.jpg,,dog\n02.jpg,owl,\n"
    assert lines(fixed, "unknown") == [3, 4]
    with pytest.raises(ProblemsError, match="--fix") as caught:
        fix(text, "other.csv", unlisted="absent")
    assert [problem.line for problem in caught.value.problems] == [2, 4] and not Path("other.csv").exists()


def test_copies_are_named_and_leave_train_where_they_are_in_test(folder: Path) -> None:
    for name in ("copy.jpg", "again.jpg"):
        Path(name).write_bytes(Path("01.jpg").read_bytes())
    fixed = fix("image,cat\n00.jpg,1\n01.jpg,1\ncopy.jpg,0\nagain.jpg,1\n")
    assert lines(fixed, "copies") == [4, 5]
    assert clean() == Path("tags.csv").read_text(), "they are only named"
    text = "image,split,cat\n00.jpg,train,1\n01.jpg,train,1\ncopy.jpg,test,0\nagain.jpg,val,1\n02.jpg,val,0\n"
    fixed = fix(text, force=True)
    assert lines(fixed, "left_out") == [3, 5]
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
    columns: dict[str, Any] = {"image": names, "split": ["train", "train", "Train", "train", "val"]}
    columns |= {"cat": [True, True, None, None, False], "dog": pa.array([None, 1, 0, 1, 1], pa.int8())}
    columns |= {"Dog": pa.array([None, None, 1.0, None, None], pa.float32()), "size": [1, 2, 3, 4, 5]}
    wide = pa.table(columns)
    pq.write_table(wide, "wide.parquet")
    fixed = clean_table("wide.parquet", "clean.parquet", ignore_columns=["size"])
    assert lines(fixed, "left_out") == [2] and fixed.unit == "row"
    written = pq.read_table("clean.parquet")
    assert written.schema == wide.drop_columns(["Dog"]).schema
    expected: dict[str, Any] = {"image": ["00.jpg", "01.jpg", "02.jpg"], "split": ["train", "train", "val"]}
    expected |= {"cat": [True, None, False], "dog": [1, None, 1], "size": [1, 3, 5]}
    assert written.to_pydict() == expected
    Path("lists.csv").write_text("image,present\n00.jpg,Cat\n01.jpg,cat;dog\n02.jpg,cat\n")
    load("csv", "lists.csv").train.labels.to_parquet("lists.parquet")
    clean_table("lists.parquet", "clean-lists.parquet")
    assert "Cat" not in load("clean-lists.parquet").classes


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("image,cat\n00.jpg,1\n01.jpg\n02.jpg\n", "most"),
        ("image,split,cat\n00.jpg,1,1\n01.jpg,2,1\n02.jpg,train,1\n", "most"),
        ("image,cat\nx.jpg,1\ny.jpg,0\n", "None"),
        ("Datei,cat\n00.jpg,1\n01.jpg,yep\n02.jpg,1\n", "2 problems"),
        ('image,cat\n00.jpg,1\n"01.jpg,1\n02.jpg,0\n', "quote"),
        ("image,group,split,cat\n00.jpg,a,train,1\n01.jpg,a,test,0\n", "group"),
        ("image,Schlagworte\n00.jpg,a;b\n01.jpg,c\n", "'a;b' under Schlagworte"),
    ],
)
def test_what_needs_a_decision_is_refused_and_nothing_is_written(folder: Path, text: str, named: str) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(InputError, match=named):
        fix(text)
    assert sorted(folder.iterdir()) == sorted([*before, folder / "tags.csv"])


def test_neither_the_original_nor_an_existing_file_is_replaced(folder: Path) -> None:
    text = "image,cat\n00.jpg,1\ngone.jpg,0\n"
    fix(text)
    Path("link.csv").symlink_to("tags.csv")
    cases = (("clean.csv", False, r"clean\.csv .* --force"), ("tags.csv", True, "data"), ("link.csv", True, "data"))
    more = (("clean.parquet", False, r"\.csv or \.tsv"), ("nowhere/clean.csv", False, "folder"))
    for out, force, named in (*cases, *more):
        with pytest.raises(InputError, match=named):
            fix(text, out, force=force)
    Path("clean.csv").unlink()
    with pytest.raises(InputError, match=r"clean\.changes\.csv"):
        fix(text)
    assert Path("tags.csv").read_text() == text


@pytest.mark.parametrize("seed", range(6))
def test_a_clean_table_is_read_as_it_was_understood_and_needs_no_further_change(folder: Path, seed: int) -> None:
    random = Random(seed)
    names = [f"{number:02d}.jpg" for number in range(6)] * 4
    names += ["./01.jpg", "02", "gone.jpg", "broken.jpg", "", "b\n.jpg"]
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
    ignored = ["remarks"] if seed % 3 == 1 else []
    fixed = clean_table("tags.csv", "clean.csv", ignore_columns=ignored)
    data = load("csv", "clean.csv", ignore_columns=ignored)
    assert [split.labels for split in data.splits] == [split.labels for split in fixed.data.splits]
    again = clean_table("clean.csv", "again.csv", ignore_columns=ignored)
    assert not again.changes and Path("again.csv").read_bytes() == Path("clean.csv").read_bytes()


def test_only_tables_can_be_fixed(folder: Path) -> None:
    for tag in ("cat", "dog"):
        write_small_photos(folder / "sorted" / tag, 1)
    with pytest.raises(InputError, match="folder"):
        clean_table("sorted", "clean.csv")
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        clean_table("none.csv", "clean.csv")
    with pytest.raises(UnknownNameError, match="'ignore_columns'"):
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
    assert lines(fix(text), "left_out") == [6, 7, 8, 9, 11]
    fixed = fix(text, "taken.csv", accept_suggestions=True)
    assert lines(fixed, "images") == [6]
    assert lines(fixed, "left_out") == [7, 8, 9, 11], "two files, two names, or a file that is listed"
    assert Path("taken.csv").read_text().splitlines()[5:] == ["lighthouse.jpg,1", "cathedral.jpg,0"]
    assert "lighthouse.jpg" in fixed.data.train.labels.images
    (folder / "lighthouse.jpg").write_bytes(b"")
    fixed = fix(text, "empty.csv", accept_suggestions=True)
    assert lines(fixed, "left_out") == [6, 7, 8, 9, 11] and not lines(fixed, "images")


def test_blanks_at_the_end_of_cells_are_removed_and_told(folder: Path) -> None:
    fixed = fix('image,cat ,dog\n00.jpg ,1,0\n01.jpg,"1 ",0\n02.jpg, 1,0\n03.jpg,0,1\n')
    assert clean() == "image,cat,dog\n00.jpg,1,0\n01.jpg,1,0\n02.jpg, 1,0\n03.jpg,0,1\n"
    assert lines(fixed, "blanks") == [1, 2, 3] and len(fixed.changes) == 3
