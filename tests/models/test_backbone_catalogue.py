"""Backbones by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import labelgap.models
from labelgap.core.errors import UnknownNameError
from labelgap.models import Backbone, BackboneRow, create, describe, names, parameter_count


@pytest.mark.parametrize("name", names())
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


@pytest.mark.parametrize("row", describe(), ids=lambda row: row.name)
def test_a_row_says_what_the_backbone_is(row: BackboneRow) -> None:
    backbone = create(row.name)
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


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"no backbone 'eficientnet-lite0'\. Did you mean 'efficientnet-lite0'"):
        create("eficientnet-lite0")


def test_importing_the_room_imports_neither_torchvision_nor_timm() -> None:
    for file in Path(labelgap.models.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(module.split(".")[0] in {"timm", "torchvision"} for module in modules), file.name
