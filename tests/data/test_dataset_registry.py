"""Finding data by name or by path; data sets from outside, registered by a call or by an installed package."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.cli.conftest import call

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.trust import TRUST_VARIABLE
from labelgap.data import (
    Dataset,
    DatasetLayout,
    RequiredFile,
    dataset_names,
    describe_datasets,
    load,
    load_from_recipe,
    register_dataset,
)
from labelgap.data import registry as registry_module
from labelgap.data.opening import load_moved, load_stored

OTHERS = ["spml", "chexpert", "arff", "openimages", "huggingface", "shards", "addresses", "folder"]
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
    own = ["digits", "csv", "features", "parquet", "voc2012", "voc2007", "coco2014", "coco2017", "nuswide", "cub"]
    assert dataset_names() == [*own, *OTHERS]
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


WRONG: dict[str, tuple[str, ...]] = {
    "'digits'": ("digts", "dgits=tags.csv", "Digits"),
    r"gone\.csv": ("gone.csv", "csv=gone.csv", "photos/gone.csv", "photos/x=1/gone.csv"),
    "Copy it": ("https://example.org/tags.csv", "s3://bucket/tags.csv", "csv=gs://bucket/tags.csv"),
    r"tags\.csv\?": (".",),
    r"tags\.csv --images photos": ("photos",),
    "csv is a folder": ("csv",),
    "csv=PATH": ("csv=",),
    "suffix": ("./digits",),
    "empty": ("empty",),
    "CSV": ("tags.xlsx", "photos/a.png"),
    "link": ("links/loop.csv",),
    "'holiday/my album'": ("holiday",),
}


@pytest.mark.parametrize(("text", "named"), [(text, named) for named, texts in WRONG.items() for text in texts])
def test_what_cannot_be_opened_is_answered_with_what_to_do(table: Path, text: str, named: str) -> None:
    for folder in ("csv", "empty", "links", "holiday/my album/dog", "holiday/my album/cat"):
        (table.parent / folder).mkdir(parents=True)
    for tag in ("dog", "cat"):
        shutil.copy("photos/b.png", f"holiday/my album/{tag}/{tag}.png")
    (table.parent / "digits").write_text("not this")
    (table.parent / "tags.xlsx").write_bytes(b"PK")
    (table.parent / "links" / "loop.csv").symlink_to("loop.csv")
    assert load("digits", **FEW).name == "digits", "a name beats a file"
    with pytest.raises((InputError, UnknownNameError), match=named):
        load(text)
    if named == "Copy it":
        with pytest.raises(InputError, match=named):
            load("csv", text.removeprefix("csv="))


def test_an_unknown_option_and_a_missing_path_are_answered(table: Path) -> None:
    with pytest.raises(UnknownNameError, match="'zeros'"):
        load("csv", table, zeroes="unknown")
    with pytest.raises(UnknownNameError, match="seed, test, train, val"):
        load("digits", images="photos")
    with pytest.raises(InputError, match="csv=PATH"):
        load("csv")


def test_options_are_kept_as_a_run_writes_them(table: Path) -> None:
    options: dict[str, Any] = {"images": table.parent / "photos", "classes": ("dog", "cat"), "rename": {"cat": "Cat"}}
    data = load("csv", table, **options)
    assert data.recipe["options"] == {**options, "images": str(table.parent / "photos"), "classes": ["dog", "cat"]}
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
    with pytest.raises(InputError, match=r"photos.* --data PATH --images FOLDER"):
        load_stored(document, recipe)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registry of its own for every test."""
    own = copy.copy(registry_module._REGISTRY)
    own._entries = dict(own._entries)
    monkeypatch.setattr(registry_module, "_REGISTRY", own)
    yield
    registry_module._load_plugins.cache_clear()


def few_digits(seed: int = 0) -> Dataset:
    """A few scenes of digits.

    They are enough for a test.
    """
    return load("digits", train=6, val=2, test=2, seed=seed)


def listed_digits(path: str | Path) -> Dataset:
    return load("digits", train=int(Path(path).read_text()), val=0, test=0)


def is_scenes_file(path: Path) -> bool:
    return path.suffix == ".scenes"


def test_a_registered_name_is_loaded_and_described_like_any_other() -> None:
    assert register_dataset("few", few_digits) is few_digits
    data = load("few", seed=3)
    assert len(data.train) == 6 and data.train.labels == few_digits(seed=3).train.labels
    description = describe_datasets()[-1]
    assert (description.name, description.path_to, description.options) == ("few", "", ("seed",))
    assert description.summary == "A few scenes of digits"
    with pytest.raises(UnknownNameError, match="'seed'"):
        load("few", sed=1)
    with pytest.raises(InputError, match="path"):
        load("few", "somewhere")


def test_a_path_is_recognized_by_a_plugin(tmp_path: Path) -> None:
    file = tmp_path / "count.scenes"
    file.write_text("5")
    register_dataset("listed", listed_digits, path_to="a .scenes file", recognizes=is_scenes_file)
    for data in (load(file), load(f"listed={file}"), load("listed", file)):
        assert len(data.train) == 5
    assert str(load(file).findings[0]) == "recognized as listed: a .scenes file"
    with pytest.raises(InputError, match="listed=PATH"):
        load("listed")


def test_a_layout_lets_the_command_check_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = (RequiredFile("count.scenes", "how many", lines=1), RequiredFile("scenes/*.png", count=2))
    layout = DatasetLayout("https://example.org", "CC0", files=files, find=lambda path: path)
    register_dataset("listed", listed_digits, layout=layout)
    (tmp_path / "count.scenes").write_text("5\n6\n")
    assert call("datasets", "listed", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert "count.scenes: 2 lines" in said and "scenes/*.png is missing" in said
    register_dataset("plain", listed_digits)
    assert call("datasets", "plain", str(tmp_path)) == 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *((name, {}, "name") for name in ("", "two words", "a=b", "9lives")),
        ("csv", {}, "'csv'"),
        ("few", {"recognizes": is_scenes_file}, "'path'"),
    ],
)
def test_what_cannot_be_registered_is_refused(name: str, options: Any, message: str) -> None:
    with pytest.raises((InputError, ValueError), match=message):
        register_dataset(name, few_digits, **options)


def test_a_recipe_opens_it_again_where_it_is_registered_and_says_what_is_missing_elsewhere() -> None:
    recipe = {"name": "few", "path": None, "options": {"seed": 3}, "steps": [{"reveal": {"splits": ["train"]}}]}
    recipe |= {"loader": f"{__name__}:few_digits"}
    with pytest.raises(InputError, match=f"'few' .*{__name__}:few_digits"):
        load_from_recipe(recipe)
    register_dataset("few", few_digits)
    data = load_from_recipe(recipe)
    assert data.recipe == recipe and data.train.labels.complete


def test_options_of_a_data_set_from_outside_are_plain_values() -> None:
    def nested(settings: dict[str, Any]) -> Dataset:
        return load("digits", **settings["sizes"])

    register_dataset("nested", nested)
    data = load("nested", settings={"sizes": {"train": 5, "val": 0, "test": 0}})
    assert len(load_from_recipe(data.recipe).train) == 5


def test_installed_packages_add_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = {"few": few_digits, "csv": few_digits}
    monkeypatch.setattr(
        registry_module, "load_plugins", lambda group: plugins.items() if group == "labelgap.datasets" else ()
    )
    registry_module._load_plugins.cache_clear()
    assert "few" in dataset_names() and len(load("few").train) == 6
    assert describe_datasets()[1].name == "csv" and describe_datasets()[1].path_to, "a plug-in replaces nothing"
