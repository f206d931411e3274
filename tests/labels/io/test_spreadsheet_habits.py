"""What spreadsheets and people leave in a table: titles, repeated headers, numbers of rows, other words."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelgap.core.errors import InputError, ProblemsError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.labels.io import TableFile, TableOptions, read_csv
from labelgap.labels.io.formats import open_csv
from labelgap.labels.io.rewrite import rewrite_table

ROWS = "a.jpg,1,0\nb.jpg,0,1\n"
TABLE = f"image,dog,cat\n{ROWS}"
CODES = [[PRESENT, ABSENT], [ABSENT, PRESENT]]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "tags.csv"


def read(csv: Path, text: str, **options: str) -> TableFile:
    csv.write_bytes(text.encode())
    return read_csv(csv, TableOptions(**options))  # type: ignore[arg-type]


def said(file: TableFile) -> str:
    return " / ".join(map(str, file.findings))


@pytest.mark.parametrize(
    ("before", "count"),
    [("# exported on May 5, 2024\n", "1 line"), ("My photos,,\n\n", "2 lines"), ("Photos of 2024\r\n", "1 line")],
)
def test_titles_and_comments_before_the_header_are_left_out_and_said(csv: Path, before: str, count: str) -> None:
    file = read(csv, before + TABLE)
    assert file.table.classes == ("dog", "cat") and file.table.to_dense().tolist() == CODES
    assert f"{count} before the header {'is' if count == '1 line' else 'are'} left out" in said(file)
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
    assert "before the header" not in said(file) and file.lines[0] == 2


def test_a_header_in_between_is_left_out_and_copied(csv: Path) -> None:
    file = read(csv, TABLE + "image,dog,cat\nc.jpg,1,1\n")
    assert file.table.images == ("a.jpg", "b.jpg", "c.jpg") and file.lines.tolist() == [2, 3, 5]
    assert "the header is repeated in line 4: left out" in said(file)
    rewrite_table(
        open_csv(csv, TableOptions()),
        csv.with_name("new.csv"),
        {"c.jpg": {"owl": PRESENT}},
        TableOptions(),
        added=["owl"],
    )
    again = read_csv(csv.with_name("new.csv"))
    assert again.table.classes == ("dog", "cat", "owl") and again.table.to_dense()[2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("text", ["a.jpg,1,0\nb.jpg,0,1\n", "a.JPG,dog\nb.jpg,cat;dog\n"])
def test_a_table_without_a_header_is_not_read_with_an_image_less(csv: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"tags\.csv, line 1: there is no header, since 'a\.(jpg|JPG)' is an image"):
        read(csv, text)


def test_a_column_without_a_name_is_left_out_where_it_can_be_no_tag(csv: Path) -> None:
    for text in (",image,dog\n1,a.jpg,1\n2,b.jpg,0\n3,c.jpg,\n", "image,dog,\na.jpg,1,\nb.jpg,0,\n"):
        file = read(csv, text)
        assert file.table.classes == ("dog",)
        assert f"columns left out: column {1 if text[0] == ',' else 3}" in said(file)
    with pytest.raises(ProblemsError, match="column 3 has no name"):
        read(csv, "image,dog,\na.jpg,1,1\nb.jpg,0,0\n")


def test_a_row_per_tag_with_a_state_is_told_how_to_become_a_table(csv: Path) -> None:
    rows = "".join(f"{number}.jpg,{tag},{number % 2}\n" for number in range(9) for tag in ("dog", "cat"))
    with pytest.raises(ProblemsError, match=r"a row per tag\? .*pivot\(index='image', columns='label'") as told:
        read(csv, f"image,label,value\n{rows}")
    assert not told.value.fixable, "a clean copy would merge the states of all tags"


def test_names_of_files_beside_numbers_are_taken_for_the_images(csv: Path) -> None:
    rows = "".join(f"{number},IMG_{number}.jpg,1\n" for number in range(12))
    with pytest.raises(ProblemsError, match=r"names of files: .*--ignore-columns image --rename filename=image"):
        read(csv, f"image,filename,dog\n{rows}")
    options = TableOptions(ignore_columns=["image"], rename={"filename": "image"})
    assert read_csv(csv, options).table.images[0] == "IMG_0.jpg"


def test_blanks_between_tags_look_wrong_where_every_word_is_a_tag(csv: Path) -> None:
    text = "image,tags\na.jpg,dog cat\nb.jpg,dog\nc.jpg,cat\nd.jpg,polar bear\n"
    (warning,) = (str(each) for each in read(csv, text).findings if each.warning)
    assert warning == "'dog cat': each word of it is a tag, too. --separator space if these are lists"
    assert read(csv, text, separator="space").table.classes == ("bear", "cat", "dog", "polar")
    assert not any(each.warning for each in read(csv, text, separator=";").findings)


def test_an_unquoted_list_is_told_to_need_quotes(csv: Path) -> None:
    with pytest.raises(ProblemsError, match="line 2  3 cells where the header has 2: a list of tags needs quotes"):
        read(csv, "image,tags\na.jpg,dog,cat\nb.jpg,dog\n")


@pytest.mark.parametrize("start", [b"PK\x03\x04\x14\0", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"])
def test_an_excel_file_with_the_name_of_a_csv_is_called_so(csv: Path, start: bytes) -> None:
    csv.write_bytes(start + bytes(100))
    with pytest.raises(InputError, match=r"tags\.csv is an Excel file, .* Save it as 'CSV UTF-8'"):
        read_csv(csv)


def test_a_row_per_tag_is_told_that_a_clean_copy_merges_the_rows(csv: Path) -> None:
    rows = "".join(f"{image}.jpg,{tag}\n" for image in "ab" for tag in ("dog", "cat"))
    with pytest.raises(ProblemsError) as told:
        read(csv, f"image,label\n{rows}")
    hint = "a row per tag? A clean copy (--fix) has a row per image"
    (problem,) = told.value.problems
    assert (problem.line, problem.message) == (3, f"this and 1 other row list an image again: {hint}")
    assert told.value.fixable
    with pytest.raises(ProblemsError) as told:
        read(csv, f"image,label\n{rows},dog\n")
    assert [each.line for each in told.value.problems] == [3, 6], "other problems stay"
    with pytest.raises(ProblemsError) as told:
        read(csv, "image,present,absent\na.jpg,dog,\na.jpg,,dog\nb.jpg,cat,\nb.jpg,dog,\n")
    assert [each.message for each in told.value.problems] == [
        f"a.jpg is listed again (first in line 2); 'dog' contradicts it; {hint}",
        "b.jpg is listed again (first in line 4)",
    ]
    with pytest.raises(ProblemsError, match="again") as told:
        read(csv, f"image,label\n{rows}c.jpg,dog;cat\n")
    assert hint not in str(told.value)
