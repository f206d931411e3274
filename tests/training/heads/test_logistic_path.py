"""Logistic regression for many penalties at once, against scikit-learn on each problem alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from labelgap.core.errors import InputError
from labelgap.training.heads import solver
from labelgap.training.heads.solver import LogisticPath, fit_logistic_path

PENALTIES = (0.1, 1.0, 100.0)
IMAGES, WIDTH, CLASSES = 90, 6, 3


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float64]:
    """Features of unequal scale and with a mean, so that neither the rotation nor the bias is trivial."""
    random = np.random.default_rng(0)
    return np.asarray(random.normal(size=(IMAGES, WIDTH)) * random.uniform(0.1, 2, size=WIDTH) + 1)


def single_labels(vectors: NDArray[np.float64]) -> NDArray[np.int64]:
    random = np.random.default_rng(1)
    scores = vectors @ random.normal(size=(WIDTH, CLASSES)) * 0.5 + random.gumbel(size=(IMAGES, CLASSES))
    return np.asarray(scores.argmax(axis=1))


def multi_labels(vectors: NDArray[np.float64]) -> NDArray[np.int8]:
    random = np.random.default_rng(2)
    scores = vectors @ random.normal(size=(WIDTH, CLASSES)) * 0.5 + random.normal(size=(IMAGES, CLASSES))
    labels = (scores > np.median(scores)).astype(np.int8)
    labels[random.random(labels.shape) < 0.2] = -1
    return labels


def fit(vectors: NDArray[np.float64], labels: NDArray[Any], **options: Any) -> LogisticPath:
    exact = {"dtype": torch.float64, "tolerance": 1e-9, **options}
    return fit_logistic_path(torch.from_numpy(vectors), labels, PENALTIES, **exact)


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
    if fewer_images:  # than features: the solution lies in the span of the images
        vectors = np.concatenate([vectors, np.random.default_rng(3).normal(size=(IMAGES, 2 * IMAGES))], axis=1)
        labels = multi_labels(vectors[:, :WIDTH])
    else:
        labels = multi_labels(vectors)
    found = fit(vectors, labels)
    for number, penalty in enumerate(PENALTIES):
        weight, bias = found.head(number)
        for column in range(CLASSES):
            known = labels[:, column] >= 0
            expected = sklearn_fit(vectors[known], labels[known, column], penalty)
            np.testing.assert_allclose(weight[column].numpy(), expected.coef_[0], atol=1e-4)
            np.testing.assert_allclose(bias[column].item(), expected.intercept_[0], atol=1e-4)


def test_a_penalty_alone_and_among_others_is_the_same_problem(
    vectors: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = multi_labels(vectors)
    together = fit(vectors, labels)
    twice = fit_logistic_path(
        torch.from_numpy(vectors), labels, [*PENALTIES, *PENALTIES] * 3, tolerance=1e-9, dtype=torch.float64
    )
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
    ("labels", "penalties", "message"),
    [
        (np.zeros(IMAGES, dtype=int), PENALTIES, "the same class"),
        (np.full((IMAGES, 2), -1), PENALTIES, "no class is known"),
        (np.arange(IMAGES) % 2, (0.0,), "above 0"),
        (np.arange(3), PENALTIES, "a row for each image"),
        (np.arange(IMAGES) % 2 - 1, PENALTIES, "from 0 to K - 1"),
    ],
)
def test_what_cannot_be_fitted_is_an_error(
    vectors: NDArray[np.float64], labels: NDArray[Any], penalties: tuple[float, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fit_logistic_path(torch.from_numpy(vectors), labels, penalties)
