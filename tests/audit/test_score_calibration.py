from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from labelgap.audit.calibration import ScoreCalibration, ScoreSample, fit_calibration, platt_line, prior_lines
from labelgap.audit.candidates import MissingEstimate

Mask = NDArray[np.bool_]


def made_sample(logits: NDArray[np.float64], present: Mask, absent: Mask | None = None) -> ScoreSample:
    """All scores of R runs ``(R, N, K)`` with the labels of two known states."""
    absent = np.zeros_like(present) if absent is None else absent
    rows, columns = np.concatenate([np.nonzero(present), np.nonzero(absent)], axis=1)
    count = present.sum(axis=1)
    unknown = np.where(present | absent, np.nan, logits)
    return ScoreSample(logits[:, rows, columns], columns, present[rows, columns], count[rows] - 1, unknown, count)


def column(present: list[float], unknown: list[float]) -> ScoreSample:
    """The scores of one class and one run, without that axis."""
    scores = np.array([*present, *unknown])[None, :, None]
    return made_sample(scores, (np.arange(scores.size) < len(present))[:, None]).map(lambda each: each[0])


def estimated(sample: ScoreSample) -> tuple[NDArray[np.float64], ScoreCalibration]:
    """How many are missing of each class: the sum of the scores."""
    calibration = fit_calibration(sample)
    return np.nansum(calibration.scores(sample.unknown), axis=0, dtype=np.float64), calibration


def drawn(count: int = 20_000, known: tuple[float, ...] = (0.5, 0.25), seed: int = 0) -> tuple[ScoreSample, Mask]:
    """Two classes with logits that are right log-odds, of whose present labels a share is known, at random."""
    random = np.random.default_rng(seed)
    logits = random.normal(-2.5, 2.5, size=(count, len(known)))
    truth = random.random(logits.shape) < 1 / (1 + np.exp(-logits))
    given = truth & (random.random(logits.shape) < known)
    return made_sample(logits[None], given), truth & ~given


def test_the_plane_of_a_prior_is_the_minimum_of_the_logistic_loss() -> None:
    random = np.random.default_rng(1)
    scores, given = random.normal(size=(2, 300, 2)), random.random((300, 2)) < 0.2
    scores += np.array([1.0, 0.4])[:, None, None] * given
    sample = made_sample(scores, given)
    run = np.array([platt_line(sample.map(lambda values: values[0]))])
    mean, prior = run[0, 0] * scores[0].ravel() + run[0, 1], scores[1].ravel()
    n, m = given.sum(), (~given).sum()
    target = np.where(given.ravel(), (n + 1) / (n + 2), 1 / (m + 2))

    def loss(plane: np.ndarray) -> float:
        z = plane[0] * mean + plane[1] * prior + plane[2]
        return float((np.logaddexp(0, z) - target * z).sum())

    alpha, beta, gamma = minimize(loss, [1.0, 0.0, 0.0], method="BFGS").x
    expected = [2 * alpha * run[0], [2 * beta, 2 * gamma]]
    assert beta > 0 and prior_lines(sample, run) == pytest.approx(np.array(expected), rel=1e-3, abs=1e-3)


def test_a_prior_that_known_labels_contradict_changes_nothing() -> None:
    random = np.random.default_rng(2)
    given = random.random((2_000, 2)) < 0.1
    scores = random.normal(size=(2, 2_000, 2)) + np.array([1.5, -1.0])[:, None, None] * given
    both, run = fit_calibration(made_sample(scores, given), priors=1), fit_calibration(made_sample(scores[:1], given))
    assert both.lines[1, 0] == 0
    np.testing.assert_allclose(both.log_odds(scores), run.log_odds(scores[:1]), atol=0.01)


@pytest.mark.parametrize("separated", [True, False])
def test_the_line_stays_finite_and_rising(separated: bool) -> None:
    slope, intercept = platt_line(column([9.0 if separated else -9.0] * 6, [0.0] * 20))
    assert slope > 0 and math.isfinite(slope) and math.isfinite(intercept)
    assert platt_line(column([], [0.0] * 5)) == (1.0, 0.0)


