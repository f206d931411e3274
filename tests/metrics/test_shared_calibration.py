"""One slope for all classes, an offset for each: against the definition, and against a known truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import choose_thresholds, f1, shared_calibration
from labelgap.metrics.shared_calibration import SharedCalibration, _Entries, fit_shared_calibration

Array = NDArray[Any]


def album(seed: int, images: int, tags: int | None = 2) -> tuple[Array, Array, Array]:
    """Logits of a model that ranks, the truth, and up to ``tags`` present labels of each image (None: all of them)."""
    rng = np.random.default_rng(seed)
    shares = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.04])
    truth = (rng.random((images, shares.size)) < shares).astype(np.int8)
    logits = (2.5 * truth + rng.normal(size=truth.shape) + rng.normal(scale=0.7, size=shares.size) - 3).astype(
        np.float32
    )
    order = np.argsort(np.where(truth == PRESENT, rng.random(truth.shape), 2.0), axis=1).argsort(axis=1)
    known = (truth == PRESENT) & (order < rng.integers(1, (tags or 8) + 1, images)[:, None])
    return logits, truth, np.where(known, PRESENT, UNKNOWN).astype(np.int8)


def cost(parameters: list[float], logits: Array, labels: Array) -> float:
    """The negative log posterior with Python's own floats: ln a, then b, logit c and logit d of every class."""
    classes = logits.shape[1]
    b, c, d = (parameters[1 + i * classes : 1 + (i + 1) * classes] for i in range(3))

    def log_sigmoid(x: float) -> float:
        return -math.log1p(math.exp(-x))

    standardized = (logits.astype(float) - logits.mean(dtype=float)) / logits.astype(float).std()
    total: float = (parameters[0] - 0.7) ** 2 / 2
    mean = sum(c) / 0.25 / (classes / 0.25 + 1)
    total += mean**2 / 2
    for k in range(classes):
        total += (b[k] - sum(b) / classes) ** 2 / 2 + (c[k] - mean) ** 2 / 0.25 / 2
        total -= 0.5 * (log_sigmoid(d[k]) + log_sigmoid(-d[k]))
        for x, label in zip(standardized[:, k].tolist(), labels[:, k].tolist(), strict=True):
            line = math.exp(parameters[0]) * x + b[k]
            present, absent = math.exp(log_sigmoid(line)), math.exp(log_sigmoid(-line))
            give_present, give_absent = math.exp(log_sigmoid(c[k])), math.exp(log_sigmoid(d[k]))
            hidden = (1 - give_present) * present + (1 - give_absent) * absent
            total -= math.log({PRESENT: give_present * present, ABSENT: give_absent * absent, UNKNOWN: hidden}[label])
    return total


def parameters_of(found: SharedCalibration, logits: Array) -> list[float]:
    shift = found.scale * logits.mean(dtype=float)
    shares = np.concatenate([found.present_known, found.absent_known])
    return [math.log(found.slope), *(found.offset + shift), *np.log(shares / (1 - shares))]


@pytest.mark.parametrize("absents", [0.0, 0.3])
def test_no_other_parameters_are_more_probable(absents: float) -> None:
    logits, truth, labels = album(0, 60)
    random = np.random.default_rng(1)
    labels[(truth == ABSENT) & (random.random(truth.shape) < absents)] = ABSENT
    logits, labels = logits[:, :3], labels[:, :3]
    found = fit_shared_calibration(logits, labels)
    assert found is not None
    best = parameters_of(found, logits)
    lowest = cost(best, logits, labels)
    for place in range(len(best)):
        for change in (-0.05, 0.05):
            moved = [*best[:place], best[place] + change, *best[place + 1 :]]
            assert cost(moved, logits, labels) > lowest - 1e-6


def test_presents_alone_give_calibrated_probabilities_and_the_number_of_missing_labels() -> None:
    random = np.random.default_rng(0)
    logits, truth, _ = album(1, 3000)
    labels = np.where((truth == PRESENT) & (random.random(truth.shape) < 0.5), PRESENT, UNKNOWN).astype(np.int8)
    found = fit_shared_calibration(logits, labels)
    assert found is not None
    np.testing.assert_allclose(found.present_known, 0.5, atol=0.2)
    chance, posterior = found.probabilities(logits), found.posterior(logits, labels)
    assert posterior.sum() == pytest.approx(truth.sum(), rel=0.1)
    assert (posterior[labels == PRESENT] == 1).all()
    for low in (0.1, 0.3, 0.5, 0.7):
        near = (chance >= low) & (chance < low + 0.2)
        assert truth[near].mean() == pytest.approx(chance[near].mean(), abs=0.1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("images", [150, 600])
def test_one_or_two_tags_per_image_give_thresholds_as_good_as_all_labels(seed: int, images: int) -> None:
    """On other images of the same model, with all their labels."""
    logits, truth, labels = album(seed, images + 4000)
    scores = 1 / (1 + np.exp(-logits))
    reached, best = (
        f1(scores[images:], truth[images:], threshold=choose_thresholds(scores[:images], each[:images]).values)
        for each in (labels, truth)
    )
    assert reached > 0.95 * best


def test_a_class_without_a_known_present_takes_the_mean_offset_and_changes_no_other() -> None:
    logits, _, labels = album(2, 300)
    labels[:, 0] = UNKNOWN
    found, others = fit_shared_calibration(logits, labels), fit_shared_calibration(logits[:, 1:], labels[:, 1:])
    assert found is not None and others is not None
    np.testing.assert_allclose(found.offset, [others.offset.mean(), *others.offset], rtol=1e-9)
    assert np.isnan(found.present_known[0]) and np.isfinite(found.posterior(logits, labels)).all()


def test_many_images_are_binned_without_a_visible_change(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, _, labels = album(3, 800)
    binned = fit_shared_calibration(logits, labels)
    monkeypatch.setattr(shared_calibration, "_BINS", 1000)
    exact = fit_shared_calibration(logits, labels)
    assert binned is not None and exact is not None
    np.testing.assert_allclose(binned.probabilities(logits), exact.probabilities(logits), atol=2e-3)


@pytest.mark.parametrize("case", ["equal", "huge", "separable", "reversed", "all present"])
def test_degenerate_scores_give_finite_lines(case: str) -> None:
    logits, truth, labels = album(4, 100)
    if case == "equal":
        logits[:] = 1
    elif case == "huge":
        logits *= 1e6
    elif case == "separable":
        logits = 40 * truth - 20.0
    elif case == "reversed":
        logits = -logits
    else:
        labels = np.ones_like(labels)
    found = fit_shared_calibration(logits, labels)
    assert found is not None and found.scale > 0
    assert np.isfinite([found.scale, *found.offset, *found.present_known, *found.absent_known]).all()


def test_without_a_known_present_there_is_none() -> None:
    assert fit_shared_calibration(np.zeros((4, 2)), np.full((4, 2), UNKNOWN, dtype=np.int8)) is None
    assert fit_shared_calibration(np.zeros((0, 2)), np.zeros((0, 2), dtype=np.int8)) is None


def test_a_step_to_a_slope_beyond_all_numbers_has_a_finite_cost() -> None:
    entries = _Entries(1, 2, np.array([0, 0]), np.array([1, -1], np.int8), np.array([0.0, 1.0]), np.ones(2))
    with np.errstate(over="raise", invalid="raise"):
        cost, gradient = entries.objective(np.array([800.0, 0.0, 0.0, 0.0]))
    assert np.isfinite(cost) and np.isfinite(gradient).all() and cost > entries.objective(entries.start())[0]
