from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.models import (
    BoostLU,
    Classifier,
    EfficientNetLite,
    HeadName,
    LinearHead,
    SmallCNN,
    class_activation_maps,
    has_average_pool,
)
from labelgap.models.backbone import Backbone, InputSpec
from labelgap.models.efficientnet_lite import LITE0
from labelgap.models.heads import create_head

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


def boosted_logits(feature_maps: Array, weight: Array, bias: Array) -> Array:
    """The equation of BoostLU, place by place, with Python's own floats."""
    batch, width, height, across = feature_maps.shape
    logits = np.zeros((batch, len(weight)))
    for b in range(batch):
        for k in range(len(weight)):
            total = 0.0
            for i in range(height):
                for j in range(across):
                    value = sum(float(weight[k, d]) * float(feature_maps[b, d, i, j]) for d in range(width))
                    total += 5.0 * value if value > 0 else value
            logits[b, k] = total / (height * across) + bias[k]
    return logits


def some_maps(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def double_head(name: str, width: int, classes: int) -> LinearHead | BoostLU:
    torch.manual_seed(0)
    head = create_head(name, width, classes).double()
    assert isinstance(head, LinearHead | BoostLU)
    return head


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


def test_attention_without_weight_is_the_linear_head_on_the_average() -> None:
    linear = Classifier(EfficientNetLite(LITE0, pretrained=False), 4).eval()
    attention = Classifier(linear.backbone, 4, "attention", attention_weight=0.0).eval()
    attention.load_state_dict(linear.state_dict())
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(attention(images), linear(images))


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


@pytest.mark.parametrize(("backbone", "averages"), [("efficientnet-lite0", True), ("small-cnn", False)])
def test_which_networks_pool_by_the_average(backbone: str, averages: bool) -> None:
    assert has_average_pool(backbone) is averages
    assert not has_average_pool(Colours())


def test_activation_maps_are_the_weights_times_the_features_of_a_place() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 4, 5)
    linear, boosted = Classifier(Colours(), 4), Classifier(Colours(), 4, head="boostlu")
    boosted.load_state_dict(linear.state_dict())
    wanted = np.einsum("kd,bdij->bkij", linear.head.weight.detach().numpy(), images.numpy())
    np.testing.assert_allclose(class_activation_maps(linear, images).detach().numpy(), wanted, rtol=1e-5, atol=1e-6)
    wanted = np.where(wanted > 0, 5 * wanted, wanted)
    np.testing.assert_allclose(class_activation_maps(boosted, images).detach().numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_an_unknown_head_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'boostlu'"):
        Classifier(Colours(), 3, head="boostlou")
    with pytest.raises(InputError, match="class"):
        Classifier(Colours(), 0, head="boostlu")


def make(classes: int = 7, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(SmallCNN(), classes)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 1, 64, 64, generator=torch.Generator().manual_seed(1))


def test_in_eval_mode_logits_are_averaged_over_an_image_and_its_mirror_image(images: torch.Tensor) -> None:
    plain, model = make().eval(), make().eval()
    model.average_flips = True
    expected = (plain(images).detach().numpy() + plain(images.flip(-1)).detach().numpy()) / 2
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=1e-6)
    features = (model.backbone.features(images) + model.backbone.features(images.flip(-1))) / 2
    np.testing.assert_allclose(model.head(features).detach().numpy(), expected, rtol=1e-4, atol=1e-6)
    both = [class_activation_maps(plain, each).detach().numpy() for each in (images, images.flip(-1))]
    maps = class_activation_maps(model, images).detach().numpy()
    np.testing.assert_allclose(maps, (both[0] + both[1][..., ::-1]) / 2, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.train()(images), plain.train()(images))


def test_the_head_computes_exactly_also_where_the_backbone_is_rounded() -> None:
    torch.manual_seed(0)
    model = Classifier(SmallCNN(), classes=5).eval()
    images = torch.rand(8, 1, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits, features = model(images, return_features=True)
    assert features.dtype == torch.bfloat16 and logits.dtype == torch.float32
    assert torch.allclose(logits, model.head(features.float()))


def test_boostlu_is_the_equation_place_by_place_and_its_gradient_the_derivative() -> None:
    head, feature_maps = double_head("boostlu", 4, 5), some_maps(3, 4, 2, 3).requires_grad_()
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    wanted = boosted_logits(feature_maps.detach().numpy(), weight, bias)
    np.testing.assert_allclose(head(feature_maps).detach().numpy(), wanted, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda maps, _: head(maps), (feature_maps, head.weight))
