"""`ll-cp`: what a step flipped stays flipped, and nothing else does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.losses.batches import set_heads
from tests.losses.reference import Batch, reference_of
from torch import Tensor

from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import loss
from labelgap.losses.large_loss import PermanentCorrection

IMAGES, CLASSES, EPOCHS = 13, 8, 5
Place = tuple[int, int]


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


@dataclass
class Simulation:
    """The method with a dictionary: which label was called present, and in which epoch."""

    name: str
    options: dict[str, Any]
    since: dict[Place, int] = field(default_factory=dict)

    def large(self, free: dict[Place, float], entries: int, epoch: int) -> list[Place]:
        """Of the labels still unknown, those with a large loss."""
        if self.name == "ll-cp-abs":
            level = self.options["r0"] - epoch * self.options["delta_abs"]
            return [place for place, x in free.items() if math.log1p(math.exp(x)) > level]
        base = len(free) if self.options.get("base", "unknown") == "unknown" else entries
        count = min(math.ceil(base * Fraction(str(self.options["delta_rel"])) / 100), len(free)) if epoch > 1 else 0
        return sorted(free, key=lambda place: free[place], reverse=True)[:count]

    def step(self, index: NDArray[np.int64], logits: NDArray[np.float64], epoch: int) -> float:
        """Return the loss of a batch, and remember what it flipped."""
        labels = TABLE.to_dense().tolist()
        entries = {
            (int(row), column): float(logits[b, column]) for b, row in enumerate(index) for column in range(CLASSES)
        }
        free = {
            place: x
            for place, x in entries.items()
            if labels[place[0]][place[1]] == UNKNOWN and place not in self.since
        }
        self.since |= dict.fromkeys(self.large(free, len(entries), epoch), epoch)
        total = 0.0
        for (row, column), x in entries.items():
            present = labels[row][column] == PRESENT or (row, column) in self.since
            total += math.log1p(math.exp(-x if present else x))
        return total / len(entries)

    def array(self) -> NDArray[np.int16]:
        """Return the epochs as the loss keeps them."""
        since = np.zeros((IMAGES, CLASSES), dtype=np.int16)
        for place, epoch in self.since.items():
            since[place] = epoch
        return since


STORIES: list[tuple[str, dict[str, Any]]] = [
    ("ll-cp", {"delta_rel": 5}),
    ("ll-cp", {"delta_rel": 0.2}),
    ("ll-cp", {"delta_rel": 12.5, "base": "all"}),
    ("ll-cp", {"delta_rel": 100}),
    ("ll-cp-abs", {"r0": 3.0, "delta_abs": 0.2}),
]


@pytest.mark.parametrize(("name", "options"), STORIES)
def test_what_is_flipped_in_the_loss_is_present_for_every_later_batch(name: str, options: dict[str, Any]) -> None:
    made, simulation = made_of(name, **options), Simulation(name, options)
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        for index, logits in batches(epoch):
            loss = step(made, index, logits)
            assert loss.item() == pytest.approx(simulation.step(index, logits, epoch), rel=1e-12)
            np.testing.assert_array_equal(made.corrected_in.numpy(), simulation.array())
        revisions = made.end_epoch()
        told = {(int(item.image), int(item.class_name)) for item in revisions}
        assert told == {place for place, when in simulation.since.items() if when == epoch}
        assert len(told) == len(revisions)
        assert {(item.value, item.target, item.source, item.epoch) for item in revisions} <= {
            (PRESENT, None, name, epoch)
        }
    assert set(simulation.since.values()) >= ({3, 4} if options.get("delta_rel") != 100 else {2})
    assert not made.corrected_in[torch.from_numpy(TABLE.to_dense() != UNKNOWN)].any()


def test_the_count_is_exact_constant_and_of_what_is_still_unknown() -> None:
    """7 % of 100 labels are 7, although 100 · 0.07 is a little more in floating point; then 7 % of the other 93, …"""
    assert math.ceil(100 * 0.07) == 8
    table = LabelTable.from_dense(np.full((10, 10), UNKNOWN))
    made = loss("ll-cp", delta_rel=7)
    made.prepare(table, epochs=10)
    index, counts, left = torch.arange(10), [], 100
    for epoch in range(1, 11):
        made.set_epoch(epoch)
        logits = torch.randperm(100, generator=torch.Generator().manual_seed(epoch)).reshape(10, 10).double()
        torch.autograd.backward(made(logits.requires_grad_(), table.batch(index), index=index))
        made.after_step()
        counts.append(len(made.end_epoch()))
        assert counts[-1] == (math.ceil(left * Fraction(7, 100)) if epoch > 1 else 0)
        left -= counts[-1]
    assert counts == [0, 7, 7, 7, 6, 6, 5, 5, 4, 4]


def test_losses_as_large_as_the_last_are_flipped_too() -> None:
    table = LabelTable.from_dense(np.full((1, 6), UNKNOWN))
    made = loss("ll-cp", delta_rel=10)
    made.prepare(table)
    made.set_epoch(2)
    logits = torch.tensor([[3.0, 1, 3, 0, 2, 3]], requires_grad=True)
    torch.autograd.backward(made(logits, table.batch([0]), index=torch.tensor([0])))
    made.after_step()
    assert [item.class_name for item in made.end_epoch()] == ["0", "2", "5"]


def in_epoch_two(**options: Any) -> tuple[PermanentCorrection, list[tuple[NDArray[np.int64], NDArray[np.float64]]]]:
    made = made_of("ll-cp", delta_rel=5, **options)
    made.set_epoch(2)
    return made, list(batches(2))


def backward(made: PermanentCorrection, index: NDArray[np.int64], logits: NDArray[np.float64]) -> None:
    values = torch.from_numpy(logits).requires_grad_()
    torch.autograd.backward(made(values, TABLE.batch(index), index=torch.from_numpy(index)))


def test_a_forward_pass_changes_nothing() -> None:
    made, ((first, its_logits), (index, logits), _) = in_epoch_two()
    made(torch.from_numpy(its_logits).requires_grad_(), TABLE.batch(first), index=torch.from_numpy(first))
    step(made, index, logits)
    assert made.corrected_in[index].any() and not made.corrected_in[first].any()


def test_a_skipped_step_commits_nothing() -> None:
    made, ((skipped, its_logits), (index, logits), _) = in_epoch_two()
    backward(made, skipped, its_logits)
    made.skip_step()
    step(made, index, logits)
    assert made.corrected_in[index].any() and not made.corrected_in[skipped].any()


def test_one_step_commits_all_accumulated_batches() -> None:
    made, batches_ = in_epoch_two()
    one_by_one, _ = in_epoch_two()
    for index, logits in batches_:
        backward(made, index, logits)
        step(one_by_one, index, logits)
    assert not made.corrected_in.any()
    made.after_step()
    assert made.corrected_in.any() and torch.equal(made.corrected_in, one_by_one.corrected_in)


def test_a_step_is_committed_once() -> None:
    made, ((index, logits), *_) = in_epoch_two()
    step(made, index, logits)
    committed = made.corrected_in.clone()
    made.set_epoch(3)
    made.after_step()
    assert torch.equal(made.corrected_in, committed)
    assert len(made.end_epoch()) == 0


def test_a_forward_without_gradients_marks_nothing() -> None:
    made, ((looked_at, its_logits), (index, logits), _) = in_epoch_two()
    with torch.no_grad():
        made(torch.from_numpy(its_logits), TABLE.batch(looked_at), index=torch.from_numpy(looked_at))
    made.after_step()
    assert not made.corrected_in.any()
    backward(made, index, logits)
    with torch.no_grad():
        made(torch.from_numpy(its_logits), TABLE.batch(looked_at), index=torch.from_numpy(looked_at))
    made.modified(torch.from_numpy(its_logits), TABLE.batch(looked_at), torch.from_numpy(looked_at))
    made.after_step()
    assert made.corrected_in[index].any() and not made.corrected_in[looked_at].any()


def test_prepared_anew_it_has_forgotten_everything() -> None:
    made, ((index, logits), *_) = in_epoch_two()
    backward(made, index, logits)
    made.prepare(TABLE, epochs=EPOCHS)
    made.after_step()
    assert not made.corrected_in.any()


@pytest.mark.parametrize(("name", "options"), STORIES[:1] + STORIES[-1:])
def test_saved_in_the_middle_of_an_epoch_it_goes_on_as_if_nothing_had_happened(
    name: str, options: dict[str, Any]
) -> None:
    unbroken = made_of(name, **options)
    for epoch in range(1, EPOCHS + 1):
        unbroken.set_epoch(epoch)
        resumed = None
        for number, (index, logits) in enumerate(batches(epoch)):
            step(unbroken, index, logits)
            if resumed is not None:
                step(resumed, index, logits)
            if number == 0:
                resumed = made_of(name, **options)
                resumed.set_epoch(epoch)
                resumed.load_state_dict({key: value.clone() for key, value in unbroken.state_dict().items()})
        assert resumed is not None
        assert torch.equal(resumed.corrected_in, unbroken.corrected_in)
        assert resumed.end_epoch() == unbroken.end_epoch()


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


def test_what_is_traced_as_modified_is_what_was_corrected_and_what_is_being_corrected() -> None:
    made, ((index, logits), *_) = in_epoch_two()
    rows, labels = torch.from_numpy(index), TABLE.batch(index)
    before = made.modified(torch.from_numpy(logits), labels, rows)
    assert not made.corrected_in.any()
    step(made, index, logits)
    assert torch.equal(made.corrected_in[index] > 0, before)
    again = made.modified(torch.from_numpy(logits), labels, rows)
    assert (before & ~again).sum() == 0 and again.sum() > before.sum()


def test_the_threshold_that_reaches_zero_is_warned_of() -> None:
    made = loss("ll-cp-abs", r0=1.0, delta_abs=0.5)
    with pytest.warns(UserWarning, match="not above 0 from epoch 2 of 10 on"):
        made.prepare(TABLE)


def test_the_reference_and_the_simulation_agree() -> None:
    """Two references written apart from each other, on labels that were corrected before."""
    simulation = Simulation("ll-cp", {"delta_rel": 5})
    for epoch in (2, 3):
        for index, logits in batches(epoch):
            state = {"corrected_in": simulation.array()}
            batch = Batch(logits, TABLE.to_dense()[index], index, logits, TABLE, epoch, EPOCHS, state)
            answer = reference_of("ll-cp").answer(batch, delta_rel=5)
            assert answer.loss == pytest.approx(simulation.step(index, logits, epoch), rel=1e-12)


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
