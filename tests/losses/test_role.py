"""`role`: where the estimate starts, how it learns, and how it is handed over."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.losses.batches import set_heads
from tests.losses.reference import Batch, reference_of

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import loss
from labelgap.losses.role import OnlineLabelEstimation

IMAGES, CLASSES, FEATURES = 8, 5, 4
BATCHES = ((6, 1, 3), (0, 7, 2), (5, 4))
SPREAD, KNOWN = math.log(0.6 / 0.4), math.log(0.995 / 0.005)


def a_table(images: int = IMAGES, classes: int = CLASSES) -> LabelTable:
    random = np.random.default_rng(0)
    return LabelTable.from_dense(random.choice([PRESENT, ABSENT, UNKNOWN], (images, classes), p=[0.1, 0.1, 0.8]))


def role(table: LabelTable, *, seed: int = 0, heads: tuple[int, ...] = (), **options: Any) -> OnlineLabelEstimation:
    made = loss("role", **{"expected_positives": 1.5, **options})
    assert isinstance(made, OnlineLabelEstimation)
    set_heads(made, heads)
    made.prepare(table, seed=seed)
    return made


def test_the_estimate_starts_uniform_in_logits_between_those_of_four_and_six_tenths() -> None:
    table = a_table(300, 40)
    phi = role(table).phi.detach().numpy()
    labels = table.to_dense()
    free = np.sort(phi[labels == UNKNOWN].astype(np.float64))
    assert -SPREAD <= free[0] < -0.99 * SPREAD and 0.99 * SPREAD < free[-1] <= SPREAD
    np.testing.assert_allclose(free, np.linspace(-SPREAD, SPREAD, len(free)), atol=0.02)
    np.testing.assert_allclose(phi[labels == PRESENT], KNOWN, rtol=1e-6)
    np.testing.assert_allclose(phi[labels == ABSENT], -KNOWN, rtol=1e-6)


def test_what_was_estimated_can_be_handed_over_clipped() -> None:
    table = a_table()
    first, second = role(table, seed=1), role(table, seed=2)
    assert first.parameter_groups(0.3) == [{"params": [first.phi], "lr": 3.0}]
    second.load_handoff_state(first.handoff_state())
    torch.testing.assert_close(second.phi.detach(), first.phi.detach(), rtol=1e-4, atol=1e-5)
    assert not first.handoff_state()["label_probabilities"].requires_grad
    with pytest.raises(InputError, match=r"\(8, 4\).* \(8, 5\)"):
        second.load_handoff_state({"label_probabilities": torch.zeros(8, 4)})
    handed = torch.full(table.shape, 0.25, dtype=torch.float16)
    handed[0, :4] = torch.tensor([0.0, 1.0, 1e-7, 1 - 1e-7])
    second.load_handoff_state({"label_probabilities": handed})
    expected, nearest = torch.full(table.shape, math.log(0.25 / 0.75)), math.log(1e-5 / (1 - 1e-5))
    expected[0, :4] = torch.tensor([nearest, -nearest, nearest, -nearest])
    torch.testing.assert_close(second.phi.detach(), expected, rtol=1e-3, atol=0)
    assert second.phi.requires_grad and second.phi.is_leaf


class CompactReference:
    """The compact estimate as a dense array, one entry at a time."""

    def __init__(self, table: LabelTable, kept: int) -> None:
        self.labels, self.kept, self.phi = table.to_dense(), kept, np.zeros(table.shape)
        self.phi[self.labels == PRESENT], self.phi[self.labels == ABSENT] = KNOWN, -KNOWN

    def step(self, index: NDArray[np.int64], gradient: NDArray[np.float64], rate: float, images: int) -> None:
        """Move each unknown entry of a batch about as Adam does in an epoch of steps with so many images.

        The highest are kept, and the mean of the others.
        """
        factor = math.sqrt((1 - 0.999 ** (len(self.phi) / images)) / 0.001)
        for row in index.tolist():
            free = [k for k in range(self.labels.shape[1]) if self.labels[row, k] == UNKNOWN]
            for k in free:
                slope = 2 * len(index) * self.labels.shape[1] * gradient[row, k]
                self.phi[row, k] -= factor * rate * slope / (abs(slope) + 0.01)
            others = sorted(free, key=lambda k: -self.phi[row, k])[self.kept :]
            self.phi[row, others] = self.phi[row, others].mean() if others else 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_compact_estimate_follows_its_reference_step_by_step(accumulate: int) -> None:
    random, table, lr = np.random.default_rng(1), a_table(), 0.03
    made = role(table, storage="compact", kept_classes=2).double()
    shadow = CompactReference(table, kept=2)
    optimizer = torch.optim.Adam(made.parameter_groups(lr))
    for number in range(12):
        images = BATCHES[number % 3]
        optimizer.zero_grad()
        for index in np.array_split(np.array(images), accumulate):
            logits = random.normal(0, 3, (len(index), CLASSES))
            batch = Batch(logits, table.to_dense()[index], index, logits, table, state={"phi": shadow.phi})
            answer = reference_of("role").answer(batch, expected_positives=1.5)
            leaf = torch.from_numpy(logits).requires_grad_()
            cost = made(leaf, table.batch(index), index=torch.from_numpy(index))
            torch.autograd.backward(cost, torch.tensor(len(index) / len(images), dtype=torch.float64))
            np.testing.assert_allclose(cost.item(), answer.loss, rtol=1e-7)
            assert leaf.grad is not None
            expected = np.asarray(answer.gradient) * len(index) / len(images)
            np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=1e-6, atol=1e-9)
            shadow.step(index, np.asarray(answer.learned["phi"]), 10 * lr, len(images))
        optimizer.step()
        made.after_step()


@pytest.mark.parametrize("options", [{"reduction": "none"}, {"reduction": "sum"}, {"eps": 1e-12}])
def test_a_compact_estimate_costs_the_same_however_it_is_reduced(options: dict[str, Any]) -> None:
    table, index = a_table(), torch.tensor([0, 3, 5])
    logits = torch.randn(2, 3, CLASSES, dtype=torch.float64)
    kappas = torch.tensor([0.5, 3.0])
    costs, gradients = [], []
    for more in ({}, options):
        leaf = logits.clone().requires_grad_()
        cost = role(table, heads=(2,), expected_positives=kappas, storage="compact", **more)(
            leaf, table.batch(index), index
        )
        cost = cost.mean(dim=(1, 2)) if cost.ndim == 3 else cost / (3 * CLASSES if "reduction" in more else 1)
        costs.append(cost.detach())
        torch.autograd.backward(cost.sum())
        gradients.append(leaf.grad)
    torch.testing.assert_close(costs[0], costs[1], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)


def test_memory_and_checkpoint_of_a_compact_estimate_grow_with_the_images_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table(300, 40)
    monkeypatch.setattr("labelgap.losses.base.state.MAX_DENSE_ENTRIES", 300 * 40)
    assert role(table).compact is None
    monkeypatch.setattr("labelgap.losses.base.state.MAX_DENSE_ENTRIES", 300 * 40 - 1)
    first, second = role(table, kept_classes=4), role(table, kept_classes=4)
    assert first.compact is not None and second.compact is not None
    assert "the 4 highest estimates of each image (storage=compact)" in first.state_form
    assert first.state_bytes < 300 * (4 * 4 + 16) < 300 * 40 * 16 / 10
    for index in ([7, 3, 7], [3, 250]):
        rows = torch.tensor(index)
        cost = first(torch.randn(len(rows), 40, requires_grad=True), table.batch(rows), index=rows)
        torch.autograd.backward(cost)
        first.step_size.data.fill_(0.3)
        first.after_step()
    state = first.state_dict()
    assert state["compact.values"].shape == (3, 4) and int((state["compact.slot"] >= 0).sum()) == 3
    second.load_state_dict(state)
    every = torch.arange(300)
    for a, b in zip(first.compact.rows(every), second.compact.rows(every), strict=True):
        assert torch.equal(a, b)
    third = role(table, kept_classes=4)
    third.load_handoff_state(first.handoff_state())
    assert torch.equal(third.state_dict()["compact.slot"], state["compact.slot"])
    with pytest.raises(InputError, match="300"):
        first(torch.zeros(1, 40), table.batch([0]), index=torch.tensor([300]))
