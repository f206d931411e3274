"""Dividing a table: every row once, the sizes asked for, every class where it is needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.split import split_sizes, stratified_split
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable


def random_table(count: int, classes: int, seed: int, positive: float = 0.15) -> LabelTable:
    random = np.random.default_rng(seed)
    shares = [positive, 0.2, 0.8 - positive]
    return LabelTable.from_dense(random.choice([PRESENT, ABSENT, UNKNOWN], (count, classes), p=shares))


def presents(table: LabelTable, rows: NDArray[np.int64]) -> list[int]:
    """Positives of every class among some rows, counted one by one."""
    dense = table.to_dense()
    return [sum(int(dense[row, column] == PRESENT) for row in rows) for column in range(dense.shape[1])]


@settings(max_examples=20)
@given(count=st.integers(1, 60), classes=st.integers(1, 8), seed=st.integers(0, 10_000), positive=st.floats(0, 0.8))
def test_every_row_is_in_exactly_one_split_of_the_size_asked_for(
    count: int, classes: int, seed: int, positive: float
) -> None:
    table = random_table(count, classes, seed, positive)
    sizes = split_sizes(count, 1, 1)
    parts = stratified_split(table, sizes, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    assert tuple(map(len, parts)) == sizes
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)


@settings(max_examples=50, derandomize=True)
@given(count=st.integers(38, 50), classes=st.integers(1, 30), seed=st.integers(0, 10_000), positive=st.floats(0, 0.3))
def test_a_class_that_is_known_anywhere_is_known_in_train(count: int, classes: int, seed: int, positive: float) -> None:
    table = random_table(count, classes, seed, positive)
    train, *_ = stratified_split(table, split_sizes(count, 1, 1), seed)
    everywhere = presents(table, np.arange(count))
    assert all(here > 0 for here, there in zip(presents(table, train), everywhere, strict=True) if there)


def test_train_gets_a_class_that_rarest_first_alone_would_leave_to_val_and_test() -> None:
    rows = ["067", "08", "6", "123489", "18", "0234", "4", "5", "26", "5", "39", "78", "2", "69", "1458"]
    table = LabelTable.from_lists([list(row) for row in rows])
    train, *_ = stratified_split(table, (11, 2, 2), seed=0)
    assert min(presents(table, train)) > 0


def test_more_rare_classes_than_train_has_room_for_are_divided_all_the_same() -> None:
    table = LabelTable.from_dense(np.where(np.eye(10), PRESENT, UNKNOWN))
    assert [len(part) for part in stratified_split(table, (6, 2, 2))] == [6, 2, 2]


def test_every_split_gets_its_share_of_every_frequent_class() -> None:
    table = random_table(2000, 12, seed=3)
    everywhere = presents(table, np.arange(2000))
    for part, share in zip(stratified_split(table, (1600, 200, 200)), (0.8, 0.1, 0.1), strict=True):
        for here, there in zip(presents(table, part), everywhere, strict=True):
            assert abs(here - share * there) <= 2


@pytest.mark.parametrize(
    ("positives", "shares"), [(1, (1, 0, 0)), (3, (3, 0, 0)), (6, (4, 1, 1)), (10, (8, 1, 1)), (25, (20, 3, 2))]
)
def test_a_class_alone_is_divided_like_the_rows(positives: int, shares: tuple[int, ...]) -> None:
    table = LabelTable.from_dense([[PRESENT]] * positives + [[ABSENT]] * (100 - positives))
    assert tuple(presents(table, part)[0] for part in stratified_split(table, (80, 10, 10))) == shares


def test_stratified_shares_are_closer_than_random_ones() -> None:
    table = random_table(600, 20, seed=5, positive=0.03)
    wanted = np.array(presents(table, np.arange(600))) / 10

    def distance(rows: NDArray[np.int64]) -> float:
        return float(np.abs(np.array(presents(table, rows)) - wanted).sum())

    _, val, _ = stratified_split(table, (480, 60, 60))
    others = [np.random.default_rng(seed).permutation(600)[:60] for seed in range(20)]
    assert distance(val) < min(map(distance, others))


def test_the_split_follows_from_the_seed_alone() -> None:
    table = random_table(300, 6, seed=1)
    once, again = (stratified_split(table, (240, 30, 30), seed=7) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    np.random.seed(3)
    assert np.array_equal(once[1], stratified_split(table, (240, 30, 30), seed=7)[1])
    assert not np.array_equal(once[1], stratified_split(table, (240, 30, 30), seed=8)[1])


def test_unknown_and_absent_labels_do_not_move_a_row() -> None:
    table = random_table(200, 5, seed=2)
    positives_only = table.observe("all", 0)
    sizes = (160, 20, 20)
    for part, same in zip(stratified_split(table, sizes), stratified_split(positives_only, sizes), strict=True):
        assert np.array_equal(part, same)


def test_a_table_without_a_positive_is_divided_by_size() -> None:
    table = LabelTable.from_dense(np.full((10, 3), ABSENT))
    assert [len(part) for part in stratified_split(table, (8, 1, 1))] == [8, 1, 1]


def test_many_single_positives_are_shared_out_exactly() -> None:
    names = list(map(str, range(100)))
    table = LabelTable.from_entries(range(10_000), np.arange(10_000) % 100, [PRESENT] * 10_000, names, 10_000)
    parts = stratified_split(table, (8_000, 1_000, 1_000))
    for part, wanted in zip(parts, (80, 10, 10), strict=True):
        assert set(table.select(part).counts().present.tolist()) == {wanted}


@pytest.mark.parametrize("sizes", [(8, 1), (12, -2), ()])
def test_sizes_that_do_not_add_up_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="do not make up the 10 rows"):
        stratified_split(LabelTable.from_dense(np.zeros((10, 2))), sizes)


@settings(max_examples=30)
@given(count=st.integers(0, 500))
def test_shares_add_up_and_leave_something_to_learn_from(count: int) -> None:
    train, val, test = split_sizes(count, 1, 1)
    assert train + val + test == count
    assert train >= min(count, 1) and val >= min(max(count - 1, 0), 1) and test >= min(max(count - 2, 0), 1)
    assert abs(val - count / 10) <= 1 and abs(test - count / 10) <= 1
