from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import labelgap as lg
import labelgap.models.batch_norm as batch_norm
from labelgap import models
from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.models import (
    Backbone,
    Classifier,
    EfficientNetLite,
    HeadName,
    ModuleBackbone,
    SmallCNN,
    class_activation_maps,
    create_backbone,
    has_average_pool,
    has_batch_norm,
    is_pretrained,
    registry,
)
from labelgap.models.heads import create_head
from labelgap.models.info import IMAGENET_INPUT, LITE0, InputSpec

SPEC = models.InputSpec(size=8, mean=(0.1, 0.5, 0.9), std=(0.2, 0.3, 0.4))


class Tiny(Backbone):
    """Features are the channels themselves, at half the side."""

    def __init__(self, spec: models.InputSpec = SPEC, weights: models.WeightsInfo = models.RANDOM_WEIGHTS) -> None:
        super().__init__(num_features=spec.channels, input_spec=spec, weights=weights)

    def feature_maps(self, images: Tensor) -> Tensor:
        return images[..., ::2, ::2]


@pytest.mark.parametrize(
    "images",
    [torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8, dtype=torch.uint8)],
    ids=["floats", "gray", "one picture"],
)
def test_normalise_refuses_what_is_no_batch_of_bytes(images: Tensor) -> None:
    with pytest.raises(InputError, match=r"\(batch, 3, height, width\)"):
        Tiny().normalize(images)


class Halved(Tiny):
    """A network with a normalization of its own, which takes bytes."""

    def normalize(self, images: Tensor) -> Tensor:
        assert images.dtype == torch.uint8
        return images / 127.5 - 1


@pytest.mark.parametrize("backbone", [Tiny(), Tiny().double(), Halved()], ids=["float32", "float64", "its own"])
def test_changed_images_are_normalized_as_bytes_are(backbone: Backbone) -> None:
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    wanted = backbone.normalize(images)
    assert torch.equal(backbone.normalize_(images.float()), wanted)
    assert backbone.normalize_(images.float()).dtype == wanted.dtype


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


class OwnBackbone(Tiny):
    """Its class alone does not make it."""

    def __init__(self, features: int) -> None:
        super().__init__()


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


Array = NDArray[np.float64]
HEADS = get_args(HeadName)


class Colours(Backbone):
    """The pixels themselves are the maps, and they are pooled by the maximum."""

    def __init__(self) -> None:
        super().__init__(num_features=3, input_spec=InputSpec(size=4, mean=(0.5,) * 3, std=(0.5,) * 3))

    def feature_maps(self, images: Tensor) -> Tensor:
        return images

    def pool(self, feature_maps: Tensor) -> Tensor:
        return feature_maps.amax(dim=(-2, -1))


