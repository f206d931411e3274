"""What is kept while images pass by is what sorting everything would give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelgap.audit.top_candidates import TopCandidates, class_ranks
from labelgap.core.errors import InputError


def reference(keys: NDArray[np.float32], per_class: int, limit: int) -> list[tuple[int, int]]:
    """Sort everything with Python: the first of each class however low, then the best of the others."""
    floor = min(limit // (2 * keys.shape[1]), per_class)
    first, others = [], []
    for column in range(keys.shape[1]):
        entries = [(-float(keys[row, column]), row, column) for row in range(len(keys)) if keys[row, column] > -np.inf]
        entries.sort()
        first += entries[:floor]
        others += entries[floor:per_class]
    kept = sorted([*first, *sorted(others)[: limit - len(first)]])
    return [(row, column) for _, row, column in kept]


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_pieces_give_what_sorting_everything_gives(
    seed: int, rows: int, classes: int, per_class: int, limit: int, step: int
) -> None:
    random = np.random.default_rng(seed)
    keys = random.integers(0, 9, size=(rows, classes)).astype(np.float32)  # many ties
    keys[random.random(keys.shape) < 0.2] = -np.inf
    best = TopCandidates(classes, per_class, limit)
    for start in range(0, rows, step):
        best.take(keys[start : start + step], start)
    ranked = best.ranked()
    assert list(zip(ranked.rows.tolist(), ranked.columns.tolist(), strict=True)) == reference(keys, per_class, limit)
    assert np.array_equal(ranked.keys, keys[ranked.rows, ranked.columns])


def test_single_entries_are_kept_as_whole_rows_are() -> None:
    keys = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    whole, single = TopCandidates(4, 6, 15), TopCandidates(4, 6, 15)
    whole.take(keys)
    for row in range(50):
        single.add(keys[row], np.full(4, row), np.arange(4, dtype=np.int32))
    one, other = whole.ranked(), single.ranked()
    assert np.array_equal(one.keys, other.keys)
    assert np.array_equal(one.rows, other.rows) and np.array_equal(one.columns, other.columns)


def test_a_rare_class_is_kept_beside_a_loud_one() -> None:
    keys = np.stack([np.linspace(5, 9, 100), np.linspace(-9, -5, 100)], axis=1).astype(np.float32)
    best = TopCandidates(classes=2, per_class=100, limit=20)
    best.take(keys)
    assert np.bincount(best.ranked().columns).tolist() == [15, 5]


def test_nothing_is_held_beyond_twice_the_limit_and_a_piece() -> None:
    best = TopCandidates(classes=3, per_class=50, limit=60)
    random = np.random.default_rng(0)
    for start in range(0, 10_000, 100):
        best.take(random.normal(size=(100, 3)).astype(np.float32), start)
        assert best._held <= 2 * 60


def test_no_candidate_at_all_is_an_empty_ranking() -> None:
    best = TopCandidates(classes=2, per_class=5, limit=5)
    assert len(best.ranked().keys) == 0
    best.take(np.full((4, 2), -np.inf, dtype=np.float32))
    assert len(best.ranked().rows) == 0


def test_amounts_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        TopCandidates(classes=2, per_class=0, limit=5)


def test_ranks_within_classes_start_anew() -> None:
    assert class_ranks(np.array([], np.int32)).tolist() == []
    assert class_ranks(np.array([1, 1, 1, 4, 5, 5], np.int32)).tolist() == [1, 2, 3, 1, 1, 2]
