"""From logits to scores: against formulas written out, and against data whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from labelgap.audit.calibration import fit_calibration, platt_line, shift_to_estimate
from labelgap.audit.estimate import MissingEstimate, cut_points, estimate_from_scores
from labelgap.audit.score_sample import ScoreSample

EMPTY = np.empty(0), np.empty(0, dtype=np.int64)


def drawn(count: int = 20_000, known: tuple[float, ...] = (0.5, 0.25), seed: int = 0) -> tuple[ScoreSample, np.ndarray]:
    """Two classes with logits that are right log-odds, of whose present labels a share is known, at random."""
    random = np.random.default_rng(seed)
    logits = random.normal(-2.5, 2.5, size=(count, len(known)))
    truth = random.random(logits.shape) < 1 / (1 + np.exp(-logits))
    given = truth & (random.random(logits.shape) < known)
    rows, columns = np.nonzero(given)
    unknown = np.where(given, np.nan, logits)
    return ScoreSample(logits[rows, columns][None], columns, np.empty((1, 0)), EMPTY[1], unknown[None]), truth & ~given


def test_the_line_is_the_minimum_of_the_logistic_loss() -> None:
    sample, _ = drawn(400)
    one = sample.map(lambda logits: logits[0])
    others = one.unknown[~np.isnan(one.unknown)]
    n, m = len(one.present), len(others)
    x = np.concatenate([one.present, others])
    target = np.where(np.arange(n + m) < n, (n + 1) / (n + 2), 1 / (m + 2))

    def loss(line: np.ndarray) -> float:
        z = line[0] * x + line[1]
        return float((np.logaddexp(0, z) - target * z).sum())

    expected = minimize(loss, [0.5, -1.0], method="BFGS").x
    assert platt_line(one) == pytest.approx(tuple(expected), rel=1e-3, abs=1e-3)


def test_a_sample_of_larger_scale_has_larger_weights() -> None:
    sample, _ = drawn(300)
    one = sample.map(lambda logits: logits[0])
    doubled = ScoreSample(one.present, one.present_class, *EMPTY, np.concatenate([one.unknown, one.unknown]))
    scaled = ScoreSample(one.present, one.present_class, *EMPTY, one.unknown, scale=2.0)
    assert platt_line(scaled) == pytest.approx(platt_line(doubled))


@pytest.mark.parametrize("separated", [True, False])
def test_the_line_stays_finite_and_rising(separated: bool) -> None:
    present = np.full(6, 9.0) if separated else np.full(6, -9.0)
    slope, intercept = platt_line(ScoreSample(present, np.zeros(6, np.int64), *EMPTY, np.zeros((20, 1))))
    assert slope > 0 and math.isfinite(slope) and math.isfinite(intercept)
    assert platt_line(ScoreSample(*EMPTY, *EMPTY, np.zeros((5, 1)))) == (1.0, 0.0)


def reference_estimate(present: list[float], absent: list[float], unknown: list[float]) -> tuple[float, float]:
    """The formula with Python's own numbers, for one class: at the surest quarter, and at the best cut."""
    sure, best = (-math.inf, 0.0), (-1.0, 0.0, 0.0)
    for cut in present:
        found, false = sum(x >= cut for x in present), sum(x >= cut for x in absent)
        taken = sum(x >= cut for x in unknown)
        missing = taken * (found / (found + false)) / (found / len(present))
        if found >= len(present) / 4:
            sure = max(sure, (cut, missing))
        best = max(best, (found**2 / (found + false + taken), cut, missing))
    return sure[1], best[2]


def test_the_estimate_is_what_the_formula_says() -> None:
    random = np.random.default_rng(2)
    for case in range(30):
        present, absent = random.normal(1, 1, 12).round(1), random.normal(-1, 1, case % 7).round(1)
        unknown = random.normal(-0.5, 1.2, 80).round(1)
        zeros = [np.zeros(len(values), np.int64) for values in (present, absent)]
        made = estimate_from_scores(ScoreSample(present, zeros[0], absent, zeros[1], unknown[:, None]))
        assert made is not None
        expected = reference_estimate(present.tolist(), absent.tolist(), unknown.tolist())
        assert (made.missing, float(made.upper_by_class[0])) == pytest.approx(expected)


def test_tags_missing_at_random_are_counted_about_right() -> None:
    sample, missing = drawn()
    made = estimate_from_scores(sample.map(lambda logits: logits[0]))
    assert made is not None
    assert made.missing == pytest.approx(missing.sum(), rel=0.25)
    assert made.by_class == pytest.approx(missing.sum(axis=0), rel=0.35)
    assert made.upper > made.missing


