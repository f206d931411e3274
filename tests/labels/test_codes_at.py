"""Single places of a table: against the dense matrix, and against names looked up one by one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.sparse import locate_entries, starts_from_lengths

CODES = st.sampled_from([PRESENT, ABSENT, UNKNOWN])


@settings(max_examples=25)
@given(data=st.data(), rows=st.integers(1, 6), classes=st.integers(1, 5))
def test_codes_are_those_of_the_dense_matrix(data: st.DataObject, rows: int, classes: int) -> None:
    dense = np.array(
        data.draw(st.lists(st.lists(CODES, min_size=classes, max_size=classes), min_size=rows, max_size=rows))
    )
    places = data.draw(st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, classes - 1)), max_size=20))
    found = LabelTable.from_dense(dense).codes_at([row for row, _ in places], [column for _, column in places])
    assert found.dtype == np.int8
    assert found.tolist() == [dense[place] for place in places]


def test_the_last_entry_of_a_row_is_not_the_first_of_the_next() -> None:
    table = LabelTable.from_dense([[-1, -1], [1, -1]])
    assert table.codes_at([0], [1]).tolist() == [UNKNOWN]
    starts, columns = starts_from_lengths([1, 1]), np.array([2, 0], np.int32)
    assert locate_entries(starts, columns, np.array([0, 1]), np.array([0, 2]), 3)[1].tolist() == [False, False]


def test_places_outside_the_table_are_refused() -> None:
    table = LabelTable.from_dense([[1, 0]])
    with pytest.raises(InputError, match="row 1 is outside"):
        table.codes_at([1], [0])
    with pytest.raises(InputError, match="class number -1 is outside"):
        table.codes_at([0], [-1])
    with pytest.raises(InputError, match="2 rows and 1 class numbers"):
        table.codes_at([0, 0], [0])


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
