from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import QUICK, Printed, Screen, call, check_command, copied_commands
from tests.data.readers.official.test_load_voc import devkit
from tests.sample_photos import write_small_photos

import labelgap as lg
from labelgap.cli.options import DataSource, format_arguments
from labelgap.data import load


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Forty photos, and a CSV with gaps."""
    Path("photos").mkdir()
    random = np.random.default_rng(0)
    rows = ["image,split,red,green,blue,never"]
    for number in range(40):
        pixels = random.integers(0, 255, (30, 40, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(f"photos/{number}.jpg")
        split = "train" if number < 30 else "val" if number < 35 else "test"
        green = "0" if split == "test" and number % 4 else "1" if number % 4 == 0 else ""
        rows.append(f"{number}.jpg,{split},{1 if number % 2 else ''},{green},{1 if number in (2, 6) else ''},")
    Path("tags.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_one_screen_says_what_was_understood(photos: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    said = screen("inspect", "tags.csv", "--images", "photos", "--duplicates", "off", "--per-class")
    assert said == snapshot
    assert len(said.partition("\n\n")[0].splitlines()) <= 24, "it fits a terminal of 24 lines"
    check_command(copied_commands(said)[0], "review tags.csv --images photos --duplicates off --random 5")


@pytest.mark.parametrize("width", [50, 80, 200])
def test_no_line_is_wider_than_the_terminal(
    photos: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = screen("inspect", "tags.csv", "--images", "photos", "--duplicates", "off").splitlines()
    assert any(
        each.endswith("labelgap train tags.csv --images photos --duplicates off --out runs/first") for each in lines
    )
    assert max(len(line) for line in lines if not re.search("labelgap (train|review)", line)) <= width


def test_json_is_one_object_on_stdout_and_nothing_else(photos: Path, screen: Screen) -> None:
    found = screen.json("inspect", "tags.csv", "--images", "photos", "--duplicates", "off")
    assert found["format"] == 1 and found["whole"]["images"] == 40 and list(found["splits"]) == ["train", "val", "test"]
    assert {row["name"]: row["present"] for row in found["classes"]}["red"] == 20
    assert {warning["kind"] for warning in found["warnings"]} == {"never_present", "few_present", "no_label"}
    assert found["next"].startswith("labelgap train tags.csv") and found["seconds"] >= 0 and found["report"] is None


def test_the_page_is_written_and_said_where(photos: Path, printed: Printed, screen: Screen) -> None:
    options = ("--images", "photos", "--duplicates", "off")
    assert re.search(r"^report +tags-inspect\.html$", printed("inspect", "tags.csv", *options, "--report"), re.M)
    assert "data:image/" in Path("tags-inspect.html").read_text(encoding="utf-8")
    assert screen.json("inspect", "tags.csv", *options, "--out", "other.html", "--no-images")["report"] == "other.html"
    assert "data:image/" not in Path("other.html").read_text(encoding="utf-8")


def test_hidden_labels_are_shown_as_training_would_see_them(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lg, "load", lambda name, **options: load(name, train=100, val=20, test=20, **options))
    found = screen.json("inspect", "digits", "--observe", "salient,negatives=1", "--label-seed", "7")
    train = found["splits"]["train"]
    assert train["present"] == train["absent"] == 100
    assert found["next"].endswith("digits --observe salient,negatives=1 --label-seed 7 --out runs/first")
    assert found["image_word"] == "image"


def test_what_was_typed_can_be_typed_again() -> None:
    given = DataSource(images=Path("my photos"), classes=["cat,dog", "owl"], allow_leaks=True, observe="positives=1")
    words = shlex.split(format_arguments("a=b c.csv", given))
    assert words[:3] == ["a=b c.csv", "--images", "my photos"]
    assert "--allow-leaks" in words and words.count("--classes") == 2 and words[-2:] == ["--observe", "positives=1"]


def test_photos_of_a_devkit_that_cannot_be_read_are_all_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: Printed,
    screen: Screen,
    snapshot: SnapshotAssertion,
) -> None:
    root = devkit(tmp_path, "2012", {"train": [f"2008_{number:06d}" for number in range(9)], "val": ["2009_000001"]})
    photos = root / "JPEGImages"
    for options, check in (([], "ends"), (["--check-images"], "decoded")):
        assert ("--check-images" in printed("inspect", str(tmp_path), *options)) == (check == "ends")
        assert screen.json("inspect", str(tmp_path), *options)["image_check"] == check
    (photos / "2009_000001.jpg").write_bytes((photos / "2008_000001.jpg").read_bytes()[:-20])
    (photos / "2008_000003.jpg").write_text("not a photo")
    assert screen.errors("inspect", ".", ". --check-images") == snapshot(name="damaged")
    (photos / "2008_000001.jpg").unlink()
    assert screen.errors("inspect", ".", ". --check-images", "digits --check-images") == snapshot(name="missing")


def test_two_spellings_of_a_tag_are_noted(photos: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    table = Path("lists.csv")
    table.write_text("image,present\n" + "".join(f"{row}.jpg,{'Dog' if row == 3 else 'dog'}\n" for row in range(9)))
    command = ("inspect", "lists.csv", "--images", "photos")
    wrong = screen(*command).partition("looks wrong")[2].partition("read as")[0]
    assert "'dog' (8) and 'Dog' (1)" in wrong and "--rename Dog=dog" in wrong
    table.write_text(table.read_text() + "gone.jpg,dog\n")
    assert screen(*command, code=2) == snapshot
    assert "'Dog'" not in screen(*command, "--rename", "Dog=dog", code=2)


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
def broken() -> bytes:
    """Thirty photos, one of them twice, and a table with every kind of problem; the bytes of the table."""
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


def test_a_broken_table_is_mended(broken: bytes, screen: Screen, snapshot: SnapshotAssertion, printed: Printed) -> None:
    training = (*QUICK, "--out", "runs/a")
    error = screen("train", "tags.csv", "--images", "my photos", *training, code=2)
    assert error == snapshot(name="error")
    command = error.splitlines()[-1].partition("labelgap ")[2]
    said = screen(*shlex.split(command))
    assert said == snapshot(name="fixed")
    assert Path("tags.csv").read_bytes() == broken
    assert "28 images, 4 classes" in printed(*shlex.split(said.splitlines()[-1].partition("labelgap ")[2]), *training)
    fixed = screen.json(*shlex.split(command), "--force", "--rename", "preson=person")
    assert sorted(fixed["classes"]) == ["cat", "dog", "person"] and fixed["proposals"] == []
    assert {"preson", "person"} <= {word for change in fixed["changes"] for word in change["text"].split("'")}


@pytest.fixture
def album() -> Path:
    write_small_photos(Path("album"), 25)
    return Path("album")


def test_a_table_of_another_folder_names_its_images(album: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    rows = [f"{number:02d}.jpg,{number % 2},0" for number in range(25)]
    Path("album/tags.csv").write_text("\n".join(["image,cat,Cat", *rows, *(f"{n}.jpg,1,0" for n in range(30, 60))]))
    assert screen("inspect", "album/tags.csv", "--fix", "clean.csv", "--classes", "Cat,cat") == snapshot
    assert "clean.csv" in screen("inspect", "album/tags.csv", "--fix", "clean.csv", code=2)
    assert "other.csv" in screen("inspect", "album/tags.csv", "--fix", "other.csv", "--report", code=2)
    assert not Path("other.csv").exists()


def test_a_broken_table_of_test_images_is_named(album: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
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
