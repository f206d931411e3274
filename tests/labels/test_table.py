from __future__ import annotations

import copy
import itertools
import math
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.sparse import locate_entries, starts_from_lengths

Codes = NDArray[np.int8]
FEW = settings(max_examples=25)


@st.composite
def codes(draw: st.DrawFn) -> Codes:
    shape = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    states = st.sampled_from([PRESENT, ABSENT, UNKNOWN])
    flat = draw(st.lists(states, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return np.array(flat, dtype=np.int8).reshape(shape)


def small() -> LabelTable:
    return LabelTable.from_dense([[1, 0, -1], [-1, -1, 1]], classes=["cat", "dog", "owl"], images=["a.jpg", "b.jpg"])


@FEW
@given(codes(), st.data(), st.randoms(use_true_random=False))
def test_a_table_is_what_its_dense_matrix_is(dense: Codes, data: st.DataObject, random: Any) -> None:
    count = len(dense)
    names = [f"{number}.jpg" for number in range(count)]
    table = LabelTable.from_dense(dense, images=names)
    assert table.shape == dense.shape and len(table) == count and table.complete == (not (dense == UNKNOWN).any())
    assert table.to_dense().dtype == np.int8 and (table.to_dense() == dense).all()
    known = [(row, column, value) for (row, column), value in np.ndenumerate(dense) if value != UNKNOWN]
    assert list(zip(table.rows.tolist(), table.columns.tolist(), table.values.tolist(), strict=True)) == known
    assert table.nbytes == 8 * (count + 1) + 5 * len(known)
    random.shuffle(known)
    rows, columns, values = zip(*known, strict=True) if known else ((), (), ())
    assert LabelTable.from_entries(rows, columns, values, table.classes, names) == table
    counts = table.counts()
    for counted, state in ((counts.present, PRESENT), (counts.absent, ABSENT), (counts.unknown, UNKNOWN)):
        assert counted.tolist() == (dense == state).sum(0).tolist()
    assert counts.total == tuple(int((dense == state).sum()) for state in (PRESENT, ABSENT, UNKNOWN))
    chosen = data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []
    assert table.batch(chosen).dtype == torch.int8 and (table.batch(chosen).numpy() == dense[chosen]).all()
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)
    part = table.select(mask)
    assert part == table.select(np.flatnonzero(mask)) and (part.to_dense() == dense[mask]).all()
    assert part.images == tuple(np.array(names)[mask])
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    parts = [table.select(range(start, end)) for start, end in itertools.pairwise([0, *cuts, count])]
    assert LabelTable.concatenate(parts) == table
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known))), dtype=bool)
    expected = dense.copy()
    expected[expected != UNKNOWN] = np.where(kept, dense[dense != UNKNOWN], UNKNOWN)
    assert (table.keep(kept).to_dense() == expected).all()


