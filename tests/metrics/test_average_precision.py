"""Average precision against loops written from the formula, against scikit-learn, and what must always hold."""

from __future__ import annotations

import importlib
import itertools
import math
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.table import LabelTable
from labelgap.metrics import average_precision
from labelgap.metrics.validation import Average, Empty, Unknown

RANKINGS = importlib.import_module("labelgap.metrics.average_precision")
"""The module; the package has a function of that name."""

Array = NDArray[Any]
ALL_AVERAGES: tuple[Average, ...] = ("macro", "samples", "micro")


def reference_of_one(scores: list[float], labels: list[int]) -> float:
    """Sum of (recall gained) x (precision) over the distinct scores of one ranking, in exact fractions."""
    known = [(score, label) for score, label in zip(scores, labels, strict=True) if label != UNKNOWN]
    positives = sum(label == PRESENT for _, label in known)
    if positives == 0:
        return 0.0
    total, recall_before = Fraction(0), Fraction(0)
    for cut in sorted({score for score, _ in known}, reverse=True):
        taken = [label for score, label in known if score >= cut]
        hits = sum(label == PRESENT for label in taken)
        recall = Fraction(hits, positives)
        total += (recall - recall_before) * Fraction(hits, len(taken))
        recall_before = recall
    return float(total)


def reference(scores: Array, labels: Array, average: str, empty: str, unknown: str) -> tuple[float, int]:
    """The mean over rankings and how many are counted, one ranking after the other."""
    if unknown == "absent":
        labels = np.array([[ABSENT if label == UNKNOWN else label for label in row] for row in labels])
    if average == "micro":
        rankings = [(scores.ravel(), labels.ravel())]
    elif average == "samples":
        rankings = list(zip(scores, labels, strict=True))
    else:
        rankings = list(zip(scores.T, labels.T, strict=True))
    values = []
    for score, label in rankings:
        if empty == "zero" or (PRESENT in label.tolist() and ABSENT in label.tolist()):
            values.append(reference_of_one(score.tolist(), label.tolist()))
    return (sum(values) / len(values) if values else math.nan), len(values)


