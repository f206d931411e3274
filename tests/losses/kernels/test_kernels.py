"""The kernels of the losses on a GPU, or in the interpreter: ``TRITON_INTERPRET=1 pytest tests/losses/kernels``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from tests.losses.batches import batch_of, forward, some_batches, some_labels, some_logits, with_state
from tests.losses.kernels.kernel_cases import (
    DEVICE,
    METHODS,
    REASON,
    has_kernel,
    kernel_loss,
    kernels_for_any_size,
    loss_and_gradient,
)
from tests.losses.reference import Batch, reference_of
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import UNKNOWN
from labelgap.losses import Loss, loss
from labelgap.losses.kernels import disabled, dispatch, triton_kernels
from labelgap.training.cuda_graphs import capture_graph, run_on_side_stream

pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow):RuntimeWarning"),  # of the interpreter
    pytest.mark.filterwarnings("ignore:.*depends on the epoch"),  # one batch is the whole data set, and taken twice
]

TOLERANCE = 1e-5
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")


@pytest.fixture
def taken() -> Iterator[set[Any]]:
    with kernels_for_any_size() as known:
        yield known


def random_batch(shape: tuple[int, int], epoch: int = 5, labels: str = "partial") -> Batch:
    random = np.random.default_rng(3)
    return batch_of(some_labels(labels, shape, random), some_logits("moderate", shape, random), epoch)


def batches() -> Iterator[Batch]:
    """All kinds of labels and logits, the first and the last epoch, no known label, and more than one block."""
    first = random_batch((8, 20))
    nothing = batch_of(np.full_like(first.labels, UNKNOWN), first.logits, epoch=5)
    later = (replace(first, epoch=epoch) for epoch in (1, 2, 10))
    return chain(some_batches(), some_batches(shape=(1, 1)), later, [nothing, random_batch((21, 160))])


def agree(found: Tensor, wanted: Any, what: str) -> None:
    wanted = torch.as_tensor(wanted, dtype=torch.float64)
    apart = float((found.double() - wanted).abs().max())
    assert apart <= TOLERANCE * max(1.0, float(wanted.abs().max())), f"{what}: {apart:.3g} apart"


@pytest.mark.parametrize("name", METHODS)
def test_a_kernel_gives_the_loss_and_the_gradient_of_the_reference(name: str, taken: set[Any]) -> None:
    known, kernels = reference_of(name), 0
    for batch in batches():
        batch = replace(batch, logits=batch.logits.astype(np.float32).astype(np.float64))
        for options in known.options:
            if has_kernel(name, batch, options):
                taken.clear()
                made = kernel_loss(name, batch, options)
                value, slopes = loss_and_gradient(made, batch)
                assert taken, f"{name} {options}: no kernel was taken"
                answer = known.answer(with_state(batch, made), **options)
                story = f"{name} {options} {batch.labels.shape} epoch {batch.epoch}"
                agree(value, answer.loss, f"{story}: loss")
                agree(slopes, answer.gradient * batch.labels.size, f"{story}: gradient")
                kernels += 1
    assert kernels >= 20


def test_a_label_is_corrected_by_its_logit_as_without_a_kernel(taken: set[Any]) -> None:
    for tau in (0.6, 0.1, 0.999, 1 - 1e-9, 0.0, 1.0):
        level = np.float32(scipy.special.logit(tau)).clip(-80, 80)
        logits = np.array([[np.nextafter(level, -np.inf), level, np.nextafter(level, np.inf)]], dtype=np.float64)
        batch = batch_of(np.full((1, 3), UNKNOWN, dtype=np.int8), logits, epoch=5)
        made = kernel_loss("splc", batch, {"tau": tau, "gamma": 0.0})
        _, slopes = loss_and_gradient(made, batch)
        with disabled():
            _, expected = loss_and_gradient(made, batch)
        assert torch.equal(slopes > 0, expected > 0), f"{tau}: {slopes} {expected}"
    assert taken


@pytest.mark.parametrize("name", ["em", "focal", "hill", "splc", "asl", "gr", "ll-ct", "csl"])
def test_a_logit_that_is_no_number_makes_the_loss_none(name: str, taken: set[Any]) -> None:
    batch = random_batch((8, 20))
    for place in np.ndindex(2, 20):
        logits = batch.logits.copy()
        logits[place] = np.nan
        value, _ = loss_and_gradient(kernel_loss(name, batch, {}), replace(batch, logits=logits))
        assert value.isnan(), f"{name}: label {batch.labels[place]}"
    assert taken


def value_and_gradient(made: Loss, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().requires_grad_()
    value = made(leaf, labels)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


@pytest.mark.parametrize("name", ["em", "asl", "ll-ct"])
def test_transposed_and_half_precision_logits_take_the_kernel(name: str, taken: set[Any]) -> None:
    batch = random_batch((8, 20))
    made = kernel_loss(name, batch, {})
    x, labels = torch.from_numpy(batch.logits).float().to(DEVICE), torch.from_numpy(batch.labels).to(DEVICE)
    for logits, given in ((x.T.contiguous().T, labels.T.contiguous().T), (x.bfloat16(), labels), (x.half(), labels)):
        taken.clear()
        found = value_and_gradient(made, logits, given)
        assert taken and found[1].dtype == logits.dtype and found[1].stride() == logits.stride()
        with disabled():
            expected = value_and_gradient(made, logits, given)
        torch.testing.assert_close(found, expected, rtol=1e-5 if logits.dtype == torch.float32 else 1e-2, atol=1e-6)


def test_what_no_kernel_can_read_is_computed_without(taken: set[Any]) -> None:
    batch = random_batch((8, 20))
    logits, labels = torch.from_numpy(batch.logits).float().to(DEVICE), torch.from_numpy(batch.labels).to(DEVICE)
    cases: list[tuple[Tensor, Tensor, dict[str, Any]]] = [
        (logits.double(), labels, {}),
        (logits, labels.long(), {}),
        (logits, labels.float(), {}),
        (logits.T.contiguous().T, labels, {}),
        (logits[:, ::2], labels[:, ::2], {}),
        (logits.expand(3, 8, 20), labels, {}),
        (logits, labels, {"alpha": torch.tensor([0.1, 0.2], device=DEVICE)}),
        (logits, labels, {"eps": 1e-5}),
        (logits, labels, {"reduction": "none"}),
    ]
    for x, y, options in cases:
        made = loss("em", **options).to(DEVICE)
        found = made(x, y)
        with disabled():
            assert torch.equal(found, made(x, y))
    assert not taken


def test_a_loss_that_was_left_on_the_cpu_is_computed(taken: set[Any]) -> None:
    batch = random_batch((8, 20))
    for name in ("em", "gr", "ll-ct", "csl"):
        found = loss_and_gradient(kernel_loss(name, batch, {}).cpu(), batch)
        torch.testing.assert_close(found, loss_and_gradient(kernel_loss(name, batch, {}), batch), rtol=1e-5, atol=3e-6)


def test_a_retained_graph_gives_the_same_gradient_again_and_no_second_derivative(taken: set[Any]) -> None:
    batch = random_batch((8, 20))
    logits = torch.from_numpy(batch.logits).float().to(DEVICE).requires_grad_()
    value = forward(kernel_loss("asl", batch, {}), batch, logits) * 3.0
    first, second = (torch.autograd.grad(value, logits, retain_graph=True)[0] for _ in range(2))
    with pytest.raises(InputError, match="once"):
        torch.autograd.grad(value, logits, create_graph=True)
    (third,) = torch.autograd.grad(value, logits)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(value, logits)
    assert taken and torch.equal(first, second) and torch.equal(first, third)


def test_a_kernel_that_fails_is_a_warning_and_the_loss_is_computed(
    taken: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to find C compiler\nand more")

    batch = random_batch((8, 20))
    made = kernel_loss("em", batch, {})
    with disabled():
        expected = loss_and_gradient(made, batch)
    monkeypatch.setattr(triton_kernels, "launch", fail)
    with pytest.warns(UserWarning, match="Failed to find C compiler"):
        found = loss_and_gradient(made, batch)
    again = loss_and_gradient(made, batch)
    for one in (found, again):
        assert torch.equal(one[0], expected[0]) and torch.equal(one[1], expected[1])
    assert not taken and dispatch._failed


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


@needs_cuda
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


@needs_cuda
def test_a_capture_without_a_step_before_compiles_nothing(taken: set[Any]) -> None:
    batch, logits, labels = some_batch()
    made = kernel_loss("em", batch, {"alpha": 0.123})
    captured = Captured(made, logits, labels, warm=False)
    assert not taken
    for found, wanted in zip(captured.replay(), captured.step(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=3e-6, atol=3e-6)
    assert taken
