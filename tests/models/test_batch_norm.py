"""Whether a network has batch normalization: known without its weights, and without a random number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.timm_models import timm_or_skip

import labelgap.models.batch_norm as batch_norm
from labelgap.models import Backbone, create_backbone, has_batch_norm


@pytest.mark.parametrize(("name", "expected"), [("efficientnet-lite0", True), ("small-cnn", False)])
def test_a_name_and_its_network_get_the_same_answer_and_draw_nothing(name: str, expected: bool) -> None:
    batch_norm._named_has_batch_norm.cache_clear()
    before = torch.get_rng_state()
    assert has_batch_norm(name) is expected
    assert torch.equal(torch.get_rng_state(), before)
    assert has_batch_norm(create_backbone(name, pretrained=False)) is expected


def test_a_model_of_timm_is_built_without_memory_for_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    timm_or_skip()
    built: list[Backbone] = []

    def build(name: str, **options: Any) -> Backbone:
        built.append(create_backbone(name, **options))
        return built[-1]

    monkeypatch.setattr(batch_norm, "create_backbone", build)
    batch_norm._named_has_batch_norm.cache_clear()
    assert has_batch_norm("timm:resnet18") and not has_batch_norm("timm:vit_tiny_patch16_224")
    assert {weight.device.type for network in built for weight in network.parameters()} == {"meta"}
