"""The label model and the calibration of a run: against their definitions, and data whose truth is known."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import check_grad, minimize
from sklearn.metrics import average_precision_score
from tests.metrics.test_thresholds import with_absents, world

from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics import average_precision, corrected_average_precision, label_model
from labelgap.metrics.label_model import (
    Answers,
    LabelModel,
    fit_platt_calibration,
    logistic_line,
    platt_scaling,
    read_calibration,
)

Array = NDArray[Any]


def album(seed: int, images: int, tags: int | None = 2) -> tuple[Array, Array, Array]:
    """Logits of a model that ranks, the truth, and up to ``tags`` present labels of each image (None: all of them)."""
    rng = np.random.default_rng(seed)
    shares = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.04])
    truth = (rng.random((images, shares.size)) < shares).astype(np.int8)
    noise = rng.normal(size=truth.shape) + rng.normal(scale=0.7, size=shares.size)
    logits = (2.5 * truth + noise - 3).astype(np.float32)
    order = np.argsort(np.where(truth == PRESENT, rng.random(truth.shape), 2.0), axis=1).argsort(axis=1)
    known = (truth == PRESENT) & (order < rng.integers(1, (tags or 8) + 1, images)[:, None])
    return logits, truth, np.where(known, PRESENT, UNKNOWN).astype(np.int8)


def cost(values: list[float], z: Array, counts: Array) -> float:
    """Minus the log posterior with Python's own floats: four common parameters, then three of each class."""
    classes = len(z)
    total = (values[0] / 0.5) ** 2 / 2 + values[2] ** 2 / 2 + ((values[3] + 2) / 3) ** 2 / 2
    for k in range(classes):
        own = [values[4 + i * classes + k] for i in range(3)]
        total += sum(x * x for x in own) / 2
        e = 1 / (1 + math.exp(-values[2] - label_model._SPREADS[0] * own[0]))
        f = 1 / (1 + math.exp(-values[3] - own[2])) if counts[1].any() else 0.0
        b = values[1] - math.log(e) + label_model._SPREADS[1] * own[1]
        for x, present, absent, unknown in zip(z[k], *(each[k] for each in counts), strict=True):
            p = 1 / (1 + math.exp(-math.exp(values[0]) * x - b))
            total -= present * math.log(e * p) + unknown * math.log((1 - e) * p + (1 - f) * (1 - p))
            total -= absent * math.log(f * (1 - p)) if f else 0.0
    return float(total)


def histograms(absents: float) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    z = np.sort(random.normal(-2, 2, (3, 5)))
    present = 40 / (1 + np.exp(-z))
    counts = np.stack([0.4 * present, absents * (40 - present), 36 - 0.3 * present]) + random.integers(0, 3, (3, 3, 5))
    counts[1] *= absents > 0
    return z, counts


@pytest.mark.parametrize("absents", [0.0, 0.1])
def test_the_loss_is_the_definition_its_gradient_is_right_and_a_newton_step_solves_it(absents: float) -> None:
    z, counts = histograms(absents)
    problem, random = label_model._Problem(z, counts), np.random.default_rng(1)
    values = random.normal(size=13)
    assert problem(values)[0] == pytest.approx(cost(values.tolist(), z, counts), rel=1e-12)
    assert check_grad(lambda v: problem(v)[0], lambda v: problem(v)[1], values) < 1e-3
    best = problem.minimize()
    assert np.abs(problem(best)[1]).max() < 1e-3
    columns = [(problem(best + move)[1] - problem(best - move)[1]) / 2e-5 for move in 1e-5 * np.eye(13)]
    gradient = random.normal(size=13)
    np.testing.assert_allclose(np.array(columns) @ problem.newton_step(best, gradient), -gradient, atol=1e-4)


def test_presents_alone_give_calibrated_probabilities_and_the_number_of_missing_labels() -> None:
    random = np.random.default_rng(0)
    logits, truth, _ = album(1, 3000)
    labels = np.where((truth == PRESENT) & (random.random(truth.shape) < 0.5), PRESENT, UNKNOWN).astype(np.int8)
    found = LabelModel.fit(logits, labels)
    assert found is not None
    np.testing.assert_allclose(found.present_known, 0.5, atol=0.2)
    chance, posterior = found.probabilities(logits), found.posterior(logits, labels)
    assert posterior.sum() == pytest.approx(truth.sum(), rel=0.1)
    assert (posterior[labels == PRESENT] == 1).all()
    for low in (0.1, 0.3, 0.5, 0.7):
        near = (chance >= low) & (chance < low + 0.2)
        assert truth[near].mean() == pytest.approx(chance[near].mean(), abs=0.1)


def test_a_class_without_a_known_present_takes_the_mean_offset_and_changes_no_other() -> None:
    logits, _, labels = album(2, 300)
    labels[:, 0] = UNKNOWN
    found, others = LabelModel.fit(logits, labels), LabelModel.fit(logits[:, 1:], labels[:, 1:])
    assert found is not None and others is not None
    np.testing.assert_allclose(found.offset[1:], others.offset, atol=1e-6)
    assert others.offset.min() < found.offset[0] < others.offset.max()
    assert np.isfinite(found.posterior(logits, labels)).all()


