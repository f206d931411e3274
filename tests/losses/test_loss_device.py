"""Losses stay on the device: nothing waits for a value, nothing loops over rows or classes, all can be compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import batch_of, forward, prepared, some_batches, some_labels, some_logits
from tests.losses.reference import Batch, reference_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labelgap.losses import methods

WAITING = {
    "_local_scalar_dense": "a value was read on the host (item, float, int, bool, if)",
    "_unique2": "the size of the result depends on the values",
    "bincount": "the size of the result depends on the values",
    "equal": "a comparison was read on the host",
    "is_nonzero": "a value was read on the host",
    "item": "a value was read on the host",
    "lift_fresh": "a tensor was made from Python's numbers: use new_full, or a buffer",
    "masked_select": "the size of the result depends on the values",
    "nonzero": "the size of the result depends on the values",
    "repeat_interleave": "the size of the result depends on the values",
    "unique_consecutive": "the size of the result depends on the values",
    "unique_dim": "the size of the result depends on the values",
}


FAMILIES = ["an", "csl", "curriculum", "em-apl", "gr", "imcl", "ll-cp", "ll-r-abs", "role", "splc", "two-way", "warp"]


class Watch(TorchDispatchMode):
    """Counts operations, and remembers the largest tensor, and what would make a device wait for the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self.largest = 0, 0
        self.problems: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += 1
        if name in WAITING:
            self.problems.append(f"aten.{name}: {WAITING[name]}")
        if name in {"index", "index_put", "index_put_"} and any(is_mask(item) for item in args[1]):
            self.problems.append(f"aten.{name}: a mask as an index; use where")
        result = func(*args, **(kwargs or {}))
        made = [item for item in (result if isinstance(result, tuple | list) else [result]) if isinstance(item, Tensor)]
        self.largest = max([self.largest, *(item.numel() for item in made)])
        return result


def is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def watched(name: str, batch: Batch, options: Any) -> Watch:
    """What happens from the logits to their gradient, and in committing what was marked.

    On the meta device, where no value can be read.
    """
    made = prepared(name, batch, options, dtype=torch.float32).to("meta")
    tensors = map(torch.from_numpy, (batch.logits, batch.labels, batch.index, batch.features.astype(np.float32)))
    logits, labels, index, features = (values.to("meta") for values in tensors)
    logits = logits.float().requires_grad_()
    watch = Watch()
    with watch:
        torch.autograd.backward(made(logits, labels, index=index, features=features))
        made.after_step()
    return watch


def sized(rows: int, classes: int) -> Batch:
    random = np.random.default_rng(0)
    labels = some_labels("partial", (rows, classes), random)
    labels[0, 0] = 1
    return batch_of(labels, some_logits("moderate", (rows, classes), random), epoch=5)


@pytest.mark.parametrize("name", methods())
def test_nothing_waits_for_the_device(name: str) -> None:
    for options in reference_of(name).options:
        watch = watched(name, sized(8, 20), options)
        assert not watch.problems, f"{name} {options}: {watch.problems}"


@pytest.mark.parametrize("name", methods())
def test_larger_batches_are_not_more_operations(name: str) -> None:
    for options in (reference_of(name).options[0], reference_of(name).options[-1]):
        counts = {shape: watched(name, sized(*shape), options).count for shape in ((4, 6), (32, 6), (4, 48))}
        assert len(set(counts.values())) == 1, f"{name} {options}: operations for each (B, K): {counts}"


def test_the_watch_sees_what_waits() -> None:
    ones = torch.ones(3)
    for waits in (ones.sum().item, lambda: bool(ones.max() > 0), lambda: ones[ones > 0], lambda: torch.tensor(2.0)):
        with Watch() as watch:
            waits()
        assert watch.problems


@pytest.mark.parametrize("name", FAMILIES)
def test_compiled_once_a_loss_follows_the_epoch(name: str) -> None:
    known, graphs = reference_of(name), []

    def backend(graph: torch.fx.GraphModule, inputs: Iterable[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    batch = next(some_batches())
    made = prepared(name, batch, known.options[-1], dtype=torch.float32)
    compiled = torch.compile(made, fullgraph=True, dynamic=False, backend=backend)
    for epoch in (1, 5):
        made.set_epoch(epoch)
        found = []
        for call in (compiled, made):
            logits = torch.from_numpy(batch.logits).float().requires_grad_()
            loss = forward(call, batch, logits)
            found.append([loss.detach(), *torch.autograd.grad(loss, logits)])
        torch.testing.assert_close(*found)
    assert len(graphs) == 1, f"{name} was compiled {len(graphs)} times"
