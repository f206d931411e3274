from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import convolve
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.models import EfficientNetLite, SmallCNN, count_parameters
from labelgap.models.efficientnet_lite import load_pretrained, pretrained_weight_file
from labelgap.models.info import LITE0, LITE1, LITE2, LiteVariant
from labelgap.models.small_cnn import OrientedEnergy, soft_maximum_pool


def theirs_of(variant: LiteVariant, **options: Any) -> Any:
    """The package's own network."""
    package, weights = pytest.importorskip("efficientnet_lite_pytorch"), str(pretrained_weight_file(variant))
    with contextlib.redirect_stdout(io.StringIO()):
        return package.EfficientNet.from_pretrained(variant.name, weights_path=weights, **options)


@pytest.fixture(scope="module")
def ours() -> EfficientNetLite:
    return EfficientNetLite(LITE0)


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Smooth colours rather than noise, which the network was never shown."""
    coarse = torch.randn(2, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    return nn.functional.interpolate(coarse, size=(224, 224), mode="bilinear")


def test_a_pass_in_training_equals_that_of_the_package_and_moves_the_same_averages(images: Tensor) -> None:
    ours = EfficientNetLite(LITE0).train()
    theirs = theirs_of(LITE0, dropout_rate=0.0, drop_connect_rate=0.0).train()
    with torch.no_grad():
        torch.testing.assert_close(ours.feature_maps(images), theirs.extract_features(images), rtol=1e-3, atol=1e-3)
    names = {"stem.norm": "_bn0", "blocks.7.depthwise.norm": "_blocks.7._bn1", "top.norm": "_bn1"}
    moved, expected = ours.state_dict(), theirs.state_dict()
    for name, theirs_name in names.items():
        for average in ("running_mean", "running_var", "num_batches_tracked"):
            found, wanted = moved[f"{name}.{average}"], expected[f"{theirs_name}.{average}"]
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", [LITE0, LITE1, LITE2], ids=lambda variant: variant.name)
def test_all_variants_equal_those_of_the_package(variant: LiteVariant, images: Tensor) -> None:
    pytest.importorskip(variant.package)
    ours, theirs = EfficientNetLite(variant).eval(), theirs_of(variant, image_size=99).eval()
    small = images[:, :, 10:109, 50:149]  # odd maps on the way, and even ones
    with torch.inference_mode():
        feature_maps = ours.feature_maps(small)
        torch.testing.assert_close(feature_maps, theirs.extract_features(small), rtol=1e-4, atol=1e-4)
    assert feature_maps.shape == (2, 1280, 4, 4) and float(feature_maps.max()) > 0.1
    assert variant.package in ours.source and ours.license == "Apache-2.0" and ours.name == variant.name


def test_only_weights_that_are_random_depend_on_the_seed_and_need_no_package(ours: EfficientNetLite) -> None:
    other = LiteVariant("x", 1.0, 1.0, 224, "efficientnet_lite9_pytorch_model")
    torch.manual_seed(0)
    EfficientNetLite(LITE0)
    first, second = (EfficientNetLite(other, pretrained=False).top.conv.weight for _ in range(2))
    torch.manual_seed(0)
    again = EfficientNetLite(other, pretrained=False)
    assert torch.equal(first, again.top.conv.weight) and not torch.equal(first, second)
    assert "random" in again.source and LITE0.package in ours.source and ours.license == "Apache-2.0"
    assert set(load_pretrained(LITE0)) == set(ours.state_dict()) and count_parameters(ours) == 3_371_008
    with pytest.raises(InputError, match=other.package):
        EfficientNetLite(other)


def pictures(count: int, side: int = 64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 1, side // 8, side // 8, generator=generator)
    return nn.functional.interpolate(coarse, scale_factor=8, mode="bilinear") + 0.1 * torch.randn(
        count, 1, side, side, generator=generator
    )


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


def box_average(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the 3×3 neighbours that exist."""
    sums, counts = (convolve(each, np.ones((3, 3)), mode="constant") for each in (values, np.ones_like(values)))
    return np.asarray(sums / counts)


def test_a_soft_maximum_is_what_the_equation_says() -> None:
    feature_maps = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    expected = [
        [math.log(sum(math.exp(2 * value) for value in feature.flatten().tolist()) / 20) / 2 for feature in picture]
        for picture in feature_maps
    ]
    np.testing.assert_allclose(soft_maximum_pool(feature_maps, 2.0).numpy(), expected, rtol=1e-5)