@pytest.mark.parametrize("case", ["huge", "separable", "all present"])
def test_degenerate_scores_give_finite_lines(case: str) -> None:
    logits, truth, labels = album(4, 100)
    if case == "huge":
        logits *= 1e6
    elif case == "separable":
        logits = 40 * truth - 20.0
    else:
        labels[:, 1:] = PRESENT
    found = LabelModel.fit(logits, labels)
    assert found is not None and found.scale > 0
    assert np.isfinite([found.scale, *found.offset, *found.present_known, *found.absent_known]).all()


@pytest.mark.parametrize("case", ["equal", "reversed", "unknown", "empty"])
def test_where_known_presents_do_not_rank_there_is_none(case: str) -> None:
    logits, _, labels = album(4, 0 if case == "empty" else 100)
    logits = {"equal": 0 * logits, "reversed": -logits}.get(case, logits)
    assert LabelModel.fit(logits, np.full_like(labels, UNKNOWN) if case == "unknown" else labels) is None


def test_where_nobody_gives_a_second_tag_more_are_missing_than_the_scores_of_known_ones_say() -> None:
    random = np.random.default_rng(0)
    truth = random.random((2000, 4)) < 0.3
    logits = random.normal(size=truth.shape) + 2.5 * truth - 3
    first = truth & (np.cumsum(truth, axis=1) == 1)
    at_random = truth & (random.random(truth.shape) < first.sum() / truth.sum())
    one, half = (LabelModel.fit(logits, np.where(given, PRESENT, UNKNOWN)) for given in (first, at_random))
    assert one is not None and half is not None and one.stopping < 0.45 and half.stopping > 0.9
    assert one.spread[0] > half.spread[0], "alternatives look like people who stop: fewer may be missing"


def test_few_labels_weak_scores_and_no_absents_widen_the_range() -> None:
    def spread(images: int, absents: float = 0.0, separation: float = 2.5) -> float:
        random = np.random.default_rng(0)
        truth = random.random((images, 6)) < 0.2
        logits = random.normal(size=truth.shape) + separation * truth
        known = random.random(truth.shape) < np.where(truth, 0.5, absents)
        found = LabelModel.fit(logits, np.where(known, truth, UNKNOWN).astype(np.int8))
        assert found is not None
        return sum(found.spread)

    assert spread(3000, 0.2) < spread(3000) < spread(100)
    assert spread(3000) < spread(3000, separation=0.7)


def counted(number: int, p: float, answers: Answers, spread: tuple[float, float] = (0.5, 0.5)) -> tuple[float, Array]:
    """The median, and the ends of the interval, of so many labels of two classes with one probability each."""
    draws = label_model.draw_shifts(answers, spread, classes=2)
    odds = np.log(np.array([p, p]) / (1 - p))
    size, nodes = np.full(2, float(number)), np.column_stack([draws.nodes, draws.median])
    mean, variance = label_model.expected_counts(np.arange(2), size, odds, nodes)
    numbers = draws.count(mean, variance, np.full(2, number))
    return float(mean[0, -1]), label_model.interval(numbers[:, 0])


def test_before_any_answer_the_estimate_is_the_sum_of_the_probabilities_and_zero_has_a_range() -> None:
    for spread in ((0.5, 0.5), (1.2, 0.4)):
        middle, (low, high) = counted(1000, 0.1, Answers.none(), spread)
        assert middle == pytest.approx(100, rel=0.02) and low < 40 and high > 250
    middle, (low, high) = counted(49, 0.01, Answers.none())
    assert middle == pytest.approx(0.49, rel=0.02) and low == 0 and high >= 2


def test_the_posterior_of_a_shift_is_what_the_definition_says() -> None:
    """One class, integrated over a fine grid of u and of s."""
    odds, present = np.array([-2.0, -1.0, 0.5, -3.0]), np.array([True, False, True, False])
    share, found, weight = np.array([1.0, 0.8, 0.5, 1.0]), np.array([0.0, 0.1, 0.2, 0.0]), np.array([1.0, 1, 1, 0.5])
    answers = Answers(np.zeros(4, dtype=np.int64), odds, present, share, found, weight)
    draws = label_model.draw_shifts(answers, (0.8, 0.4), classes=1)
    s, u = np.linspace(-20, 20, 2401)[:, None], np.linspace(-30, 30, 3601)
    side = np.where(u < 0, 0.8, 0.4)

    def prior(x: Array) -> Array:
        each: Array = ((1 + (u / side) ** 2 / 2) ** -1.5 / side * (1 + ((x - u) / 0.7) ** 2 / 4) ** -2.5).sum(axis=1)
        return np.asarray(each / each.sum())

    median = np.interp(0.5, np.cumsum(prior(s)), s[:, 0])
    p = share / (1 + np.exp(-odds - s)) + found
    density = prior(s + median) * np.prod(np.where(present, p, 1 - p) ** weight, axis=1)
    cumulative = np.cumsum(density) / density.sum()
    assert draws.median[0] == pytest.approx(float(np.interp(0.5, cumulative, s[:, 0])), abs=0.05)
    drawn = draws.pick(draws.nodes)[:, 0]
    for end in (0.025, 0.16, 0.84, 0.975):
        assert np.quantile(drawn, end) == pytest.approx(float(np.interp(end, cumulative, s[:, 0])), abs=0.12)


