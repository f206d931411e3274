from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io import TableFile, TableOptions, read_csv
from labelgap.labels.io.classes import similar_class_names
from labelgap.labels.io.dialect import parse_separator
from labelgap.labels.io.formats import open_csv
from labelgap.labels.io.layout import CellParser, TagLists
from labelgap.labels.io.rewrite import rewrite_table
from labelgap.labels.io.table_file import MAX_PROBLEMS, SimilarClasses


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "tags.csv"


def read(path: Path, content: str | bytes, **options: Any) -> TableFile:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_csv(path, TableOptions(**options))


def problems(path: Path, text: str, **options: Any) -> list[tuple[int, str]]:
    with pytest.raises(ProblemsError) as caught:
        read(path, text, **options)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def test_a_wide_table_has_a_column_per_class_and_blanks_are_unknown(csv: Path) -> None:
    file = read(csv, "image,cat,dog\na.jpg,1,0\nb.jpg,,1\nc.jpg,,\n")
    assert file.table.classes == ("cat", "dog")
    assert file.table.images == ("a.jpg", "b.jpg", "c.jpg")
    assert file.table.to_dense().tolist() == [[PRESENT, ABSENT], [UNKNOWN, PRESENT], [UNKNOWN, UNKNOWN]]
    assert file.lines.tolist() == [2, 3, 4]
    assert (file.path, file.splits, file.groups) == (csv, None, None)
    assert sentences(file) == ("a column per tag; 1 = present, 0 = absent, blank = unknown",)
    assert LabelTable.from_csv(csv) == file.table
    for newline in ("\n", "\r\n", "\r"):
        again = read(csv, "\ufeff" + newline.join(["image,cat", "a.jpg,1", "b.jpg,0", ""]))
        assert again.table.to_dense().tolist() == [[1], [0]] and again.lines.tolist() == [2, 3]


def test_a_table_of_lists_names_what_is_there_and_what_is_not(csv: Path) -> None:
    file = read(csv, "image,present,absent\na.jpg,cat; owl,dog\nb.jpg,,\nc.jpg,dog;dog,;\n")
    assert file.table.classes == ("cat", "dog", "owl")
    assert file.table.to_dense().tolist() == [[1, 0, 1], [-1, -1, -1], [-1, 1, -1]]
    assert sentences(file) == ("lists of tags; a tag that is not listed is unknown",)
    file = read(csv, "image,present\na.jpg,cat\nb.jpg,dog;owl\nc.jpg,\n", unlisted="absent")
    assert file.table.to_dense().tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert sentences(file) == ("lists of tags; a tag that is not listed is absent",)


def test_columns_stand_in_any_order_and_blank_lines_are_counted(csv: Path) -> None:
    file = read(csv, "cat,Split,IMAGE,dog,Group\n1,Train,a.jpg,,g1\n,test,b.jpg,0,\n")
    assert file.table.classes == ("cat", "dog")
    assert file.table.images == ("a.jpg", "b.jpg")
    assert (file.splits, file.groups) == (("train", "test"), ("g1", ""))
    assert read(csv, "image,split,path,subset\na.jpg,train,1,0\n").table.classes == ("path", "subset")
    assert read(csv, "image,subset\na.jpg,1\n", rename={"subset": "Subset"}).table.classes == ("Subset",)
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
    for header, name in (("image,cat,,dog", "3"), ("image,cat,dog,cat", "'cat'"), ("image,Image,cat,dog", "'Image'")):
        line, message = problems(csv, f"\n{header}\na.jpg,1,1,1\n")[0]
        assert line == 2 and name in message
    with pytest.raises(ProblemsError) as caught:
        read(csv, "image,cat,Cat\na.jpg,1,x1\n")
    assert "'Cat'" in caught.value.__notes__[0], "they may be one class"


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
def test_a_quote_or_a_cell_without_end_is_one_problem(csv: Path, text: str, line: int, named: str) -> None:
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
    with pytest.raises(InputError, match="CSV"):
        LabelTable.from_dense([[1]], ["cat"], [name]).to_csv(csv)


