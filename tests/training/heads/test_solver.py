"""Convex heads: logistic regression for many penalties at once, and the optimizer that steps on all images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.training.heads import HeadPlan, LinearEngine, solver, train_heads
from labelgap.training.heads.solver import FeatureBasis, LogisticPath, fit_logistic_path

PENALTIES = (0.1, 1.0, 100.0)
IMAGES, WIDTH, CLASSES = 90, 6, 3
FEWER = 60


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float64]:
    """Features of unequal scale and with a mean, so that neither the rotation nor the bias is trivial."""
    random = np.random.default_rng(0)
    return np.asarray(random.normal(size=(IMAGES, WIDTH)) * random.uniform(0.1, 2, size=WIDTH) + 1)


def some_scores(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    random = np.random.default_rng(2)
    return np.asarray(vectors @ random.normal(size=(WIDTH, CLASSES)) * 0.5 + random.normal(size=(IMAGES, CLASSES)))


def single_labels(vectors: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(some_scores(vectors).argmax(axis=1))


def multi_labels(vectors: NDArray[np.float64]) -> NDArray[np.int8]:
    scores = some_scores(vectors)
    labels = (scores > np.median(scores)).astype(np.int8)
    labels[np.random.default_rng(4).random(labels.shape) < 0.2] = -1
    return labels


def fit(vectors: NDArray[np.float64], labels: NDArray[Any], **options: Any) -> LogisticPath:
    exact = {"dtype": torch.float64, "tolerance": 1e-9, "penalties": PENALTIES, **options}
    return fit_logistic_path(torch.from_numpy(vectors), labels, **exact)


def sklearn_fit(vectors: NDArray[np.float64], labels: NDArray[Any], penalty: float) -> LogisticRegression:
    return LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=1000).fit(vectors, labels)


def test_softmax_has_the_weights_and_biases_of_scikit_learn(vectors: NDArray[np.float64]) -> None:
    labels = single_labels(vectors)
    found = fit(vectors, labels)
    assert found.converged.all()
    for number, penalty in enumerate(PENALTIES):
        expected = sklearn_fit(vectors, labels, penalty)
        weight, bias = found.head(number)
        np.testing.assert_allclose(weight.numpy(), expected.coef_, atol=1e-4)
        np.testing.assert_allclose(bias.numpy(), expected.intercept_ - expected.intercept_.mean(), atol=1e-4)
        logits = vectors @ weight.numpy().T + bias.numpy()
        np.testing.assert_allclose(found.logits(torch.from_numpy(vectors))[number].numpy(), logits, atol=1e-9)


@pytest.mark.parametrize("fewer_images", [False, True])
def test_sigmoids_leave_unknown_labels_out(vectors: NDArray[np.float64], fewer_images: bool) -> None:
    labels = multi_labels(vectors)
    if fewer_images:  # than features: the solution lies in the span of the images
        vectors = np.concatenate([vectors, np.random.default_rng(3).normal(size=(IMAGES, 2 * IMAGES))], axis=1)
    found = fit(vectors, labels)
    for number, penalty in enumerate(PENALTIES):
        weight, bias = found.head(number)
        for column in range(CLASSES):
            known = labels[:, column] >= 0
            expected = sklearn_fit(vectors[known], labels[known, column], penalty)
            np.testing.assert_allclose(weight[column].numpy(), expected.coef_[0], atol=1e-4)
            np.testing.assert_allclose(bias[column].item(), expected.intercept_[0], atol=1e-4)


def test_a_penalty_alone_is_as_among_others(vectors: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch) -> None:
    labels = multi_labels(vectors)
    together = fit(vectors, labels)
    twice = fit(vectors, labels, penalties=PENALTIES * 6)
    torch.testing.assert_close(twice.weight[-3:], together.weight, atol=1e-5, rtol=0)
    monkeypatch.setattr(solver, "free_memory", lambda device: 1 << 16)  # room for less than three
    apart = fit(vectors, labels)
    torch.testing.assert_close(together.weight, apart.weight, atol=1e-5, rtol=0)
    monkeypatch.setattr(solver, "free_memory", lambda device: 1 << 10)
    with pytest.raises(InputError, match="one penalty"):
        fit(vectors, labels)


def test_float32_reaches_its_tolerance_where_classes_are_separable() -> None:
    images = torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
    found = fit_logistic_path(images, np.arange(40) % 3, np.logspace(-6, 5, 45).tolist())
    assert found.converged.all() and found.gradient.max() <= 1e-5
    assert (found.logits(images)[0].argmax(dim=1).numpy() == np.arange(40) % 3).all()


def test_a_class_without_both_states_learns_nothing_and_the_others_do(vectors: NDArray[np.float64]) -> None:
    labels = multi_labels(vectors)
    labels[:, 1] = np.where(labels[:, 1] == 1, 1, -1)
    found = fit(vectors, labels)
    assert not found.weight[:, 1].any() and found.weight[:, 0].any()
    numbers = np.where(single_labels(vectors) == 2, 0, single_labels(vectors))
    never = fit(vectors, numbers, classes=CLASSES).logits(torch.from_numpy(vectors))
    assert all(2 not in logits.argmax(dim=1) for logits in never)


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (np.zeros(IMAGES, dtype=int), "same class"),
        (np.full((IMAGES, 2), -1), "known"),
        (np.arange(3), "each image"),
        (np.arange(IMAGES) % 2 - 1, "K - 1"),
    ],
)
def test_what_cannot_be_fitted_is_an_error(vectors: NDArray[np.float64], labels: NDArray[Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        fit(vectors, labels)
    with pytest.raises(InputError, match="above 0"):
        fit(vectors, np.arange(IMAGES) % 2, penalties=(0.0,))


NEWTON: dict[str, Any] = {"optimizer": "newton", "standardize": True, "dtype": torch.float64}


def some_data(width: int) -> tuple[torch.Tensor, LabelTable]:
    """Features of very different scales, and labels of which a third are unknown."""
    random = np.random.default_rng(0)
    features = random.normal(size=(FEWER, width)) * np.geomspace(0.01, 100, width) + random.normal(size=width)
    target = StandardScaler().fit_transform(features) @ random.normal(size=(width, CLASSES))
    codes = np.where(random.random(target.shape) < 1 / 3, -1, target > 1)
    return torch.tensor(features), LabelTable.from_dense(codes)


@pytest.mark.parametrize("width", [8, 90], ids=["more images", "more features"])
def test_assume_negative_converges_to_scikit_learn(width: int) -> None:
    features, table = some_data(width)
    penalties = (0.3, 3.0, 300.0)
    plans = [HeadPlan("an", {}, 1.0, table, weight_decay=each / (FEWER * CLASSES)) for each in penalties]
    results = train_heads(features, plans, epochs=40, batch_size=1, **NEWTON)
    standardized = StandardScaler().fit_transform(features.numpy())
    for penalty, result in zip(penalties, results, strict=True):
        for number, column in enumerate(table.to_dense().T):
            peer = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000).fit(standardized, column == 1)
            found = features.numpy() @ result.weight[number] + result.bias[number]
            np.testing.assert_allclose(found, peer.decision_function(standardized), atol=2e-3)


def test_only_known_labels_count_for_a_method_that_ignores_unknown_ones() -> None:
    features, table = some_data(5)
    standardized, codes, decay = StandardScaler().fit_transform(features.numpy()), table.to_dense(), 0.01

    def loss(parameters: NDArray[np.float64]) -> float:
        weight, bias = parameters[:-CLASSES].reshape(CLASSES, -1), parameters[-CLASSES:]
        logits = standardized @ weight.T + bias
        cost = np.where(codes == 1, np.logaddexp(0, -logits), np.where(codes == 0, np.logaddexp(0, logits), 0))
        return float(cost.mean() + decay / 2 * (weight**2).sum())

    expected = minimize(loss, np.zeros(CLASSES * 6), tol=1e-12).x
    plan = HeadPlan("iu", {"reduction": "mean"}, 1.0, table, weight_decay=decay)
    engine = LinearEngine(features, [plan], epochs=30, batch_size=1, **NEWTON)
    for epoch in range(1, 31):
        engine.train_epoch(epoch)
    logits = standardized @ expected[:-CLASSES].reshape(CLASSES, -1).T + expected[-CLASSES:]
    np.testing.assert_allclose(engine.logits(features)[0].numpy(), logits, atol=1e-3)


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
