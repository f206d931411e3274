"""Random unknown labels: all equally likely, none twice, none known."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from labelgap.audit.candidates import draw_unknown, nth_unknown
from labelgap.labels import UNKNOWN, LabelTable


def table(seed: int, rows: int, classes: int) -> LabelTable:
    return LabelTable.from_dense(np.random.default_rng(seed).integers(-1, 2, size=(rows, classes)))


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(1, 12), st.integers(1, 7))
def test_the_jth_unknown_label_of_a_row_is_found(seed: int, rows: int, classes: int) -> None:
    made = table(seed, rows, classes)
    row, column = np.nonzero(made.to_dense() == UNKNOWN)
    place = np.array([int((row[:at] == row[at]).sum()) for at in range(len(row))], dtype=np.int64)
    assert nth_unknown(made, row, place).tolist() == column.tolist()


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(0, 60))
def test_what_is_drawn_is_unknown_and_nothing_is_drawn_twice(seed: int, count: int) -> None:
    tables = [table(seed, 7, 5), table(seed + 1, 3, 5)]
    dense = np.concatenate([each.to_dense() for each in tables])
    rows, columns = draw_unknown(tables, count, seed)
    assert (dense[rows, columns] == UNKNOWN).all()
    assert len(rows) == len(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    assert len(rows) == min(count, int((dense == UNKNOWN).sum()))


def test_every_unknown_label_is_as_likely_as_any_other() -> None:
    made = table(3, 30, 6)
    places = np.flatnonzero(made.to_dense() == UNKNOWN)
    count = np.zeros(180)
    for seed in range(3000):
        rows, columns = draw_unknown([made], 8, seed)
        count[rows * 6 + columns] += 1
    expected = 3000 * 8 / len(places)
    chi = ((count[places] - expected) ** 2 / expected).sum() / (len(places) - 1)
    assert 0.6 < chi < 1.4 and count.sum() == 24_000


def test_few_of_very_many_are_drawn_without_laying_them_out() -> None:
    large = LabelTable.from_entries([0, 5], [1, 2], [1, 1], [str(k) for k in range(5000)], 100_000)
    rows, columns = draw_unknown([large], 1000, seed=1)
    assert len(set((rows * 5000 + columns).tolist())) == 1000
    assert rows.max() > 90_000 and columns.max() > 4900
