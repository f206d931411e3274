"""Data sets from outside: registered by a call, or by the entry points of an installed package."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import call

from labelgap.core.errors import InputError, UnknownNameError
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
