"""A backbone and its head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labelgap.core.errors import InputError
from labelgap.models import Classifier, SmallCNN, backbone_parameters, head_parameters, parameter_groups


def make(classes: int = 7, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(SmallCNN(), classes)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 1, 64, 64, generator=torch.Generator().manual_seed(1))


def test_logits_features_and_maps_have_their_shapes(images: torch.Tensor) -> None:
    model = make()
    assert model(images).shape == (3, 7)
    assert model.features(images).shape == (3, 128)
    assert model.feature_maps(images).shape == (3, 128, 8, 8)


def test_logits_are_the_linear_head_of_the_features(images: torch.Tensor) -> None:
    model = make()
    weight, bias = model.head.weight.detach().numpy(), model.head.bias.detach().numpy()
    expected = model.features(images).detach().numpy() @ weight.T + bias
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_logits_and_features_can_come_out_of_one_pass(images: torch.Tensor) -> None:
    model = make()
    logits, features = model(images, return_features=True)
    torch.testing.assert_close(logits, model(images))
    torch.testing.assert_close(features, model.features(images))


def test_the_same_seed_gives_the_same_network() -> None:
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    for ours, same in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, same)
    assert not torch.equal(first.head.weight, other.head.weight)
    assert not torch.equal(first.head.bias, other.head.bias)


def test_bytes_are_normalised_by_the_backbone() -> None:
    model = make()
    pictures = torch.arange(64 * 64, dtype=torch.int64).remainder(256).to(torch.uint8).view(1, 1, 64, 64)
    assert torch.equal(model.normalize(pictures), model.backbone.normalize(pictures))


def test_groups_hold_every_parameter_once() -> None:
    model = make()
    groups = parameter_groups(model, 1e-4, head_factor=10)
    assert [group["name"] for group in groups] == ["backbone", "head"]
    assert [group["lr"] for group in groups] == pytest.approx([1e-4, 1e-3])
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(map(id, model.parameters()))
    assert list(map(id, head_parameters(model))) == list(map(id, model.head.parameters()))


def test_what_is_frozen_is_in_no_group() -> None:
    model = make()
    model.backbone.requires_grad_(False)
    assert backbone_parameters(model) == []
    assert [group["name"] for group in parameter_groups(model, 1e-3)] == ["head"]


def test_an_optimiser_takes_the_groups_and_moves_both_parts(images: torch.Tensor) -> None:
    model = make()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(parameter_groups(model, 0.1, head_factor=2))
    model(images).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_classifier_needs_a_class() -> None:
    with pytest.raises(InputError, match="at least one class"):
        Classifier(SmallCNN(), 0)


def test_the_head_computes_exactly_also_where_the_backbone_is_rounded() -> None:
    torch.manual_seed(0)
    model = Classifier(SmallCNN(), classes=5).eval()
    pictures = torch.rand(8, 1, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits, features = model(pictures, return_features=True)
    assert features.dtype == torch.bfloat16 and logits.dtype == torch.float32
    assert torch.allclose(logits, model.head(features.float()))
