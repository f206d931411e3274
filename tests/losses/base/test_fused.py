"""The fast path of a loss is the formula, and the k-th largest entry of a batch is that of a sort."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from tests.losses.batches import forward, prepared, some_batches
from tests.losses.reference import Batch, reference_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from labelgap.core.errors import InputError
from labelgap.losses import Loss, loss, methods
from labelgap.losses.base import fused, selection
from labelgap.losses.base.mixture import Mixture
from labelgap.losses.base.selection import kth_largest, top_k_mask

FORMULA_ONLY = {"imcl", "pr", "softmax"}
TOLERANCES = {torch.float64: 1e-11, torch.float32: 3e-6, torch.bfloat16: 1e-2}


def loss_and_gradients(made: Loss, batch: Batch, dtype: torch.dtype, heads: tuple[int, ...] = ()) -> list[Tensor]:
    logits = torch.from_numpy(batch.logits).to(dtype).expand(*heads, *batch.logits.shape).clone().requires_grad_()
    made.zero_grad()
    cost = forward(made, batch, logits)
    torch.autograd.backward(cost.sum())
    learned = [parameter.grad for parameter in made.parameters() if parameter.grad is not None]
    assert logits.grad is not None
    return [cost.detach(), logits.grad * logits.numel(), *learned]


@pytest.mark.parametrize("name", sorted(set(methods()) - FORMULA_ONLY))
def test_the_fast_path_is_the_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of two rows; all label states, and logits of ±10,000."""
    monkeypatch.setitem(fused.BLOCK_ENTRIES, "cpu", 2 * 20)
    for turn, dtype in enumerate(TOLERANCES):
        for number, batch in enumerate(islice(some_batches(), turn, None, 3)):
            options = reference_of(name).options[number % len(reference_of(name).options)]
            made = prepared(name, batch, options, dtype=torch.promote_types(dtype, torch.float32))
            fast = loss_and_gradients(made, batch, dtype)
            with monkeypatch.context() as patch:
                patch.setattr(torch.compiler, "is_compiling", lambda: True)
                formula = loss_and_gradients(made, batch, dtype)
            for found, wanted in zip(fast, formula, strict=True):
                scale = max(1.0, float(wanted.abs().max()))
                torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=TOLERANCES[dtype])


def test_a_second_derivative_is_refused_with_a_remedy() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    labels = torch.tensor([[1, 0, -1], [0, 1, -1]])
    for name in ("em", "two-way"):
        with pytest.raises(InputError, match=r"labelgap\.functional"):
            torch.autograd.grad(loss(name)(logits, labels), logits, create_graph=True)


@pytest.mark.parametrize("name", ["an", "an-ls", "bce", "bce-ls", "wan", "ll-r", "ll-ct"])
def test_a_small_batch_of_cross_entropies_has_the_second_derivative(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 9, dtype=torch.float64, generator=random).requires_grad_()
    labels = torch.randint(-1, 2, (5, 9), dtype=torch.int8, generator=random)
    made, found = loss(name), []
    made.set_epoch(9)
    for formula in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda formula=formula: formula)
        (gradient,) = torch.autograd.grad(made(logits, labels), logits, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), logits)[0])
    assert found[0].any()
    torch.testing.assert_close(*found)


def test_a_loss_can_be_differentiated_after_it_was_measured_in_inference_mode() -> None:
    logits, labels = torch.randn(2, 3, requires_grad=True), torch.tensor([[1, 0, -1]] * 2, dtype=torch.int8)
    mixture = Mixture(unknown=(0.0, 2.5, 0.0), absent=(0.0, 2.5, 0.0), present=(2.5, 0.0, 0.0))
    with torch.inference_mode():
        measured = fused.fused_mixture(logits, labels, mixture, reduction="mean")
    cost = fused.fused_mixture(logits, labels, mixture, reduction="mean")
    torch.autograd.backward(cost)
    assert cost.item() == measured.item()
    assert logits.grad is not None


