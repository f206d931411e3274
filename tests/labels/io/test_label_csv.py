from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io.formats import read_csv
from labelgap.labels.io.table_file import MAX_PROBLEMS, TableFile, TableOptions


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "tags.csv"


def read(path: Path, text: str, zeros: str = "absent", unlisted: str = "unknown") -> TableFile:
    path.write_text(text, encoding="utf-8", newline="")
    return read_csv(path, TableOptions(zeros=zeros, unlisted=unlisted))


def problems(path: Path, text: str) -> list[tuple[int, str]]:
    with pytest.raises(ProblemsError) as caught:
        read(path, text)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def refusal(path: Path, text: str, zeros: str = "absent", unlisted: str = "unknown") -> str:
    with pytest.raises(InputError) as caught:
        read(path, text, zeros, unlisted)
    assert not isinstance(caught.value, ProblemsError)
    return str(caught.value).replace(str(path), "tags.csv")


def test_a_wide_table_has_a_column_per_class_and_blanks_are_unknown(csv: Path) -> None:
    file = read(csv, "image,cat,dog\na.jpg,1,0\nb.jpg,,1\nc.jpg,,\n")
    assert file.table.classes == ("cat", "dog")
    assert file.table.images == ("a.jpg", "b.jpg", "c.jpg")
    assert file.table.to_dense().tolist() == [[PRESENT, ABSENT], [UNKNOWN, PRESENT], [UNKNOWN, UNKNOWN]]
    assert file.lines.tolist() == [2, 3, 4]
    assert (file.path, file.splits, file.groups) == (csv, None, None)
    assert sentences(file) == ("a column per tag; 1 = present, 0 = absent, blank = unknown",)
    assert LabelTable.from_csv(csv) == file.table


def test_a_table_of_lists_names_what_is_there_and_what_is_not(csv: Path) -> None:
    file = read(csv, "image,present,absent\na.jpg,cat; owl,dog\nb.jpg,,\nc.jpg,dog;dog,;\n")
    assert file.table.classes == ("cat", "dog", "owl")
    assert file.table.to_dense().tolist() == [[1, 0, 1], [-1, -1, -1], [-1, 1, -1]]
    assert sentences(file) == ("lists of tags; a tag that is not listed is unknown",)


def test_unlisted_classes_are_absent_when_told_so(csv: Path) -> None:
    file = read(csv, "image,present\na.jpg,cat\nb.jpg,dog;owl\nc.jpg,\n", unlisted="absent")
    assert file.table.to_dense().tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert sentences(file) == ("lists of tags; a tag that is not listed is absent",)


def test_columns_stand_in_any_order_and_their_meaning_in_any_case(csv: Path) -> None:
    file = read(csv, "cat,Split,IMAGE,dog,Group\n1,Train,a.jpg,,g1\n,test,b.jpg,0,\n")
    assert file.table.classes == ("cat", "dog")
    assert file.table.images == ("a.jpg", "b.jpg")
    assert file.splits == ("train", "test")
    assert file.groups == ("g1", "")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_and_a_byte_order_mark_are_read(csv: Path, newline: str) -> None:
    file = read(csv, "\ufeff" + newline.join(["image,cat", "a.jpg,1", "b.jpg,0", ""]))
    assert file.table.to_dense().tolist() == [[1], [0]]
    assert file.lines.tolist() == [2, 3]


def test_blank_lines_are_passed_over_and_still_counted(csv: Path) -> None:
    file = read(csv, '\n\nimage,"c\nat"\n\nb.jpg,1\n , \nc.jpg,0\n')
    assert file.table.images == ("b.jpg", "c.jpg") and file.table.classes == ("c\nat",)
    assert file.lines.tolist() == [6, 8]


WIDE = """image,split,cat,dog
a.jpg,train,1,dgo
b.jpg,tran,,
a.jpg,val,yep,
,test,1,da
d.jpg,test
e.jpg,"",0,1
f.jpg,Trian,2,-1
g.jpg,test,1,0,1
"h.jpg"x,test,1,0
"i
j.jpg",test,1,!
"""


