"""Which images look like a given one: the nearest in feature space."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labelgap.review.new_classes import SimilarImages, center_features


def reference(features: list[list[float]], row: int) -> list[float]:
    """The formula with Python's own floats."""
    mean = [sum(column) / len(features) for column in zip(*features, strict=True)]
    centered = [[value - middle for value, middle in zip(each, mean, strict=True)] for each in features]
    length = [math.sqrt(sum(value * value for value in each)) for each in centered]
    products = [sum(a * b for a, b in zip(each, centered[row], strict=True)) for each in centered]
    return [
        product / (own * length[row]) if own * length[row] else 0.0
        for product, own in zip(products, length, strict=True)
    ]


def order(features: np.ndarray, image: int) -> list[int]:
    """The images by their similarity to one."""
    places = SimilarImages(lambda: features.astype(np.float32)).positions(image, patience=60)
    assert places is not None
    return [int(each) for each in np.argsort(places)]


def test_the_cosine_is_that_of_the_formula() -> None:
    features = np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32) + 3
    expected = reference(features.tolist(), 7)
    similar = center_features(features.copy())
    assert similar @ similar[7] == pytest.approx(expected, abs=2e-5)
    found = order(features, 7)
    assert sorted(found) == list(range(600))
    assert found[:20] == [7, *sorted(set(range(600)) - {7}, key=lambda row: -expected[row])[:19]]


def test_an_image_comes_first_then_its_copies_in_order() -> None:
    features = np.random.default_rng(1).normal(size=(50, 8))
    features[[20, 31, 44]] = features[3]
    assert order(features, 31)[:4] == [31, 3, 20, 44]


def test_an_image_without_length_is_similar_to_none_and_nothing_is_nan() -> None:
    features = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]], dtype=np.float32)
    similar = center_features(features.copy())
    assert (similar @ similar[0]).tolist() == [0, 0, 0]
    assert similar @ similar[1] == pytest.approx([0, 1, -1])
    assert order(features, 0) == [0, 1, 2]