def test_names_that_begin_as_formulas_are_written_with_an_apostrophe_and_read_without(csv: Path) -> None:
    names = ["=1+1", "'=1", "'tis", "-5", "-a", "@x", "+", "dog"]
    table = LabelTable.from_dense([[1] * 8, [0] * 8], names, ["=cmd|' /C calc'!A0.jpg", "'a.jpg"])
    table.to_csv(csv)
    header, first, second = csv.read_text(encoding="utf-8").splitlines()
    assert header == "image,'=1+1,''=1,'tis,-5,'-a,'@x,'+,dog"
    assert first.startswith("'=cmd|' /C calc'!A0.jpg,") and second.startswith("'a.jpg,")
    assert LabelTable.from_csv(csv) == table


WIDTH = "image,width,cat,dog\na.jpg,640,1,0\nb.jpg,512,,1\n"
PRESENT_OF_A = "image,present\nx.jpg,a\n"
NOT_UTF_8 = b"image,cat\n" + "é.jpg,1\n".encode() * 9000 + "caf\u00e9.jpg,1\n".encode("latin-1")
REFUSED: list[tuple[str | bytes, dict[str, Any], str]] = [
    *((text, {}, "tags.csv") for text in ("", "\n ,\n", "image,cat\n", "image,present\n\n")),
    ("a.jpg,1,0\nb.jpg,0,1\n", {}, "line 1: there is no header, since 'a.jpg'"),
    ("a.JPG,dog\nb.jpg,cat;dog\n", {}, "line 1: there is no header, since 'a.JPG'"),
    ("image,cat\na.jpg,1\n", {"unlisted": "absent"}, "--zeros"),
    ("image,cat\na.jpg,1\n", {"zeros": "present"}, "zeros='present'"),
    (PRESENT_OF_A, {"zeros": "unknown"}, "--unlisted"),
    (PRESENT_OF_A, {"unlisted": ""}, "unlisted=''"),
    (WIDTH, {"ignore_columns": ("widht",)}, "'width'"),
    (WIDTH, {"classes": ("dogs", "cat")}, "'dog'"),
    (WIDTH, {"classes": "dog"}, "list of names"),
    (WIDTH, {"classes": ("dog", "dog")}, "once"),
    ("image,dog,Dog\na.jpg,1,\n", {"rename": {"dgo": "Dog"}}, "'dgo'"),
    (NOT_UTF_8, {}, "tags.csv, line 9002"),
    (b"\xef\xbb\xbf" + NOT_UTF_8, {}, "tags.csv, line 9002"),
    (b"image,cat\na.jpg,1\n\x81.jpg,1\n", {}, "line 3"),
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", {}, "line 3"),
    (b"PK\x03\x04\x14\0" + bytes(100), {}, "tags.csv is an Excel file"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100), {}, "tags.csv is an Excel file"),
    (PRESENT_OF_A, {"aliases": "a,b\nb,a\n"}, "cycle"),
    (PRESENT_OF_A, {"aliases": "a,b\na,c\n"}, "'a' stands for 'b' and for 'c'"),
    (PRESENT_OF_A, {"aliases": "a,b,c\n"}, "line 1"),
    (PRESENT_OF_A, {"aliases": "a,\n"}, "line 1"),
    (PRESENT_OF_A, {"aliases": Path("none.csv")}, "none.csv"),
]


@pytest.mark.parametrize(("content", "options", "named"), REFUSED)
def test_what_is_no_table_is_refused(csv: Path, content: str | bytes, options: dict[str, Any], named: str) -> None:
    if isinstance(options.get("aliases"), str):
        csv.with_name("aliases.csv").write_text(options["aliases"])
        options = {"aliases": csv.with_name("aliases.csv")}
    with pytest.raises(InputError) as caught:
        read(csv, content, **options)
    assert named in str(caught.value)


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
def test_a_header_without_images_hides_no_other_problem(csv: Path, text: str, lines: list[int], column: str) -> None:
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


