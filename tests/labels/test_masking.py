from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, masking, paper_split

Codes = NDArray[np.int8]
FEW = settings(max_examples=25)


def reference(dense: Codes, positives: int, negatives: int, seed: int) -> Codes:
    """The papers' draw, written from its description."""
    random = np.random.RandomState(seed)
    observed = np.full_like(dense, UNKNOWN)
    for row in range(len(dense)):
        for state, amount in ((PRESENT, positives), (ABSENT, negatives)):
            numbers = np.array([column for column in range(dense.shape[1]) if dense[row, column] == state], dtype=int)
            random.shuffle(numbers)
            for column in numbers[:amount]:
                observed[row, column] = state
    return observed


def some_codes(rows: int = 40, classes: int = 12, seed: int = 0) -> Codes:
    return np.random.default_rng(seed).integers(UNKNOWN, PRESENT + 1, (rows, classes)).astype(np.int8)


@pytest.mark.parametrize(("positives", "negatives"), [(1, 0), (0, 0), (1, 1), (2, 3), (0, 1), (99, 99)])
@pytest.mark.parametrize(("seed", "block"), [(1200, 1 << 22), (0, 25), (7, 1)])
def test_observe_is_the_draw_that_the_papers_describe(
    positives: int, negatives: int, seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "BLOCK_LABELS", block)
    dense = np.pad(some_codes(), ((0, 1), (0, 300)), constant_values=UNKNOWN)
    dense[[0, 5, 6]], dense[7] = UNKNOWN, ABSENT  # nothing known; everything known, more than 256 draws
    observed = LabelTable.from_dense(dense).observe(positives, negatives, seed)
    assert (observed.to_dense() == reference(dense, positives, negatives, seed)).all()


def test_all_keeps_every_label_of_its_state_and_draws_the_other_as_before() -> None:
    dense = some_codes()
    table = LabelTable.from_dense(dense)
    assert table.observe("all", "all") == table
    assert (table.observe(1, "all").to_dense() == reference(dense, 1, 99, 1200)).all()
    assert (table.observe("all", 0).to_dense() == reference(dense, 99, 0, 1200)).all()
    assert (table.observe(np.int64(1), 0).to_dense() == reference(dense, 1, 0, 1200)).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        *((lambda table, amount=amount: table.observe(amount), "positives=") for amount in (-1, 1.0, None, True)),
        *((lambda table, amount=amount: table.observe(1, amount), "negatives=") for amount in (-1, 1.0, "some", True)),
        (lambda table: table.observe("some"), "called 'some'"),
        *((lambda table, seed=seed: table.observe(seed=seed), "a seed of the papers") for seed in (-1, 2**32, "a")),
        (lambda table: paper_split(3, seed=-1), "a seed of the papers"),
        *((lambda table, share=share: table.drop(share), "between 0 and 1") for share in (-0.1, 1.1, float("nan"))),
        *((lambda table, share=share: paper_split(10, share), "a val fraction") for share in (-0.1, 1, float("nan"))),
    ],
)
def test_amounts_seeds_and_shares_that_make_no_sense_are_refused(
    draw: Callable[[LabelTable], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        draw(LabelTable.from_dense([[1, 0]]))


FRACTIONS = st.sampled_from([0, 0.07, 0.1, 0.25, 0.29, 0.35, 0.5, 2 / 3, 0.9, 0.999, 1, 1.0])


@FEW
@given(FRACTIONS, st.integers(0, 30), st.integers(0, 3), st.booleans())
def test_drop_hides_exactly_the_rounded_share_of_all_labels_or_of_each_class(
    fraction: float, rows: int, seed: int, per_class: bool
) -> None:
    dense = some_codes(rows, 5, seed)
    dropped = LabelTable.from_dense(dense).drop(fraction, seed, per_class=per_class).to_dense()
    for known, left in [*zip(dense.T, dropped.T, strict=True)] if per_class else [(dense, dropped)]:
        count = int((known != UNKNOWN).sum())
        assert int((left != UNKNOWN).sum()) == count - round(Fraction(str(fraction)) * count)
    assert (dropped[dropped != UNKNOWN] == dense[dropped != UNKNOWN]).all()


def test_a_share_is_read_as_the_decimal_that_was_written() -> None:
    table = LabelTable.from_dense(np.ones((150, 1)))
    assert 0.07 * 150 > 10.5
    assert table.drop(0.07).counts().unknown.tolist() == [10]


def test_drop_chooses_every_label_equally_often() -> None:
    table = LabelTable.from_dense(np.ones((10, 2)))
    kept = sum((table.drop(0.5, seed).to_dense() == PRESENT).astype(int) for seed in range(400))
    assert kept.sum() == 400 * 10
    assert (abs(kept - 200) < 50).all()


@FEW
@given(st.integers(0, 60), st.sampled_from([0, 0.1, 0.2, 0.5, 0.99]), st.integers(0, 5))
def test_the_split_is_a_permutation_cut_in_two_and_sorted(count: int, fraction: float, seed: int) -> None:
    train, val = paper_split(count, fraction, seed)
    order = np.random.RandomState(seed).permutation(count).tolist()
    assert len(val) == round(fraction * count)
    assert train.tolist() == sorted(order[: count - len(val)])
    assert val.tolist() == sorted(order[count - len(val) :])
    assert train.dtype == val.dtype == np.int64


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(5717, (4574, 1143)), (82081, (65665, 16416)), (150000, (120000, 30000)), (5994, (4795, 1199))],
)
def test_the_split_has_the_sizes_of_the_papers(count: int, sizes: tuple[int, int]) -> None:
    assert tuple(len(part) for part in paper_split(count)) == sizes
