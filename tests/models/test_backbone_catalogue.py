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
    UNTRAINED,
    Backbone,
    BackboneRow,
    check_name,
    create,
    describe,
    describe_one,
    is_pretrained,
    names,
    parameter_count,
)

OURS = [name for name in names() if not name.startswith("resnet")]


@pytest.mark.parametrize("name", OURS)
def test_every_backbone_keeps_its_word(name: str) -> None:
    backbone = create(name, pretrained=False).eval()
    pictures = torch.full((2, backbone.input.channels, 64, 64), 128, dtype=torch.uint8)
    with torch.inference_mode():
        maps = backbone.maps(backbone.normalise(pictures))
        features = backbone.features(backbone.normalise(pictures))
    assert isinstance(backbone, Backbone)
    assert maps.shape[:2] == (2, backbone.width)
    assert maps.ndim == 4
    assert features.shape == (2, backbone.width)
    assert bool(features.isfinite().all())


@pytest.mark.parametrize("row", [describe_one(name) for name in OURS], ids=lambda row: row.name)
def test_a_row_says_what_the_backbone_is(row: BackboneRow) -> None:
    backbone = create(row.name)
    assert backbone.name == row.name
    assert row.input == backbone.input
    assert row.parameters == parameter_count(backbone)
    assert row.width == backbone.width
    assert row.input_size == backbone.input.size
    assert row.channels == backbone.input.channels
    assert (row.source, row.licence) == (backbone.source, backbone.licence)
    assert row.summary


def test_describing_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    describe()
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("ask", [create, check_name, is_pretrained, describe_one])
def test_an_unknown_name_is_told_the_nearest(ask: Callable[[str], object]) -> None:
    with pytest.raises(UnknownNameError, match=r"no backbone 'eficientnet-lite0'\. Did you mean 'efficientnet-lite0'"):
        ask("eficientnet-lite0")
    with pytest.raises(UnknownNameError, match="timm:MODEL is any model of timm"):
        ask("resnet18")


@pytest.mark.parametrize("name", OURS)
def test_the_size_of_the_pictures_can_be_chosen(name: str) -> None:
    usual, other = create(name, pretrained=False), create(name, pretrained=False, size=96)
    assert other.input == replace(usual.input, size=96) and usual.input.size != 96
    for size in (0, -5):
        with pytest.raises(InputError, match="pixels a side"):
            create(name, size=size)


def test_only_the_small_network_starts_without_weights() -> None:
    assert {name: is_pretrained(name) for name in names()} == {name: name != "small-cnn" for name in names()}
    assert is_pretrained("small-cnn", weights="any.pth")


def test_importing_the_room_imports_neither_torchvision_nor_timm() -> None:
    for file in Path(labelgap.models.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(module.split(".")[0] in {"timm", "torchvision"} for module in modules), file.name


def test_no_weights_can_be_asked_for_in_a_word() -> None:
    assert create("efficientnet-lite0", weights="none").source == UNTRAINED.source
    assert not is_pretrained("efficientnet-lite0", "none") and is_pretrained("efficientnet-lite0", "none.pth")
