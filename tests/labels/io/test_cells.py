"""The words that people write into cells."""

from __future__ import annotations

import pytest

from labelgap.core.errors import InputError
from labelgap.core.findings import Note
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.dialect import parse_separator
from labelgap.labels.io.layout import CellParser, TagLists

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


def test_the_words_that_were_met_are_said_once_each() -> None:
    states = CellParser()
    for cell in ("1", "yes", "yes", "TRUE", "0", "no", "", "NA", "1.0", "what"):
        states.code(cell)
    assert states.spellings() == [["yes", "TRUE"], ["no"], ["NA"]]


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


def test_a_guess_is_said_unless_it_is_the_usual() -> None:
    assert TagLists(None, ["a;b"]).findings() == []
    assert TagLists(None, ["a"]).findings() == []
    assert TagLists("|", ["a|b"]).findings() == []
    assert TagLists(None, ["a|b"]).findings() == [
        Note("pipe between tags, as it seems (--separator says otherwise)", "source")
    ]


def test_lists_as_python_and_json_write_them_are_unpacked() -> None:
    lists = TagLists(None, ["['cat', 'big dog']", '["owl"]', "[]", ""])
    assert [lists.names(cell) for cell in ("['cat', 'big dog']", '["owl"]', "[]", "")] == [
        ["cat", "big dog"],
        ["owl"],
        [],
        [],
    ]
    assert "['a', 'b']" in str(lists.findings()[0])
    assert TagLists(None, ["['a', b]"]).names("['a', b]") == ["['a'", "b]"] and not TagLists(None, ["[{}]"]).bracketed
    assert TagLists(",").names("['cat', 'dog']") == ["['cat'", "'dog']"]


def test_a_blank_separates_only_when_asked_to() -> None:
    assert TagLists("space").names("cat  dog") == ["cat", "dog"]


@pytest.mark.parametrize(
    ("text", "option"), [("", "separator"), (";;", "delimiter"), ("\n", "separator"), ('"', "delimiter")]
)
def test_a_mark_that_cannot_separate_is_refused(text: str, option: str) -> None:
    with pytest.raises(InputError, match=f"{option}="):
        parse_separator(text, option)
