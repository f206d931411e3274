"""Every method against its reference: value and gradient, in all shapes, label states, epochs and float types."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import (
    batch_of,
    every_batch,
    forward,
    prepared,
    reductions_of,
    some_batches,
    some_labels,
    with_state,
)
from tests.losses.reference import Answer, Batch, Reference, reference_of, references
from torch import Tensor

from labelgap.losses import methods


def agree(found: Tensor | None, wanted: Any, tolerance: float, what: str, scale: float = 1.0) -> None:
    """Equal within the tolerance, relative to the largest number (or 1, if all are smaller)."""
    assert found is not None, f"{what}: there is none"
    array, wanted = found.detach().double().numpy() * scale, np.asarray(wanted) * scale
    assert array.shape == wanted.shape, f"{what}: shape {array.shape}, not {wanted.shape}"
    assert np.isfinite(array).all(), f"{what} is not finite"
    apart = float(np.abs(array - wanted).max(initial=0.0))
    allowed = tolerance * max(1.0, float(np.abs(wanted).max(initial=0.0)))
    assert apart <= allowed, f"{what}: {apart:.3g} apart, {allowed:.3g} allowed"


def ask(name: str, known: Reference, batch: Batch, options: dict[str, Any], dtype: torch.dtype) -> tuple[Any, ...]:
    """The loss's loss and logits after the backward pass, the loss itself, and the reference's answer."""
    logits = torch.from_numpy(batch.logits).to(dtype).requires_grad_()
    seen = replace(batch, logits=logits.detach().double().numpy())
    state_type = torch.promote_types(dtype, torch.float32)
    made = prepared(name, batch, options, dtype=state_type)
    loss = forward(made, batch, logits)
    torch.autograd.backward(loss.sum())
    plain = {key: value for key, value in options.items() if key != "reduction"}
    return loss, logits, made, known.answer(with_state(seen, made), **plain)


def check(name: str, known: Reference, batch: Batch, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Compare loss and gradients; gradients are compared per entry, not divided by B·K."""
    loss, logits, made, answer = ask(name, known, batch, options, dtype)
    value, slope = tolerances(dtype)
    story = f"{name} {options} {tuple(logits.shape)} epoch {batch.epoch} {dtype}"
    size = logits.numel()
    wanted, factor = expected(answer, options.get("reduction", "mean"), size)
    agree(loss, wanted, value, f"{story}: loss")
    agree(logits.grad, answer.gradient * factor, slope, f"{story}: gradient", scale=size / factor)
    for key, parameter in made.named_parameters():
        agree(parameter.grad, answer.learned[key] * factor, slope, f"{story}: gradient of {key}", scale=size / factor)
    assert loss.dtype == torch.promote_types(dtype, torch.float32), f"{story}: the loss is {loss.dtype}"


def expected(answer: Answer, reduction: str, size: int) -> tuple[Any, float]:
    """What a reduction should give, and how many times the mean's gradient its gradient is."""
    if reduction == "mean":
        return answer.loss, 1.0
    assert answer.entries is not None
    np.testing.assert_allclose(answer.entries.mean(), answer.loss, rtol=1e-12)
    return (answer.entries if reduction == "none" else answer.entries.sum()), float(size)


def tolerances(dtype: torch.dtype) -> tuple[float, float]:
    """Of a loss, which is never narrower than float32, and of a gradient, which has the type of the logits."""
    if dtype == torch.float64:
        return 1e-10, 1e-10
    return 1e-5, max(1e-5, 2 * torch.finfo(dtype).eps)


def test_every_method_has_a_reference_and_every_reference_a_method() -> None:
    assert sorted(references()) == sorted(methods())


@pytest.mark.parametrize("name", methods())
def test_loss_and_gradient_are_those_of_the_reference(name: str) -> None:
    known = reference_of(name)
    reductions = reductions_of(name)
    for turn, options in enumerate(known.options):
        for number, batch in enumerate(every_batch(turn)):
            reduction = reductions[(number + turn) % len(reductions)]
            given = dict(options) if reduction == "mean" else {**options, "reduction": reduction}
            check(name, known, batch, given, torch.float64)


@pytest.mark.parametrize("name", methods())
def test_narrow_floats_agree_with_the_reference_to_their_precision(name: str) -> None:
    known = reference_of(name)
    for turn, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
        for number, batch in enumerate(islice(some_batches(), turn, None, 3)):
            check(name, known, batch, dict(known.options[number % len(known.options)]), dtype)


@pytest.mark.parametrize("name", methods())
def test_the_gradient_is_the_derivative_of_the_loss(name: str) -> None:
    known = reference_of(name)
    if not known.gradcheck:
        pytest.skip("a stop-gradient: the reference's gradient decides")
    random = np.random.default_rng(3)
    logits = random.permutation(np.linspace(-2.9, 3.1, 24)).reshape(4, 6)
    for labels in ("partial", "single"):
        batch = batch_of(some_labels(labels, (4, 6), random), logits, epoch=5)
        for options in known.options:
            made = prepared(name, batch, options).eval()  # no training: it is computed many times in one epoch
            variable = torch.from_numpy(logits).requires_grad_()
            assert torch.autograd.gradcheck(
                lambda x, made=made, batch=batch: forward(made, batch, x), variable, fast_mode=True
            ), f"{name} {options}"
