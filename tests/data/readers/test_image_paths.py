"""From a name in a table to a file: completed where only one can be meant, refused where two can."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from labelgap.data.readers import image_paths
from labelgap.data.readers.image_paths import ImageFinder, is_image_name


def place(folder: Path, *names: str) -> ImageFinder:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"some bytes")
    return ImageFinder(folder)


@pytest.mark.parametrize(
    ("written", "file"),
    [
        ("a.jpg", "a.jpg"),
        ("a", "a.jpg"),
        ("IMG_1", "trip/IMG_1.JPG"),
        ("IMG_1.jpg", "trip/IMG_1.JPG"),
        ("trip/IMG_1", "trip/IMG_1.JPG"),
        ("album/trip/IMG_1.JPG", "trip/IMG_1.JPG"),
        ("trip\\IMG_1.JPG", "trip/IMG_1.JPG"),
        ("my photo", "trip/my photo.png"),
        ("v1.2", "v1.2.webp"),
    ],
)
def test_a_name_is_completed_to_the_file_that_is_meant(tmp_path: Path, written: str, file: str) -> None:
    finder = place(tmp_path, "a.jpg", "trip/IMG_1.JPG", "trip/my photo.png", "v1.2.webp", "a.txt", "notes.txt")
    assert finder(written) is None
    assert Path(finder.files[written]) == Path(file)
    assert (written in finder.completed) == (written != file)


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_accents_may_be_composed_or_not(
    tmp_path: Path, form: Literal["NFC", "NFD"], other: Literal["NFC", "NFD"]
) -> None:
    finder = place(tmp_path, unicodedata.normalize(form, "übung/café.png"))
    assert finder(unicodedata.normalize(other, "übung/café.png")) is None
    assert unicodedata.normalize(other, "übung/café.png") in str(finder(unicodedata.normalize(other, "café")))


def test_a_name_that_two_files_bear_is_a_problem_and_folders_decide(tmp_path: Path) -> None:
    finder = place(tmp_path, "cats/1.jpg", "dogs/1.jpg", "dogs/2.png", "dogs/2.jpg")
    assert str(finder("1.jpg")).startswith("1.jpg could be cats/1.jpg or dogs/1.jpg")
    assert str(finder("2")).startswith("2 could be dogs/2.jpg or dogs/2.png")
    assert finder("cats/1") is None and finder.files["cats/1"] == "cats/1.jpg"
    assert str(finder("birds/2.png")).startswith(str(tmp_path / "birds/2.png")), "folders that disagree"


def test_files_that_are_no_images_and_hidden_ones_are_not_found_by_half_a_name(tmp_path: Path) -> None:
    finder = place(tmp_path, "a.txt", ".trash/b.jpg", "._c.jpg")
    assert all("does not exist" in str(finder(name)) for name in ("a", "b", "b.jpg", "c"))
    assert finder("a.txt") is None
    assert is_image_name("x.HEIC") and not is_image_name("x.heic.part")


def test_a_whole_path_of_another_machine_is_found_by_its_last_parts(tmp_path: Path) -> None:
    finder = place(tmp_path, "trip/b.jpg")
    assert finder.findings() == [] and finder("/disk/photos/trip/b.jpg") is None
    assert finder.files == finder.completed == {"/disk/photos/trip/b.jpg": "trip/b.jpg"}
    assert str(finder.findings()[0]).endswith("/disk/photos/trip/b.jpg is trip/b.jpg")
    for other in ("/disk/other/b.jpg", "/disk/trip/c.jpg"):
        assert finder(other) == f"{other} does not exist"


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("bech_02.jpg", "beach_02.jpg"),
        ("Harbour.png", "trips/harbor.jpg"),
        ("trip/harbour.png", "trips/harbor.jpg"),
        ("beach_03.jpg", None),  # another number is another photo
        ("home/harbour.jpg", None),
        ("island.jpg", None),
    ],
)
def test_a_misspelled_name_gets_the_near_one_and_no_other(tmp_path: Path, written: str, near: str | None) -> None:
    finder = place(tmp_path, "beach_01.jpg", "beach_02.jpg", "trips/harbor.jpg")
    hint = "" if near is None else f". Did you mean {near}?"
    assert finder(written) == f"{tmp_path / written} does not exist{hint}"


def test_names_are_compared_with_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table beside the wrong folder has thousands of names, and each comparison takes time."""
    monkeypatch.setattr(image_paths, "_MAX_COMPARISONS", 5)
    monkeypatch.setattr(image_paths, "_MAX_CANDIDATES", 3)
    finder = place(tmp_path, "harbor.jpg", "mountain.jpg")
    found = [str(finder(name)) for name in ("harbour.jpg", "mountains.jpg", "harbors.jpg")]
    assert ["Did you mean" in each for each in found] == [True, True, False]
    finder = place(tmp_path, *(f"{number}/x.jpg" for number in range(5)))
    assert "x.jpg could be " in str(finder("5/x.jpg"))


def test_another_suffix_of_the_same_format_is_found_unless_two_files_have_it(tmp_path: Path) -> None:
    finder = place(tmp_path, "a.jpg", "b.JPEG", "c.png", "d.jpeg", "d.jpg", "E.JPG", "e.jpeg")
    assert [finder(name) for name in ("a.jpeg", "b.jpg", "d.jpg", "e.jpg")] == [None] * 4
    assert finder.files == {"a.jpeg": "a.jpg", "b.jpg": "b.JPEG", "d.jpg": "d.jpg", "e.jpg": "E.JPG"}, "the nearer one"
    assert str(finder("d.jpe")).startswith("d.jpe could be d.jpeg or d.jpg: ")
    assert str(finder("e")).startswith("e could be E.JPG or e.jpeg: ")
    assert finder("c.jpg") == f"{tmp_path / 'c.jpg'} does not exist. Did you mean c.png?"


@pytest.mark.parametrize("names", [("b.jpg", "b.jpeg"), ("b.jpeg", "b.jpg")])
@pytest.mark.parametrize("skip", [False, True])
def test_a_file_belongs_to_the_name_that_it_bears(tmp_path: Path, names: tuple[str, str], skip: bool) -> None:
    place(tmp_path, "b.jpg")
    finder = ImageFinder(tmp_path, skip=skip)
    assert [finder(name) is None for name in names] == [True, skip]
    assert finder.files == {"b.jpg": "b.jpg"} and not finder.repeated and not finder.completed
    assert ("b.jpeg" in finder.skipped) == (skip or names[0] == "b.jpeg")