def test_complete_labels_give_the_plain_average_precision_and_the_exact_share() -> None:
    scores, truth, _ = world(0)
    found = corrected_average_precision(scores, truth)
    np.testing.assert_allclose(found.chance, truth.mean(axis=0), rtol=1e-12)
    expected = [average_precision_score(truth[:, k], scores[:, k]) for k in range(truth.shape[1])]
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("absents", [0, 1, 100])
def test_the_estimate_is_near_the_truth_where_plain_average_precision_says_one(seed: int, absents: int) -> None:
    scores, truth, observed = world(seed, images=2000)
    labels = with_absents(truth, observed, absents)
    exact = average_precision(scores, truth)
    found = corrected_average_precision(scores, labels)
    assert found.values.mean() == pytest.approx(exact, abs=0.1)
    np.testing.assert_allclose(found.chance, truth.mean(axis=0), rtol=0.6)
    if absents == 1:
        assert average_precision(scores, labels) > 0.97


def test_the_line_is_the_one_that_a_general_minimiser_finds() -> None:
    random = np.random.default_rng(1)
    logits = 4 * random.normal(size=500) + 2
    present = random.random(500) < 1 / (1 + np.exp(3 - 0.7 * logits))
    many, few = present.sum(), (~present).sum()
    targets = np.where(present, (many + 1) / (many + 2), 1 / (few + 2))

    def cost(line: np.ndarray) -> float:
        moved = line[0] * logits + line[1]
        chance = 1 / (1 + np.exp(-moved))
        return -float((targets * np.log(chance) + (1 - targets) * np.log(1 - chance)).sum())

    assert platt_scaling(logits, present) == pytest.approx(minimize(cost, [1.0, 0.0], tol=1e-10).x, abs=1e-4)


@pytest.mark.parametrize(
    ("logits", "present"),
    [
        (np.array([-20.0] * 50 + [-10.0] * 50), np.arange(100) >= 50),
        (np.array([-1e6, 1e6] * 5), np.arange(10) % 2 == 1),
        (np.zeros(10), np.arange(10) < 3),
    ],
)
def test_separable_huge_and_equal_logits_give_a_finite_line(logits: np.ndarray, present: np.ndarray) -> None:
    scale, offset = platt_scaling(logits, present)
    assert np.isfinite([scale, offset]).all() and scale >= 0


def test_a_class_takes_part_with_five_known_presents_and_older_runs_have_one_offset() -> None:
    random = np.random.default_rng(0)
    codes = np.full((40, 4), -1, dtype=np.int8)
    codes[:10, 0], codes[10:20, 0] = 1, 0
    codes[:15, 1] = 1
    codes[:4, 2], codes[4:, 2] = 1, 0
    logits = (random.normal(size=codes.shape) + 2 * (codes == 1)).astype(np.float32)
    found = fit_platt_calibration(logits, LabelTable.from_dense(codes))
    assert found is not None
    assert found["classes"] == [True, True, False, False]
    assert (found["present"], found["absent"], found["known"]) == (25, 10, 35 / 80)
    assert json.loads(json.dumps(found)) == found
    read = read_calibration({"calibration": found})
    assert read is not None
    chance = read.probabilities(logits)
    assert np.isnan(chance[:, 2:]).all() and np.isfinite(chance[:, :2]).all()
    older = read_calibration({"calibration": {**found, "offset": 0.5}})
    assert older is not None and older.offset == (0.5,) * 4


def test_without_labels_or_with_logits_upside_down_there_is_none() -> None:
    codes = np.repeat([[1], [0]], 20, axis=0).astype(np.int8)
    logits = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    assert fit_platt_calibration(logits, codes) is None, "higher logits are less often present"
    assert fit_platt_calibration(-logits, codes) is not None
    assert fit_platt_calibration(-logits, np.where(codes == 0, np.int8(-1), codes)) is not None
    assert fit_platt_calibration(-logits, np.where(codes == 1, np.int8(-1), codes)) is None
    assert fit_platt_calibration(np.full_like(logits, np.inf), codes) is None
    assert read_calibration({}) is None and read_calibration({"calibration": None}) is None


def test_scores_that_say_the_reverse_of_others_but_for_rounding_have_no_huge_slopes() -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=2000)
    present = random.random(2000) < 1 / (1 + np.exp(1 - 1.3 * scores))
    reverse = -scores + 1e-7 * random.normal(size=2000)
    slopes, intercept = logistic_line(np.stack([scores, reverse]), present, min_slopes=(0.0, 0.0))
    alone, same_intercept = logistic_line(scores[None], present, min_slopes=(0.0,))
    np.testing.assert_allclose(slopes, [alone[0], 0.0], atol=1e-4)
    assert intercept == pytest.approx(same_intercept, abs=1e-4)
