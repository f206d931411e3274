"""Thresholds against a search over every cut, in exact fractions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve

from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import Thresholds, choose_thresholds, f1, sorting

Array = NDArray[Any]


def best_cut(scores: list[float], merit: Callable[[float], Fraction]) -> float:
    """Try every distinct score as the lowest one taken; the highest of the best, then halfway to the next lower."""
    distinct = sorted(set(scores), reverse=True)
    best = max(distinct, key=lambda cut: (merit(cut), cut))
    lower = [score for score in distinct if score < best]
    return (best + lower[0]) / 2 if lower else best


def reference(scores: list[float], labels: list[int]) -> tuple[float, str]:
    """The threshold and mark of one class, from the definition."""
    positives = [score for score, label in zip(scores, labels, strict=True) if label == PRESENT]
    known = [score for score, label in zip(scores, labels, strict=True) if label != UNKNOWN]
    if len(positives) < 5:
        return 0.5, "default"

    def measured(cut: float) -> Fraction:
        hits, taken = sum(x >= cut for x in positives), sum(x >= cut for x in known)
        if hits == 0:
            return Fraction(0)
        precision, recall = Fraction(hits, taken), Fraction(hits, len(positives))
        return 2 * precision * recall / (precision + recall)

    def estimated(cut: float) -> Fraction:
        recall = Fraction(sum(x >= cut for x in positives), len(positives))
        return recall**2 / Fraction(sum(x >= cut for x in scores), len(scores))

    if len(known) > len(positives):
        return best_cut(known, measured), "measured"
    return best_cut(scores, estimated), "estimated"


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
    return scores, labels


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [4, 2**20])
def test_every_class_gets_what_a_search_over_every_cut_finds(seed: int, levels: int) -> None:
    scores, labels = draw(seed, levels=levels)
    found = choose_thresholds(scores, labels)
    for k in range(scores.shape[1]):
        value, mark = reference(scores[:, k].tolist(), labels[:, k].tolist())
        assert found.marks[k] == mark
        assert found.values[k] == value


columns = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([UNKNOWN, ABSENT, PRESENT])), min_size=5, max_size=30)


@settings(max_examples=25, deadline=None)
@given(columns, st.booleans())
def test_any_column_gets_what_a_search_over_every_cut_finds(some: list[tuple[int, int]], positives_only: bool) -> None:
    labels = [UNKNOWN if positives_only and label == ABSENT else label for _, label in some]
    scores = [score / 8 for score, _ in some]
    found = choose_thresholds(np.array(scores)[:, None], np.array(labels)[:, None])
    assert (found.values[0], found.marks[0]) == reference(scores, labels)


def test_the_measured_threshold_reaches_the_best_f1_of_scikit_learns_curve() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((200, 4)) < 0.3).astype(np.int8)
    scores = np.clip(rng.normal(0.3 + 0.3 * labels, 0.2), 0, 1).astype(np.float32)
    found = choose_thresholds(scores, labels)
    reached = f1(scores, labels, threshold=found.values, average=None)
    for k in range(4):
        precision, recall, _ = precision_recall_curve(labels[:, k], scores[:, k])
        with np.errstate(invalid="ignore"):
            best = np.nanmax(2 * precision * recall / (precision + recall))
        assert reached[k] == pytest.approx(best, abs=1e-6)
    assert (reached >= f1(scores, labels, average=None)).all()


def test_the_estimate_comes_near_the_measured_threshold_when_positives_are_a_fair_sample() -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random((4000, 3)) < 0.2).astype(np.int8)
    scores = 1 / (1 + np.exp(-rng.normal(4.0 * truth - 2, 1)))
    observed = np.where((truth == PRESENT) & (rng.random(truth.shape) < 0.3), PRESENT, UNKNOWN)
    estimate = choose_thresholds(scores, observed)
    assert estimate.marks == ("estimated",) * 3
    best = f1(scores, truth, threshold=choose_thresholds(scores, truth).values, average=None)
    assert (f1(scores, truth, threshold=estimate.values, average=None) > best - 0.03).all()


def test_fewer_than_five_positives_keep_the_default() -> None:
    scores = np.linspace(0, 1, 10)[:, None]
    four, five = np.zeros((10, 1), dtype=np.int8), np.zeros((10, 1), dtype=np.int8)
    four[-4:], five[-5:] = PRESENT, PRESENT
    assert choose_thresholds(scores, four).marks == ("default",)
    assert choose_thresholds(scores, four).values.tolist() == [0.5]
    assert choose_thresholds(scores, five).marks == ("measured",)
    assert choose_thresholds(scores, np.where(four == ABSENT, UNKNOWN, four)).marks == ("default",)
    assert choose_thresholds(scores, np.where(five == ABSENT, UNKNOWN, five)).marks == ("estimated",)
    assert choose_thresholds(scores, np.zeros_like(four)).marks == ("default",)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neighbouring_floats_are_parted_exactly(dtype: type[np.floating[Any]]) -> None:
    for upper in (0.3, 0.7, 1e-3):
        high = dtype(upper)
        low = np.nextafter(high, dtype(0), dtype=dtype)
        scores = np.array([[high]] * 5 + [[low]] * 20, dtype=dtype)
        labels = np.array([[PRESENT]] * 5 + [[ABSENT]] * 20)
        found = choose_thresholds(scores, labels)
        assert low < found.values[0] <= high
        assert f1(scores, labels, threshold=found.values) == 1
        assert (torch.tensor(scores) >= torch.tensor(found.values.astype(dtype))).sum() == 5


def test_equal_scores_are_never_parted() -> None:
    scores = [[0.5]] * 10 + [[0.25]] * 5
    labels = [[1]] * 5 + [[0]] * 5 + [[0]] * 5
    assert choose_thresholds(scores, labels).values.tolist() == [0.375]


def test_with_no_lower_score_the_threshold_is_the_lowest_itself() -> None:
    scores = [[0.9], [0.8], [0.7], [0.6], [0.4], [0.8]]
    assert choose_thresholds(scores, [[1], [1], [1], [1], [1], [0]]).values.tolist() == [0.4]


def test_scores_of_unknown_entries_have_no_part_in_a_measured_threshold() -> None:
    scores, labels = draw(1)
    other = np.where(labels == UNKNOWN, 0.33, scores)
    np.testing.assert_array_equal(
        choose_thresholds(scores, labels).values[:3], choose_thresholds(other, labels).values[:3]
    )


def test_the_order_of_images_and_classes_changes_nothing() -> None:
    scores, labels = draw(2)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(40), rng.permutation(12)
    before, after = (
        choose_thresholds(scores, labels),
        choose_thresholds(scores[rows][:, columns], labels[rows][:, columns]),
    )
    np.testing.assert_array_equal(before.values[columns], after.values)
    assert tuple(before.marks[k] for k in columns) == after.marks


def test_pieces_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = draw(3)
    whole = choose_thresholds(scores, labels)
    monkeypatch.setattr(sorting, "RANKINGS_AT_ONCE", 1)
    monkeypatch.setattr(sorting, "ENTRIES_AT_ONCE", 80)
    np.testing.assert_array_equal(choose_thresholds(scores, labels).values, whole.values)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_tables_without_a_row_or_a_column_get_defaults(shape: tuple[int, int]) -> None:
    found = choose_thresholds(np.zeros(shape), np.zeros(shape, dtype=np.int8))
    assert found.values.tolist() == [0.5] * shape[1]
    assert found.marks == ("default",) * shape[1]


def test_thresholds_cannot_be_changed_and_leave_the_array_they_were_made_of_alone() -> None:
    mine = np.array([0.5])
    found = Thresholds(values=mine, marks=("default",))
    mine[0] = 0.7
    assert found.values.tolist() == [0.5]
    with pytest.raises(ValueError, match="read-only"):
        found.values[0] = 0.1
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.marks = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("scores", "message"),
    [([[3.0]], "give the sigmoid"), ([[math.nan]], "must be finite"), ([[0.1, 0.2]], "labels")],
)
def test_what_cannot_be_used_is_refused(scores: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_thresholds(scores, [[1]])