def test_many_images_of_five_thousand_classes_take_the_memory_of_their_known_labels() -> None:
    images, classes, known = 100_000, 5_000, 200_000
    rows = np.arange(known) % images
    columns = (np.arange(known) * 7 + np.arange(known) // images) % classes
    values = (np.arange(known) % 2).astype(np.int8)
    table = LabelTable.from_entries(rows, columns, values, [str(number) for number in range(classes)], images)
    assert table.nbytes == 8 * (images + 1) + 5 * known
    assert table.nbytes < 4e6
    assert table.counts().total == (known // 2, known // 2, images * classes - known)
    assert table.batch([0, 99_999]).shape == (2, classes)
    assert np.flatnonzero(table.batch([3])[0].numpy() != UNKNOWN).tolist() == [21, 22]
    assert not table.complete


def test_nan_tensors_and_booleans_are_read() -> None:
    expected = [[PRESENT, UNKNOWN], [ABSENT, PRESENT]]
    for dense in (
        np.array([[1, math.nan], [0, 1]]),
        torch.tensor([[1, math.nan], [0, 1]]),
        torch.tensor([[1, math.nan], [0, 1]], dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([[1, -1], [0, 1]], dtype=torch.int8),
        [[1.0, math.nan], [0.0, 1.0]],
    ):
        assert LabelTable.from_dense(dense).to_dense().tolist() == expected
    assert LabelTable.from_dense(np.eye(2, dtype=bool)).to_dense().tolist() == [[PRESENT, ABSENT], [ABSENT, PRESENT]]


def test_names_are_numbers_where_none_are_given_and_texts_always() -> None:
    table = LabelTable.from_dense([[1, 0]])
    assert (table.classes, table.images) == (("0", "1"), ("0",))
    named = LabelTable.from_dense([[1, 0]], classes=np.array(["a", "b"]), images=[7])  # type: ignore[arg-type, list-item]
    assert (named.classes, named.images) == (("a", "b"), ("7",))
    assert all(type(name) is str for name in (*named.classes, *named.images))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (lambda dense=dense: LabelTable.from_dense(dense), "labels must be a matrix")
            for dense in ([1, 0], 1, [[[1]]])
        ),
        (lambda: LabelTable.from_dense([[1, 0]], classes=["a"]), "1 class names were given for 2 columns"),
        (lambda: LabelTable.from_dense([[1, 0]], images=["a", "b"]), "2 image names were given for 1 rows"),
        (lambda: LabelTable.from_dense([[1, 0]], classes="ab"), "'ab' is a single text"),
        (lambda: LabelTable.from_dense([[1, 0, 1]], classes=["dog", "cat", "cat"]), "'cat' is listed twice"),
        (lambda: LabelTable.from_dense([[1], [0]], images=["a.jpg", "a.jpg"]), r"'a\.jpg' is listed twice"),
        (lambda: small().select([0, 1, 0]), r"'a\.jpg' is listed twice"),
        (lambda: LabelTable.concatenate([small(), small()]), r"'a\.jpg' is listed twice"),
        (lambda: LabelTable.concatenate([small(), LabelTable.from_dense([[1]])]), "only tables of the same classes"),
        (lambda: LabelTable.concatenate([]), "only tables of the same classes"),
        (lambda: LabelTable(np.array([0, 2]), np.array([0], np.int32), np.array([1], np.int8), ["a"]), "the starts"),
        (lambda: small().codes_at([2], [0]), "row 2 is outside"),
        (lambda: small().codes_at([1], [-1]), "class number -1 is outside"),
        (lambda: small().codes_at([0, 0], [0]), "2 rows and 1 class numbers"),
        (lambda: hash(small()), "unhashable"),
        (lambda: np.asarray(small(), copy=False), "is a copy"),
    ],
)
def test_what_makes_no_table_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises((InputError, TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (([0, 5], [0, 0], [1, 1]), "row 5 is outside the table, which has 2 of them, from 0"),
        (([-1], [0], [1]), "row -1 is outside"),
        (([0], [3], [1]), "class number 3 is outside the table, which has 3 of them"),
        ((np.array([0]), np.array([2**32]), [1]), "class number 4294967296 is outside"),
        (([0.5], [0], [1]), r"a row is a whole number, not float64 such as 0\.5"),
        (([0, 1], [0], [1]), "2 rows, 1 class numbers and 1 values"),
        (([1, 1], [2, 2], [1, 0]), "row 1 has two labels for class 'owl'"),
        (([1, 1], [2, 2], [1, 1]), "row 1 has two labels for class 'owl'"),
    ],
)
def test_entries_that_cannot_be_placed_are_refused(entries: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LabelTable.from_entries(entries[0], entries[1], entries[2], ["cat", "dog", "owl"], 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([2], "row 2 is outside the table, which has 2 of them"),
        ([-1], "row -1 is outside"),
        ([0.0], "a row is a whole number"),
        (["a"], "a row is a whole number"),
        ([True], r"a mask of rows must have shape \(2,\), not \(1,\)"),
    ],
)
def test_rows_that_are_not_there_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small().batch(rows)
    with pytest.raises(InputError, match=message):
        small().select(rows)


