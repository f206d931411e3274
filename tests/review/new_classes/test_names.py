"""The name of a new class: one that every table of labels can hold, and that nothing else has."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.review.sample_photos import make_photos

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.review.new_classes import MAX_NAME, check_class_name, folded_name, taken_names

CLASSES = ("cat", "Straße", "caf\u00e9", "traffic light")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        (" zebra ", "zebra"),
        ("fire   truck", "fire truck"),
        ("o\u0308l", "\u00f6l"),
        ("a\u200cb", "a\u200cb"),
        ('<b>"&', '<b>"&'),
    ],
)
def test_a_name_is_taken_as_typed_but_for_blanks_and_the_form_of_its_letters(typed: str, name: str) -> None:
    assert check_class_name(typed, CLASSES) == name


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "printable"),
        ("a\x1b[2Jb", "printable"),
        ("a\u202eb", "printable"),
        ("\u200d", "printable"),
        ("x" * (MAX_NAME + 1), "at most 80 characters; this one has 81"),
        ("cat;dog", "';'"),
        ("SPLIT", "meaning of its own"),
        ("tags", "meaning of its own"),
        ("yes", "meaning of its own"),
        ("Cat", "a class 'cat' already"),
        ("ＣＡＴ", "a class 'cat' already"),
        ("STRASSE", "a class 'Straße' already"),
        ("Cafe\u0301", "a class 'caf\u00e9' already"),
        ("Traffic\u00a0 light", "a class 'traffic light' already"),
        ("Notes", "use for something else"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_the_reason(typed: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        check_class_name(typed, CLASSES, taken=["notes"])
    assert words in str(refused.value)


def test_folding_twice_changes_nothing() -> None:
    for name in ("ﬁre", "ǅ", "İ", "ſ", "ΐ", "K", "  A  B "):
        assert folded_name(folded_name(name)) == folded_name(name)


def test_columns_that_are_left_out_or_renamed_are_taken(tmp_path: Path) -> None:
    make_photos(tmp_path)
    options = {"ignore_columns": ["owl"], "rename": {"dog": "hound"}, "duplicates": "off"}
    data = lg.load("csv", tmp_path / "tags.csv", images=tmp_path / "photos", **options)
    assert data.classes == ("cat", "hound") and taken_names(data) == {"owl", "dog"}
    assert taken_names(lg.load("digits", train=4, val=0, test=0)) == set()
