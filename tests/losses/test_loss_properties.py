"""What holds for every method, whatever it costs."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from tests.losses.batches import batch_of, forward, prepared, some_batches, some_labels, some_logits
from tests.losses.reference import Batch, reference_of
from torch import Tensor

from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.losses import method_options, methods


def tensor(batch: Batch) -> Tensor:
    return torch.from_numpy(batch.logits)


@pytest.mark.parametrize("name", methods())
def test_known_labels_are_never_modified(name: str) -> None:
    for options in reference_of(name).options:
        for epoch in (2, 10):
            for batch in some_batches(epoch):
                made = prepared(name, batch, options)
                index = torch.from_numpy(batch.index)
                modified = made.modified(tensor(batch), torch.from_numpy(batch.labels), index)
                assert modified.shape == (8, 20)
                assert modified.dtype == torch.bool
                assert not modified[torch.from_numpy(batch.labels) != UNKNOWN].any()


def odd_batches() -> Iterator[tuple[str, Batch]]:
    random = np.random.default_rng(1)
    labels = some_labels("partial", (8, 20), random)
    column = labels.copy()
    column[:, 3] = UNKNOWN
    everything = {
        "no positive": np.where(labels == PRESENT, UNKNOWN, labels),
        "no negative": np.where(labels == ABSENT, UNKNOWN, labels),
        "no unknown": np.where(labels == UNKNOWN, ABSENT, labels),
        "all positive": np.full_like(labels, PRESENT),
        "all negative": np.full_like(labels, ABSENT),
        "all unknown": np.full_like(labels, UNKNOWN),
        "an unknown column": column,
        "one row": labels[:1],
        "one unknown row": np.full_like(labels[:1], UNKNOWN),
        "one class": labels[:, :1],
        "no row": labels[:0],
    }
    for story, odd in everything.items():
        for kind in ("moderate", "extreme"):
            yield f"{story}, {kind}", batch_of(odd.astype(np.int8), some_logits(kind, odd.shape, random), epoch=5)


@pytest.mark.parametrize("name", methods())
def test_odd_batches_give_a_finite_loss_and_gradient(name: str) -> None:
    known = reference_of(name)
    for story, batch in odd_batches():
        for dtype in (torch.float32, torch.float16):
            logits = tensor(batch).to(dtype).requires_grad_()
            made = prepared(name, batch, known.plain, dtype=torch.promote_types(dtype, torch.float32))
            loss = forward(made, batch, logits)
            torch.autograd.backward(loss)
            assert loss.shape == (), f"{name}, {story}: the loss is no scalar"
            assert loss.isfinite(), f"{name}, {story}: the loss is {loss.item()}"
            assert logits.grad is not None and logits.grad.isfinite().all(), (
                f"{name}, {story}: a gradient is not finite"
            )


@pytest.mark.parametrize("name", methods())
def test_nan_means_unknown_in_float_labels(name: str) -> None:
    known = reference_of(name)
    for batch in some_batches():
        made = prepared(name, batch, known.plain)
        labels = torch.from_numpy(batch.labels).double()
        labels[labels == UNKNOWN] = torch.nan
        arguments = {"index": torch.from_numpy(batch.index), "features": torch.from_numpy(batch.features)}
        torch.testing.assert_close(made(tensor(batch), labels, **arguments), forward(made, batch, tensor(batch)))


@pytest.mark.parametrize("name", methods())
def test_many_heads_at_once_give_what_each_gives_alone(name: str) -> None:
    known, random = reference_of(name), np.random.default_rng(5)
    heads = (2, 3)
    for turn, batch in enumerate(islice(some_batches(), 0, None, 4)):
        varied = {key: values for key, values in known.heads.items() if turn or key != "eps"}  # with ε, the formula
        plain = {key: value for key, value in known.plain.items() if key not in varied}
        numbers = {key: torch.tensor([values] * 2, dtype=torch.float64) for key, values in varied.items()}
        logits = torch.from_numpy(np.stack([some_logits("moderate", (8, 20), random) for _ in range(6)]))
        logits = (logits.view(2, 3, 8, 20) + tensor(batch)).requires_grad_()
        together = prepared(name, batch, {**plain, **numbers}, heads=heads)
        losses = forward(together, batch, logits)
        assert losses.shape == heads
        (gradients,) = torch.autograd.grad(losses.sum(), logits)
        for head in np.ndindex(heads):
            alone = prepared(name, batch, {**plain, **{key: value[head].item() for key, value in numbers.items()}})
            alone.load_state_dict(
                {key: value[head] if value.ndim else value for key, value in together.state_dict().items()}
            )
            own = logits[head].detach().requires_grad_()
            loss = forward(alone, batch, own)
            (gradient,) = torch.autograd.grad(loss, own)
            torch.testing.assert_close(losses[head], loss, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(gradients[head], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", methods())
def test_the_graph_of_a_step_is_freed_with_its_loss(name: str) -> None:
    batch = next(some_batches())
    made = prepared(name, batch, reference_of(name).plain)
    forward(made, batch, tensor(batch).requires_grad_())
    gc.collect()
    gc.disable()
    try:
        logits = tensor(batch).requires_grad_() * 1.0
        held = weakref.ref(logits)
        cost = forward(made, batch, logits)
        torch.autograd.backward(cost.sum())
        del logits, cost
        assert held() is None, "only the garbage collector would free the logits, and the graph behind them"
    finally:
        gc.enable()


@pytest.mark.parametrize("name", methods())
def test_a_method_that_looks_at_images_alone_costs_the_mean_of_the_halves_of_a_batch(name: str) -> None:
    for batch in some_batches():
        made = prepared(name, batch, reference_of(name).plain)
        if made.batch_dependent:
            continue
        whole = forward(made, batch, tensor(batch))
        halves = []
        for part in (slice(0, 4), slice(4, 8)):
            arrays = {name: getattr(batch, name)[part] for name in ("logits", "labels", "index", "features")}
            half = replace(batch, **arrays)
            halves.append(forward(made, half, tensor(half)).item())
        np.testing.assert_allclose(np.mean(halves), whole.item(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", methods())
def test_a_logit_that_is_nan_gives_a_loss_that_is_nan(name: str) -> None:
    labels = np.array([[PRESENT, ABSENT, UNKNOWN, ABSENT], [UNKNOWN, UNKNOWN, ABSENT, UNKNOWN]], dtype=np.int8)
    batch = batch_of(labels, some_logits("moderate", labels.shape, np.random.default_rng(2)), epoch=5)
    unknown = [{"unknown": rule} for rule in ("negative", "ignore")] if "unknown" in method_options(name) else [{}]
    for options, place in itertools.product(unknown, np.ndindex(labels.shape)):
        logits = tensor(batch).clone()
        logits[place] = torch.nan
        made = prepared(name, batch, {**reference_of(name).plain, **options})
        assert forward(made, batch, logits.requires_grad_()).isnan(), f"{name}, {options}, the logit {place}"
