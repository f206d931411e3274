from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import logit

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import choose_thresholds, f1
from labelgap.metrics.label_model import LabelModel, fit_platt_calibration

RANKINGS = importlib.import_module("labelgap.metrics.average_precision")
"""The module; the package has a function of that name."""

Array = NDArray[Any]


def best_exact_cut(scores: list[float], labels: list[int]) -> float:
    """The threshold of one class whose labels are all known."""
    present = [x for x, label in zip(scores, labels, strict=True) if label == PRESENT]

    def merit(cut: float) -> float:
        return 2 * sum(x >= cut for x in present) / (len(present) + sum(x >= cut for x in scores))

    best = max(map(merit, present))
    taken = min(sum(x >= cut for x in scores) for cut in present if merit(cut) >= best * (1 - 1e-12))
    ordered = sorted(scores, reverse=True)
    lowest = ordered[taken - 1]
    return (lowest + ordered[taken]) / 2 if taken < len(ordered) else lowest


def best_expected_f1(chances: list[float]) -> float:
    return max(
        2 * sum(p for p in chances if p >= cut) / (sum(p >= cut for p in chances) + sum(chances)) for cut in chances
    )


def reference(scores: Array, labels: Array) -> tuple[list[float], list[str]]:
    """Thresholds and marks of all classes, given the calibration."""
    columns = list(zip(scores.T.tolist(), labels.T.tolist(), strict=True))
    present, absent = ([labels.count(state) for _, labels in columns] for state in (PRESENT, ABSENT))
    if max(present) < 5 and sum(present) < 10:
        return [0.5] * len(columns), ["default"] * len(columns)
    logits = logit(np.clip(scores, 1e-9, 1 - 1e-9))
    line = LabelModel.fit(logits, labels.astype(np.int8))
    complete = [present[k] + absent[k] == len(scores) and present[k] >= 5 for k in range(len(columns))]
    values, marks = [], []
    for k, column in enumerate(columns):
        if line is None and not complete[k]:
            values.append(0.5)
            marks.append("default")
            continue
        marks.append("measured" if min(present[k], absent[k]) >= 10 else "estimated" if present[k] >= 5 else "borrowed")
        if complete[k]:
            values.append(best_exact_cut(*column))
            continue
        assert line is not None
        half = best_expected_f1([1 / (1 + math.exp(-line.scale * x - line.offset[k])) for x in logits[:, k]]) / 2
        values.append(1 / (1 + math.exp(-(math.log(half / (1 - half)) - line.offset[k]) / line.scale)))
    return values, marks


