from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.timm_models import timm_or_skip
from torch import Tensor, nn

import labelgap as lg
import labelgap.models.batch_norm as batch_norm
from labelgap import models
from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.models import Backbone, ModuleBackbone, create_backbone, has_batch_norm, is_pretrained, registry
from labelgap.models.backbone import IMAGENET_INPUT

SPEC = models.InputSpec(size=8, mean=(0.1, 0.5, 0.9), std=(0.2, 0.3, 0.4))


class Tiny(Backbone):
    """Features are the channels themselves, at half the side."""

    def __init__(self, spec: models.InputSpec = SPEC, weights: models.WeightsInfo = models.RANDOM_WEIGHTS) -> None:
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
    with pytest.raises(InputError, match=r"\(batch, 3, height, width\)"):
        Tiny().normalize(images)


def test_features_are_the_average_of_the_maps() -> None:
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    backbone = Tiny()
    expected = np.array([[image[c, ::2, ::2].mean() for c in range(3)] for image in images.numpy()])
    np.testing.assert_allclose(backbone.features(images).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(backbone(images), backbone.features(images))


def test_what_a_backbone_states_is_checked_and_told() -> None:
    backbone = Tiny(weights=models.WeightsInfo("a drawer", "MIT"))
    assert (backbone.source, backbone.license, Tiny().source) == ("a drawer", "MIT", models.RANDOM_WEIGHTS.source)
    for size, mean, std in ((8, 1, (0.5,) * 3), (0, 3, (0.5,) * 3), (8, 3, (0.5, 0.5, 0.0))):
        with pytest.raises(InputError):
            models.InputSpec(size=size, mean=(0.5,) * mean, std=std)
    layer = nn.Linear(4, 2)
    layer.weight.requires_grad_(False)
    assert models.count_parameters(layer) == 10


class Returns(nn.Module):
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
    model = models.Classifier(backbone, classes=4)
    maps = models.class_activation_maps(model, images)
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
    assert ModuleBackbone(network).input_spec == models.InputSpec(32, (0.1,) * 3, (0.2,) * 3, 3, "bicubic")
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
    batch_norm._ask.cache_clear()
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

    monkeypatch.setattr(registry, "create_backbone", build)
    batch_norm._ask.cache_clear()
    assert has_batch_norm("timm:resnet18") and not has_batch_norm("timm:vit_tiny_patch16_224")
    assert {weight.device.type for network in built for weight in network.parameters()} == {"meta"}


OURS = ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2", "small-cnn"]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
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
    info, backbone = models.backbone_info(name), create_backbone(name).eval()
    assert backbone.name == name and info.summary
    assert info.input_spec == backbone.input_spec
    assert info.parameters == models.count_parameters(backbone)
    assert (info.source, info.license) == (backbone.source, backbone.license)
    images = torch.full((2, backbone.input_spec.channels, 64, 64), 128, dtype=torch.uint8)
    with torch.inference_mode():
        feature_maps, features = backbone.maps_and_features(backbone.normalize(images))
    assert feature_maps.shape[:2] == (2, info.num_features) and feature_maps.ndim == 4
    assert features.shape == (2, backbone.num_features) and bool(features.isfinite().all())


@pytest.mark.parametrize("ask", [create_backbone, models.check_backbone, is_pretrained, models.backbone_info])
def test_an_unknown_name_suggests_the_nearest(ask: Callable[[str], object]) -> None:
    with pytest.raises(UnknownNameError, match="'efficientnet-lite0'"):
        ask("eficientnet-lite0")
    with pytest.raises(UnknownNameError, match="timm:MODEL"):
        ask("resnet18")


def test_a_size_and_a_random_start_are_as_asked() -> None:
    usual, other = create_backbone("small-cnn"), create_backbone("small-cnn", size=96)
    assert other.input_spec == replace(usual.input_spec, size=96) and usual.input_spec.size != 96
    with pytest.raises(InputError, match="pixels a side"):
        create_backbone("small-cnn", size=0)
    backbone = create_backbone("efficientnet-lite0", weights="none")
    assert backbone.source == models.RANDOM_WEIGHTS.source and not backbone.reproducible
    assert create_backbone("efficientnet-lite0").reproducible
    assert not is_pretrained("efficientnet-lite0", "none") and is_pretrained("efficientnet-lite0", "none.pth")
    untrained = [name for name in models.backbone_names() if not is_pretrained(name)]
    assert untrained == ["resnet50-v1", "small-cnn", "tiny-cnn"]


def test_a_registered_builder_is_created_listed_and_described_by_its_name() -> None:
    weights = models.WeightsInfo("a drawer", "MIT")
    lg.register_backbone("tiny", tiny, summary="one layer", weights=weights)
    backbone = create_backbone("tiny", size=64)
    assert isinstance(backbone, ModuleBackbone) and backbone.name == "tiny" and backbone.reproducible
    assert (backbone.source, backbone.input_spec.size, backbone.num_features) == ("a drawer", 64, 6)
    assert largest(backbone) == 1.0 and largest(create_backbone("tiny", pretrained=False)) == 0.0
    assert "tiny" in models.backbone_names() and is_pretrained("tiny")
    lg.register_backbone("smallest", lambda: create_backbone("small-cnn"))  # it takes no arguments
    assert create_backbone("smallest").num_features == 128
    state = torch.get_rng_state()
    info = {row.name: row for row in models.list_backbones()}["tiny"]
    assert torch.equal(torch.get_rng_state(), state)
    assert (info.summary, info.num_features, info.license) == ("one layer", 6, "MIT")


def test_a_weight_file_fits_a_registered_backbone(tmp_path: Path) -> None:
    lg.register_backbone("tiny", tiny, weights=models.WeightsInfo("a drawer", "MIT"))
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
    with pytest.warns(UserWarning, match="'small-cnn'"):
        models.check_backbone("tiny")
    assert create_backbone("tiny").num_features == 6


class OwnNetwork(nn.Module):
    """A network as a user writes it: at the top of a module, made without arguments."""

    input_spec = models.InputSpec(size=16, mean=(0.5,), std=(0.5,), channels=1)

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
    backbone = models.as_backbone(network)
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
    own = models.as_backbone(OwnBackbone(3))
    assert own.name.endswith(":OwnBackbone") and not own.reproducible
    with pytest.raises(RunError, match="OwnBackbone"):
        create_backbone(own.name)
    known = models.as_backbone(create_backbone("efficientnet-lite0"))
    assert known.name == "efficientnet-lite0" and not known.reproducible


def test_a_class_must_be_imported_and_be_a_module() -> None:
    for name, message in (("unseen_networks:Network", "import unseen_networks"), ("pathlib:Path", "is not a Module")):
        for ask in (create_backbone, models.check_backbone):
            with pytest.raises(RunError, match=message):
                ask(name)
