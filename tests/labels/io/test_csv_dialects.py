"""Encodings, delimiters and headers as other programs write them: understood, and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError, UnknownNameError
from labelgap.labels import LabelTable
from labelgap.labels.io.classes import similar_class_names
from labelgap.labels.io.formats import BlanksLeftOut, read_csv
from labelgap.labels.io.table_file import SimilarClasses, TableFile, TableOptions

ROWS = "image,présent\na.jpg,1\nb.jpg,\n"


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "tags.csv"


def read(path: Path, text: str, **options: object) -> TableFile:
    path.write_text(text, encoding="utf-8", newline="")
    return read_csv(path, TableOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-8", ""), ("utf-8-sig", ""), ("cp1252", "cp1252"), ("utf-16", "utf-16")]
)
def test_the_encoding_is_guessed_and_said_where_it_is_not_utf_8(csv: Path, encoding: str, said: str) -> None:
    csv.write_bytes(ROWS.encode(encoding))
    file = read_csv(csv)
    assert file.table.classes == ("présent",)
    assert sentences(file)[1:] == ((f"text in {said} (--encoding says otherwise)",) if said else ())


def test_an_encoding_that_is_given_is_not_guessed(csv: Path) -> None:
    csv.write_bytes("image,čeština\na.jpg,1\n".encode("iso8859-2"))
    assert read_csv(csv, encoding="latin2").table.classes == ("čeština",)
    assert read_csv(csv).table.classes != ("čeština",)
    for encoding, named in (("klingon", "'klingon'"), ("base64", "'base64'"), ("ascii", "line 1: ")):
        with pytest.raises(InputError, match=named):
            read_csv(csv, encoding=encoding)


@pytest.mark.parametrize("content", [b"image,cat\na.jpg,1\n\x81.jpg,1\n", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"])
def test_a_file_that_is_no_text_is_refused_with_its_line(csv: Path, content: bytes) -> None:
    csv.write_bytes(content)
    with pytest.raises(InputError, match="line 3: not"):
        read_csv(csv)


@pytest.mark.parametrize(("mark", "word"), [(";", "semicolon"), ("\t", "tab"), ("|", "pipe")])
def test_the_delimiter_is_guessed_from_the_header_and_said(csv: Path, mark: str, word: str) -> None:
    file = read(csv, "image,cat,a dog\na.jpg,1,\nb.jpg,0,1\n".replace(",", mark))
    assert file.table.classes == ("cat", "a dog") and file.table.to_dense().tolist() == [[1, -1], [0, 1]]
    assert sentences(file)[-1] == f"{word} between cells (--delimiter says otherwise)"
    assert read_csv(csv, delimiter=word).table == file.table == read_csv(csv, delimiter=mark).table


def test_the_line_with_which_excel_says_its_delimiter_is_understood(csv: Path) -> None:
    file = read(csv, "sep=;\r\nimage;cat\r\na.jpg;1\r\nb.jpg;what\r\n".replace("what", "0"))
    assert file.table.classes == ("cat",) and file.lines.tolist() == [3, 4]


def test_tags_may_be_separated_by_what_separates_cells_elsewhere(csv: Path) -> None:
    file = read(csv, "image;present\na.jpg;cat,dog\nb.jpg;owl\n")
    assert file.table.classes == ("cat", "dog", "owl")
    assert sentences(file)[1:] == (
        "comma between tags, as it seems (--separator says otherwise)",
        "semicolon between cells (--delimiter says otherwise)",
    )
    assert read(csv, "image;present\na.jpg;cat,dog\n", separator="/").table.classes == ("cat,dog",)


def test_columns_are_left_out_by_name_or_because_others_were_asked_for(csv: Path) -> None:
    text = "image,width,cat,dog\na.jpg,640,1,0\nb.jpg,512,,1\n"
    file = read(csv, text, ignore_columns=("width",))
    assert file.table.classes == ("cat", "dog") and sentences(file)[-1] == "columns left out: width"
    file = read(csv, text, classes=("dog", "cat"))
    assert file.table.classes == ("dog", "cat") and file.table.to_dense().tolist() == [[0, 1], [1, -1]]
    assert sentences(file)[-1] == "columns left out: width"
    with pytest.raises(UnknownNameError, match=r"there is no column 'widht'\. Did you mean 'width'"):
        read(csv, text, ignore_columns=("widht",))
    with pytest.raises(UnknownNameError, match=r"there is no tag 'dogs'\. Did you mean 'dog'"):
        read(csv, text, classes=("dogs", "cat"))
    with pytest.raises(InputError, match="give a list of names"):
        read(csv, text, classes="dog")
    with pytest.raises(InputError, match="each of them once"):
        read(csv, text, classes=("dog", "dog"))


def test_a_column_that_is_no_tag_is_one_problem_with_its_way_out(csv: Path) -> None:
    rows = "".join(f"{row}.jpg,{600 + row},1\n" for row in range(30))
    with pytest.raises(ProblemsError) as caught:
        read(csv, "image,width,cat\n" + rows)
    ((problem),) = caught.value.problems
    assert problem.line == 1
    assert problem.message == (
        "the column 'width' does not look like a tag ('600' in line 2 and 29 more): "
        "--ignore-columns width leaves it out; if it lists tags, --rename width=present"
    )
    with pytest.raises(ProblemsError) as caught:
        read(csv, "image,note,cat,dog\na.jpg,near,1,-1\nb.jpg,far,,-1\nc.jpg,far,0,-1\nd.jpg,,1,1x\n")
    assert [(each.line, each.message.partition(": ")[0]) for each in caught.value.problems] == [
        (1, "the column 'dog' does not look like a tag ('-1' in line 2 and 3 more)"),
        (1, "the column 'note' does not look like a tag ('near' in line 2 and 2 more)"),
    ]
    with pytest.raises(ProblemsError, match=r"'-1' in line 2 and 2 more under dog: .* -1 is absent in some files"):
        read(csv, "image,cat,dog\na.jpg,1,-1\nb.jpg,,-1\nc.jpg,0,-1\n")


def test_tags_of_one_name_become_one(csv: Path) -> None:
    text = "image,dog,Dog,cat\na.jpg,1,,0\nb.jpg,,0,1\nc.jpg,1,1,\n"
    file = read(csv, text, rename={"dog": "Dog"})
    assert file.table.classes == ("Dog", "cat")
    assert file.table.to_dense().tolist() == [[1, 0], [0, 1], [1, -1]]
    assert sentences(file)[1] == "renamed: dog = Dog"
    with pytest.raises(UnknownNameError, match=r"there is no tag 'dgo'\. Did you mean"):
        read(csv, text, rename={"dgo": "Dog"})


def test_names_of_one_tag_that_contradict_each_other_are_told_with_their_lines(csv: Path) -> None:
    with pytest.raises(ProblemsError) as caught:
        read(csv, "image,dog,Dog\na.jpg,1,1\nb.jpg,1,0\nc.jpg,0,1\n", rename={"dog": "Dog"})
    message = "'Dog' is present under one of its names and absent under another"
    assert [(each.line, each.message) for each in caught.value.problems] == [(3, message), (4, message)]


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\nb,a\n", "is a cycle"),
        ("a,b\na,c\n", "'a' stands for 'b' and for 'c'"),
        ("a,b,c\n", "a line is synonym,tag; this has 3 cells"),
        ("a,\n", "a line is synonym,tag"),
    ],
)
def test_a_file_of_synonyms_that_makes_no_sense_is_refused(csv: Path, text: str, message: str) -> None:
    aliases = csv.with_name("aliases.csv")
    aliases.write_text(text)
    with pytest.raises(InputError, match=message):
        read(csv, "image,present\nx.jpg,a\n", aliases=aliases)
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        read(csv, "image,present\nx.jpg,a\n", aliases=csv.with_name("none.csv"))


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


def test_blanks_at_the_end_of_cells_are_counted(csv: Path) -> None:
    def blanks(text: str) -> list[BlanksLeftOut]:
        csv.write_text(text)
        return [finding for finding in read_csv(csv).findings if isinstance(finding, BlanksLeftOut)]

    assert blanks("image, cat,dog\na.jpg, 1,0\nb.jpg,0,1\n") == []
    assert blanks("image,cat ,dog\na.jpg,1,0\nb.jpg ,0,1\t\n") == [BlanksLeftOut(2, 1)]