@pytest.mark.parametrize("name", [" cat", "cat\n", "", "\u3000", "image", "Split", "group", "PRESENT", "subset"])
def test_a_name_that_would_be_read_differently_is_not_written(csv: Path, name: str) -> None:
    with pytest.raises(InputError, match="class"):
        LabelTable.from_dense([[1]], classes=[name]).to_csv(csv)
    if name != name.strip() or not name:
        with pytest.raises(InputError, match="image"):
            LabelTable.from_dense([[1]], images=[name]).to_csv(csv)
    for splits, named in ((["train"] * 3, "3 splits"), (["val", "trian"], "'trian'")):
        with pytest.raises(InputError, match=named):
            LabelTable.from_dense([[1], [0]]).to_csv(csv, splits=splits)
    assert not csv.exists()


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-8", ""), ("utf-8-sig", ""), ("cp1252", "cp1252"), ("utf-16", "utf-16")]
)
def test_the_encoding_is_guessed_and_said_where_it_is_not_utf_8(csv: Path, encoding: str, said: str) -> None:
    file = read(csv, "image,présent\na.jpg,1\nb.jpg,\n".encode(encoding))
    assert file.table.classes == ("présent",)
    assert sentences(file)[1:] == ((f"text in {said} (--encoding says otherwise)",) if said else ())


def test_an_encoding_that_is_given_is_not_guessed(csv: Path) -> None:
    csv.write_bytes("image,čeština\na.jpg,1\n".encode("iso8859-2"))
    assert read_csv(csv, encoding="latin2").table.classes == ("čeština",)
    assert read_csv(csv).table.classes != ("čeština",)
    for encoding, named in (("klingon", "'klingon'"), ("base64", "'base64'"), ("ascii", "line 1: ")):
        with pytest.raises(InputError, match=named):
            read_csv(csv, encoding=encoding)


def test_other_delimiters_of_cells_and_tags_are_understood(csv: Path) -> None:
    file = read(csv, "sep=;\r\nimage;cat\r\na.jpg;1\r\nb.jpg;what\r\n".replace("what", "0"))
    assert file.table.classes == ("cat",) and file.lines.tolist() == [3, 4]
    file = read(csv, "image;present\na.jpg;cat,dog\nb.jpg;owl\n")
    assert file.table.classes == ("cat", "dog", "owl")
    assert sentences(file)[1:] == (
        "comma between tags, as it seems (--separator says otherwise)",
        "semicolon between cells (--delimiter says otherwise)",
    )
    assert read(csv, "image;present\na.jpg;cat,dog\n", separator="/").table.classes == ("cat,dog",)


def test_columns_are_left_out_by_name_or_because_others_were_asked_for(csv: Path) -> None:
    file = read(csv, WIDTH, ignore_columns=("width",))
    assert file.table.classes == ("cat", "dog") and sentences(file)[-1] == "columns left out: width"
    file = read(csv, WIDTH, classes=("dog", "cat"))
    assert file.table.classes == ("dog", "cat") and file.table.to_dense().tolist() == [[0, 1], [1, -1]]
    assert sentences(file)[-1] == "columns left out: width"


def test_a_column_that_is_no_tag_is_one_problem_with_its_way_out(csv: Path) -> None:
    rows = "".join(f"{row}.jpg,{600 + row},1\n" for row in range(30))
    ((line, message),) = problems(csv, "image,width,cat\n" + rows)
    assert line == 1
    assert all(each in message for each in ("'600' in line 2 and 29 more", "--ignore-columns width", "width=present"))
    found = problems(csv, "image,note,cat,dog\na.jpg,near,1,-1\nb.jpg,far,,-1\nc.jpg,far,0,-1\nd.jpg,,1,1x\n")
    for (line, message), name, cells in zip(
        found, ("dog", "note"), ("'-1' in line 2 and 3", "'near' in line 2 and 2"), strict=True
    ):
        assert line == 1 and f"'{name}'" in message and cells in message
    ((_, message),) = problems(csv, "image,cat,dog\na.jpg,1,-1\nb.jpg,,-1\nc.jpg,0,-1\n")
    assert "'-1' in line 2 and 2 more under dog: " in message and "--zeros" not in message