def test_every_problem_of_a_wide_table_is_told_with_its_line(csv: Path) -> None:
    found = problems(csv, WIDE)
    assert [line for line, _ in found] == [2, 3, 4, 4, 5, 5, 6, 7, 8, 8, 8, 9, 10, 11, 11]
    named = ["'dgo' under dog", "'train'", "'yep' under cat", "line 2", "'da' under dog", "no image", "2 cells", "''"]
    named += ["'-1' under dog", "'2' under cat", "'train'", "5 cells", "not a CSV row", "'!' under dog", r"'i\nj.jpg'"]
    assert all(name in message for name, (_, message) in zip(named, found, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "image,cat,dog,owl\na,1,0,\nb,1,1,1\nshort\na,0,,1\na,1,0,1\nb,0,0,1\n",
        "image,present,absent\na,cat,dog\nb,cat;dog;owl,\nshort\na,owl,cat\na,cat;owl,dog\nb,owl,cat;dog\n",
    ],
    ids=["wide", "lists"],
)
def test_an_image_that_is_listed_again_with_other_labels_contradicts_itself(csv: Path, text: str) -> None:
    assert problems(csv, text)[1:] == [
        (5, "a is listed again (first in line 2); 'cat' contradicts it"),
        (6, "a is listed again (first in line 2)"),
        (7, "b is listed again (first in line 3); 'cat' and 1 more tag contradict it"),
    ]


def test_every_problem_of_a_table_of_lists_is_told_with_its_line(csv: Path) -> None:
    text = "image,split,present,absent,toy\na.jpg,train,cat;dog,dog;cat,1\nb.jpg,trial,cat\na.jpg,val,cat,cat,\n"
    found = problems(csv, text)
    assert [line for line, _ in found] == [1, 2, 2, 3, 4, 4]
    named = ["'toy'", "'cat'", "'dog'", "3 cells", "'cat'", "line 2"]
    assert all(name in message for name, (_, message) in zip(named, found, strict=True))


def test_an_image_is_checked_once_and_only_if_it_has_a_name(csv: Path) -> None:
    asked: list[str] = []

    def check(name: str, line: int) -> str | None:
        asked.append(name)
        return None

    csv.write_text("image,cat\na.jpg,1\na.jpg,1\n,1\nb.jpg,0\n")
    with pytest.raises(ProblemsError):
        read_csv(csv, check_image=check)
    assert asked == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("image,cat,,dog", "column 3 has no name"),
        ("image,cat,dog,cat", "the column 'cat' is there twice"),
        ("image,Image,cat,dog", "the column 'Image' is there twice"),
    ],
)
def test_a_header_that_cannot_be_told_apart_is_a_problem_of_its_line(csv: Path, header: str, message: str) -> None:
    assert problems(csv, f"\n{header}\na.jpg,1,1,1\n")[0] == (2, message)


def test_problems_come_with_a_note_of_names_that_may_be_one_class(csv: Path) -> None:
    with pytest.raises(ProblemsError) as caught:
        read(csv, "image,cat,Cat\na.jpg,1,x1\n")
    assert "'Cat'" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ('image,cat\na.jpg,1\n"b.jpg,1\nc.jpg,0\n', 3, "never closed"),
        ('image,cat,dog\n"a.jpg","\n\n","0\n1\n', 4, "never closed"),
        ('image,cat\na.jpg,"1""\nc.jpg,""\n', 2, "never closed"),
        ('"image,cat\na.jpg,1\n', 1, "never closed"),
        ('image,cat\na.jpg,1\n"b.jpg,1\n' + "c.jpg,what\n" * 30_000, 3, "never closed"),
        ('image,cat\n"a.jpg","1\n"b.jpg","0"\n"c.jpg","1"\n', 2, "opened in line 2"),
        (f"image,cat\n{'a' * 200_000},1\n", 2, "131,072"),
        (f"image,cat\n{'a/' * 5_000},1\n", 2, "10,000"),
    ],
)
def test_a_quote_or_a_cell_without_end_is_one_problem_where_it_begins(
    csv: Path, text: str, line: int, named: str
) -> None:
    ((found, message),) = problems(csv, text)
    assert found == line and named in message


