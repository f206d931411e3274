"""A backbone and its head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labelgap.models import Classifier, SmallCNN, class_activation_maps


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
