"""Kernels in steps that are captured as CUDA graphs. Skipped where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import batch_of, some_labels, some_logits
from tests.losses.kernels.kernel_cases import METHODS, REASON, kernel_loss, kernels_for_any_size
from torch import Tensor

from labelgap.losses import Loss
from labelgap.losses.kernels import disabled
from labelgap.training.heads.cuda_graph import capture_graph, run_on_side_stream

pytestmark = [
    pytest.mark.skipif(
        REASON is not None or not torch.cuda.is_available(),
        reason="there is no CUDA device with Triton on this machine",
    ),
    pytest.mark.filterwarnings("ignore:.*depends on the epoch"),  # one batch is the whole data set, and taken twice
]


@pytest.fixture
def taken() -> Iterator[set[Any]]:
    with kernels_for_any_size() as known:
        yield known


class Captured:
    """A loss and its gradient, replayed."""

    def __init__(self, made: Loss, logits: Tensor, labels: Tensor, *, warm: bool) -> None:
        self.made, self.logits, self.labels = made, logits, labels
        device = torch.device("cuda")
        if warm:
            for _ in range(3):
                run_on_side_stream(self.step, device)
        self.graph, (self.loss, self.gradient) = capture_graph(self.step, device)

    def step(self) -> tuple[Tensor, Tensor]:
        leaf = self.logits.detach().requires_grad_()
        value = self.made(leaf, self.labels)
        return value.detach(), torch.autograd.grad(value * 1.5, leaf)[0]

    def replay(self) -> list[Tensor]:
        self.graph.replay()
        return [self.loss.clone(), self.gradient.clone()]


def some_batch() -> tuple[Any, Tensor, Tensor]:
    random = np.random.default_rng(0)
    batch = batch_of(some_labels("partial", (16, 80), random), some_logits("moderate", (16, 80), random), 5)
    return batch, torch.from_numpy(batch.logits).float().cuda(), torch.from_numpy(batch.labels).cuda()


@pytest.mark.parametrize("name", METHODS)
def test_a_replayed_step_follows_logits_labels_and_epochs(name: str, taken: set[Any]) -> None:
    batch, logits, labels = some_batch()
    made = kernel_loss(name, batch, {})
    captured = Captured(made, logits, labels, warm=True)
    assert taken, "the capture has no kernel"
    for epoch in (1, 2, 7, 10):
        made.set_epoch(epoch)
        logits.copy_(logits.roll(1, dims=0))
        labels.copy_(labels.flip(1))
        with disabled():
            expected = captured.step()
        for found, wanted in zip(captured.replay(), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=3e-6, atol=3e-6)


def test_a_capture_without_a_step_before_compiles_nothing(taken: set[Any]) -> None:
    batch, logits, labels = some_batch()
    made = kernel_loss("em", batch, {"alpha": 0.123})
    captured = Captured(made, logits, labels, warm=False)
    assert not taken
    for found, wanted in zip(captured.replay(), captured.step(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=3e-6, atol=3e-6)
    assert taken
