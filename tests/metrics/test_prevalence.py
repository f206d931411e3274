"""The prevalence and the corrected average precision: exact on complete labels, near the truth on few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from tests.metrics.test_thresholds import with_absents, world

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import average_precision, corrected_average_precision
from labelgap.metrics.prevalence import estimate_prevalence

Array = NDArray[Any]


def prevalence(scores: list[float], labels: list[int], first: float | None = None) -> float:
    """The estimated share of presents of one class, from the definition."""
    present = [x for x, label in zip(scores, labels, strict=True) if label == PRESENT]
    absent = [x for x, label in zip(scores, labels, strict=True) if label == ABSENT]
    low, high = len(present) / len(scores), len(present) / (len(present) + len(absent))

    def share(values: list[float], cut: float) -> float:
        return sum(x >= cut for x in values) / max(len(values), 1)

    def weight(cut: float) -> float:
        return max(0.5 - share(present, cut), 0) + 1e-3

    if first is None:
        first = sum(weight(t) * share(scores, t) for t in present) / sum(weight(t) * share(present, t) for t in present)
    first = min(max(first, low), high)
    above = below = 0.0
    for t in present:
        recall, taken, false = share(present, t), share(scores, t), share(absent, t)
        if len(present) + len(absent) < len(scores):
            implied = min(max((taken - first * recall) / max(1 - first, 1e-9), 0), 1)
            false = (len(absent) * false + 30 * implied) / (len(absent) + 30)
        above += (taken - false) * (recall - false)
        below += (recall - false) ** 2
    return min(max(above / below if below > 1e-12 else first, low), high)


def test_complete_labels_give_the_plain_average_precision_and_the_exact_share() -> None:
    scores, truth, _ = world(0)
    found = corrected_average_precision(scores, truth)
    np.testing.assert_allclose(found.chance, truth.mean(axis=0), rtol=1e-12)
    expected = [average_precision_score(truth[:, k], scores[:, k]) for k in range(truth.shape[1])]
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)


@pytest.mark.parametrize("absents", [0, 1, 30])
def test_the_prevalence_is_what_the_definition_says(absents: int) -> None:
    scores, truth, observed = world(1, images=120)
    labels = with_absents(truth, observed, absents)
    expected = [prevalence(scores[:, k].tolist(), labels[:, k].tolist()) for k in range(labels.shape[1])]
    np.testing.assert_allclose(estimate_prevalence(scores, labels), expected, rtol=1e-12)


@pytest.mark.parametrize("absents", [0, 30])
def test_a_first_value_of_the_prevalence_takes_the_place_of_that_of_the_highest_scores(absents: int) -> None:
    scores, truth, observed = world(1, images=120)
    labels = with_absents(truth, observed, absents)
    first = np.linspace(0.05, 0.6, labels.shape[1])
    expected = [prevalence(scores[:, k].tolist(), labels[:, k].tolist(), first[k]) for k in range(labels.shape[1])]
    found = corrected_average_precision(scores, labels, prevalence=first).chance
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert not np.allclose(found, estimate_prevalence(scores, labels), rtol=1e-3)


def reference(scores: list[float], labels: list[int]) -> float:
    """Corrected average precision of one class, from the definition."""
    present = [x for x, label in zip(scores, labels, strict=True) if label == PRESENT]
    absent = [x for x, label in zip(scores, labels, strict=True) if label == ABSENT]
    pi, total = prevalence(scores, labels), 0.0
    for cut in present:
        recall, taken = (sum(x >= cut for x in values) / len(values) for values in (present, scores))
        implied = min(max((taken - pi * recall) / max(1 - pi, 1e-9), 0), 1)
        false = (sum(x >= cut for x in absent) + 30 * implied) / (len(absent) + 30)
        total += pi * recall / (pi * recall + (1 - pi) * false)
    return total / len(present)


@pytest.mark.parametrize("absents", [0, 1, 30])
def test_corrected_average_precision_is_what_the_definition_says(absents: int) -> None:
    scores, truth, observed = world(2, images=120)
    labels = with_absents(truth, observed, absents)
    expected = [reference(scores[:, k].tolist(), labels[:, k].tolist()) for k in range(labels.shape[1])]
    np.testing.assert_allclose(corrected_average_precision(scores, labels).values, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("absents", [0, 1, 10, 100])
def test_the_estimate_is_near_the_truth_where_plain_average_precision_says_one(seed: int, absents: int) -> None:
    scores, truth, observed = world(seed, images=2000)
    labels = with_absents(truth, observed, absents)
    exact = average_precision(scores, truth)
    found = corrected_average_precision(scores, labels)
    assert found.values.mean() == pytest.approx(exact, abs=0.1)
    np.testing.assert_allclose(found.chance, truth.mean(axis=0), rtol=0.6)
    if absents == 1:
        assert average_precision(scores, labels) > 0.97


def test_for_random_scores_chance_is_told_to_be_high() -> None:
    """Fifty known presents and one known absent: plain average precision calls noise 0.98."""
    rng = np.random.default_rng(0)
    labels = np.full((500, 5), UNKNOWN)
    labels[:50], labels[50] = PRESENT, ABSENT
    scores = rng.random(labels.shape)
    assert average_precision(scores, labels) > 0.95
    found = corrected_average_precision(scores, labels)
    assert found.chance.mean() > 0.5
    assert found.values.mean() - found.chance.mean() < 0.1


def test_classes_without_a_known_present_have_none() -> None:
    found = corrected_average_precision([[0.1, 0.2], [0.3, 0.4]], [[0, 1], [-1, -1]])
    assert np.isnan(found.values).tolist() == [True, False]
    assert np.isnan(found.chance).tolist() == [True, False]
    assert corrected_average_precision(np.zeros((0, 2)), np.zeros((0, 2), dtype=np.int8)).values.shape == (2,)
