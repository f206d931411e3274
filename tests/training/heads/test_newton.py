"""Heads on standardized features, and the optimizer that steps on all images at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.training.heads import HeadPlan, train_heads
from labelgap.training.heads.solver import FeatureBasis

IMAGES, CLASSES = 60, 3


def some_data(width: int) -> tuple[torch.Tensor, LabelTable]:
    """Features of very different scales, and labels of which a third are unknown."""
    random = np.random.default_rng(0)
    features = random.normal(size=(IMAGES, width)) * np.geomspace(0.01, 100, width) + random.normal(size=width)
    target = StandardScaler().fit_transform(features) @ random.normal(size=(width, CLASSES))
    codes = np.where(random.random(target.shape) < 1 / 3, -1, target > 1)
    return torch.tensor(features), LabelTable.from_dense(codes)


@pytest.mark.parametrize("method", ["an", "iu"])
@pytest.mark.parametrize("width", [8, 90], ids=["more images", "more features"])
def test_heads_converge_to_scikit_learn(width: int, method: str) -> None:
    """For `iu` known labels alone count, but its mean is over all of them."""
    features, table = some_data(width)
    penalties = (0.3, 3.0, 300.0)
    plans = [HeadPlan(method, {}, 1.0, table, weight_decay=each / (IMAGES * CLASSES)) for each in penalties]
    settings: dict[str, Any] = {"optimizer": "newton", "standardize": True, "dtype": torch.float64}
    results = train_heads(features, plans, epochs=60, batch_size=1, **settings)
    standardized, codes = StandardScaler().fit_transform(features.numpy()), table.to_dense()
    for penalty, result in zip(penalties, results, strict=True):
        for number, column in enumerate(codes.T):
            counted = (column != -1) | (method == "an")
            peer = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000)
            peer.fit(standardized[counted], column[counted] == 1)
            found = features.numpy() @ result.weight[number] + result.bias[number]
            np.testing.assert_allclose(found, peer.decision_function(standardized), atol=2e-3)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("images", [3, 30])
def test_a_head_on_coordinates_is_a_head_on_the_features(rotate: bool, images: int) -> None:
    random = torch.Generator().manual_seed(0)
    features = 5 + 3 * torch.randn(images, 6, generator=random)
    features[:, 2] = 7.0
    basis = FeatureBasis.fit(features, rotate=rotate)
    coordinates = basis.apply(features)
    torch.testing.assert_close(coordinates.square().mean(0), basis.variances)
    weight, bias = torch.randn(2, coordinates.shape[1], generator=random), torch.randn(2, generator=random)
    on_features = basis.to_features(weight, bias)
    torch.testing.assert_close(features @ on_features[0].t() + on_features[1], coordinates @ weight.t() + bias)
    torch.testing.assert_close(basis.from_features(*on_features), (weight, bias))


def test_heads_trained_together_end_where_each_ends_alone() -> None:
    features, table = some_data(8)
    plans = [HeadPlan(name, {}, 1.0, table, weight_decay=decay) for name in ("em", "gr") for decay in (0.1, 0.01)]
    settings: dict[str, Any] = {"epochs": 5, "batch_size": 1, "optimizer": "newton", "dtype": torch.float64}
    together = train_heads(features, plans, **settings)
    for plan, result in zip(plans, together, strict=True):
        (alone,) = train_heads(features, [plan], **settings)
        np.testing.assert_allclose(result.weight, alone.weight, atol=1e-10)


def test_adam_trains_on_standardized_features() -> None:
    features, table = some_data(8)
    raw = HeadPlan("an", {}, 0.1, table)
    basis = FeatureBasis.fit(features)
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 16, "dtype": torch.float64}
    (inside,) = train_heads(features, [raw], standardize=True, **settings)
    (outside,) = train_heads(basis.apply(features), [raw], **settings)
    found = features.numpy() @ inside.weight.T + inside.bias
    np.testing.assert_allclose(found, basis.apply(features).numpy() @ outside.weight.T + outside.bias, atol=1e-6)


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    features, table = some_data(4)
    plan = HeadPlan("role", {"expected_positives": 1.0}, 1.0, table)
    with pytest.raises(InputError, match="without parameters of their own"):
        train_heads(features, [plan], epochs=1, batch_size=1, optimizer="newton")
