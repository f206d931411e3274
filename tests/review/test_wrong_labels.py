"""How many labels that look wrong are wrong: against draws from the model, and the rule that puts them away."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.review.wrong_labels import (
    CLASS_SPREAD,
    MEAN_SHIFT,
    MEAN_SPREAD,
    MIN_ANSWERS,
    MIN_PRECISION,
    Precision,
    WrongLabels,
    estimate_wrong_labels,
)


def suggest(classes: list[int], scores: list[float], answers: str) -> WrongLabels:
    """Make labels from answers: w wrong, r right, ? cannot tell, . open."""
    letters = np.array(list(answers))
    return WrongLabels(
        max(classes) + 1, np.array(classes), np.array(scores), letters != ".", letters == "w", letters == "r"
    )


def drawn(labels: WrongLabels, draws: int = 400_000) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw shifts from the prior; return the precision of each class and of all, (draws, K + 1), and the weights."""
    random = np.random.default_rng(0)
    mean = random.normal(MEAN_SHIFT, MEAN_SPREAD, draws)
    shift = mean[:, None] + random.normal(0, CLASS_SPREAD, (draws, labels.classes))
    weight = np.ones(draws)
    wrong_left = np.zeros((draws, labels.classes))
    counts = np.zeros(labels.classes)
    for k, score, decided, wrong, right in zip(
        labels.class_number, labels.implausibility, labels.decided, labels.wrong, labels.right, strict=True
    ):
        odds = np.log(score / (1 - score)) + shift[:, k]
        chance = 1 / (1 + np.exp(-odds))
        weight *= chance if wrong else 1 - chance if right else 1
        if not decided:
            wrong_left[:, k] += chance
            counts[k] += 1
    shares = np.concatenate([wrong_left / np.maximum(counts, 1), wrong_left.sum(1, keepdims=True) / counts.sum()], 1)
    return shares, weight / weight.sum()


def quantile(values: NDArray[np.float64], weight: NDArray[np.float64], level: float) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weight[order]), level)])


@pytest.mark.parametrize("answers", ["................", "wrr?w.rr........", "rrrrrrrr....rr.."])
def test_precision_and_interval_are_those_of_draws_from_the_model(answers: str) -> None:
    scores = np.linspace(0.97, 0.3, 16).tolist()
    labels = suggest([0, 0, 1, 0, 1, 2, 0, 1, 0, 2, 1, 1, 0, 2, 2, 0], scores, answers)
    shares, weight = drawn(labels)
    made = estimate_wrong_labels(labels)
    for number, found in enumerate([*made.by_class, made.total]):
        assert found is not None
        values = shares[:, number]
        assert found.share == pytest.approx(float(weight @ values), abs=0.01)
        tolerance = 0.03 if number < labels.classes else 0.05  # the sum of three classes is not quite normal
        assert found.low == pytest.approx(quantile(values, weight, 0.025), abs=tolerance)
        assert found.high == pytest.approx(quantile(values, weight, 0.975), abs=tolerance)


def test_right_labels_put_the_queue_away_and_wrong_ones_keep_it() -> None:
    classes, scores = [0, 1, 2] * 13, np.linspace(0.95, 0.4, 39).tolist()
    lengths = range(MIN_ANSWERS + 25)
    away = [estimate_wrong_labels(suggest(classes, scores, "r" * n + "." * (39 - n))).total.put_away for n in lengths]
    first = away.index(True)
    assert first >= MIN_ANSWERS and all(away[first:]), "once away it stays away while answers say the same"
    made = estimate_wrong_labels(suggest(classes, scores, "w" * first + "." * (39 - first)))
    assert not made.total.put_away and not any(each.put_away for each in made.by_class if each)


def test_a_class_that_is_mostly_wrong_is_kept_while_others_are_put_away() -> None:
    answers = "".join("w" if n % 3 == 0 and n < 60 else "r" if n < 120 else "." for n in range(150))
    made = estimate_wrong_labels(suggest([0, 1, 2] * 50, [0.8] * 150, answers))
    assert [each.put_away for each in made.by_class if each] == [False, True, True] and not made.total.put_away
    for each in made.by_class:
        assert each is not None and (each.put_away is False or each.share < MIN_PRECISION)


def test_nothing_left_is_not_put_away_and_classes_without_labels_have_no_precision() -> None:
    made = estimate_wrong_labels(suggest([0] * 6 + [2] * 3, [0.6] * 9, "r" * 9))
    assert made.by_class[1] is None and not made.total.put_away
    assert made.total == Precision(9, 0, 0, 0.0, 0.0, 0.0, False)
    sure = suggest([0, 1] * 20, [0.0, 1.0, 0.5, 0.5] * 10, "wr?." * 10)
    assert 0 <= estimate_wrong_labels(sure).total.share <= 1
    empty = WrongLabels(3, np.zeros(0, int), np.zeros(0), *(np.zeros(0, bool),) * 3)
    assert estimate_wrong_labels(empty).total.left == 0