def test_tags_of_one_name_become_one(csv: Path) -> None:
    text = "image,dog,Dog,cat\na.jpg,1,,0\nb.jpg,,0,1\nc.jpg,1,1,\n"
    file = read(csv, text, rename={"dog": "Dog"})
    assert file.table.classes == ("Dog", "cat")
    assert file.table.to_dense().tolist() == [[1, 0], [0, 1], [1, -1]]
    assert sentences(file)[1] == "renamed: dog = Dog"
    found = problems(csv, "image,dog,Dog\na.jpg,1,1\nb.jpg,1,0\nc.jpg,0,1\n", rename={"dog": "Dog"})
    assert [line for line, message in found if "'Dog'" in message] == [3, 4], "it contradicts itself"


def test_tags_that_look_like_one_are_listed_with_the_option_that_makes_them_one(csv: Path) -> None:
    file = read(csv, "image,dog,Dog,hot dog,hot_dog,bus\na.jpg,1,,1,,1\nb.jpg,,1,1,,1\nc.jpg,,1,,1,1\n")
    assert sentences(file)[-2:] == (
        "'Dog' (2) and 'dog' (1) look like one tag: --rename dog=Dog",
        "'hot dog' (2) and 'hot_dog' (1) look like one tag: --rename 'hot_dog=hot dog'",
    )
    merged = read_csv(csv, TableOptions(rename={"dog": "Dog", "hot_dog": "hot dog"}))
    assert merged.table.classes == ("Dog", "hot dog", "bus") and "look like" not in " ".join(sentences(merged))


def test_synonyms_come_from_a_file_with_or_without_a_header(csv: Path) -> None:
    aliases = csv.with_name("aliases.csv")
    for head in ("", "synonym;tag\n"):
        aliases.write_text(f"{head}puppy;dog\nhound;puppy\nkitten;cat\n")
        file = read(csv, "image,present\na.jpg,puppy;owl\nb.jpg,hound\nc.jpg,cat\n", aliases=aliases)
        assert file.table.classes == ("cat", "dog", "owl")
        assert file.table.to_dense().tolist() == [[-1, 1, 1], [-1, 1, -1], [1, -1, -1]]
    file = read(csv, "image,puppy,cat\na.jpg,1,0\n", aliases=aliases, classes=("dog",))
    assert file.table.classes == ("dog",) and file.table.to_dense().tolist() == [[1]]


def test_parents_follow_from_children_and_are_kept_as_revisions(csv: Path) -> None:
    parents = csv.with_name("parents.csv")
    parents.write_text("child,parent\ndog,canine\ncanine,animal\nowl,animal\nwolf,animal\n")
    file = read(csv, "image,animal,dog,owl\na.jpg,,1,\nb.jpg,0,,1\nc.jpg,,0,\n", parents=parents)
    assert file.table.to_dense().tolist() == [[1, 1, -1], [0, -1, 1], [-1, 0, -1]]
    ((only),) = file.revisions
    assert (only.image, only.class_name, only.value, only.source, only.epoch) == ("a.jpg", "animal", 1, "parents", None)
    assert sentences(file)[-1] == (
        "parents add 1 present label; 1 label says absent where a child is present, and stays; "
        "no tags here: canine, wolf"
    )


ROWS = "a.jpg,1,0\nb.jpg,0,1\n"
TABLE = f"image,dog,cat\n{ROWS}"
CODES = [[PRESENT, ABSENT], [ABSENT, PRESENT]]


@pytest.mark.parametrize(
    ("before", "count"),
    [("# exported on May 5, 2024\n", "1 line"), ("My photos,,\n\n", "2 lines"), ("Photos of 2024\r\n", "1 line")],
)
def test_titles_and_comments_before_the_header_are_left_out_and_said(csv: Path, before: str, count: str) -> None:
    file = read(csv, before + TABLE)
    assert file.table.classes == ("dog", "cat") and file.table.to_dense().tolist() == CODES
    assert f"{count} before the header {'is' if count == '1 line' else 'are'} left out" in " / ".join(sentences(file))
    first = 2 + before.count("\n")
    assert file.lines.tolist() == [first, first + 1]
    rewrite_table(open_csv(csv, TableOptions()), csv.with_name("new.csv"), {"b.jpg": {"dog": PRESENT}}, TableOptions())
    assert csv.with_name("new.csv").read_bytes().decode() == before + TABLE.replace("b.jpg,0", "b.jpg,1")


