from __future__ import annotations

import importlib
import itertools
import math
import tracemalloc
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.table import LabelTable
from labelgap.metrics import average_precision
from labelgap.metrics.average_precision import (
    average_precision_of_rankings,
    average_precision_on_device,
    measure_tensors,
)
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


def rankings_of(average: str | None, *arrays: Array) -> list[tuple[list[Any], ...]]:
    """The entries of every ranking: of all, of each image, or of each class."""
    if average == "micro":
        return [tuple(array.ravel().tolist() for array in arrays)]
    parts = zip(*(array if average == "samples" else array.T for array in arrays), strict=True)
    return [tuple(each.tolist() for each in part) for part in parts]


def reference(scores: Array, labels: Array, average: str, empty: str, unknown: str) -> tuple[float, int]:
    """The mean over rankings and how many are counted, one ranking after the other."""
    if unknown == "absent":
        labels = np.array([[ABSENT if label == UNKNOWN else label for label in row] for row in labels])
    counted = [
        each for each in rankings_of(average, scores, labels) if empty == "zero" or {PRESENT, ABSENT} <= {*each[1]}
    ]
    values = [reference_of_one(score, label) for score, label in counted]
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


tables = st.integers(2, 12).flatmap(
    lambda n: st.integers(1, 4).flatmap(
        lambda k: st.tuples(
            st.lists(st.lists(st.integers(-6, 6), min_size=k, max_size=k), min_size=n, max_size=n),
            st.lists(
                st.lists(st.sampled_from([UNKNOWN, ABSENT, PRESENT]), min_size=k, max_size=k), min_size=n, max_size=n
            ),
        )
    )
)
quickly = settings(max_examples=25, deadline=None)


@quickly
@given(tables)
def test_any_table_gives_what_the_formula_says(table: tuple[list[list[int]], list[list[int]]]) -> None:
    scores, labels = np.array(table[0], dtype=np.float64), np.array(table[1], dtype=np.int8)
    for average, empty, unknown in itertools.product(ALL_AVERAGES, get_args(Empty), get_args(Unknown)):
        found = average_precision(scores, labels, average, empty, unknown, return_counted=True)
        assert found == pytest.approx(reference(scores, labels, average, empty, unknown), abs=1e-12, nan_ok=True)
        assert [type(each) for each in found] == [float, int]
    before = average_precision(scores, labels, None)
    for after in (scores**3 + scores - 100, np.exp(scores), scores * 1e300, scores * 1e-320, 1e15 + scores):
        np.testing.assert_array_equal(average_precision(after, labels, None), before)


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
def test_pieces_of_any_size_on_any_threads_give_the_same(average: Average, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([[0.1, math.nan]], [[1, 0]], "row 0, class 1"),
        ([[-math.inf, 0.1]], [[1, 0]], "row 0, class 0"),
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


def test_ranking_on_a_device_is_ranking() -> None:
    random = np.random.default_rng(0)
    for scores in (random.normal(size=(40, 50)), random.integers(-3, 3, size=(40, 50)) / 2):
        codes = random.choice([-1, 0, 1], size=(40, 50), p=[0.2, 0.6, 0.2]).astype(np.int8)
        codes[0], codes[1], codes[2] = 0, 1, -1
        found = average_precision_on_device(torch.from_numpy(scores), torch.from_numpy(codes))
        np.testing.assert_allclose(found.numpy(), average_precision_of_rankings(scores, codes), rtol=1e-12)


@pytest.mark.parametrize("average", ["macro", "samples", "micro", None])
@pytest.mark.parametrize("unknown", ["ignore", "absent"])
def test_tensors_equal_arrays(average: Average | None, unknown: Unknown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RANKINGS, "DEVICE_ENTRIES_AT_ONCE", 90)
    random = np.random.default_rng(9)
    scores = random.integers(-12, 12, (30, 7)) / 12
    labels = random.choice([UNKNOWN, ABSENT, PRESENT], size=scores.shape, p=[0.4, 0.4, 0.2]).astype(np.int8)
    expected = average_precision(scores, labels, average, "zero", unknown)
    found = measure_tensors(torch.from_numpy(scores), torch.from_numpy(labels), average, unknown)
    assert found is not None
    np.testing.assert_allclose(found[0] if average is None else found[0].mean(), expected, rtol=0, atol=1e-12)
    codes = np.where(labels == UNKNOWN, ABSENT, labels) if unknown == "absent" else labels
    rankings = {"samples": codes, "micro": codes.reshape(1, -1)}.get(str(average), codes.T)
    assert [each.tolist() for each in found[1:]] == [(rankings == state).sum(axis=1).tolist() for state in (1, 0)]


def test_narrow_scores_and_labels_with_nan_on_a_device_are_as_in_main_memory() -> None:
    scores, labels = torch.tensor([[0.5, 2], [1, 3]]), torch.tensor([[1, math.nan], [0, 1]])
    found = measure_tensors(scores.bfloat16(), labels.half(), None, "ignore")
    assert found is not None and [each.tolist() for each in found] == [[0.5, 1], [1, 1], [1, 0]]
    assert measure_tensors(scores.int(), labels, None, "ignore") is not None


@pytest.mark.parametrize("bad", [-128, 2, 257, 0.5])
def test_what_is_not_valid_on_a_device_is_left_to_the_check_that_says_why(bad: float) -> None:
    scores, labels = torch.zeros(2, 2), torch.tensor([[1, 0], [0, bad]])
    assert measure_tensors(scores, labels, None, "ignore") is None
    assert measure_tensors(scores.fill_(math.nan), labels.clamp(0, 0), None, "ignore") is None