def test_a_right_label_costs_little_but_not_nothing() -> None:
    logits = torch.linspace(1, 80, 80)[None]
    for name, label in (("bce", 1), ("an", 1), ("em", 1), ("an", -1)):
        cost = loss(name, reduction="none")((2 * (label == 1) - 1) * logits, torch.full((1, 80), label))
        torch.testing.assert_close(cost.double(), logits.double().neg().exp().log1p(), rtol=1e-5, atol=0)


def test_one_number_per_head_broadcasts_over_logits_without_heads() -> None:
    logits, labels, numbers = torch.randn(4, 5), torch.randint(-1, 2, (4, 5)), torch.tensor([0.1, 0.3])
    together = loss("an-ls", smoothing=numbers)(logits, labels)
    alone = torch.stack([loss("an-ls", smoothing=float(number))(logits, labels) for number in numbers])
    torch.testing.assert_close(together, alone)


SHAPE = (120, 80)
RANDOM = np.random.default_rng(7)
VALUES = {
    "normal": RANDOM.normal(size=SHAPE).astype(np.float32),
    "ties": RANDOM.integers(0, 5, SHAPE).astype(np.float64),
    "one value": np.zeros(SHAPE, dtype=np.float32),
    "large in one class": RANDOM.normal(size=SHAPE) + 50 * (np.arange(SHAPE[1]) == 3),
    "large in few rows": RANDOM.normal(size=SHAPE) + 50 * (np.arange(SHAPE[0]) > 117)[:, None],
    "sorted": np.sort(RANDOM.normal(size=SHAPE[0] * SHAPE[1])).reshape(SHAPE),
    "infinite": np.where(RANDOM.random(SHAPE) < 0.5, -np.inf, RANDOM.normal(size=SHAPE)),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("share", [0.01, 0.9, 1.0])
def test_the_kth_largest_is_that_of_a_sort(kind: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values, among = VALUES[kind], RANDOM.random(SHAPE) < share
    ordered = np.sort(values[among])[::-1]
    for sample in (16, 256, 2048):
        monkeypatch.setattr(selection, "SAMPLE", sample)
        for k in {1, 2, min(30, len(ordered)), len(ordered) // 3, len(ordered)}:
            assert kth_largest(values, among, k) == ordered[k - 1]


@pytest.mark.parametrize("kind", VALUES)
def test_on_the_host_and_on_a_device_the_same_entries_are_marked(kind: str) -> None:
    """A count that the host has not read is that of a device."""
    values, allowed = torch.from_numpy(VALUES[kind]).nan_to_num(), torch.from_numpy(RANDOM.random(SHAPE) < 0.7)
    for count in (0, 1, 77, int(allowed.sum())):
        found = top_k_mask(values, allowed, count)
        assert torch.equal(found, top_k_mask(values, allowed, torch.tensor(count), largest_share=1.0))
        assert torch.equal(found, top_k_mask(values, allowed, torch.tensor(count)))


def test_entries_that_are_not_numbers_count_as_the_largest() -> None:
    values = VALUES["normal"].copy()
    values.flat[[5, 500, 5000]] = np.nan
    among = np.ones(SHAPE, dtype=bool)
    assert np.isnan(kth_largest(values, among, 3)) and kth_largest(values, among, 4) == np.nanmax(values)


@pytest.mark.parametrize("name", ["wan", "iu", "hill"])
def test_a_loss_that_was_tried_on_fake_tensors_or_without_gradients_trains_as_before(name: str) -> None:
    fused._kept_scalar.cache_clear()
    logits, labels = torch.randn(4, 3), torch.tensor([[1, 0, -1]] * 4, dtype=torch.int8)
    made = loss(name)
    with FakeTensorMode() as mode:
        assert made(mode.from_tensor(logits), mode.from_tensor(labels)).shape == ()
    with torch.inference_mode():
        wanted = made(logits, labels)
    got = made(logits.requires_grad_(), labels)
    got.backward()
    assert got.item() == wanted.item()
