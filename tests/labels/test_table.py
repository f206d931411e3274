from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, as_codes

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


def place(rows: Any, columns: Any, values: Any) -> LabelTable:
    return LabelTable.from_entries(rows, columns, values, ["cat", "dog", "owl"], 2)


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
    places = data.draw(st.lists(st.sampled_from([*np.ndindex(*dense.shape)]), max_size=20)) if dense.size else []
    assert table.codes_at([row for row, _ in places], [k for _, k in places]).tolist() == [dense[at] for at in places]
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    parts = [table.select(range(start, end)) for start, end in itertools.pairwise([0, *cuts, count])]
    assert LabelTable.concatenate(parts) == table
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known))), dtype=bool)
    expected = dense.copy()
    expected[expected != UNKNOWN] = np.where(kept, dense[dense != UNKNOWN], UNKNOWN)
    assert (table.keep(kept).to_dense() == expected).all()


WRONG_ROWS: Any = (([2], "row 2"), ([-1], "row -1"), ([0.0], "0"), (["a"], "a"), ([True], r"\(2,\), not \(1,\)"))
CAT_DOG = [["cat"], ["dog"]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda dense=dense: LabelTable.from_dense(dense), "labels") for dense in ([1, 0], 1, [[[1]]])),
        (lambda: LabelTable.from_dense([[1, 0]], classes=["a"]), "1 class names"),
        (lambda: LabelTable.from_dense([[1, 0]], images=["a", "b"]), "2 image names"),
        (lambda: LabelTable.from_dense([[1, 0]], classes="ab"), "'ab'"),
        (lambda: LabelTable.from_dense([[1, 0, 1]], classes=["dog", "cat", "cat"]), "'cat' is listed twice"),
        (lambda: LabelTable.from_dense([[1], [0]], images=["a.jpg", "a.jpg"]), r"'a\.jpg' is listed twice"),
        (lambda: small().select([0, 1, 0]), r"'a\.jpg' is listed twice"),
        (lambda: LabelTable.concatenate([small(), small()]), r"'a\.jpg' is listed twice"),
        (lambda: LabelTable.concatenate([small(), LabelTable.from_dense([[1]])]), "classes"),
        (lambda: LabelTable.concatenate([]), "classes"),
        (lambda: LabelTable(np.array([0, 2]), np.array([0], np.int32), np.array([1], np.int8), ["a"]), "the starts"),
        (lambda: small().codes_at([2], [0]), "row 2 is outside"),
        (lambda: small().codes_at([1], [-1]), "class number -1 is outside"),
        (lambda: small().codes_at([0, 0], [0]), "2 rows and 1 class numbers"),
        (lambda: place([0, 5], [0, 0], [1, 1]), "row 5"),
        (lambda: place([-1], [0], [1]), "row -1"),
        (lambda: place([0], [3], [1]), "class number 3"),
        (lambda: place([0], np.array([2**32]), [1]), "class number 4294967296"),
        (lambda: place([0.5], [0], [1]), r"float64 such as 0\.5"),
        (lambda: place([0, 1], [0], [1]), "2 rows, 1 class numbers and 1 values"),
        (lambda: place([1, 1], [2, 2], [1, 0]), "row 1 .* 'owl'"),
        (lambda: place([1, 1], [2, 2], [1, 1]), "row 1 .* 'owl'"),
        (lambda: hash(small()), "unhashable"),
        (lambda: np.asarray(small(), copy=False), "copy"),
        *((lambda each=each: small().batch(each), named) for each, named in WRONG_ROWS),
        *((lambda each=each: small().select(each), named) for each, named in WRONG_ROWS),
        (lambda: LabelTable.from_lists(CAT_DOG, [[], ["dog"]], images=["a.jpg", "b.jpg"]), r"b\.jpg lists 'dog'"),
        (lambda: LabelTable.from_lists(CAT_DOG, [[], ["dog"]]), "image 1 lists 'dog'"),
        (lambda: LabelTable.from_lists([["dgo"]], classes=["cat", "dog"]), "'dog'"),
        (lambda: LabelTable.from_lists(["cat"]), "'cat'"),
        (lambda: LabelTable.from_lists([["cat"]], []), "1 images, absent 0"),
        (lambda: LabelTable.from_lists([["cat"]], unlisted="no"), "'absent'"),
        (lambda: LabelTable.from_lists([["cat"]], classes=["cat", "cat"]), "'cat'"),
        (lambda: LabelTable.from_lists([["cat"]], images=["a", "b"]), "2 image names"),
        (lambda: LabelTable.from_lists([["cat"]], images=["a", "b"], unlisted="absent"), "2 image names"),
        (lambda: as_codes(np.array([1, 255], np.uint8), what="truth"), r"truth holds 255 at \(1,\)"),  # not -1 of int8
        *((lambda each=each: as_codes(each, what="truth"), "truth") for each in (["1", "0"], [None, 1])),
        (lambda: as_codes(np.array(["2020-01-01"], dtype="datetime64[D]"), what="truth"), "truth"),
        (lambda: as_codes([[1, 0], [1]]), "as long"),
        (lambda: as_codes(torch.eye(2).to_sparse()), "sparse"),
    ],
)
def test_what_makes_no_table_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises((InputError, TypeError, ValueError), match=message):
        make()