def draw(seed: int, images: int = 40, levels: int = 16) -> tuple[Array, Array]:
    """Scores on a binary grid (midpoints are exact), and three classes of each kind."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels + 1, (images, 12)) / levels
    labels = rng.choice([UNKNOWN, ABSENT, PRESENT], size=scores.shape, p=[0.4, 0.3, 0.3]).astype(np.int8)
    labels[:, 3:6][labels[:, 3:6] == ABSENT] = UNKNOWN
    labels[:, 6:9][labels[:, 6:9] == PRESENT] = UNKNOWN
    labels[:4, 7] = PRESENT
    labels[:, 9] = UNKNOWN
    labels[:4, 9] = PRESENT
    return np.minimum(scores + (labels == PRESENT) / 2, 1), labels  # known presents score higher


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("levels", [4, 2**20])
def test_every_class_gets_what_the_definition_says(seed: int, levels: int) -> None:
    scores, labels = draw(seed, levels=levels)
    labels[:, 10] = np.where(labels[:, 10] == UNKNOWN, ABSENT, labels[:, 10])  # a complete class
    found = choose_thresholds(scores, labels)
    values, marks = reference(scores, labels)
    assert list(found.marks) == marks
    np.testing.assert_allclose(found.values, values, rtol=1e-9)


columns = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([UNKNOWN, ABSENT, PRESENT])), min_size=5, max_size=30)


@settings(max_examples=40, deadline=None)
@given(columns, st.sampled_from(["as drawn", "positives only", "complete"]))
def test_any_column_gets_what_the_definition_says(some: list[tuple[int, int]], kind: str) -> None:
    change = {"positives only": {ABSENT: UNKNOWN}, "complete": {UNKNOWN: ABSENT}}.get(kind, {})
    labels = np.array([[change.get(label, label)] for _, label in some])
    scores = np.array([[score / 8] for score, _ in some])
    found = choose_thresholds(scores, labels)
    values, marks = reference(scores, labels)
    assert list(found.marks) == marks
    np.testing.assert_allclose(found.values, values, rtol=1e-9)


def world(seed: int, images: int = 600, classes: int = 4) -> tuple[Array, Array, Array]:
    """Scores of a model that ranks well, the truth, and one label in three of what is present."""
    rng = np.random.default_rng(seed)
    truth = (rng.random((images, classes)) < rng.uniform(0.08, 0.3, classes)).astype(np.int8)
    scores = 1 / (1 + np.exp(-rng.normal(3.0 * truth - 3, 1)))
    observed = np.where((truth == PRESENT) & (rng.random(truth.shape) < 0.33), PRESENT, UNKNOWN)
    return scores, truth, observed


def with_absents(truth: Array, observed: Array, count: int, seed: int = 0) -> Array:
    rng, labels = np.random.default_rng(seed), observed.copy()
    for k in range(truth.shape[1]):
        labels[rng.permutation(np.flatnonzero(truth[:, k] == ABSENT))[:count], k] = ABSENT
    return labels


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("absents", [0, 1, 3, 10, 100])
def test_f1_against_the_truth_stays_near_the_best_however_few_absents_are_known(seed: int, absents: int) -> None:
    scores, truth, observed = world(seed)
    labels = with_absents(truth, observed, absents)
    found = choose_thresholds(scores, labels)
    best = f1(scores, truth, threshold=choose_thresholds(scores, truth).values)
    assert f1(scores, truth, threshold=found.values) > best - 0.05
    assert set(found.marks) == {"measured" if absents >= 10 else "estimated"}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), absents=st.sampled_from([0, 1, 2, 5, 10, 50]), data=st.data())
def test_one_more_label_never_moves_a_threshold_by_much(seed: int, absents: int, data: st.DataObject) -> None:
    """A twentieth of the images of the split at most, of a model that ranks."""
    scores, truth, observed = world(seed, images=300, classes=3)
    labels = with_absents(truth, observed, absents, seed)
    k = data.draw(st.integers(0, 2))
    unknown = np.flatnonzero(labels[:, k] == UNKNOWN)
    row = int(unknown[data.draw(st.integers(0, len(unknown) - 1))])
    more = labels.copy()
    more[row, k] = truth[row, k]
    before, after = (scores >= choose_thresholds(scores, each).values for each in (labels, more))
    assert np.abs(before.mean(axis=0) - after.mean(axis=0)).max() <= 0.05


def test_scores_that_do_not_rank_decide_nothing() -> None:
    """Few known presents among scores at random: "few are present" and "all are, few are known" are equally likely."""
    random = np.random.default_rng(0)
    truth = random.random((430, 15)) < 0.1
    labels = np.where(truth & (random.random(truth.shape) < 0.5), PRESENT, UNKNOWN)
    labels[:, 3] = truth[:, 3]
    logits = random.normal(-3, 1, truth.shape)
    found = choose_thresholds(1 / (1 + np.exp(-logits)), labels)
    assert [mark for k, mark in enumerate(found.marks) if k != 3] == ["default"] * 14 and found.marks[3] == "measured"
    assert fit_platt_calibration(logits.astype(np.float32), labels.astype(np.int8)) is None


def test_fewer_than_five_positives_of_a_single_class_keep_the_default() -> None:
    scores = np.linspace(0, 1, 20)[:, None]
    four, five, ten = (np.zeros((20, 1), dtype=np.int8) for _ in range(3))
    four[-4:], five[-5:], ten[-10:] = PRESENT, PRESENT, PRESENT
    assert choose_thresholds(scores, four).marks == ("default",)
    assert choose_thresholds(scores, four).values.tolist() == [0.5]
    assert choose_thresholds(scores, five).marks == ("estimated",)
    assert choose_thresholds(scores, ten).marks == ("measured",)
    assert choose_thresholds(scores, np.where(four == ABSENT, UNKNOWN, four)).marks == ("default",)
    assert choose_thresholds(scores, np.where(five == ABSENT, UNKNOWN, five)).marks == ("estimated",)
    assert choose_thresholds(scores, np.zeros_like(four)).marks == ("default",)
    assert choose_thresholds(np.tile(scores, 3), np.tile(four, 3)).marks == ("borrowed",) * 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neighbouring_floats_are_parted_exactly(dtype: type[np.floating[Any]]) -> None:
    for upper in (0.3, 0.7, 1e-3):
        high = dtype(upper)
        low = np.nextafter(high, dtype(0), dtype=dtype)
        scores = np.array([[high]] * 10 + [[low]] * 20, dtype=dtype)
        labels = np.array([[PRESENT]] * 10 + [[ABSENT]] * 20)
        found = choose_thresholds(scores, labels)
        assert low < found.values[0] <= high
        assert f1(scores, labels, threshold=found.values) == 1
        assert (torch.tensor(scores) >= torch.tensor(found.values.astype(dtype))).sum() == 10


def test_pieces_and_long_rankings_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = draw(3)
    whole = choose_thresholds(scores, labels)
    monkeypatch.setattr(RANKINGS, "RANKINGS_AT_ONCE", 1)
    monkeypatch.setattr(RANKINGS, "ENTRIES_AT_ONCE", 80)
    np.testing.assert_allclose(choose_thresholds(scores, labels).values, whole.values, rtol=1e-6)
    scores, labels = draw(3)
    monkeypatch.setattr(RANKINGS, "LONG_RANKING", len(scores))
    assert not (labels != UNKNOWN).all(axis=0).any()
    np.testing.assert_allclose(choose_thresholds(scores, labels).values, reference(scores, labels)[0], rtol=1e-9)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_tables_without_a_row_or_a_column_get_defaults(shape: tuple[int, int]) -> None:
    found = choose_thresholds(np.zeros(shape), np.zeros(shape, dtype=np.int8))
    assert found.values.tolist() == [0.5] * shape[1]
    assert found.marks == ("default",) * shape[1]
