"""What every backbone promises, on the smallest one that keeps the promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.timm_models import timm_or_skip
from torch import Tensor, nn

import labelgap.models.batch_norm as batch_norm
from labelgap.core.errors import InputError
from labelgap.models import (
    RANDOM_WEIGHTS,
    Backbone,
    Classifier,
    InputSpec,
    ModuleBackbone,
    WeightsInfo,
    class_activation_maps,
    count_parameters,
    create_backbone,
    has_batch_norm,
)
from labelgap.models.backbone import IMAGENET_INPUT

SPEC = InputSpec(size=8, mean=(0.1, 0.5, 0.9), std=(0.2, 0.3, 0.4))


class Tiny(Backbone):
    """Features are the channels themselves, at half the side."""

    def __init__(self, spec: InputSpec = SPEC, weights: WeightsInfo = RANDOM_WEIGHTS) -> None:
        super().__init__(num_features=spec.channels, input_spec=spec, weights=weights)

    def feature_maps(self, images: Tensor) -> Tensor:
        return images[..., ::2, ::2]


def random_bytes(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def test_normalise_is_what_numpy_says() -> None:
    images = random_bytes(3, 3, 8, 6)
    mean, std = (np.array(part, dtype=np.float64).reshape(1, 3, 1, 1) for part in (SPEC.mean, SPEC.std))
    expected, before = (images.numpy() / 255.0 - mean) / std, images.clone()
    normalised = Tiny().normalize(images)
    assert normalised.dtype == torch.float32
    np.testing.assert_allclose(normalised.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(images, before) and Tiny().to(torch.bfloat16).normalize(images).dtype == torch.bfloat16
    assert Tiny().state_dict() == {}


@pytest.mark.parametrize(
    "images",
    [torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8, dtype=torch.uint8)],
    ids=["floats", "gray", "one picture"],
)
def test_normalise_refuses_what_is_no_batch_of_bytes(images: Tensor) -> None:
    with pytest.raises(InputError, match=r"bytes of shape \(batch, 3, height, width\)"):
        Tiny().normalize(images)


def test_features_are_the_average_of_the_maps() -> None:
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    backbone = Tiny()
    expected = np.array([[image[c, ::2, ::2].mean() for c in range(3)] for image in images.numpy()])
    np.testing.assert_allclose(backbone.features(images).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(backbone(images), backbone.features(images))


def test_what_a_backbone_states_is_checked_and_told() -> None:
    backbone = Tiny(weights=WeightsInfo("a drawer", "MIT"))
    assert (backbone.source, backbone.license, Tiny().source) == ("a drawer", "MIT", RANDOM_WEIGHTS.source)
    for size, mean, std in ((8, 1, (0.5,) * 3), (0, 3, (0.5,) * 3), (8, 3, (0.5, 0.5, 0.0))):
        with pytest.raises(InputError):
            InputSpec(size=size, mean=(0.5,) * mean, std=std)
    layer = nn.Linear(4, 2)
    layer.weight.requires_grad_(False)
    assert count_parameters(layer) == 10


class Returns(nn.Module):
    """A network that returns what it is told to."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, images: Tensor) -> Any:
        return self.output


def test_feature_maps_are_averaged_to_the_features() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)).eval()
    backbone = ModuleBackbone(network, input_spec=SPEC)
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(backbone.features(images), network(images).mean(dim=(2, 3)))
    model = Classifier(backbone, classes=4)
    maps = class_activation_maps(model, images)
    torch.testing.assert_close(maps.mean(dim=(2, 3)) + model.head.bias, model(images))


def test_the_dry_forward_changes_no_running_average_and_no_mode() -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Dropout())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    ModuleBackbone(network, input_spec=SPEC)
    assert network.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_the_input_is_what_the_module_states() -> None:
    network = nn.Conv2d(3, 5, 3)
    assert ModuleBackbone(network).input_spec == IMAGENET_INPUT
    config = {"input_size": (3, 32, 32), "mean": (0.1,) * 3, "std": (0.2,) * 3, "interpolation": "bicubic"}
    network.pretrained_cfg = config  # type: ignore[assignment]
    assert ModuleBackbone(network).input_spec == InputSpec(32, (0.1,) * 3, (0.2,) * 3, 3, "bicubic")
    network.input_spec = SPEC  # type: ignore[assignment]
    assert ModuleBackbone(network).input_spec == SPEC


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Returns(torch.zeros(1, 4, 7)), r"output has shape \(1, 4, 7\)"),
        (Returns([1]), "output has type list"),
        (nn.Linear(7, 2), "Linear cannot be a backbone for images of 3 × 8 × 8: mat1 and mat2"),
    ],
)
def test_a_module_that_gives_neither_vectors_nor_maps_is_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModuleBackbone(network, input_spec=SPEC)


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