@pytest.mark.parametrize(
    "text",
    ["image;tags\na.jpg;file,photo\nb.jpg;dog\n", "image\tdog\na.jpg\t1\n", "file,tags\nimage,cat\nb.jpg,photo\n"],
)
def test_a_row_that_looks_like_a_header_does_not_become_one(csv: Path, text: str) -> None:
    file = read(csv, text)
    assert "before the header" not in " / ".join(sentences(file)) and file.lines[0] == 2


def test_a_header_in_between_is_left_out_and_copied(csv: Path) -> None:
    file = read(csv, TABLE + "image,dog,cat\nc.jpg,1,1\n")
    assert file.table.images == ("a.jpg", "b.jpg", "c.jpg") and file.lines.tolist() == [2, 3, 5]
    assert "the header is repeated in line 4: left out" in " / ".join(sentences(file))
    changes = {"c.jpg": {"owl": PRESENT}}
    rewrite_table(open_csv(csv, TableOptions()), csv.with_name("new.csv"), changes, TableOptions(), added=["owl"])
    again = read_csv(csv.with_name("new.csv"))
    assert again.table.classes == ("dog", "cat", "owl") and again.table.to_dense()[2].tolist() == [1, 1, 1]


def test_a_column_without_a_name_is_left_out_where_it_can_be_no_tag(csv: Path) -> None:
    for text in (",image,dog\n1,a.jpg,1\n2,b.jpg,0\n3,c.jpg,\n", "image,dog,\na.jpg,1,\nb.jpg,0,\n"):
        file = read(csv, text)
        assert file.table.classes == ("dog",)
        assert f"columns left out: column {1 if text[0] == ',' else 3}" in " / ".join(sentences(file))
    assert "column 3" in problems(csv, "image,dog,\na.jpg,1,1\nb.jpg,0,0\n")[0][1]


def test_a_row_per_tag_with_a_state_is_told_how_to_become_a_table(csv: Path) -> None:
    rows = "".join(f"{number}.jpg,{tag},{number % 2}\n" for number in range(9) for tag in ("dog", "cat"))
    with pytest.raises(ProblemsError, match=r"pivot\(index='image', columns='label'") as told:
        read(csv, f"image,label,value\n{rows}")
    assert not told.value.fixable, "a clean copy would merge the states of all tags"


def test_columns_that_are_no_tags_or_lists_without_quotes_are_told(csv: Path) -> None:
    rows = "".join(f"{number},IMG_{number}.jpg,1\n" for number in range(12))
    assert "--ignore-columns image --rename filename=image" in problems(csv, f"image,filename,dog\n{rows}")[0][1]
    options = TableOptions(ignore_columns=["image"], rename={"filename": "image"})
    assert read_csv(csv, options).table.images[0] == "IMG_0.jpg"
    ((line, message),) = problems(csv, "image,tags\na.jpg,dog,cat\nb.jpg,dog\n")
    assert line == 2 and "quotes" in message


def test_blanks_between_tags_look_wrong_where_every_word_is_a_tag(csv: Path) -> None:
    text = "image,tags\na.jpg,dog cat\nb.jpg,dog\nc.jpg,cat\nd.jpg,polar bear\n"
    (warning,) = (str(each) for each in read(csv, text).findings if each.warning)
    assert warning == "'dog cat': each word of it is a tag, too. --separator space if these are lists"
    assert read(csv, text, separator="space").table.classes == ("bear", "cat", "dog", "polar")
    assert not any(each.warning for each in read(csv, text, separator=";").findings)


