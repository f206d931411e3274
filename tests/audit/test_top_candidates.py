"""Block-wise candidates against a full sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelgap.audit.candidates import TopCandidates
from labelgap.core.errors import InputError


def reference(keys: NDArray[np.float32], per_class: int, limit: int) -> list[tuple[int, int]]:
    """A full sort in Python: the guaranteed share of each class, then the best of the others."""
    guaranteed = min(limit // (2 * keys.shape[1]), per_class)
    first, others = [], []
    for column in range(keys.shape[1]):
        entries = [(-float(keys[row, column]), row, column) for row in range(len(keys)) if keys[row, column] > -np.inf]
        entries.sort()
        first += entries[:guaranteed]
        others += entries[guaranteed:per_class]
    kept = sorted([*first, *sorted(others)[: limit - len(first)]])
    return [(row, column) for _, row, column in kept]


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_blocks_give_what_a_full_sort_gives(
    seed: int, rows: int, classes: int, per_class: int, limit: int, step: int
) -> None:
    random = np.random.default_rng(seed)
    keys = random.integers(0, 9, size=(rows, classes)).astype(np.float32)  # many ties
    keys[random.random(keys.shape) < 0.2] = -np.inf
    top = TopCandidates(classes, per_class, limit)
    for start in range(0, rows, step):
        top.update(keys[start : start + step], start)
    ranked = top.ranked()
    assert list(zip(ranked.rows.tolist(), ranked.columns.tolist(), strict=True)) == reference(keys, per_class, limit)
    assert np.array_equal(ranked.scores, keys[ranked.rows, ranked.columns])


def test_at_most_twice_the_limit_is_held() -> None:
    top = TopCandidates(classes=3, per_class=50, limit=60)
    random = np.random.default_rng(0)
    for start in range(0, 10_000, 100):
        top.update(random.normal(size=(100, 3)).astype(np.float32), start)
        assert top._size <= 2 * 60


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        TopCandidates(classes=2, per_class=0, limit=5)
