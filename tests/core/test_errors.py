from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from labelgap.core.errors import (
    InputError,
    LabelGapError,
    Problem,
    ProblemsError,
    RunError,
    UnknownNameError,
    describe_missing_path,
    nearest,
    nearest_path,
)

ERRORS = (
    InputError("a"),
    RunError("a"),
    UnknownNameError("method", "ll-tc", ["ll-ct"]),
    ProblemsError("a.csv", [Problem(3, "bad")]),
)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_one_root_leaves_with_two_and_reaches_another_process_as_it_is(error: LabelGapError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(error, LabelGapError) and error.exit_code == 2
    assert isinstance(error, ValueError) is not isinstance(error, RunError)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all() -> None:
    known = {"an": "assume negative", "ll-ct": "large loss, temporary correction", "role": "online estimation"}
    error = UnknownNameError("method", "ll-tc", known, "`labelgap methods` lists all 38.", about=known)
    assert str(error) == (
        "there is no method 'll-tc'. Did you mean 'll-ct' (large loss, temporary correction)? "
        "`labelgap methods` lists all 38."
    )
    assert (error.kind, error.name, error.nearest) == ("method", "ll-tc", "ll-ct")
    assert str(UnknownNameError("class", "dgo", ["cat", "dog"])) == "there is no class 'dgo'. Did you mean 'dog'?"
    error = UnknownNameError("split", "zzz", ["val", "test", "train"])
    assert str(error).endswith("There is: test, train, val.") and error.nearest is None
    many = str(UnknownNameError("class", "#", [f"class {number:04}" for number in range(5000)]))
    assert many.endswith("class 0038, class 0039 and 4,960 more.") and len(many) < 700
    assert str(UnknownNameError("method", "an", [], "Register one.")) == "there is no method 'an'. Register one."


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("ll-tc", ["an", "ll-ct", "role"], "ll-ct"),
        ("DELTA_REL", ["delta_rel", "epochs"], "delta_rel"),
        ("aeroplane", ["Aeroplane", "aquaplane"], "Aeroplane"),
        ("", ["an"], None),
        ("xyz", ["an", "role"], None),
        ("an", [], None),
    ],
)
def test_the_nearest_name_is_found_whatever_its_case(name: str, known: list[str], expected: str | None) -> None:
    assert nearest(name, known) == expected


def test_only_a_near_name_of_a_file_is_suggested(tmp_path: Path) -> None:
    for name in ("hand.csv", "tags.csv", "runs"):
        (tmp_path / name).touch()
    found = {
        name: nearest_path(tmp_path / name) for name in ("tag.csv", "Tags.csv", "wand.csv", "labels.csv", "ham.csv")
    }
    near = {name: path.name for name, path in found.items() if path is not None}
    assert near == {"tag.csv": "tags.csv", "Tags.csv": "tags.csv", "wand.csv": "hand.csv"}


def test_all_problems_of_a_file_are_told_in_order_of_their_lines() -> None:
    error = ProblemsError(
        "tags.csv",
        [
            Problem(212, "photos/IMG_8813.jpg does not exist"),
            Problem(17, "'dgo' under dog: a cell is 1 (present), 0 (absent) or blank (unknown)"),
            Problem(40, "beach_01.jpg is listed again (first in line 12)"),
        ],
    )
    assert str(error) == (
        "tags.csv cannot be used yet: 3 problems, nothing was trained\n"
        "  line 17   'dgo' under dog: a cell is 1 (present), 0 (absent) or blank (unknown)\n"
        "  line 40   beach_01.jpg is listed again (first in line 12)\n"
        "  line 212  photos/IMG_8813.jpg does not exist"
    )
    assert [problem.line for problem in error.problems] == [17, 40, 212]


def test_a_long_list_is_cut_and_says_how_many_are_left_out() -> None:
    found = [Problem(line, "bad" if line < 50 else f"bad {line}") for line in range(1, 61)]
    error = ProblemsError("tags.csv", found, shown=3)
    assert str(error).splitlines() == [
        "tags.csv cannot be used yet: 60 problems, nothing was trained",
        "  line 1   bad (and 48 more like it)",
        "  line 50  bad 50",
        "  line 51  bad 51          …and 9 more",
    ]
    assert len(error.problems) == 60


def test_a_list_that_is_cut_has_problems_of_every_kind() -> None:
    found = [Problem(line, f"photos/{line}.jpg does not exist") for line in range(1, 90)]
    found += [Problem(90, "'dgo' under dog: a cell is 1"), Problem(91, "'ja' under dog: a cell is 1")]
    lines = str(ProblemsError("tags.csv", [*found, Problem(92, "no image is named")], shown=5)).splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["1", "2", "90", "91", "92"]
    assert lines[-1].endswith("…and 87 more")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("tags.csv", "photos/beach/a.jpg", "runs/first/config.json", ".tagz.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("tagz.csv", "tags.csv"),
        ("Tags.CSV", "tags.csv"),
        ("phots", "photos"),
        ("photo/baech/a.jpg", "photos/beach/a.jpg"),
        ("runs/frist", "runs/first"),
        ("run/first", "runs/first"),
        ("elsewhere/tags.csv", None),
        ("tags.csv/inside", None),
        ("", None),
    ],
)
def test_the_first_part_that_is_missing_is_compared_with_its_folder(folder: Path, typed: str, near: str | None) -> None:
    assert nearest_path(typed) == (None if near is None else Path(near))
    if near is not None:
        assert nearest_path(folder / typed) == folder / near
        assert describe_missing_path(typed) == f"{typed} does not exist. Did you mean {near}?"