def test_a_class_with_fewer_than_five_known_labels_is_not_counted() -> None:
    columns = np.array([0] * 5 + [1] * 4)
    made = estimate_from_scores(ScoreSample(np.ones(9), columns, *EMPTY, np.ones((3, 2))))
    assert made is not None and made.counted.tolist() == [True, False] and made.known == 5
    assert estimate_from_scores(ScoreSample(np.ones(4), columns[5:], *EMPTY, np.ones((3, 2)))) is None


def test_many_known_labels_are_cut_at_evenly_spaced_ones() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    cuts = cut_points(ScoreSample(values, np.zeros(5000, np.int64), *EMPTY, np.zeros((1, 2))), max_cuts=64)
    assert cuts.shape == (2, 64) and np.isinf(cuts[1]).all()
    assert (np.diff(cuts[0]) > 0).all() and cuts[0, 0] == values.min() and cuts[0, -1] == values.max()


def test_scores_sum_up_to_what_may_be_missing_and_are_near_the_truth() -> None:
    sample, missing = drawn()
    calibration, estimate = fit_calibration(sample)
    assert estimate is not None
    logits = np.where(np.isnan(sample.unknown), -50.0, sample.unknown)
    scores = calibration.scores(logits)
    unknown = ~np.isnan(sample.unknown[0])
    assert scores[unknown].sum() == pytest.approx(estimate.upper, rel=0.01)
    likely = unknown & (scores > 0.5)
    assert abs(float(missing[likely].mean()) - float(scores[likely].mean())) < 0.15


def test_the_offset_goes_half_of_the_way() -> None:
    sample, _ = drawn(4000)
    calibration, estimate = fit_calibration(sample)
    assert estimate is not None
    known = np.bincount(sample.present_class)
    overall = float(estimate.upper_by_class.sum()) / known.sum()
    ratio = [(float(estimate.upper_by_class[k]) + 5 * overall) / (int(known[k]) + 5) for k in range(2)]
    assert calibration.offset[1] - calibration.offset[0] == pytest.approx(0.5 * math.log(ratio[1] / ratio[0]))


def test_two_runs_that_agree_are_as_good_as_one_and_a_useless_one_does_little_harm() -> None:
    sample, missing = drawn(6000)
    unknown = ~np.isnan(sample.unknown[0])
    noise = np.random.default_rng(9).normal(size=sample.unknown[0].shape)

    def found(*runs: np.ndarray) -> float:
        rows, columns = np.nonzero(~unknown)
        stacked = np.stack(runs)
        made = ScoreSample(
            stacked[:, rows, columns], columns, np.empty((len(runs), 0)), EMPTY[1], np.where(unknown, stacked, np.nan)
        )
        odds = fit_calibration(made)[0].log_odds(stacked)[unknown]
        first = np.argsort(-odds)[: int(missing.sum())]
        return float(missing[unknown][first].mean())

    full = np.where(unknown, sample.unknown[0], 0.0)
    full[~unknown] = np.random.default_rng(1).normal(1, 2, size=int((~unknown).sum()))
    alone = found(full)
    assert found(full, 3 * full - 7) == pytest.approx(alone, abs=0.01)
    assert found(full, noise) > 0.8 * alone


def test_the_shift_makes_the_sum_what_is_wanted() -> None:
    values = np.random.default_rng(0).normal(-3, 2, size=(1000, 2))
    odds = ScoreSample(np.ones(5), np.zeros(5, np.int64), *EMPTY, values, scale=3.0)
    estimate = MissingEstimate(np.zeros(2), np.array([90.0, 0.0]), np.array([True, False]), 5, 5, 90.0)
    shift = shift_to_estimate(odds, estimate)
    assert 3 * float((1 / (1 + np.exp(-(values[:, 0] + shift)))).sum()) == pytest.approx(90, rel=1e-3)


def test_nothing_unknown_is_no_problem() -> None:
    columns = np.array([0] * 6)
    absent = np.array([[-1.0, -2.0, 3.0]])
    sample = ScoreSample(np.ones((1, 6)), columns, absent, np.zeros(3, np.int64), np.full((1, 9, 1), np.nan))
    calibration, estimate = fit_calibration(sample)
    assert estimate is not None and estimate.missing == 0
    assert np.isfinite(calibration.offset).all() and np.isfinite(calibration.mean_not_present).all()
