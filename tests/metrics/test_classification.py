from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_fscore_support
from tests.metrics.test_average_precision import rankings_of

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import average_precision, f1, precision, recall
from labelgap.metrics.classification import ClassificationMetric
from labelgap.metrics.validation import Average, Empty

Array = NDArray[Any]
METRICS: dict[str, ClassificationMetric] = {"precision": precision, "recall": recall, "f1": f1}
AVERAGES: tuple[Average, ...] = ("macro", "micro", "samples")


def reference_of_one(name: str, scores: list[float], labels: list[int], thresholds: list[float]) -> float:
    """One value from true and false positives and negatives, counted one entry at a time."""
    hits = false_alarms = misses = 0
    for score, label, threshold in zip(scores, labels, thresholds, strict=True):
        if label == UNKNOWN:
            continue
        said = score >= threshold
        hits += said and label == PRESENT
        false_alarms += said and label == ABSENT
        misses += not said and label == PRESENT
    above, below = {
        "precision": (hits, hits + false_alarms),
        "recall": (hits, hits + misses),
        "f1": (2 * hits, 2 * hits + false_alarms + misses),
    }[name]
    return above / below if below else 0.0


def reference(
    name: str, scores: Array, labels: Array, thresholds: Array, average: str, empty: str
) -> tuple[float, int]:
    parts = rankings_of(average, scores, labels, np.broadcast_to(thresholds, scores.shape))
    counted = [each for each in parts if empty == "zero" or {PRESENT, ABSENT} <= {*each[1]}]
    values = [reference_of_one(name, *each) for each in counted]
    return (sum(values) / len(values) if values else math.nan), len(values)


def draw(seed: int) -> tuple[Array, Array]:
    """Probabilities on a grid, so that some are on the threshold, and labels with classes of every kind."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 11, (20, 8)) / 10
    labels = rng.choice([UNKNOWN, ABSENT, PRESENT], size=(20, 8), p=[0.4, 0.3, 0.3]).astype(np.int8)
    labels[labels[:, 0] == ABSENT, 0] = UNKNOWN
    labels[labels[:, 1] == PRESENT, 1] = UNKNOWN
    labels[:, 2] = UNKNOWN
    scores[:, 3] = 0.1
    labels[0] = UNKNOWN
    labels[1, 3:] = PRESENT
    labels[2, 3:] = ABSENT
    return scores, labels


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("empty", ["skip", "zero"])
@pytest.mark.parametrize("per_class", [False, True])
def test_every_mean_is_what_the_counts_say(name: str, average: Average, empty: Empty, per_class: bool) -> None:
    for seed in range(3):
        scores, labels = draw(seed)
        threshold = np.linspace(0.2, 0.8, 8) if per_class else np.array(0.5)
        value, counted = METRICS[name](scores, labels, threshold, average, empty, return_counted=True)
        expected, expected_counted = reference(name, scores, labels, threshold, average, empty)
        assert counted == expected_counted
        assert value == pytest.approx(expected, abs=1e-12)
        assert type(value) is float
        assert type(counted) is int


@pytest.mark.parametrize("average", ["macro", "micro", "samples", None])
def test_full_labels_give_what_scikit_learn_gives_with_zero_division_zero(average: Any) -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((30, 6))
    labels = (rng.random((30, 6)) < 0.4).astype(np.int8)
    labels[:, 0], labels[:, 1], labels[5], labels[6] = 0, 1, 0, 1
    scores[:, 2] = 0.2
    threshold = np.linspace(0.3, 0.7, 6)
    expected = precision_recall_fscore_support(labels, scores >= threshold, average=average, zero_division=0)
    for name, value in zip(METRICS, expected, strict=False):
        ours = METRICS[name](scores, labels, threshold, average=average, empty="zero")
        np.testing.assert_allclose(ours, value, atol=1e-12)


def test_a_score_on_the_threshold_is_present_in_the_precision_of_the_scores() -> None:
    labels = [[1], [0]]
    for dtype in (np.float32, np.float64):
        scores = np.array([[0.9], [0.8]], dtype=dtype)
        assert f1(scores, labels, threshold=0.9) == 1
        assert f1(scores, labels, threshold=[0.9]) == 1
        assert f1(scores, labels, threshold=torch.tensor([0.9], dtype=torch.float64)) == 1


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(
    "labels", [[[1, -1]], np.zeros((0, 2)), np.zeros((1, 0))], ids=["no pair", "no row", "no class"]
)
def test_nothing_to_count_gives_nan_and_zero_without_a_warning(average: Average, labels: Any) -> None:
    metrics: list[Any] = [*METRICS.values(), average_precision]
    for metric in metrics:
        value, counted = metric(np.full(np.shape(labels), 0.5), labels, average=average, return_counted=True)
        assert math.isnan(value) and counted == 0
        assert np.isnan(metric(np.full(np.shape(labels), 0.5), labels, average=None)).all()


@pytest.mark.parametrize(
    ("scores", "threshold", "message"),
    [
        ([[0.1, 4.0]], 0.5, "scores run from 0.1 to 4, .*give the sigmoid"),
        ([[-0.1, 0.4]], 0.5, "-0.1 to 0.4"),
        ([[0.1, 0.2]], [0.5], "threshold"),
        ([[0.1, 0.2]], [[0.5, 0.5]], "threshold"),
        ([[0.1, 0.2]], "half", "threshold"),
        ([[0.1, 0.2]], [0.5, math.nan], "threshold is NaN"),
    ],
)
def test_what_cannot_be_used_is_refused(scores: Any, threshold: Any, message: str) -> None:
    for metric in METRICS.values():
        with pytest.raises(InputError, match=message):
            metric(scores, [[1, 0]], threshold)
    assert f1(np.array([[1 + 2e-7], [-1e-9]]), [[1], [0]]) == 1, "rounding beyond 1 is still a probability"
    with pytest.raises(UnknownNameError):
        f1([[0.1]], [[1]], **{"empty": "weighted"})  # type: ignore[call-overload]
