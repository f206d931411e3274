"""What every backbone promises, on the smallest one that keeps the promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.models import RANDOM_WEIGHTS, Backbone, InputSpec, WeightsInfo, count_parameters

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
    expected = (images.numpy() / 255.0 - mean) / std
    normalised = Tiny().normalize(images)
    assert normalised.dtype == torch.float32
    np.testing.assert_allclose(normalised.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_normalise_leaves_the_bytes_alone() -> None:
    images = random_bytes(2, 3, 8, 8)
    before = images.clone()
    Tiny().normalize(images)
    assert torch.equal(images, before)


def test_normalise_follows_the_type_of_the_backbone() -> None:
    assert Tiny().to(torch.bfloat16).normalize(random_bytes(1, 3, 8, 8)).dtype == torch.bfloat16


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


def test_constants_of_the_input_are_no_part_of_the_weights() -> None:
    assert Tiny().state_dict() == {}


def test_a_backbone_tells_where_its_weights_come_from() -> None:
    backbone = Tiny(weights=WeightsInfo("a drawer", "MIT"))
    assert (backbone.source, backbone.license) == ("a drawer", "MIT")
    assert Tiny().source == RANDOM_WEIGHTS.source


def test_an_input_needs_a_mean_for_every_channel() -> None:
    with pytest.raises(InputError, match="3 channels need 3 means"):
        InputSpec(size=8, mean=(0.5,), std=(0.5, 0.5, 0.5))


@pytest.mark.parametrize(("size", "std"), [(0, 0.5), (8, 0.0)])
def test_an_input_has_a_positive_size_and_spread(size: int, std: float) -> None:
    with pytest.raises(InputError, match="must be positive"):
        InputSpec(size=size, mean=(0.5,), std=(std,), channels=1)


def test_an_input_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SPEC.size = 9  # type: ignore[misc]


def test_frozen_parameters_are_counted_too() -> None:
    layer = nn.Linear(4, 2)
    layer.weight.requires_grad_(False)
    assert count_parameters(layer) == 10