def test_a_table_that_is_empty_or_knows_nothing_can_be_used_like_any_other() -> None:
    empty, blank = LabelTable.from_dense(np.zeros((0, 3))), LabelTable.from_dense(np.full((2, 3), np.nan))
    assert empty.batch([]).shape == (0, 3)
    assert empty.select([]) == empty.observe() == empty.drop(0.5) == empty.drop(0.5, per_class=True) == empty
    assert repr(empty) == "LabelTable(0 images, 3 classes: 0 present, 0 absent, 0 unknown)"
    assert blank.observe("all", "all") == blank.drop(1.0) == blank and (blank.batch([1, 0]) == UNKNOWN).all()


def test_a_table_cannot_be_written_to() -> None:
    table = small()
    for again in (table, table.select([1]), pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        for array in (again.starts, again.columns, again.values):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
    table.batch([0])[:] = ABSENT
    table.to_dense()[:] = ABSENT
    assert table == small() != table.to_dense().tolist()
    starts, columns, values = np.array([0, 1]), np.array([0], np.int32), np.array([1], np.int8)
    table = LabelTable(starts, columns, values, ["a"])
    for array in (starts, columns, values):
        array[0] = 0
    assert table.to_dense().tolist() == [[1]], "the arrays of the caller stay his"


def test_arrays_of_every_type_tensors_lists_and_single_numbers_are_codes() -> None:
    for dtype in ("int8", "int16", "int32", "int64", "float16", "float32", "float64"):
        codes = as_codes(np.array([[1, 0], [-1, 1]], dtype=dtype))
        assert codes.dtype == np.int8 and codes.tolist() == [[PRESENT, ABSENT], [UNKNOWN, PRESENT]]
    for dtype in ("bool", "uint8", "uint64"):
        assert as_codes(np.array([1, 0, 1], dtype=dtype)).tolist() == [PRESENT, ABSENT, PRESENT]
    numbers = torch.tensor([[1.0, math.nan]])
    for each in (numbers, numbers.bfloat16().requires_grad_()):
        assert as_codes(each).tolist() == [[PRESENT, UNKNOWN]]
    assert as_codes([[True, False]]).tolist() == [[PRESENT, ABSENT]]
    assert as_codes(-1) == UNKNOWN
    assert as_codes([]).shape == (0,)


@pytest.mark.parametrize("wrong", [2, -2, 0.5, -0.999, math.inf, -math.inf, 127, -128, 256, 257, 2**40, 1e300])
def test_anything_else_is_refused_with_its_place(wrong: float) -> None:
    with pytest.raises(InputError, match=r"^labels holds .* at \(1, 0\), and 2 such"):
        as_codes(np.array([[1, 0], [wrong, wrong]]))


def test_listed_classes_are_known_and_all_others_as_it_is_told() -> None:
    table = LabelTable.from_lists([["cat"], ["owl", "cat", "cat"], []], [["dog", "dog"], [], ["owl"]])
    assert table.classes == ("cat", "dog", "owl")
    assert table.to_dense().tolist() == [[1, 0, -1], [1, -1, 1], [-1, -1, 0]]
    table = LabelTable.from_lists([["cat", "cat"], ["owl"]], [["dog", "dog"], []], unlisted="absent")
    assert table.to_dense().tolist() == [[1, 0, 0], [0, 0, 1]] and table.complete
    table = LabelTable.from_lists([["cat"]], classes=["owl", "cat"], images=np.array(["a.jpg"]))  # type: ignore[arg-type]
    assert (table.classes, table.images, table.to_dense().tolist()) == (("owl", "cat"), ("a.jpg",), [[-1, 1]])
    rows: list[Any] = [{"b"}, ("a", "b"), (name for name in "ba")]
    assert LabelTable.from_lists(rows).to_dense().tolist() == [[-1, 1], [1, 1], [1, 1]]
