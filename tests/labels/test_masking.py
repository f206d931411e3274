from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def voc(shared_data: Path) -> dict[str, Any]:
    """The real rows of VOC2012: names of all arrays but the features."""
    file = shared_data / "voc2012_resnet50_448.npz"
    if not file.is_file():
        pytest.skip(f"{file.name} is not on this machine")
    with np.load(file) as stored:
        return {name: stored[name] for name in stored.files if not name.endswith("features")}


def official(voc: dict[str, Any]) -> LabelTable:
    """The 5,717 rows of the official train set in their order."""
    ids = np.concatenate([voc["train_ids"], voc["val_ids"]])
    truth = np.concatenate([voc["train_truth"], voc["val_truth"]])
    order = np.argsort(ids)
    return LabelTable.from_dense(truth[order], classes=voc["classes"].tolist(), images=ids[order].tolist())


def test_the_split_of_the_papers_is_repeated_on_voc_row_by_row(voc: dict[str, Any]) -> None:
    table = official(voc)
    train, val = paper_split(len(table))
    assert (len(table), len(train), len(val)) == (5717, 4574, 1143)
    assert table.select(train).images == tuple(voc["train_ids"].tolist())
    assert table.select(val).images == tuple(voc["val_ids"].tolist())


def test_the_draw_of_the_papers_is_repeated_on_voc_bit_for_bit(voc: dict[str, Any]) -> None:
    table = official(voc)
    observed = table.observe(positives=1, negatives=0, seed=1200).select(paper_split(len(table))[0])
    assert (observed.to_dense() == voc["train_observed"]).all()
    assert observed.counts().total == (4574, 0, 4574 * 19)


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


@pytest.mark.parametrize("amount", [-1, 1.0, "some", None, True])
def test_an_amount_that_is_no_number_of_labels_is_refused(amount: Any) -> None:
    table = LabelTable.from_dense([[1, 0]])
    with pytest.raises(InputError, match=r"^positives=.*: give a number of labels per image, or 'all'|called 'some'"):
        table.observe(amount)
    with pytest.raises(InputError, match=r"^negatives=.*: give a number of labels per image, or 'all'"):
        table.observe(1, amount)


@pytest.mark.parametrize("seed", [-1, 2**32, "a"])
def test_a_seed_that_the_papers_draw_cannot_take_is_refused(seed: Any) -> None:
    with pytest.raises(InputError, match="a seed of the papers' draws is a whole number from 0"):
        LabelTable.from_dense([[1, 0]]).observe(seed=seed)
    with pytest.raises(InputError, match="a seed of the papers' draws"):
        paper_split(3, seed=seed)


FRACTIONS = st.sampled_from([0, 0.07, 0.1, 0.25, 0.29, 0.35, 0.5, 2 / 3, 0.9, 0.999, 1, 1.0])


@FEW
@given(FRACTIONS, st.integers(0, 30), st.integers(0, 3))
def test_drop_hides_exactly_the_rounded_share_of_all_labels(fraction: float, rows: int, seed: int) -> None:
    dense = some_codes(rows, 5, seed)
    table = LabelTable.from_dense(dense)
    dropped = table.drop(fraction, seed).to_dense()
    known = int((dense != UNKNOWN).sum())
    hidden = round(Fraction(str(fraction)) * known)
    assert int((dropped != UNKNOWN).sum()) == known - hidden
    assert (dropped[dropped != UNKNOWN] == dense[dropped != UNKNOWN]).all()


@FEW
@given(FRACTIONS, st.integers(0, 30), st.integers(0, 3))
def test_drop_per_class_hides_exactly_the_rounded_share_of_each(fraction: float, rows: int, seed: int) -> None:
    dense = some_codes(rows, 5, seed)
    dropped = LabelTable.from_dense(dense).drop(fraction, seed, per_class=True).to_dense()
    for column in range(5):
        known = int((dense[:, column] != UNKNOWN).sum())
        hidden = round(Fraction(str(fraction)) * known)
        assert int((dropped[:, column] != UNKNOWN).sum()) == known - hidden
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


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_share_outside_of_zero_and_one_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="the share of labels"):
        LabelTable.from_dense([[1]]).drop(fraction)


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


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan")])
def test_a_val_share_that_leaves_nothing_to_train_on_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="a val fraction of"):
        paper_split(10, fraction)
