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
