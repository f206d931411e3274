"""Backbones by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import labelgap as lg
import labelgap.models
from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.models import (
    RANDOM_WEIGHTS,
    Backbone,
    ModuleBackbone,
    WeightsInfo,
    as_backbone,
    backbone_info,
    backbone_names,
    check_backbone,
    count_parameters,
    create_backbone,
    is_pretrained,
    list_backbones,
    registry,
)

OURS = ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2", "small-cnn"]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no registered name behind."""
    monkeypatch.setattr(registry.BACKBONES, "_entries", dict(registry.BACKBONES._entries))
    registry._load_plugins.cache_clear()


def tiny(pretrained: bool = True) -> nn.Module:
    network = nn.Conv2d(3, 6, 16, stride=16)
    nn.init.constant_(network.weight, 1.0 if pretrained else 0.0)
    return network


def largest(backbone: Backbone) -> float:
    return next(backbone.parameters()).detach().max().item()


@pytest.mark.parametrize("name", OURS)
def test_the_listed_facts_are_those_of_the_backbone(name: str) -> None:
    info, backbone = backbone_info(name), create_backbone(name).eval()
    assert backbone.name == name and info.summary
    assert info.input_spec == backbone.input_spec
    assert info.parameters == count_parameters(backbone)
    assert (info.source, info.license) == (backbone.source, backbone.license)
    images = torch.full((2, backbone.input_spec.channels, 64, 64), 128, dtype=torch.uint8)
    with torch.inference_mode():
        feature_maps, features = backbone.maps_and_features(backbone.normalize(images))
    assert feature_maps.shape[:2] == (2, info.num_features) and feature_maps.ndim == 4
    assert features.shape == (2, backbone.num_features) and bool(features.isfinite().all())


@pytest.mark.parametrize("ask", [create_backbone, check_backbone, is_pretrained, backbone_info])
def test_an_unknown_name_suggests_the_nearest(ask: Callable[[str], object]) -> None:
    with pytest.raises(UnknownNameError, match=r"no backbone 'eficientnet-lite0'\. Did you mean 'efficientnet-lite0'"):
        ask("eficientnet-lite0")
    with pytest.raises(UnknownNameError, match="timm:MODEL is any model of timm"):
        ask("resnet18")


def test_the_image_size_can_be_set() -> None:
    usual, other = create_backbone("small-cnn"), create_backbone("small-cnn", size=96)
    assert other.input_spec == replace(usual.input_spec, size=96) and usual.input_spec.size != 96
    with pytest.raises(InputError, match="pixels a side"):
        create_backbone("small-cnn", size=0)


def test_weights_none_is_a_random_start() -> None:
    backbone = create_backbone("efficientnet-lite0", weights="none")
    assert backbone.source == RANDOM_WEIGHTS.source and not backbone.reproducible
    assert create_backbone("efficientnet-lite0").reproducible
    assert not is_pretrained("efficientnet-lite0", "none") and is_pretrained("efficientnet-lite0", "none.pth")
    assert [name for name in backbone_names() if not is_pretrained(name)] == ["resnet50-v1", "small-cnn", "tiny-cnn"]


def test_a_registered_builder_is_created_listed_and_described_by_its_name() -> None:
    weights = WeightsInfo("a drawer", "MIT")
    lg.register_backbone("tiny", tiny, summary="one layer", weights=weights)
    backbone = create_backbone("tiny", size=64)
    assert isinstance(backbone, ModuleBackbone) and backbone.name == "tiny" and backbone.reproducible
    assert (backbone.source, backbone.input_spec.size, backbone.num_features) == ("a drawer", 64, 6)
    assert largest(backbone) == 1.0 and largest(create_backbone("tiny", pretrained=False)) == 0.0
    assert "tiny" in backbone_names() and is_pretrained("tiny")
    lg.register_backbone("smallest", lambda: create_backbone("small-cnn"))  # it takes no arguments
    assert create_backbone("smallest").num_features == 128
    state = torch.get_rng_state()
    info = {row.name: row for row in list_backbones()}["tiny"]
    assert torch.equal(torch.get_rng_state(), state)
    assert (info.summary, info.num_features, info.license) == ("one layer", 6, "MIT")


def test_a_weight_file_fits_a_registered_backbone(tmp_path: Path) -> None:
    lg.register_backbone("tiny", tiny, weights=WeightsInfo("a drawer", "MIT"))
    state = {name: value + 1 for name, value in tiny().state_dict().items()}
    torch.save(state, tmp_path / "tiny.pth")
    backbone = create_backbone("tiny", weights=tmp_path / "tiny.pth")
    assert largest(backbone) == 2.0
    assert "tiny.pth" in backbone.source and not backbone.reproducible


@pytest.mark.parametrize("name", ["small-cnn", "a:b", ""])
def test_a_name_that_is_used_or_has_a_colon_cannot_be_registered(name: str) -> None:
    with pytest.raises(InputError, match=r"already|without a colon"):
        lg.register_backbone(name, tiny)


def test_entry_points_of_installed_packages_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, Any]] = [("tiny", tiny), ("small-cnn", tiny)]
    monkeypatch.setattr(registry, "load_plugins", lambda group: found if group == "labelgap.backbones" else [])
    with pytest.warns(UserWarning, match=r"left out: there is a backbone 'small-cnn' already"):
        check_backbone("tiny")
    assert create_backbone("tiny").num_features == 6


class OwnNetwork(nn.Module):
    """A network as a user writes it: at the top of a module, made without arguments."""

    input_spec = labelgap.models.InputSpec(size=16, mean=(0.5,), std=(0.5,), channels=1)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 5)

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.layer(images.flatten(1))
        return vectors


class OwnBackbone(Backbone):
    def __init__(self, features: int) -> None:
        super().__init__(num_features=features, input_spec=OwnNetwork.input_spec)
        self.layer = nn.Conv2d(1, features, 4)

    def feature_maps(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layer(images)
        return maps


def test_a_module_is_a_backbone_that_its_class_path_makes_again() -> None:
    network = OwnNetwork().train()
    backbone = as_backbone(network)
    assert network.training and not backbone.reproducible
    assert (backbone.num_features, backbone.input_spec) == (5, OwnNetwork.input_spec)
    assert backbone.name == f"{OwnNetwork.__module__}:OwnNetwork" and is_pretrained(backbone.name)
    again = create_backbone(backbone.name)
    again.load_state_dict(backbone.state_dict())
    images = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(again(images), backbone(images))
    with pytest.raises(InputError, match="no feature maps"):
        backbone.feature_maps(images)


def test_a_backbone_object_is_stored_and_named_after_its_class() -> None:
    own = as_backbone(OwnBackbone(3))
    assert own.name.endswith(":OwnBackbone") and not own.reproducible
    with pytest.raises(RunError, match="cannot be made without arguments"):
        create_backbone(own.name)
    known = as_backbone(create_backbone("efficientnet-lite0"))
    assert known.name == "efficientnet-lite0" and not known.reproducible


def test_a_class_must_be_imported_and_be_a_module() -> None:
    for name, message in (("unseen_networks:Network", "import unseen_networks"), ("pathlib:Path", "is not a Module")):
        for ask in (create_backbone, check_backbone):
            with pytest.raises(RunError, match=message):
                ask(name)