def some_maps(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("backbone", [SmallCNN, lambda: EfficientNetLite(LITE0, pretrained=False), Colours])
def test_every_head_works_on_every_backbone(name: str, backbone: Callable[[], Backbone]) -> None:
    torch.manual_seed(0)
    model = Classifier(backbone(), classes=4, head=name).eval()
    spec = model.backbone.input_spec
    images = torch.randn(2, spec.channels, 16, 32)
    logits, features = model(images, return_features=True)
    torch.testing.assert_close(features, model.backbone.features(images))
    torch.testing.assert_close(logits, model(images))
    taken = model.backbone.feature_maps(images) if model.head.needs_feature_maps else features
    torch.testing.assert_close(logits, model.head(taken))
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("temperature", [None, 0.0, 1.5])
def test_attention_is_the_equation_place_by_place(temperature: float | None) -> None:
    torch.manual_seed(0)
    options = {"attention_weight": 0.3, "attention_temperature": temperature}
    head, feature_maps = create_head("attention", 4, 5, **options).double(), some_maps(3, 4, 2, 3).requires_grad_()
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    wanted = np.zeros((3, 5))
    for b in range(3):
        for k in range(5):
            places = [float(weight[k] @ place) for place in feature_maps[b].detach().flatten(1).T.numpy()]
            if temperature is None:
                top = max(places)
            else:
                shares = [math.exp(temperature * place) for place in places]
                top = sum(share * place for share, place in zip(shares, places, strict=True)) / sum(shares)
            wanted[b, k] = 0.7 * sum(places) / 6 + 0.3 * top + bias[k]
    np.testing.assert_allclose(head(feature_maps).detach().numpy(), wanted, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(head, (feature_maps,))


def test_equal_maxima_share_the_gradient_of_attention_also_in_a_vmap() -> None:
    torch.manual_seed(0)
    head = create_head("attention", 4, 5, attention_weight=0.3).double()
    maps = some_maps(3, 4, 2, 3).repeat(1, 1, 1, 2).requires_grad_()
    scores = torch.einsum("kd,bdhw->bkhw", head.weight, maps)
    wanted = 0.7 * scores.mean((2, 3)) + 0.3 * scores.amax((2, 3)) + head.bias
    inputs, gradient = [maps, head.weight, head.bias], torch.randn_like(wanted)
    got = torch.autograd.grad(head(maps), inputs, gradient)
    torch.testing.assert_close(got, torch.autograd.grad(wanted, inputs, gradient))
    torch.testing.assert_close(torch.vmap(lambda image: head(image[None])[0])(maps), head(maps))


def test_logits_are_the_mean_over_sizes_and_mirror_images_in_eval_mode_alone() -> None:
    torch.manual_seed(0)
    plain = Classifier(EfficientNetLite(LITE0, pretrained=False), 4, "attention")
    model = Classifier(plain.backbone, 4, "attention", average_flips=True, average_sizes=[64, 96])
    model.load_state_dict(plain.state_dict())
    model.backbone.input_spec = replace(model.backbone.input_spec, size=64)
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model.train()(images), plain.train()(images))
    larger = torch.nn.functional.interpolate(images, size=(96, 96), mode="bilinear")
    views = [plain.eval()(view) for view in (images, images.flip(-1), larger, larger.flip(-1))]
    torch.testing.assert_close(model.eval()(images), torch.stack(views).mean(0))
    assert not model.reads_features
    assert model.evaluation_cost == 2 * (1 + 2.25)


def test_activation_maps_are_the_weights_times_the_features_of_a_place() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 4, 5)
    linear, boosted = Classifier(Colours(), 4), Classifier(Colours(), 4, head="boostlu")
    boosted.load_state_dict(linear.state_dict())
    wanted = np.einsum("kd,bdij->bkij", linear.head.weight.detach().numpy(), images.numpy())
    np.testing.assert_allclose(class_activation_maps(linear, images).detach().numpy(), wanted, rtol=1e-5, atol=1e-6)
    wanted = np.where(wanted > 0, 5 * wanted, wanted)
    np.testing.assert_allclose(class_activation_maps(boosted, images).detach().numpy(), wanted, rtol=1e-5, atol=1e-6)
    logits = wanted.mean(axis=(2, 3)) + boosted.head.bias.detach().numpy()
    np.testing.assert_allclose(boosted(images).detach().numpy(), logits, rtol=1e-5, atol=1e-6)
    assert torch.autograd.gradcheck(boosted.head.double(), (images.double().requires_grad_(),))


@pytest.mark.parametrize(("name", "expected"), [("efficientnet-lite0", True), ("small-cnn", False)])
def test_a_name_and_its_network_get_the_same_answer_and_draw_nothing(name: str, expected: bool) -> None:
    batch_norm._ask.cache_clear()
    before = torch.get_rng_state()
    assert has_batch_norm(name) is has_average_pool(name) is expected and not has_average_pool(Colours())
    assert torch.equal(torch.get_rng_state(), before)
    assert has_batch_norm(create_backbone(name, pretrained=False)) is expected


def test_an_unknown_head_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'boostlu'"):
        Classifier(Colours(), 3, head="boostlou")
    with pytest.raises(InputError, match="class"):
        Classifier(Colours(), 0, head="boostlu")


def test_features_and_activation_maps_are_averaged_over_an_image_and_its_mirror_image() -> None:
    torch.manual_seed(0)
    plain, images = Classifier(SmallCNN(), 7).eval(), torch.randn(3, 1, 64, 64)
    model = Classifier(plain.backbone, 7, average_flips=True).eval()
    model.load_state_dict(plain.state_dict())
    expected = (plain(images).detach().numpy() + plain(images.flip(-1)).detach().numpy()) / 2
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=1e-4, atol=1e-6)
    features = (model.backbone.features(images) + model.backbone.features(images.flip(-1))) / 2
    np.testing.assert_allclose(model.head(features).detach().numpy(), expected, rtol=1e-4, atol=1e-6)
    both = [class_activation_maps(plain, each).detach().numpy() for each in (images, images.flip(-1))]
    maps = class_activation_maps(model, images).detach().numpy()
    np.testing.assert_allclose(maps, (both[0] + both[1][..., ::-1]) / 2, rtol=1e-4, atol=1e-5)


def test_the_head_computes_exactly_also_where_the_backbone_is_rounded() -> None:
    torch.manual_seed(0)
    model = Classifier(SmallCNN(), classes=5).eval()
    images = torch.rand(8, 1, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits, features = model(images, return_features=True)
    assert features.dtype == torch.bfloat16 and logits.dtype == torch.float32
    assert torch.allclose(logits, model.head(features.float()))
