from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labelgap.models import SmallCNN
from labelgap.models.small_cnn import OrientedEnergy, soft_maximum_pool


def pictures(count: int, side: int = 64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 1, side // 8, side // 8, generator=generator)
    return nn.functional.interpolate(coarse, scale_factor=8, mode="bilinear") + 0.1 * torch.randn(
        count, 1, side, side, generator=generator
    )


@pytest.mark.parametrize(
    ("name", "side", "places"), [("small-cnn", 64, 8), ("small-cnn", 61, 8), ("tiny-cnn", 96, 12), ("tiny-cnn", 61, 8)]
)
def test_maps_are_an_eighth_of_the_side(name: Literal["small-cnn", "tiny-cnn"], side: int, places: int) -> None:
    backbone = SmallCNN(name)
    images = torch.randn(2, 1, side, side, generator=torch.Generator().manual_seed(0))
    assert backbone.feature_maps(images).shape == (2, backbone.num_features, places, places)
    assert backbone.features(images).shape == (2, backbone.num_features)


@pytest.mark.parametrize("training", [True, False])
def test_a_picture_has_the_same_features_in_every_batch(training: bool) -> None:
    torch.manual_seed(0)
    backbone = SmallCNN().train(training)
    images = pictures(6)
    together = backbone.features(images)
    alone = torch.cat([backbone.features(image[None]) for image in images])
    backwards = backbone.features(images.flip(0)).flip(0)
    beside_noise = backbone.features(torch.cat([images[:2], 50 * torch.randn(3, 1, 64, 64)]))[:2]
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(backwards, together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(beside_noise, together[:2], rtol=1e-4, atol=1e-5)


def test_neither_the_sign_nor_the_level_of_the_paper_matters_and_a_blank_one_is_finite() -> None:
    backbone = SmallCNN()
    images = pictures(3)
    torch.testing.assert_close(backbone.feature_maps(-images), backbone.feature_maps(images), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(backbone.feature_maps(images + 2), backbone.feature_maps(images), rtol=1e-3, atol=1e-3)
    backbone = SmallCNN()
    features = backbone.features(torch.zeros(2, 1, 64, 64))
    torch.autograd.backward(features.sum())
    gradients = [parameter.grad for parameter in backbone.parameters() if parameter.grad is not None]
    assert all(bool(values.isfinite().all()) for values in (features, *gradients))


def test_an_energy_is_what_the_equation_says() -> None:
    image = pictures(1)
    layer = OrientedEnergy(directions=4, kernel=5, scale=1.5, around=3, floor=0.2)
    padded = np.pad(image[0, 0].numpy().astype(np.float64), 2, mode="edge")
    filters = layer.filters[:, 0].numpy().astype(np.float64)
    answers = np.array(
        [
            [[(padded[y : y + 5, x : x + 5] * f).sum() for x in range(0, 64, 2)] for y in range(0, 64, 2)]
            for f in filters
        ]
    )
    squares = answers[:4] ** 2 + answers[4:] ** 2
    around = box_average(box_average(squares.sum(axis=0)))
    expected = np.sqrt(squares) / np.sqrt(around + 0.2**2)
    np.testing.assert_allclose(layer(image)[0].numpy(), expected, rtol=1e-3, atol=1e-4)


def box_average(
    values: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The mean of the 3×3 neighbours that exist."""
    out = np.empty_like(values)
    for y in range(values.shape[0]):
        for x in range(values.shape[1]):
            out[y, x] = values[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2].mean()
    return out


def test_a_soft_maximum_is_what_the_equation_says() -> None:
    feature_maps = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    expected = [
        [math.log(sum(math.exp(2 * value) for value in feature.flatten().tolist()) / 20) / 2 for feature in picture]
        for picture in feature_maps
    ]
    np.testing.assert_allclose(soft_maximum_pool(feature_maps, 2.0).numpy(), expected, rtol=1e-5)