def test_an_empty_table_can_be_used_like_any_other() -> None:
    empty = LabelTable.from_dense(np.zeros((0, 3)))
    assert empty.shape == (0, 3)
    assert empty.to_dense().shape == (0, 3)
    assert empty.counts().total == (0, 0, 0)
    assert empty.batch([]).shape == (0, 3)
    assert empty.select([]) == empty.observe() == empty.drop(0.5) == empty.drop(0.5, per_class=True) == empty
    assert LabelTable.concatenate([empty, empty]) == empty
    assert repr(empty) == "LabelTable(0 images, 3 classes: 0 present, 0 absent, 0 unknown)"


def test_a_table_in_which_nothing_is_known_can_be_used_like_any_other() -> None:
    blank = LabelTable.from_dense(np.full((2, 3), np.nan))
    assert blank.nbytes == 8 * 3
    assert blank.counts().unknown.tolist() == [2, 2, 2]
    assert (blank.batch([1, 0]) == UNKNOWN).all()
    assert blank.observe("all", "all") == blank.drop(1.0) == blank
    assert not blank.complete


def test_a_table_cannot_be_written_to() -> None:
    table = small()
    for again in (table, table.select([1]), pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        for array in (again.starts, again.columns, again.values):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
    table.batch([0])[:] = ABSENT
    table.to_dense()[:] = ABSENT
    assert table == small()


def test_the_arrays_of_the_caller_stay_his() -> None:
    starts, columns, values = np.array([0, 1]), np.array([0], np.int32), np.array([1], np.int8)
    table = LabelTable(starts, columns, values, ["a"])
    for array in (starts, columns, values):
        array[0] = 0
    assert table.to_dense().tolist() == [[1]]


def test_tables_are_equal_when_labels_and_names_are() -> None:
    dense = small().to_dense()
    assert small() == LabelTable.from_dense(dense, ["cat", "dog", "owl"], ["a.jpg", "b.jpg"])
    assert small() != LabelTable.from_dense(dense, ["cat", "dog", "cow"], ["a.jpg", "b.jpg"])
    assert small() != LabelTable.from_dense(dense, ["cat", "dog", "owl"], ["a.jpg", "c.jpg"])
    assert small() != LabelTable.from_dense(-abs(dense), ["cat", "dog", "owl"], ["a.jpg", "b.jpg"])
    assert small() != dense.tolist()


@FEW
@given(codes(), st.data())
def test_codes_at_places_are_those_of_the_dense_matrix(dense: Codes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.sampled_from([*np.ndindex(*dense.shape)]), max_size=20)) if dense.size else []
    found = LabelTable.from_dense(dense).codes_at([row for row, _ in places], [column for _, column in places])
    assert found.dtype == np.int8 and found.tolist() == [dense[place] for place in places]


def test_the_last_entry_of_a_row_is_not_the_first_of_the_next() -> None:
    table = LabelTable.from_dense([[-1, -1], [1, -1]])
    assert table.codes_at([0], [1]).tolist() == [UNKNOWN]
    starts, columns = starts_from_lengths([1, 1]), np.array([2, 0], np.int32)
    assert locate_entries(starts, columns, np.array([0, 1]), np.array([0, 2]), 3)[1].tolist() == [False, False]


def test_only_the_rows_that_are_asked_for_are_looked_at() -> None:
    many = 200_000
    table = LabelTable(
        np.arange(many + 1),
        np.zeros(many, np.int32),
        np.ones(many, np.int8),
        ["a", "b"],
        images=range(many),  # type: ignore[arg-type]
    )
    tracemalloc.start()
    found = table.codes_at([5, many - 1, 5], [0, 0, 1])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tolist() == [PRESENT, PRESENT, UNKNOWN] and most < 100_000
