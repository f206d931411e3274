"""A recipe comes out of a file that anybody may have written: it names data, and can do nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from labelgap.core.errors import InputError
from labelgap.data import load, load_from_recipe
from labelgap.data.readers.recipe import Recipe, StoredRecipe

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
        ({"options": {"train": float("nan")}}, "options: nan"),
        ({"options": {"train": 10**40}}, "options: "),
        ({"options": {"train": 10**9}}, "digits: train=1000000000 "),
        ({"options": {"train": [[[[[1]]]]]}}, "4 levels"),
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
