"""Which losses are large, exactly: counts, ties, thresholds."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.losses.batches import some_batches, some_labels

from labelgap.functional import absolute_large_losses
from labelgap.labels import UNKNOWN, LabelTable
from labelgap.losses import loss
from labelgap.losses.base.selection import count_share, share_ratio
from labelgap.losses.base.terms import exact_fractions

RELATIVE = ("ll-r", "ll-ct")
ABSOLUTE = ("ll-r-abs", "ll-ct-abs")
TABLE = LabelTable.from_dense([[1, -1]])


@settings(max_examples=50)
@given(
    delta=st.one_of(st.floats(1e-8, 100), st.decimals(0, 100, places=3).map(float), st.integers(0, 100)),
    entries=st.integers(0, 2**31),
    steps=st.integers(0, 900),
)
def test_the_share_is_exact_for_the_decimal_that_was_written(delta: float, entries: int, steps: int) -> None:
    share = Fraction(str(delta)) * steps / 100
    ratio, expected = share_ratio(share), math.ceil(entries * min(share, Fraction(1)))
    assert count_share(entries, ratio) == expected and count_share(torch.tensor(entries), ratio) == expected


def test_shares_of_several_heads_are_each_exact() -> None:
    deltas = torch.tensor([[0.1, 0.2, 0.7], [1.1, 2.3, 100.0]])
    found = count_share(3000, share_ratio(exact_fractions(deltas) / 100))
    assert isinstance(found, torch.Tensor) and found.tolist() == [[3, 6, 21], [33, 69, 3000]]


@settings(max_examples=40)
@given(
    name=st.sampled_from(RELATIVE),
    base=st.sampled_from(["unknown", "all"]),
    delta=st.one_of(st.floats(0.001, 100), st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.1, 5.0])),
    epoch=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_without_ties_exactly_k_labels_are_modified(name: str, base: str, delta: float, epoch: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = some_labels(["full", "partial", "single"][seed % 3], (7, 11), random)
    logits = random.permutation(77).reshape(7, 11) / 10.0
    made = loss(name, delta_rel=delta, base=base)
    made.set_epoch(epoch)
    modified = made.modified(torch.from_numpy(logits), torch.from_numpy(labels)).numpy()
    unknown = labels == UNKNOWN
    entries = int(unknown.sum()) if base == "unknown" else labels.size
    count = min(math.ceil(entries * (epoch - 1) * Fraction(str(delta)) / 100), int(unknown.sum()))
    assert modified.sum() == count
    assert not (modified & ~unknown).any()
    if 0 < count < unknown.sum():
        assert logits[modified].min() > logits[unknown & ~modified].max()


def test_ties_with_the_last_one_are_modified_too() -> None:
    made = loss("ll-r", delta_rel=25)
    made.set_epoch(2)
    modified = made.modified(torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0]]), torch.tensor([[1, -1, -1, -1, -1]]))
    assert modified.tolist() == [[False, False, True, True, True]]


@pytest.mark.parametrize("name", RELATIVE)
def test_the_first_epoch_is_assume_negative(name: str) -> None:
    for batch in some_batches():
        logits, labels = torch.from_numpy(batch.logits), torch.from_numpy(batch.labels)
        torch.testing.assert_close(loss(name, delta_rel=50)(logits, labels), loss("an")(logits, labels))


@pytest.mark.parametrize("name", [*RELATIVE, *ABSOLUTE])
def test_no_gradient_flows_through_the_choice(name: str) -> None:
    made = loss(name)
    made.set_epoch(5)
    assert not made.modified(torch.randn(4, 5, requires_grad=True), torch.full((4, 5), -1)).requires_grad


@pytest.mark.parametrize("name", ABSOLUTE)
def test_the_threshold_sinks_with_the_epochs_and_warming_up_modifies_nothing(name: str) -> None:
    losses = torch.linspace(0.05, 1.95, 20, dtype=torch.float64)
    logits, labels = torch.log(torch.expm1(losses))[None], torch.full((1, 20), -1)
    for warmup in (0, 3):
        made = loss(name, warmup=warmup)
        for epoch in range(1, 13):
            made.set_epoch(epoch)
            wanted = (losses > 2 - epoch * 0.1) & (epoch > warmup)
            assert made.modified(logits, labels)[0].tolist() == wanted.tolist()


@pytest.mark.parametrize("name", ABSOLUTE)
def test_a_threshold_of_zero_modifies_every_unknown_label(name: str) -> None:
    made = loss(name, r0=1, delta_abs=0.1)
    for epoch in (10, 11):
        made.set_epoch(epoch)
        modified = made.modified(torch.tensor([[-1e4, -200.0, 0.0, -1e4]]), torch.tensor([[-1, -1, -1, 0]]))
        assert modified.tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("name", ABSOLUTE)
def test_a_threshold_that_will_reach_zero_is_told_at_prepare(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(name).prepare(TABLE, epochs=19)
        loss(name, warmup=25).prepare(TABLE, epochs=25)
    with pytest.warns(UserWarning, match=f"{name}.*epoch 20 of 20"):
        loss(name).prepare(TABLE, epochs=20)
    with pytest.warns(UserWarning, match="epoch 10 of 12"):
        loss(name, r0=torch.tensor([2.0, 1.0])).prepare(TABLE, epochs=12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, of mapping in general
def test_the_choice_by_a_threshold_can_be_mapped_over_batches() -> None:
    logits, labels = torch.randn(3, 4, 5), torch.randint(-1, 2, (3, 4, 5), dtype=torch.int8)
    mapped = torch.func.vmap(lambda x, y: absolute_large_losses(x, y, threshold=0.5))(logits, labels)
    large = np.log1p(np.exp(logits.numpy())) > 0.5
    assert np.array_equal(mapped.numpy(), large & (labels.numpy() == UNKNOWN))