def draw(seed: int, images: int = 30, classes: int = 7, levels: int = 12, unknown: float = 0.4) -> tuple[Array, Array]:
    """Random scores with many ties, and labels in all three states, with an empty class of every kind."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-levels, levels, (images, classes)) / levels
    chances = [unknown, (1 - unknown) * 0.6, (1 - unknown) * 0.4]
    labels = rng.choice([UNKNOWN, ABSENT, PRESENT], size=(images, classes), p=chances).astype(np.int8)
    labels[labels[:, 0] == ABSENT, 0] = UNKNOWN
    labels[labels[:, 1] == PRESENT, 1] = UNKNOWN
    labels[:, 2] = UNKNOWN
    labels[0] = UNKNOWN
    labels[1, 3:] = PRESENT
    return scores, labels


@pytest.mark.parametrize("average", ALL_AVERAGES)
@pytest.mark.parametrize("empty", ["skip", "zero"])
@pytest.mark.parametrize("unknown", ["ignore", "absent"])
@pytest.mark.parametrize("seed", range(3))
def test_every_mean_is_what_the_formula_says(average: Average, empty: Empty, unknown: Unknown, seed: int) -> None:
    scores, labels = draw(seed)
    value, counted = average_precision(scores, labels, average, empty, unknown, return_counted=True)
    expected, expected_counted = reference(scores, labels, average, empty, unknown)
    assert counted == expected_counted
    assert value == pytest.approx(expected, abs=1e-12)
    assert type(value) is float
    assert type(counted) is int


def test_each_class_is_what_the_formula_says_and_nan_where_it_is_not_counted() -> None:
    scores, labels = draw(3)
    values, counted = average_precision(scores, labels, None, return_counted=True)
    assert values.shape == (7,)
    assert np.isnan(values[:3]).all()
    assert counted == 4
    expected = [reference_of_one(s.tolist(), y.tolist()) for s, y in zip(scores.T, labels.T, strict=True)]
    np.testing.assert_allclose(values[3:], expected[3:], atol=1e-12)


@pytest.mark.parametrize("average", ALL_AVERAGES)
@pytest.mark.parametrize("levels", [3, 50, 10**9])
def test_full_labels_give_what_scikit_learn_gives(average: Average, levels: int) -> None:
    rng = np.random.default_rng(levels)
    scores = rng.integers(0, levels, (60, 9)) / levels
    labels = (rng.random((60, 9)) < 0.3).astype(np.int8)
    keep = labels.any(axis=1) & ~labels.all(axis=1)
    scores, labels = scores[keep], labels[keep]
    expected = average_precision_score(labels, scores, average=average)
    assert average_precision(scores, labels, average) == pytest.approx(expected, abs=1e-12)


def test_known_entries_of_each_class_give_what_scikit_learn_gives() -> None:
    scores, labels = draw(4)
    values = average_precision(scores, labels, None)
    for k in range(3, 7):
        known = labels[:, k] != UNKNOWN
        expected = average_precision_score(labels[known, k], scores[known, k])
        assert values[k] == pytest.approx(expected, abs=1e-12)


def test_ties_are_grouped_where_the_order_of_the_input_would_move_the_score_by_more_than_eight_points() -> None:
    scores = np.array([0.9, 0.5, 0.5, 0.5, 0.1])
    labels = np.array([1, 1, 0, 0, 0])

    def by_input_order(order: tuple[int, ...]) -> float:
        ranked = sorted(order, key=lambda i: -scores[i])
        hits, total = 0, 0.0
        for place, i in enumerate(ranked, start=1):
            hits += labels[i]
            total += labels[i] * hits / place
        return float(total / labels.sum())

    orders = list(itertools.permutations(range(5)))
    by_order = {round(by_input_order(order), 6) for order in orders}
    assert max(by_order) - min(by_order) > 0.08
    ours = {average_precision(scores[list(o), None], labels[list(o), None]) for o in orders}
    assert ours == {0.75}
    assert average_precision_score(labels, scores) == 0.75


def test_scores_that_are_all_equal_give_the_share_of_present_labels() -> None:
    labels = [[1], [0], [-1], [0], [1], [0]]
    assert average_precision(np.zeros((6, 1)), labels) == pytest.approx(2 / 5)


def test_a_class_with_positives_only_is_not_counted() -> None:
    value, counted = average_precision([[0.1, 0.9], [0.2, 0.1]], [[1, 1], [-1, 0]], return_counted=True)
    assert (value, counted) == (1.0, 1)


def test_empty_zero_counts_zero_without_a_present_and_one_without_an_absent() -> None:
    scores = [[0.1, 0.9, 0.3], [0.2, 0.1, 0.3]]
    values, counted = average_precision(scores, [[1, 0, -1], [-1, 0, -1]], None, "zero", return_counted=True)
    assert values.tolist() == [1.0, 0.0, 0.0]
    assert counted == 3


@pytest.mark.parametrize("average", ALL_AVERAGES)
def test_nothing_to_count_gives_nan_and_zero_without_a_warning(average: Average) -> None:
    value, counted = average_precision([[0.5, 0.2]], [[1, -1]], average, return_counted=True)
    assert math.isnan(value)
    assert counted == 0


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("average", ALL_AVERAGES)
def test_tables_without_a_row_or_a_column_count_nothing(shape: tuple[int, int], average: Average) -> None:
    value, counted = average_precision(np.zeros(shape), np.zeros(shape, dtype=np.int8), average, return_counted=True)
    assert math.isnan(value)
    assert counted == 0


def test_an_image_with_every_known_class_present_is_not_counted_among_the_samples() -> None:
    scores = [[0.9, 0.1, 0.5], [0.9, 0.1, 0.5]]
    value, counted = average_precision(scores, [[1, 1, -1], [0, 1, -1]], "samples", return_counted=True)
    assert (value, counted) == (0.5, 1)


def test_unknown_as_absent_is_the_observed_score_of_the_papers() -> None:
    scores, labels = draw(5)
    filled = np.where(labels == UNKNOWN, ABSENT, labels)
    assert average_precision(scores, labels, unknown="absent") == average_precision(scores, filled)
    assert average_precision(scores, labels, unknown="absent") != average_precision(scores, labels)


tables = st.integers(2, 12).flatmap(
    lambda n: st.integers(1, 4).flatmap(
        lambda k: st.tuples(
            st.lists(st.lists(st.integers(-6, 6), min_size=k, max_size=k), min_size=n, max_size=n),
            st.lists(
                st.lists(st.sampled_from([UNKNOWN, ABSENT, PRESENT]), min_size=k, max_size=k), min_size=n, max_size=n
            ),
            st.randoms(use_true_random=False),
        )
    )
)
quickly = settings(max_examples=25, deadline=None)


def same(left: object, right: object) -> bool:
    return bool(np.allclose(np.asarray(left), np.asarray(right), rtol=0, atol=1e-12, equal_nan=True))


@quickly
@given(tables)
def test_a_rising_transformation_of_the_scores_changes_nothing(table: tuple[Any, Any, Any]) -> None:
    scores, labels = np.array(table[0], dtype=np.float64), np.array(table[1], dtype=np.int8)
    before = average_precision(scores, labels, None)
    for after in (scores**3 + scores - 100, np.exp(scores), scores * 1e300, scores * 1e-320, 1e15 + scores):
        np.testing.assert_array_equal(average_precision(after, labels, None), before)


@quickly
@given(tables)
def test_the_order_of_images_and_classes_changes_nothing(table: tuple[Any, Any, Any]) -> None:
    scores, labels = np.array(table[0]), np.array(table[1], dtype=np.int8)
    rows, columns = list(range(scores.shape[0])), list(range(scores.shape[1]))
    table[2].shuffle(rows)
    table[2].shuffle(columns)
    mixed_scores, mixed_labels = scores[rows][:, columns], labels[rows][:, columns]
    for average in ALL_AVERAGES:
        assert same(
            average_precision(scores, labels, average, return_counted=True),
            average_precision(mixed_scores, mixed_labels, average, return_counted=True),
        )
    assert same(average_precision(scores, labels, None)[columns], average_precision(mixed_scores, mixed_labels, None))


@quickly
@given(tables)
def test_images_with_nothing_known_change_nothing(table: tuple[Any, Any, Any]) -> None:
    scores, labels = np.array(table[0]), np.array(table[1], dtype=np.int8)
    more_scores = np.vstack([scores, np.full_like(scores, 9), np.full_like(scores, -9), scores])
    nothing = np.full_like(labels, UNKNOWN)
    more_labels = np.vstack([labels, nothing, nothing, nothing])
    for average in ALL_AVERAGES:
        assert same(
            average_precision(scores, labels, average, return_counted=True),
            average_precision(more_scores, more_labels, average, return_counted=True),
        )


@quickly
@given(tables)
def test_scores_of_unknown_entries_have_no_influence(table: tuple[Any, Any, Any]) -> None:
    scores, labels = np.array(table[0], dtype=np.float64), np.array(table[1], dtype=np.int8)
    other = np.where(labels == UNKNOWN, table[2].uniform(-9, 9), scores)
    for average in ALL_AVERAGES:
        assert same(average_precision(scores, labels, average), average_precision(other, labels, average))


@quickly
@given(tables)
def test_the_value_lies_between_zero_and_one_and_is_one_when_scores_are_the_labels(table: tuple[Any, Any, Any]) -> None:
    scores, labels = np.array(table[0]), np.array(table[1], dtype=np.int8)
    for average in ALL_AVERAGES:
        value, counted = average_precision(scores, labels, average, return_counted=True)
        assert (0 <= value <= 1) if counted else math.isnan(value)
        perfect = average_precision(labels, labels, average)
        assert perfect == 1 if counted else math.isnan(perfect)


@pytest.mark.parametrize(
    "column",
    [
        [1.7e308, 1e-308, 5e-324, 0.0, -0.0, -5e-324, -1e308],
        [2.0, np.nextafter(2.0, 0), -2.0, np.nextafter(-2.0, 0), 1.0, -1.0, np.nextafter(1.0, 2)],
        [1e-320, 2e-320, 1e-320, 0.5, 0.0, np.nextafter(0.5, 0), np.nextafter(0.5, 1)],
        [-1e-7, -1e-8, -1e-9, -3.0, -3.0, -1e20, -1e21],
    ],
)
def test_scores_of_any_size_and_closest_neighbours_are_kept_apart(column: list[float]) -> None:
    for seed in range(5):
        labels = np.random.default_rng(seed).choice([PRESENT, ABSENT, UNKNOWN], size=7, p=[0.4, 0.4, 0.2])
        labels[:2] = PRESENT, ABSENT
        expected = reference_of_one(column, labels.tolist())
        assert average_precision([[x] for x in column], labels[:, None]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_rankings_are_what_the_formula_says(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    scores = rng.normal(size=(4500, 3)).astype(dtype)
    scores[:, 1] = rng.choice([-huge, -1.0, -tiny, -0.0, 0.0, tiny, np.nextafter(dtype(1), dtype(2)), 1.0, huge], 4500)
    labels = rng.choice([PRESENT, ABSENT, UNKNOWN], size=scores.shape, p=[0.05, 0.65, 0.3]).astype(np.int8)
    values, counted = average_precision(scores, labels, None, return_counted=True)
    assert counted == 3
    for value, score, label in zip(values, scores.T, labels.T, strict=True):
        above = score[label != UNKNOWN] >= score[label == PRESENT][:, None]
        hits = score[label == PRESENT] >= score[label == PRESENT][:, None]
        assert value == pytest.approx(np.mean(hits.sum(axis=1) / above.sum(axis=1)), abs=1e-12)


@pytest.mark.parametrize("average", ALL_AVERAGES)
def test_pieces_of_any_size_on_any_number_of_threads_give_the_same(
    average: Average, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, labels = draw(6, images=25, classes=13)
    whole = average_precision(scores, labels, average)
    monkeypatch.setattr(RANKINGS, "RANKINGS_AT_ONCE", 1)
    for entries, threads in ((1, 1), (26, 2), (60, 3), (1000, 1)):
        monkeypatch.setattr(RANKINGS, "ENTRIES_AT_ONCE", entries)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert average_precision(scores, labels, average) == whole


def test_memory_beyond_the_input_stays_bounded() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((3000, 1000), dtype=np.float32)
    labels = (rng.random(scores.shape, dtype=np.float32) < 0.1).astype(np.int8)
    tracemalloc.start()
    try:
        average_precision(scores, labels)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * scores.nbytes


def test_arrays_tensors_lists_and_label_tables_give_the_same() -> None:
    scores, labels = draw(7)
    expected = average_precision(scores, labels)
    with_nan = np.where(labels == UNKNOWN, np.nan, labels)
    forms: list[tuple[Any, Any]] = [
        (scores.tolist(), labels.tolist()),
        (torch.tensor(scores, requires_grad=True), torch.tensor(labels)),
        (torch.tensor(scores), torch.tensor(with_nan)),
        (np.asfortranarray(scores), with_nan.astype(np.float32)),
        (scores.astype(">f8"), LabelTable.from_dense(labels)),
        (np.round(scores * 12).astype(np.int16), labels.astype(np.int64)),
    ]
    for some_scores, some_labels in forms:
        assert average_precision(some_scores, some_labels) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_floats_are_ranked_as_they_are(dtype: torch.dtype) -> None:
    scores = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = (torch.rand(40, 5, generator=torch.Generator().manual_seed(1)) < 0.4).int()
    expected = average_precision(scores.double().numpy(), labels.numpy())
    assert average_precision(scores, labels) == expected


def test_inputs_are_left_as_they_were() -> None:
    scores, labels = draw(8)
    before = scores.copy(), labels.copy()
    for average in ALL_AVERAGES:
        average_precision(scores, labels, average, unknown="absent")
    np.testing.assert_array_equal(scores, before[0])
    np.testing.assert_array_equal(labels, before[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused_with_their_place(bad: float) -> None:
    with pytest.raises(InputError, match=r"row 1, class 0"):
        average_precision([[0.1, 0.2], [bad, 0.3]], [[1, 0], [-1, 1]])


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([[0.1, 0.2]], [[1, 0, 1]], r"\(1, 2\) .* \(1, 3\)"),
        ([0.1, 0.2], [1, 0], r"scores .* \(2,\)"),
        ([[0.1, 0.2]], [1, 0], r"labels .* \(2,\)"),
        ([[0.1], [0.2, 0.3]], [[1, 0]], "row"),
        ([[0.1, 0.2]], [[1], [0, 1]], "row"),
        ([["a", "b"]], [[1, 0]], "scores must be numbers"),
        ([[0.1, 0.2]], [[1, 7]], "labels holds 7"),
        ([[0.1, 0.2]], [[1, None]], "labels must be numbers"),
        ([[0.1, 0.2]], torch.eye(2).to_sparse(), "sparse"),
    ],
)
def test_what_cannot_be_used_is_refused(scores: Any, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        average_precision(scores, labels)


@pytest.mark.parametrize("option", ["average", "empty", "unknown"])
def test_an_option_that_does_not_exist_is_refused(option: str) -> None:
    call: Any = average_precision
    with pytest.raises(UnknownNameError, match="there is no"):
        call([[0.1]], [[1]], **{option: "sip"})


def test_a_misspelt_option_is_told_the_nearest() -> None:
    call: Any = average_precision
    with pytest.raises(UnknownNameError, match="macro"):
        call([[0.1]], [[1]], average="marco")
