"""Which settings a run gets where the user gives none, or a few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.training.plan import NETWORK_RECIPE, resolve_settings
from labelgap.training.presets import preset


def network_settings(given: dict[str, Any], **network: bool) -> dict[str, Any]:
    return resolve_settings("end-to-end", True, {}, given, **network)


def test_a_network_with_batch_norm_is_trained_by_sgd_and_any_other_by_adamw() -> None:
    sgd, adamw = network_settings({}), network_settings({}, batch_norm=False)
    assert (sgd["optimizer"], sgd["lr"], sgd["backbone_lr"], sgd["momentum"]) == ("sgd", 0.1, 0.01, 0.9)
    assert (adamw["optimizer"], adamw["backbone_lr"]) == ("adamw", 2e-5) and "momentum" not in adamw
    assert NETWORK_RECIPE.items() <= sgd.items() and NETWORK_RECIPE.items() <= adamw.items()
    assert (sgd["transform"], sgd["average_flips"]) == ("augment", True)
    fixed = network_settings({}, flip=False)
    assert (fixed["transform"], fixed["average_flips"]) == ("resize", False)


def test_an_optimizer_that_is_asked_for_comes_with_its_own_rates() -> None:
    adam = network_settings({"optimizer": "adam"})
    assert (adam["lr"], adam["backbone_lr"]) == (2e-4, 2e-5) and "weight_decay" not in adam
    assert network_settings({"lr": 0.05})["backbone_lr"] == 0.005


def test_an_unknown_optimizer_is_named_by_the_error(tmp_path: Path) -> None:
    data = lg.load("digits", train=16, val=8, test=8)
    given: Any = {"optimizer": "sdg", "lr": 1e-3}
    with pytest.raises(InputError, match="optimizer='sdg'") as error:
        lg.fit(data, "an", backbone="efficientnet-lite0", protocol="end-to-end", out=tmp_path / "a", **given)
    assert "field required" not in str(error.value)


def test_a_preset_is_the_papers_recipe_alone() -> None:
    paper = preset("zhou2022", method="em", dataset="voc2012", protocol=None)
    settings = resolve_settings("end-to-end", True, paper, {})
    assert not {"optimizer", "schedule", "transform", "average_flips", "weight_decay"} & settings.keys()


@pytest.mark.parametrize("given", [{"optimizer": "adamw"}, {"transform": "augment"}])
def test_a_linear_head_refuses_settings_of_a_network(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"whole network, .* --protocol linear-init or end-to-end"):
        resolve_settings("linear", True, {}, given)
