"""Finding data by name or by path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.trust import TRUST_VARIABLE
from labelgap.data.opening import load, load_from_recipe, load_moved, load_stored
from labelgap.data.registry import dataset_names, describe_datasets

OTHERS = ["spml", "chexpert", "arff", "openimages", "huggingface", "shards", "folder"]
FEW: dict[str, Any] = {"train": 6, "val": 2, "test": 2}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small album in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for name in "abcd":
        Image.new("L", (4, 4)).save(tmp_path / "photos" / f"{name}.png")
    path = tmp_path / "tags.csv"
    path.write_text("image,cat,dog\na.png,1,0\nb.png,,1\nc.png,0,\nd.png,1,\n")
    return path


def test_every_data_set_is_described() -> None:
    assert dataset_names() == [
        *["digits", "csv", "features", "parquet", "voc2012", "voc2007", "coco2014", "coco2017", "nuswide", "cub"],
        *OTHERS,
    ]
    digits, csv, *others = describe_datasets()
    assert (digits.name, digits.path_to, digits.options) == ("digits", "", ("seed", "test", "train", "val"))
    assert (csv.name, csv.path_to) == ("csv", "a .csv file")
    assert {"images", "seed", "unlisted", "zeros", "rename", "on_bad_image", "duplicates"} <= {*csv.options}
    assert all(each.summary for each in (digits, csv, *others)) and all(each.path_to for each in (csv, *others))


@pytest.mark.parametrize("text", ["tags.csv", "./tags.csv", "csv=tags.csv", "TAGS.CSV", "csv=labels.txt", "a=b.csv"])
def test_a_table_is_opened_however_it_is_written(table: Path, text: str) -> None:
    if not (table.parent / text.removeprefix("csv=")).exists():
        (table.parent / text.removeprefix("csv=")).write_text(table.read_text())
    assert load(text, images="photos").classes == ("cat", "dog")


def test_a_name_beats_a_file_unless_it_needs_a_path(table: Path) -> None:
    (table.parent / "digits").write_text("not this")
    assert load("digits", **FEW).name == "digits"
    with pytest.raises(InputError, match="suffix"):
        load("./digits")
    (table.parent / "csv").mkdir()
    with pytest.raises(InputError, match="csv is a folder"):
        load("csv")


@pytest.mark.parametrize("text", ["digts", "dgits=tags.csv", "Digits"])
def test_a_name_nearly_right_is_answered_with_the_right_one(table: Path, text: str) -> None:
    with pytest.raises(UnknownNameError, match="'digits'"):
        load(text)


@pytest.mark.parametrize("text", ["gone.csv", "csv=gone.csv", "photos/gone.csv", "photos/x=1/gone.csv"])
def test_a_path_that_does_not_exist_is_said_to_be(table: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"gone\.csv"):
        load(text)


def test_an_unknown_option_and_a_missing_path_are_answered(table: Path) -> None:
    with pytest.raises(UnknownNameError, match="'zeros'"):
        load("csv", table, zeroes="unknown")
    with pytest.raises(UnknownNameError, match="seed, test, train, val"):
        load("digits", images="photos")
    for text in ("csv", "csv="):
        with pytest.raises(InputError, match="csv=PATH"):
            load(text)


@pytest.mark.parametrize("text", ["https://example.org/tags.csv", "s3://bucket/tags.csv", "csv=gs://bucket/tags.csv"])
def test_what_lies_on_another_machine_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(InputError, match="Copy it"):
        load(text)
    with pytest.raises(InputError, match="Copy it"):
        load("csv", text.removeprefix("csv="))


def test_options_are_kept_as_a_run_writes_them(table: Path) -> None:
    options: dict[str, Any] = {"images": table.parent / "photos", "classes": ("dog", "cat"), "rename": {"cat": "Cat"}}
    data = load("csv", table, **options)
    assert data.recipe["options"] == {
        "images": str(table.parent / "photos"),
        "classes": ["dog", "cat"],
        "rename": {"cat": "Cat"},
    }
    assert json.loads(json.dumps(data.recipe)) == data.recipe
    assert load_from_recipe(data.recipe).classes == data.classes == ("dog", "Cat")


def test_data_that_were_moved_need_all_of_their_tables(table: Path) -> None:
    def lines(image: str) -> str:
        return f"image,cat,dog\n{image}.png,0,1\n"

    table.write_text(lines("a") + "b.png,1,\n")
    for name, image in (("val", "c"), ("test", "d")):
        (table.parent / f"{name}.csv").write_text(lines(image))
    recipe = load("csv", "tags.csv", images="photos", val="val.csv", test="test.csv", duplicates="off").recipe
    moved = table.parent / "moved"
    moved.mkdir()
    for name in ("tags", "val", "test"):
        (table.parent / f"{name}.csv").rename(moved / f"{name}.csv")
    with pytest.raises(InputError, match="--val PATH --test PATH"):
        load_moved(recipe, moved / "tags.csv", images="photos")
    with pytest.raises(InputError, match=r"/test\.csv .* --test PATH"):
        load_moved(recipe, moved / "tags.csv", images="photos", val=moved / "val.csv")
    data = load_moved(recipe, moved / "tags.csv", images="photos", val=moved / "val.csv", test=moved / "test.csv")
    assert [split.labels.images for split in data.splits] == [("a.png", "b.png"), ("c.png",), ("d.png",)]
    assert data.recipe["options"]["val"] == str(moved / "val.csv")
    (moved / "test.csv").unlink()
    data = load_moved(recipe, moved / "tags.csv", images="photos", val=moved / "val.csv", test="none")
    assert [split.labels.images for split in data.splits] == [("a.png", "b.png"), ("c.png",)]


def test_stored_data_that_are_gone_are_asked_for(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = table.parent / "run" / "config.json"
    monkeypatch.setenv(TRUST_VARIABLE, str(document.parent))
    document.parent.mkdir()
    document.write_text("{}")
    recipe = load("csv", "tags.csv", images="photos", duplicates="off").recipe
    assert load_stored(document, recipe).classes == ("cat", "dog")
    (table.parent / "photos").rename(table.parent / "elsewhere")
    with pytest.raises(InputError, match="photos.* --data PATH --images FOLDER"):
        load_stored(document, recipe)


def test_a_folder_around_an_album_is_answered_with_the_album(table: Path) -> None:
    for tag, image in (("dog", "a.png"), ("cat", "b.png")):
        folder = table.parent / "holiday" / "my album" / tag
        folder.mkdir(parents=True)
        (table.parent / "photos" / image).rename(folder / image)
    with pytest.raises(InputError, match="'holiday/my album'"):
        load("holiday")


def test_what_is_not_recognized_is_answered_with_what_to_do_first(table: Path) -> None:
    (table.parent / "empty").mkdir()
    (table.parent / "tags.xlsx").write_bytes(b"PK")
    (table.parent / "loop.csv").symlink_to("loop.csv")
    hints = {str(table.parent): r"tags\.csv\?", "photos": r"tags\.csv --images photos", "empty": "empty"}
    hints |= {"tags.xlsx": "CSV UTF-8", "photos/a.png": "CSV", "loop.csv": "link"}
    for name, hint in hints.items():
        with pytest.raises(InputError, match=hint):
            load(name)
