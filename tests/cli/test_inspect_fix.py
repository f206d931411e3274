"""From a table with every kind of problem to a training, by the commands that labelgap itself names."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import QUICK, Screen, call
from tests.sample_photos import write_small_photos

SPOILED = [
    ("gone.jpg", "train", "1", ""),
    ("broken.jpg", "train", "1", ""),
    ("empty.jpg", "val", "1", ""),
    ("", "train", "1", ""),
    ("../outside.jpg", "train", "1", ""),
    ("00.jpg", "train", "1", "1"),
    ("./02.jpg", "test", "0", "1"),
]
"""Image, split, person and dog of rows that cannot stay as they are; the last two repeat an image."""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Thirty photos, one of them twice, and a table with every kind of problem; the bytes of the table."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = Path("my photos")
    write_small_photos(folder)
    (folder / "29.jpg").write_bytes((folder / "01.jpg").read_bytes())
    (folder / "broken.jpg").write_text("no image")
    (folder / "empty.jpg").touch()
    good = [(f"{n:02d}.jpg", "train" if n < 20 else "val" if n < 25 else "test") for n in range(30)]
    spellings = {3: "Training", 4: "tarin", 5: ""}
    rows = [
        (name, spellings.get(n, split), "1" if n % 2 else "0", str(n % 3 // 2)) for n, (name, split) in enumerate(good)
    ]
    lines = ["file,subset,person,Dog,dog,preson,,notes,cat"]
    for number, (image, split, person, dog) in enumerate([*rows, *SPOILED]):
        dogs, misspelled = f"{dog}," if number == 7 else f",{dog}", "1" if number == 9 else ""
        lines.append(f"{image},{split},{person},{dogs},{misspelled},,a note,{'cta' if number == 8 else 0}")
    lines += ["10.jpg,train", '"11.jpg"x,train']
    Path("tags.csv").write_text("\n".join(lines) + "\n")
    return Path("tags.csv").read_bytes()


def test_a_broken_table_is_trained_on_after_the_command_that_its_error_names(
    broken: bytes, screen: Screen, snapshot: SnapshotAssertion, capsys: pytest.CaptureFixture[str]
) -> None:
    training = (*QUICK, "--out", "runs/a")
    error = screen("train", "tags.csv", "--images", "my photos", *training, code=2)
    assert error == snapshot(name="error")
    command = error.splitlines()[-1].partition("labelgap ")[2]
    said = screen(*shlex.split(command))
    assert said == snapshot(name="fixed")
    assert Path("tags.csv").read_bytes() == broken
    assert call(*shlex.split(said.splitlines()[-1].partition("labelgap ")[2]), *training) == 0
    assert "28 images, 4 classes" in capsys.readouterr().out
    fixed = screen.json(*shlex.split(command), "--force", "--rename", "preson=person")
    assert sorted(fixed["classes"]) == ["cat", "dog", "person"] and fixed["proposals"] == []
    assert {"preson", "person"} <= {word for change in fixed["changes"] for word in change["text"].split("'")}


@pytest.fixture
def album(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty-five photos in a folder of the current one."""
    monkeypatch.chdir(tmp_path)
    write_small_photos(Path("album"), 25)
    return Path("album")


def test_a_table_in_another_folder_says_where_the_images_are(
    album: Path, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    rows = [f"{number:02d}.jpg,{number % 2},0" for number in range(25)]
    Path("album/tags.csv").write_text("\n".join(["image,cat,Cat", *rows, *(f"{n}.jpg,1,0" for n in range(30, 60))]))
    assert screen("inspect", "album/tags.csv", "--fix", "clean.csv", "--classes", "Cat,cat") == snapshot
    assert "clean.csv" in screen("inspect", "album/tags.csv", "--fix", "clean.csv", code=2)
    assert "other.csv" in screen("inspect", "album/tags.csv", "--fix", "other.csv", "--report", code=2)
    assert not Path("other.csv").exists()


def test_a_broken_table_of_test_images_is_named_itself(
    album: Path, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    Path("album/broken.jpg").write_text("no image")
    Path("album/tags.csv").write_text("image,cat\n00.jpg,1\n01.jpg,0\n")
    for bad in ("broken.jpg", "gone.jpg"):
        Path("test.csv").write_text(f"image,cat\n02.jpg,1\n{bad},0\n03.jpg,0\n")
        error = screen("inspect", "album/tags.csv", "--test", "test.csv", code=2)
        assert error == snapshot(name=bad)
    assert call(*shlex.split(error.splitlines()[-1].partition("labelgap ")[2])) == 0
    assert call("inspect", "album/tags.csv", "--test", "test-clean.csv") == 0
    Path("album/tags.csv").write_text("image,cat\n00.jpg,1\nbroken.jpg,0\n")
    assert call("inspect", "album/tags.csv", "--test", "test.csv") == 2
    said = screen("inspect", "album/tags.csv", "--test", "test-clean.csv", "--fix", "clean.csv")
    assert "train clean.csv --images album --test test-clean.csv --out" in said
