"""Backbones by name."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import labelgap.models
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.models import (
    RANDOM_WEIGHTS,
    Backbone,
    BackboneInfo,
    backbone_info,
    backbone_names,
    check_backbone,
    count_parameters,
    create_backbone,
    is_pretrained,
    list_backbones,
)

OURS = [name for name in backbone_names() if not name.startswith("resnet")]


@pytest.mark.parametrize("name", OURS)
def test_every_backbone_keeps_its_word(name: str) -> None:
    backbone = create_backbone(name, pretrained=False).eval()
    pictures = torch.full((2, backbone.input_spec.channels, 64, 64), 128, dtype=torch.uint8)
    with torch.inference_mode():
        feature_maps = backbone.feature_maps(backbone.normalize(pictures))
        features = backbone.features(backbone.normalize(pictures))
    assert isinstance(backbone, Backbone)
    assert feature_maps.shape[:2] == (2, backbone.num_features)
    assert feature_maps.ndim == 4
    assert features.shape == (2, backbone.num_features)
    assert bool(features.isfinite().all())


@pytest.mark.parametrize("row", [backbone_info(name) for name in OURS], ids=lambda row: row.name)
def test_a_row_says_what_the_backbone_is(row: BackboneInfo) -> None:
    backbone = create_backbone(row.name)
    assert backbone.name == row.name
    assert row.input_spec == backbone.input_spec
    assert row.parameters == count_parameters(backbone)
    assert row.num_features == backbone.num_features
    assert row.input_size == backbone.input_spec.size
    assert row.channels == backbone.input_spec.channels
    assert (row.source, row.license) == (backbone.source, backbone.license)
    assert row.summary


def test_describing_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    list_backbones()
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("ask", [create_backbone, check_backbone, is_pretrained, backbone_info])
def test_an_unknown_name_is_told_the_nearest(ask: Callable[[str], object]) -> None:
    with pytest.raises(UnknownNameError, match=r"no backbone 'eficientnet-lite0'\. Did you mean 'efficientnet-lite0'"):
        ask("eficientnet-lite0")
    with pytest.raises(UnknownNameError, match="timm:MODEL is any model of timm"):
        ask("resnet18")


@pytest.mark.parametrize("name", OURS)
def test_the_size_of_the_pictures_can_be_chosen(name: str) -> None:
    usual, other = create_backbone(name, pretrained=False), create_backbone(name, pretrained=False, size=96)
    assert other.input_spec == replace(usual.input_spec, size=96) and usual.input_spec.size != 96
    for size in (0, -5):
        with pytest.raises(InputError, match="pixels a side"):
            create_backbone(name, size=size)


def test_only_the_small_network_starts_without_weights() -> None:
    assert {name: is_pretrained(name) for name in backbone_names()} == {
        name: name != "small-cnn" for name in backbone_names()
    }
    assert is_pretrained("small-cnn", weights="any.pth")


def test_importing_the_room_imports_neither_torchvision_nor_timm() -> None:
    for file in Path(labelgap.models.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(module.split(".")[0] in {"timm", "torchvision"} for module in modules), file.name


def test_no_weights_can_be_asked_for_in_a_word() -> None:
    assert create_backbone("efficientnet-lite0", weights="none").source == RANDOM_WEIGHTS.source
    assert not is_pretrained("efficientnet-lite0", "none") and is_pretrained("efficientnet-lite0", "none.pth")