def test_a_file_of_problems_is_read_until_there_are_too_many(csv: Path) -> None:
    rows = [f"{number}.jpg" for number in range(MAX_PROBLEMS + 500)]
    found = problems(csv, "\n".join(["image,cat", *rows]))
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == (MAX_PROBLEMS + 1, "reading stopped here, after too many problems")


@pytest.mark.parametrize("name", ["a\n.jpg", "a\r.jpg", "a\r\n.jpg", "a\0.jpg"])
def test_a_line_break_or_a_nul_in_the_name_of_an_image_is_refused(csv: Path, name: str) -> None:
    blank = "\n" * 70_000  # a NUL at the start would be no text at all
    ((line, message),) = problems(csv, f'image,cat\nb.jpg,0\n{blank}"{name}",1\n')
    assert line == 70_003 and message == f"{name!r}: the name of an image has a line break or a NUL"
    with pytest.raises(InputError, match="a CSV cannot hold this image"):
        LabelTable.from_dense([[1]], ["cat"], [name]).to_csv(csv)


def test_names_that_begin_as_formulas_are_written_with_an_apostrophe_and_read_without(csv: Path) -> None:
    names = ["=1+1", "'=1", "'tis", "-5", "-a", "@x", "+", "dog"]
    table = LabelTable.from_dense([[1] * 8, [0] * 8], names, ["=cmd|' /C calc'!A0.jpg", "'a.jpg"])
    table.to_csv(csv)
    header, first, second = csv.read_text(encoding="utf-8").splitlines()
    assert header == "image,'=1+1,''=1,'tis,-5,'-a,'@x,'+,dog"
    assert first.startswith("'=cmd|' /C calc'!A0.jpg,") and second.startswith("'a.jpg,")
    assert LabelTable.from_csv(csv) == table


@pytest.mark.parametrize(
    "text",
    ["", "\n ,\n", "image,cat\n", "image,present\n\n", "image,cat\na.jpg,\nb.jpg,\n", "image,present\na.jpg,;\n"],
)
def test_a_file_without_a_table_is_refused_by_name(csv: Path, text: str) -> None:
    assert refusal(csv, text).startswith("tags.csv")


@pytest.mark.parametrize(
    ("text", "lines", "column"),
    [
        ("image\na.jpg\n", [1], "present"),
        ("image,split\na.jpg,vla\n", [1, 2], "present"),
        ("Images,cat\na.jpg,dgo\nb.jpg,1\nc.jpg\n", [1, 2, 4], "Images=image"),
        (
            "Id,split,cat,Bild\n1,train,1,a.jpg\n2,val,0,b.jpg\n3,val,1,a.jpg\n4,val,,\n",
            [1, 3, 4, 4, 5, 5],
            "Bild=image",
        ),
        ("name,cat,dog\nthe first,1,0\nthe second,1,0\n", [1], "NAME=image"),
        ("\nname,cat,cat\na.jpg,1,0\n", [2, 2], "name=image"),
        ("Datei,split,present\na.jpg,tset,cat\n", [1, 2], "Datei=image"),
        ("path,filename,cat\na.jpg,a.jpg,1\n", [1], "path=image"),
    ],
)
def test_a_header_without_images_or_classes_hides_no_other_problem(
    csv: Path, text: str, lines: list[int], column: str
) -> None:
    found = problems(csv, text)
    assert [line for line, _ in found] == lines and column in found[0][1]


@pytest.mark.parametrize("name", ["file", "File Name", "file_name", "PATH", "img", "photo"])
def test_other_names_of_the_image_and_split_columns_are_understood_and_said(csv: Path, name: str) -> None:
    file = read(csv, f"Subset;{name};cat\ntrain;a.jpg;1\ntest;b.jpg;0\n")
    assert (file.table.images, file.splits, file.table.classes) == (("a.jpg", "b.jpg"), ("train", "test"), ("cat",))
    assert {f"the column '{name}' is read as 'image'", "the column 'Subset' is read as 'split'"} <= {*sentences(file)}