def albums(
    count: int, separation: tuple[float, ...], known: float, seed: int = 0
) -> tuple[ScoreSample, NDArray[np.bool_]]:
    """Classes whose logits separate present from absent labels more or less; the known ones are a random share."""
    random = np.random.default_rng(seed)
    truth = random.random((count, len(separation))) < 0.1
    logits = random.normal(size=truth.shape) + np.array(separation) * truth - 3
    given = truth & (random.random(truth.shape) < known)
    return made_sample(logits[None], given), truth & ~given


def test_tags_missing_at_random_are_counted_about_right_also_from_a_sample() -> None:
    sample, missing = drawn()
    estimate, _ = estimated(sample)
    assert estimate.sum() == pytest.approx(missing.sum(), rel=0.15)
    assert estimate == pytest.approx(missing.sum(axis=0), rel=0.35)
    sample, _ = drawn(300)
    one = sample.map(lambda logits: logits[0])
    doubled, scaled = replace(one, unknown=np.concatenate([one.unknown, one.unknown])), replace(one, scale=2.0)
    assert platt_line(scaled) == pytest.approx(platt_line(doubled))


def test_a_class_whose_scores_hardly_separate_takes_the_ratio_of_the_others() -> None:
    """187 for a weak class of which 13 were missing was seen: the high scores of such a class are false."""
    sample, missing = albums(430, (4.0, 4.0, 4.0, 4.0, 0.3), known=0.6, seed=1)
    estimate, _ = estimated(sample)
    known = np.bincount(sample.column)
    assert estimate[4] < 2.5 * known[4], f"{estimate[4]:.0f} beside {known[4]} known ones"
    assert estimate.sum() == pytest.approx(missing.sum(), rel=0.6)


def test_known_absents_count_and_classes_without_any_label_do_not_break_it() -> None:
    random = np.random.default_rng(0)
    truth = np.concatenate([random.random((3000, 2)) < 0.2, np.zeros((3000, 1), bool)], axis=1)
    logits = random.normal(size=truth.shape) + 2 * truth
    known = random.random(truth.shape) < 0.5
    sample = made_sample(logits[None], truth & known, ~truth & known)
    estimate, _ = estimated(sample)
    assert estimate[:2] == pytest.approx((truth & ~known).sum(axis=0)[:2], rel=0.15) and estimate[2] < 100


def test_integers_of_classes_sum_to_the_total() -> None:
    made = MissingEstimate(np.array([0.4, 0.4, 0.4, 7.3]), np.ones(4, np.int64), (3, 21), (0.9, 0.6)).to_json("abcd")
    assert made["missing"] == 8 == sum(made["missing_per_class"].values())
    assert made["range"] == [3, 21] and made["spread"] == [0.9, 0.6]


def test_the_range_holds_the_truth_and_is_one_of_chance_where_hardly_any_is_missing() -> None:
    sample, missing = drawn(2000)
    low, high = fit_calibration(sample).range
    assert low <= missing.sum() <= high < 4 * missing.sum()
    random = np.random.default_rng(0)
    truth = random.random((300, 3)) < 0.2
    nearly = truth & (random.random(truth.shape) < 0.99)
    low, high = fit_calibration(made_sample(8.0 * truth[None] + random.normal(size=truth.shape) - 4, nearly)).range
    assert low == 0 and 1 <= high < 30


def test_a_sample_with_counts_of_all_images_gives_what_all_images_give() -> None:
    sample, _ = drawn(8000)
    one = sample.map(lambda logits: logits[0])
    part = replace(sample, unknown=sample.unknown[:, ::4], unknown_others=sample.unknown_others[::4], scale=4.0)

    def count(log_odds: Callable[[Any], Any], cuts: NDArray[np.float64]) -> NDArray[np.int64]:
        odds = log_odds(one.unknown[None])
        return -np.diff([[(odds[:, k] >= cut).sum() for cut in cuts[k]] for k in range(2)], axis=1, append=0)

    fits = (fit_calibration(sample), fit_calibration(part, count))
    whole, sampled = (np.nansum(fit.scores(sample.unknown)) for fit in fits)
    assert sampled == pytest.approx(whole, rel=0.05)


def test_nothing_unknown_is_no_problem() -> None:
    states = (np.arange(9) < 6)[:, None]
    calibration = fit_calibration(made_sample(np.linspace(3, -2, 9)[None, :, None], states, ~states))
    assert np.isfinite(calibration.offset).all() and np.isfinite(calibration.errors.model.offset).all()
