"""Similar images: the cosine of centered features, of every image."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.audit.live import FeatureScale
from labelgap.review.new_classes import ImageSimilarity


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_cosine_is_that_of_the_formula_over_several_blocks(dtype: type) -> None:
    features: NDArray[np.floating] = (np.random.default_rng(0).normal(size=(4100, 5)) + 3).astype(dtype)
    similar = ImageSimilarity(FeatureScale.of(features))
    expected = reference(features.astype(float).tolist(), 7)
    assert similar.cosine(7) == pytest.approx(expected, abs=2e-5)
    order = similar.nearest(7)
    assert 7 not in order and sorted([7, *order.tolist()]) == list(range(4100))
    assert order[:20].tolist() == sorted(set(range(4100)) - {7}, key=lambda row: -expected[row])[:20]


def test_a_copy_comes_first_and_equal_ones_come_in_order() -> None:
    features = np.random.default_rng(1).normal(size=(50, 8))
    features[[20, 31, 44]] = features[3]
    assert ImageSimilarity(FeatureScale.of(features)).nearest(31)[:3].tolist() == [3, 20, 44]


def test_an_image_without_length_is_similar_to_none_and_nothing_is_nan() -> None:
    features = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
    similar = ImageSimilarity(FeatureScale.of(features))
    assert similar.cosine(0).tolist() == [0, 0, 0]
    assert similar.cosine(1) == pytest.approx([0, 1, -1])
    assert similar.nearest(0).tolist() == [1, 2]


def test_features_in_a_file_are_read_in_blocks(tmp_path: Path) -> None:
    features = np.random.default_rng(2).normal(size=(5000, 16)).astype(np.float32)
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    similar = ImageSimilarity(FeatureScale.of(mapped))
    assert np.array_equal(similar.nearest(9), ImageSimilarity(FeatureScale.of(features)).nearest(9))


def test_twenty_thousand_images_take_a_moment() -> None:
    features = np.random.default_rng(3).normal(size=(20_000, 512)).astype(np.float32)
    similar = ImageSimilarity(FeatureScale.of(features))
    started = time.process_time()
    similar.nearest(0)
    assert time.process_time() - started < 0.5
