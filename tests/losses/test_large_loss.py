"""Which losses are large, exactly, and what `ll-cp` corrects: it stays so, and nothing else does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.losses.batches import set_heads, with_state
from tests.losses.reference import Batch, reference_of
from torch import Tensor

from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import loss
from labelgap.losses.base.selection import count_share, share_ratio
from labelgap.losses.base.terms import exact_fractions
from labelgap.losses.large_loss import PermanentCorrection

ABSOLUTE = ("ll-r-abs", "ll-ct-abs")
SMALL = LabelTable.from_dense([[1, -1]])


@settings(max_examples=50)
@example(delta=0.23571113171923293, entries=2**31 - 1, steps=2)  # its nearest ratio is below it
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
        loss(name).prepare(SMALL, epochs=19)
        loss(name, warmup=25).prepare(SMALL, epochs=25)
    with pytest.warns(UserWarning, match=f"{name}.*epoch 20 of 20"):
        loss(name).prepare(SMALL, epochs=20)
    with pytest.warns(UserWarning, match="epoch 10 of 12"):
        loss(name, r0=torch.tensor([2.0, 1.0])).prepare(SMALL, epochs=12)


IMAGES, CLASSES, EPOCHS = 13, 8, 5


def a_table() -> LabelTable:
    random = np.random.default_rng(0)
    return LabelTable.from_dense(random.choice([PRESENT, ABSENT, UNKNOWN], (IMAGES, CLASSES), p=[0.15, 0.1, 0.75]))


TABLE = a_table()


def made_of(name: str, heads: tuple[int, ...] = (), **options: Any) -> PermanentCorrection:
    made = loss(name, **options)
    assert isinstance(made, PermanentCorrection)
    set_heads(made, heads)
    made.prepare(TABLE, epochs=EPOCHS)
    return made


def batches(epoch: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Row numbers and logits of an epoch's batches, of 5, 5 and 3 images; all logits are different."""
    random = np.random.default_rng(epoch)
    for index in np.split(random.permutation(IMAGES), [5, 10]):
        logits = random.permutation(np.linspace(-3, 3, len(index) * CLASSES)).reshape(len(index), CLASSES)
        yield index, logits + random.normal(0, 1e-3, logits.shape)


def step(made: PermanentCorrection, index: NDArray[np.int64], logits: NDArray[np.float64]) -> Tensor:
    """Forward, backward, and the commit."""
    values = torch.from_numpy(logits).requires_grad_()
    loss: Tensor = made(values, TABLE.batch(index), index=torch.from_numpy(index))
    torch.autograd.backward(loss.sum())
    made.after_step()
    return loss


STORIES: list[tuple[str, dict[str, Any]]] = [
    ("ll-cp", {"delta_rel": 5}),
    ("ll-cp", {"delta_rel": 0.2}),
    ("ll-cp", {"delta_rel": 12.5, "base": "all"}),
    ("ll-cp", {"delta_rel": 100}),
    ("ll-cp-abs", {"r0": 3.0, "delta_abs": 0.2}),
]


@pytest.mark.parametrize(("name", "options"), STORIES)
def test_what_is_flipped_in_the_loss_is_present_for_every_later_batch(name: str, options: dict[str, Any]) -> None:
    made, labels = made_of(name, **options), TABLE.to_dense()
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        for index, logits in batches(epoch):
            batch = with_state(Batch(logits, labels[index], index, logits, TABLE, epoch), made)
            answer, before = reference_of(name).answer(batch, **options), made.corrected_in.numpy().copy()
            assert step(made, index, logits).item() == pytest.approx(answer.loss, rel=1e-12)
            flipped = np.zeros_like(before, dtype=bool)
            flipped[index] = (answer.gradient < 0) & (labels[index] == UNKNOWN)
            np.testing.assert_array_equal(made.corrected_in.numpy(), np.where(flipped & (before == 0), epoch, before))
        revisions = list(made.end_epoch())
        told = {(int(item.image), int(item.class_name)) for item in revisions}
        assert told == {tuple(place) for place in np.argwhere(made.corrected_in.numpy() == epoch).tolist()}
        facts = {(item.value, item.target, item.source, item.epoch) for item in revisions}
        assert facts <= {(PRESENT, None, name, epoch)} and len(told) == len(revisions)
    assert set(made.corrected_in.flatten().tolist()) >= ({3, 4} if options.get("delta_rel") != 100 else {2})
    made.prepare(TABLE, epochs=EPOCHS)
    assert not made.corrected_in.any()


def test_every_head_corrects_by_itself() -> None:
    deltas = [2.0, 5.0, 30.0]
    together = made_of("ll-cp", heads=(3,), delta_rel=torch.tensor(deltas))
    alone = [made_of("ll-cp", delta_rel=delta) for delta in deltas]
    for epoch in range(1, EPOCHS + 1):
        for made in (together, *alone):
            made.set_epoch(epoch)
        for index, logits in batches(epoch):
            stacked = np.stack([logits, -logits, logits[::-1].copy()])
            losses = step(together, index, stacked)
            for head, made in enumerate(alone):
                torch.testing.assert_close(step(made, index, stacked[head]), losses[head])
                assert torch.equal(made.corrected_in, together.corrected_in[head])
        assert len(together.end_epoch()) == 0
    assert len({int(head.count_nonzero()) for head in together.corrected_in}) == 3


def test_an_image_that_is_twice_in_a_batch_is_corrected_where_either_was() -> None:
    table = LabelTable.from_dense(np.full((2, 3), UNKNOWN))
    for order in ([[9.0, 0, 0], [0, 8, 0], [0, 0, 0]], [[0, 8, 0], [9.0, 0, 0], [0, 0, 0]]):
        made = loss("ll-cp", delta_rel=20)
        made.prepare(table)
        made.set_epoch(2)
        index = torch.tensor([1, 1, 0])
        torch.autograd.backward(made(torch.tensor(order, requires_grad=True), table.batch(index), index=index))
        made.after_step()
        assert [(item.image, item.class_name) for item in made.end_epoch()] == [("1", "0"), ("1", "1")]


def test_a_log_of_corrections_is_the_dense_array_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"delta_rel": 20}
    dense = made_of("ll-cp", (2,), **options)
    monkeypatch.setattr("labelgap.losses.base.state.MAX_DENSE_ENTRIES", 1)
    sparse, resumed = made_of("ll-cp", (2,), **options), made_of("ll-cp", (2,), **options)
    assert sparse.log is not None and "corrected_in" not in dict(sparse.named_buffers())
    for epoch in range(1, EPOCHS + 1):
        for made in (dense, sparse):
            made.set_epoch(epoch)
            for index, logits in batches(epoch):
                twice = np.append(index, index[0])  # an image that is in the batch twice
                step(made, twice, np.stack([np.append(part, part[:1], axis=0) for part in (logits, -logits)]))
        resumed.load_state_dict(sparse.state_dict())
        sparse, resumed = resumed, sparse
        sparse.set_epoch(epoch)
        for head in ((0,), (1,)):
            assert dense.revisions_of(head) == sparse.revisions_of(head)
    assert sparse.log is not None
    assert torch.equal(sparse.log.epochs_of(torch.arange(IMAGES)), dense.corrected_in)
