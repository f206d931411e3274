from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.models import Classifier, EfficientNetLite, count_parameters
from labelgap.models.efficientnet_lite import LITE0, LITE1, LITE2, LiteVariant, load_pretrained, pretrained_weight_file


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """The package's own network, without dropout and stochastic depth."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    with contextlib.redirect_stdout(io.StringIO()):
        yield package.EfficientNet.from_pretrained(
            LITE0.name, weights_path=str(pretrained_weight_file(LITE0)), dropout_rate=0.0, drop_connect_rate=0.0
        )


@pytest.fixture(scope="module")
def ours() -> EfficientNetLite:
    return EfficientNetLite(LITE0)


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Smooth colours rather than noise, which the network was never shown."""
    coarse = torch.randn(2, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    return nn.functional.interpolate(coarse, size=(224, 224), mode="bilinear")


@pytest.fixture(scope="module")
def imagenet(ours: EfficientNetLite) -> Classifier:
    """Our backbone with the file's own head over the 1,000 classes."""
    state = torch.load(pretrained_weight_file(LITE0), weights_only=True)
    model = Classifier(ours, 1000).eval()
    model.head.load_state_dict({"weight": state["_fc.weight"], "bias": state["_fc.bias"]})
    return model


def test_a_pass_in_training_equals_that_of_the_package_and_moves_the_same_averages(theirs: Any, images: Tensor) -> None:
    ours = EfficientNetLite(LITE0).train()
    theirs.train()
    with torch.no_grad():
        torch.testing.assert_close(ours.feature_maps(images), theirs.extract_features(images), rtol=1e-3, atol=1e-3)
    names = {"stem.norm": "_bn0", "blocks.7.depthwise.norm": "_blocks.7._bn1", "top.norm": "_bn1"}
    moved, expected = ours.state_dict(), theirs.state_dict()
    for name, theirs_name in names.items():
        for average in ("running_mean", "running_var", "num_batches_tracked"):
            found, wanted = moved[f"{name}.{average}"], expected[f"{theirs_name}.{average}"]
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_channels_are_last_where_no_gradient_is_needed(ours: EfficientNetLite, images: Tensor) -> None:
    ours.eval()
    with_gradient = ours.feature_maps(images)
    with torch.no_grad():
        without = ours.feature_maps(images)
    assert with_gradient.is_contiguous() and without.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(without, with_gradient.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", [LITE0, LITE1, LITE2], ids=lambda variant: variant.name)
def test_all_variants_equal_those_of_the_package(variant: LiteVariant, images: Tensor) -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip(variant.package)
    with contextlib.redirect_stdout(io.StringIO()):
        path = str(pretrained_weight_file(variant))
        theirs = package.EfficientNet.from_pretrained(variant.name, weights_path=path, image_size=99).eval()
    ours = EfficientNetLite(variant).eval()
    small = images[:, :, 10:109, 50:149]  # odd maps on the way, and even ones
    with torch.inference_mode():
        feature_maps = ours.feature_maps(small)
        torch.testing.assert_close(feature_maps, theirs.extract_features(small), rtol=1e-4, atol=1e-4)
    assert feature_maps.shape == (2, 1280, 4, 4) and float(feature_maps.max()) > 0.1
    assert variant.package in ours.source and ours.license == "Apache-2.0" and ours.name == variant.name


def test_odd_sides_are_padded_as_tensorflow_does() -> None:
    """Padding by hand on both sides, the odd pixel last, then a plain convolution, gives the same."""
    torch.manual_seed(0)
    stem = EfficientNetLite(LITE0, pretrained=False).eval().stem
    images = torch.randn(1, 3, 15, 16)
    padded = torch.zeros(1, 3, 17, 17)  # 15 needs one row above and one below, 16 one column on the right
    padded[:, :, 1:16, :16] = images
    with torch.no_grad():
        expected = nn.functional.relu6(stem.norm(nn.functional.conv2d(padded, stem.conv.weight, stride=2)))
        assert stem(images).shape == (1, 32, 8, 8)
        torch.testing.assert_close(stem(images), expected)


@pytest.mark.parametrize(
    ("photo", "expected"),
    [("2008_000956", 242), ("2008_003673", 404), ("2008_002198", 717), ("2008_006835", 348)],
    ids=["boxer", "airliner", "pickup", "ram"],
)
def test_photos_are_recognised(shared_data: Path, imagenet: Classifier, photo: str, expected: int) -> None:
    spec = imagenet.backbone.input_spec
    with Image.open(shared_data / "VOCdevkit" / "VOC2012" / "JPEGImages" / f"{photo}.jpg") as opened:
        scaled = opened.convert("RGB").resize((spec.size, spec.size), Image.Resampling.BICUBIC)
    picture = torch.from_numpy(np.array(scaled)).permute(2, 0, 1)[None]
    imagenet.eval()
    with torch.inference_mode():
        probabilities = imagenet(imagenet.normalize(picture)).softmax(dim=1)[0]
    assert int(probabilities.argmax()) == expected
    assert float(probabilities[expected]) > 0.5


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


@pytest.mark.parametrize("name", ["_blocks.0._squeeze.weight", "_conv_tail.weight", "weight"])
def test_a_weight_that_belongs_nowhere_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "odd_weights" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    torch.save({name: torch.zeros(1)}, folder / "odd-1.pth")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=f"holds '{name}'"):
        load_pretrained(LiteVariant("odd", 1.0, 1.0, 224, "odd_weights"))
