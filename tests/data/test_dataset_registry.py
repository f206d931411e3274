"""Finding data by name, path or recipe; data sets from outside; and a recipe can do nothing but name data."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError

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
from labelgap.data.readers.recipe import Recipe, StoredRecipe
from labelgap.data.registry import load_moved, load_stored

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


def test_installed_packages_add_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = {"few": few_digits, "csv": few_digits}
    monkeypatch.setattr(
        registry_module, "load_plugins", lambda group: plugins.items() if group == "labelgap.datasets" else ()
    )
    registry_module._load_plugins.cache_clear()
    assert "few" in dataset_names() and len(load("few").train) == 6
    assert describe_datasets()[1].name == "csv" and describe_datasets()[1].path_to, "a plug-in replaces nothing"


FILES = (
    RequiredFile("lists/*_train.txt", "names"),
    RequiredFile("photos/*.jpg", others=("images/*.jpg",)),
    RequiredFile("extra.txt", optional=True),
)


def test_all_files_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    layout = DatasetLayout(files=FILES, find=lambda path: path / "root" if (path / "root").is_dir() else None)
    missing = ["lists/*_train.txt is missing (names)", "photos/*.jpg is missing (or images/*.jpg)"]
    assert layout.problems(tmp_path) == missing
    for name in ("lists/a_train.txt", "images/1.jpg"):
        (tmp_path / "root" / name).parent.mkdir(parents=True)
        (tmp_path / "root" / name).touch()
    assert layout.problems(tmp_path) == [] == DatasetLayout(files=FILES).problems(tmp_path)


OBSERVE = {"positives": 1, "negatives": "all", "seed": 1200, "splits": ["train"]}
RECIPE: dict[str, Any] = {"name": "digits", "path": None, "options": {"train": 6, "val": 0, "test": 0}, "steps": []}


def test_what_a_data_set_writes_is_accepted_and_gives_the_same_labels() -> None:
    data = load("digits", train=6, val=2, test=0).observe(2, "all", 7, ["train", "val"]).reveal(["val"])
    data = data.observe().observe("small-overlooked", share=0.5, side=20, seed=3, splits=["val"]).observe("annotators")
    again = load_from_recipe(data.recipe)
    assert again.recipe == data.recipe
    assert [split.labels for split in again.splits] == [split.labels for split in data.splits]
    assert Recipe.checked(data.recipe).model_dump(exclude_unset=True) == data.recipe
    recipe = {**RECIPE, "name": "csv", "path": "a.csv", "options": {"images": "photos", "aliases": None, "seed": 1}}
    assert Recipe.checked(recipe).paths == ("a.csv", "photos")


@pytest.mark.parametrize(
    "steps",
    [
        [{"train": {}}],
        [{"__init__": {"name": "x"}}],
        [{"train.labels.to_csv": {"path": "x"}}],
        [{"_with_splits": {"changed": [], "shown": [], "step": {}}}],
        [{}],
        [{"observe": OBSERVE, "reveal": {"splits": ["train"]}}],
        [{"observe": {**OBSERVE, "self": None}}],
        [{"observe": {**OBSERVE, "seed": -1}}],
        [{"observe": {**OBSERVE, "positives": 1.5}}],
        [{"observe": {**OBSERVE, "share": 0.5}}],
        [{"observe": {**OBSERVE, "positives": "os.system"}}],
        [{"observe": {**OBSERVE, "positives": "salient", "share": 0.5}}],
        [{"observe": {**OBSERVE, "positives": "random", "share": "0.5"}}],
        [{"observe": {**OBSERVE, "positives": "annotators", "annotators": 10**30}}],
        [{"observe": {**OBSERVE, "splits": ["__class__"]}}],
        [{"reveal": {"splits": ["train"]}}] * 65,
        [["observe", OBSERVE]],
        {"observe": OBSERVE},
        None,
    ],
)
def test_steps_other_than_observe_and_reveal_are_refused(steps: Any) -> None:
    with pytest.raises(InputError, match="steps"):
        load_from_recipe({**RECIPE, "steps": steps})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "numbers"}, "'numbers'"),
        ({"name": "os:system"}, "name: "),
        ({"name": "csv", "path": "https://example.org/a.csv"}, "path: https://example.org/a.csv"),
        ({"name": "csv", "path": "a\0.csv"}, "NUL"),
        ({"name": "csv", "path": ["a.csv"]}, "path: "),
        ({"name": "csv", "path": "a.csv", "options": {"images": "s3://x/y"}}, "options: s3://x/y"),
        ({"name": "csv", "path": "a.csv", "options": {"classes": "dog"}}, "csv option classes='dog'"),
        ({"name": "csv", "path": "a.csv", "options": {"rename": {"a": 1}}}, "csv option rename="),
        ({"name": "csv", "path": "a.csv", "options": {"seed": True}}, "csv option seed=True"),
        ({"options": {"trian": 6}}, "'trian'"),
        ({"options": {"train": float("nan")}}, "digits option train=nan"),
        ({"options": {"train": 10**40}}, "digits: train=1000000000"),
        ({"options": {"train": 10**9}}, "digits: train=1000000000 "),
        ({"options": {"train": [[[[[1]]]]]}}, "digits option train=[[[[[1]]]]]"),
        ({"options": {"train": object()}}, "options.train"),
        ({"options": {"path": "a.csv"}}, "'path'"),
        ({"options": {"train=6, val": 0}}, "should match"),
        ({"options": []}, "options: "),
        ({"loader": "__import__('os')"}, "loader: "),
        ({"eval": "1"}, "eval: "),
    ],
)
def test_a_recipe_names_registered_data_local_paths_and_plain_options(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_from_recipe({**RECIPE, **changed})
    assert said in str(caught.value)


def test_a_stored_model_keeps_a_valid_recipe_as_it_is_and_refuses_others() -> None:
    class Stored(BaseModel):
        model_config = ConfigDict(strict=True)
        data: StoredRecipe

    recipe = {**RECIPE, "steps": [{"observe": OBSERVE}]}
    assert Stored(data=copy.deepcopy(recipe)).data == recipe
    assert Stored(data={}).data == {}, "data that were made by hand"
    for wrong in ({**RECIPE, "steps": [{"eval": {}}]}, {"name": "digits"}):
        with pytest.raises(ValidationError, match="steps"):
            Stored(data=wrong)