def test_a_row_per_tag_is_told_that_a_clean_copy_merges_the_rows(csv: Path) -> None:
    rows = "".join(f"{image}.jpg,{tag}\n" for image in "ab" for tag in ("dog", "cat"))
    with pytest.raises(ProblemsError, match="--fix") as told:
        read(csv, f"image,label\n{rows}")
    assert [each.line for each in told.value.problems] == [3] and told.value.fixable
    assert [line for line, _ in problems(csv, f"image,label\n{rows},dog\n")] == [3, 6], "other problems stay"
    found = problems(csv, "image,present,absent\na.jpg,dog,\na.jpg,,dog\nb.jpg,cat,\nb.jpg,dog,\n")
    assert ["--fix" in message for _, message in found] == [True, False] and "'dog' contradicts" in found[0][1]
    assert not any("--fix" in message for _, message in problems(csv, f"image,label\n{rows}c.jpg,dog;cat\n"))


CELLS = {
    PRESENT: ["1", "1.0", "1.00", "1,0", "TRUE", "true", "True", "yes", "Y", "x", "X", "t", "present", "✓"],
    ABSENT: ["0", "0.0", "0,00", "FALSE", "false", "no", "N", "f", "Absent"],
    UNKNOWN: ["", "NA", "n/a", "NaN", "null", "None", "?", "unknown", "#N/A", "<NA>"],
    None: ["-1", "2", "10", "01", "0.5", "1.01", "-", "dog", "¹", "yes!", "xx", "1 ", "inf"],
}


@pytest.mark.parametrize("state", CELLS)
def test_each_state_has_many_words_and_nothing_else_is_one(state: int | None) -> None:
    assert {CellParser().code(cell) for cell in CELLS[state]} == {state}
    assert {CellParser(UNKNOWN).code(cell) for cell in CELLS[state]} == {UNKNOWN if state == ABSENT else state}


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["cat;dog", "owl"], ";"),
        (["cat|dog", "owl"], "|"),
        (["cat, dog", "owl"], ","),
        (["big cat", "owl"], ";"),
        (["a,b;c", "d|e"], ";"),
        (["cat,", "owl"], ";"),
    ],
)
def test_the_separator_is_guessed_from_all_cells(cells: list[str], separator: str) -> None:
    assert TagLists(None, cells).separator == separator


def test_lists_as_python_and_json_write_them_are_unpacked() -> None:
    lists = TagLists(None, ["['cat', 'big dog']", '["owl"]', "[]", ""])
    names = [lists.names(cell) for cell in ("['cat', 'big dog']", '["owl"]', "[]", "")]
    assert names == [["cat", "big dog"], ["owl"], [], []]
    assert "['a', 'b']" in str(lists.findings()[0])
    assert TagLists(None, ["['a', b]"]).names("['a', b]") == ["['a'", "b]"] and not TagLists(None, ["[{}]"]).bracketed
    assert TagLists(",").names("['cat', 'dog']") == ["['cat'", "'dog']"]


@pytest.mark.parametrize(
    ("text", "option"), [("", "separator"), (";;", "delimiter"), ("\n", "separator"), ('"', "delimiter")]
)
def test_a_mark_that_cannot_separate_is_refused(text: str, option: str) -> None:
    with pytest.raises(InputError, match=f"{option}="):
        parse_separator(text, option)


@pytest.mark.parametrize(
    ("rare", "frequent", "similar"),
    [
        ("tabl", "table", True),
        ("hors", "horse", True),
        ("!!!", "???", False),
        ("dgo", "dog", True),
        ("tabel", "table", True),
        ("at", "cat", False),
        ("dog", "cat", False),
    ],
)
def test_a_name_that_occurs_once_and_is_a_letter_from_another_is_questioned(
    rare: str, frequent: str, similar: bool
) -> None:
    names = [frequent, rare]
    once = LabelTable.from_dense(np.array([[1, 0], [1, 0], [0, 1]]), names)
    twice = LabelTable.from_dense(np.array([[1, 0], [1, 0], [1, 1], [0, 1]]), names)
    each_once = LabelTable.from_dense(np.array([[1, 0], [0, 1]]), names)
    expected = [SimilarClasses(((frequent, 2), (rare, 1)))] if similar else []
    assert [similar_class_names(table) for table in (once, twice, each_once)] == [expected, [], []]
