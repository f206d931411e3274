"""When a difference is more than chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.metrics import average_precision
from labelgap.studies.compare.grid import hyperparameter_grid, option_grid
from labelgap.studies.compare.significance import GapToBest, gaps_to_best, resampled_precision, resamples


def noise(seed: int = 0, images: int = 40, classes: int = 3) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 9, (images, classes)).astype(np.float32)
    return scores, random.integers(-1, 2, (images, classes)).astype(np.int8)


def test_a_resampled_precision_is_that_of_the_rows_written_out() -> None:
    scores, codes = noise()
    times = np.random.default_rng(1).integers(0, 3, (40, 6)).astype(np.float32)
    found = resampled_precision(scores, codes, times)
    for sample in range(6):
        rows = np.repeat(np.arange(40), times[:, sample].astype(int))
        assert found[sample] == pytest.approx(average_precision(scores[rows], codes[rows]), abs=1e-12)


def test_a_class_that_a_sample_lacks_is_left_out_of_its_mean() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.1, 0.3]], dtype=np.float32)
    codes = np.array([[1, 1], [0, 0], [0, 0]], dtype=np.int8)
    times = np.array([[1, 0], [1, 1], [1, 1]], dtype=np.float32)
    found = resampled_precision(scores, codes, times)
    assert found[0] == pytest.approx((1 + 1 / 3) / 2) and math.isnan(found[1])


def test_every_sample_has_as_many_images_and_is_drawn_alike_each_time() -> None:
    drawn = resamples(50, 4, 3)
    assert (drawn.sum(axis=0) == 50).all() and drawn.shape[1] == 100
    assert np.array_equal(drawn, resamples(50, 4, 3))
    assert resamples(60, 4, 10**12).shape == (60, 40)


def test_the_interval_is_the_formula() -> None:
    values = {"a": [0.80, 0.82, 0.81], "b": [0.78, 0.79, 0.80]}
    samples = {"a": np.array([0.80, 0.82, 0.81, 0.83]), "b": np.array([0.79, 0.79, 0.80, 0.80])}
    gaps, images = [0.02, 0.03, 0.01], [0.01, 0.03, 0.01, 0.03]
    mean = sum(gaps) / 3
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / 2)
    spread = math.sqrt(sum((gap - 0.02) ** 2 for gap in images) / 3)
    half = math.hypot(4.302652729911275 * deviation / math.sqrt(3), 1.96 * spread)
    found = gaps_to_best(values, samples)
    assert list(found) == ["a", "b"] and found["a"] == GapToBest(0.0, 0.0)
    assert found["b"].mean == pytest.approx(mean) and found["b"].half_width == pytest.approx(half)
    assert not found["b"].significant


def test_a_clear_difference_is_beyond_the_spread_and_a_single_seed_never_is() -> None:
    many = gaps_to_best({"a": [0.9, 0.91, 0.9], "b": [0.5, 0.51, 0.5]}, None)
    assert many["b"].significant and not many["a"].significant
    one = gaps_to_best({"a": [0.9], "b": [0.5]}, None)
    assert one["b"].half_width is None and not one["b"].significant


def test_the_grids_are_the_papers() -> None:
    assert {(each.lr, each.batch_size) for each in hyperparameter_grid("bce", {}, "full")} == {
        (lr, batch) for lr in (1e-2, 1e-3, 1e-4, 1e-5) for batch in (8, 16)
    }
    assert [each.options for each in hyperparameter_grid("em", {"alpha": 0.2})] == [{"alpha": 0.2}] * 2
    searched = {each.options["alpha"] for each in hyperparameter_grid("em", {"alpha": 0.2}, "full")}
    assert searched == {0.01, 0.02, 0.1, 0.2, 0.4, 0.9}
    fixed = hyperparameter_grid("em-apl", {"alpha": 0.3}, "full", fixed=["alpha"], rates=[1e-3], batches=[16])
    assert {each.options["alpha"] for each in fixed} == {0.3} and len(fixed) == 6
    assert option_grid("asl") == {"gamma_neg": (1.0, 2.0), "margin": (0.0, 0.05, 0.2)}