@pytest.mark.parametrize("name", ["tags", "Labels", "keywords", "category"])
def test_a_column_of_names_is_the_list_of_present_classes(csv: Path, name: str) -> None:
    file = read(csv, f"image;{name};absent\na.jpg;cat, dog;\nb.jpg;;owl\nc.jpg;none;\n")
    assert file.table.classes == ("cat", "dog", "none", "owl")
    assert f"the column '{name}' is read as 'present'" in sentences(file)
    assert problems(csv, f"image,{name},who\na.jpg,cat,Ann\n")[0][1].startswith("'who' beside present")


def test_a_column_of_states_is_a_class_whatever_its_name(csv: Path) -> None:
    assert read(csv, "image,label\na.jpg,1\nb.jpg,NA\n").table.classes == ("label",)
    found = problems(csv, "image,cat,tags\na.jpg,1,x y\nb.jpg,0,z\n")
    assert [message.partition(":")[0] for _, message in found] == ["'x y' under tags", "'z' under tags"]
    assert read(csv, "image,tags,labels\na.jpg,1,0\n").table.classes == ("tags", "labels")


def test_other_names_are_classes_beside_the_real_columns_and_where_renamed(csv: Path) -> None:
    assert read(csv, "image,split,path,subset\na.jpg,train,1,0\n").table.classes == ("path", "subset")
    csv.write_text("image,subset\na.jpg,1\n")
    assert read_csv(csv, TableOptions(rename={"subset": "Subset"})).table.classes == ("Subset",)


def test_an_option_of_the_other_form_is_refused_with_the_right_one(csv: Path) -> None:
    wide, lists = "image,cat\na.jpg,1\n", "image,present\na.jpg,cat\n"
    assert refusal(csv, wide, unlisted="absent").endswith("a table with a column per class. See --zeros.")
    assert refusal(csv, lists, zeros="unknown").endswith("this has lists. See --unlisted.")
    assert refusal(csv, wide, zeros="present") == "zeros='present': it must be 'absent' or 'unknown'."
    assert refusal(csv, lists, unlisted="") == "unlisted='': it must be 'unknown' or 'absent'."


def test_what_is_no_text_file_is_refused(csv: Path) -> None:
    with pytest.raises(InputError, match=r"tags\.csv does not exist"):
        read_csv(csv)
    with pytest.raises(InputError, match="is a folder, not a CSV file"):
        read_csv(csv.parent)
    for start in (b"", b"\xef\xbb\xbf"):
        csv.write_bytes(start + b"image,cat\n" + "é.jpg,1\n".encode() * 9000 + "caf\u00e9.jpg,1\n".encode("latin-1"))
        with pytest.raises(InputError, match=r"tags\.csv, line 9002: not UTF-8 text. Save the table as 'CSV UTF-8'"):
            read_csv(csv)


def test_a_written_table_is_plain_to_read(csv: Path) -> None:
    table = LabelTable.from_dense([[1, 0], [-1, 1]], ["cat", 'a "dog", big'], ["a.jpg", "b,c.jpg"])
    table.to_csv(csv, splits=["train", "val"])
    assert csv.read_text() == 'image,split,cat,"a ""dog"", big"\na.jpg,train,1,0\n"b,c.jpg",val,,1\n'
    file = read_csv(csv)
    assert file.table == table
    assert file.splits == ("train", "val")


@pytest.mark.parametrize("name", [" cat", "cat\n", "", "\u3000", "image", "Split", "group", "PRESENT", "subset"])
def test_a_name_that_would_be_read_differently_is_not_written(csv: Path, name: str) -> None:
    with pytest.raises(InputError, match="a CSV cannot hold the class"):
        LabelTable.from_dense([[1]], classes=[name]).to_csv(csv)
    if name != name.strip() or not name:
        with pytest.raises(InputError, match="a CSV cannot hold the image"):
            LabelTable.from_dense([[1]], images=[name]).to_csv(csv)
    for splits, named in ((["train"] * 3, "3 splits"), (["val", "trian"], "'trian'")):
        with pytest.raises(InputError, match=named):
            LabelTable.from_dense([[1], [0]]).to_csv(csv, splits=splits)
    assert not csv.exists()
