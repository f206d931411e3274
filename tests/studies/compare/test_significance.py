"""When a difference is more than chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labelgap.studies.compare.results import GapToBest
from labelgap.studies.compare.settings import OPTION_GRIDS, CompareSettings, hyperparameter_grid
from labelgap.studies.compare.statistics import draw_resamples, gaps_to_best


def test_every_sample_has_as_many_images_and_is_drawn_alike_each_time() -> None:
    drawn = draw_resamples(50, 4, 3)
    assert (drawn.sum(axis=0) == 50).all() and drawn.shape[1] == 100
    assert np.array_equal(drawn, draw_resamples(50, 4, 3))
    assert draw_resamples(60, 4, 10**12).shape == (60, 40)


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
    full, small = CompareSettings(grid="full"), CompareSettings(grid="small")
    assert {(each["lr"], each["batch_size"]) for each in hyperparameter_grid("bce", full, {})} == {
        (lr, batch) for lr in (1e-2, 1e-3, 1e-4, 1e-5) for batch in (8, 16)
    }
    assert [each["options"] for each in hyperparameter_grid("em", small, {"alpha": 0.2})] == [{"alpha": 0.2}] * 2
    searched = {each["options"]["alpha"] for each in hyperparameter_grid("em", full, {"alpha": 0.2})}
    assert searched == {0.01, 0.02, 0.1, 0.2, 0.4, 0.9}
    given = CompareSettings(grid="full", learning_rates=[1e-3], batch_sizes=[16])
    fixed = hyperparameter_grid("em-apl", given, {"alpha": 0.3}, fixed=["alpha"])
    assert {each["options"]["alpha"] for each in fixed} == {0.3} and len(fixed) == 6
    assert OPTION_GRIDS["asl"] == {"gamma_neg": (1.0, 2.0), "margin": (0.0, 0.05, 0.2)}
