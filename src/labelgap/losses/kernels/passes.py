"""Forward and backward pass of a loss in one pass over the logits.

The forward pass reads logits and labels once and writes the gradient of the loss: 9 bytes an entry, which is what has
to move. The backward pass multiplies it in place by the gradient that comes in, and leaves at once where that is 1, as
it is where the loss is the end of the graph. So there is no buffer beyond the gradient itself; a graph that is retained
for another backward pass costs one.

Results are deterministic. Costs are summed over blocks, then over their sums in a fixed order, without atomics; the
selection counts whole numbers, whose sum does not depend on an order. The same batch gives the same bytes, but not
those of the losses without kernels, whose sums have another order.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from functools import cache
from typing import Any

import torch
from torch import Tensor

from labelgap.losses.base.fused import refuse_second_derivative
from labelgap.losses.kernels import costs, launching
from labelgap.losses.kernels.form import KernelForm
from labelgap.losses.kernels.selection import kth_largest
from labelgap.losses.kernels.triton_import import tl, triton

BLOCK = 1024
"""Entries of a block."""
WARPS = 4
"""Of a block; these two are within 4 % of the fastest of eleven sizes for every family on an H200."""
SUMS = 4096
"""Sums of blocks that are added at once."""
RESCALED = 16384
"""Entries that a program of the backward pass multiplies: many, as it mostly has nothing to do."""


@triton.jit
def cost_and_slope(
    logits,
    labels,
    threshold,
    numbers,
    epoch,
    slopes,
    sums,
    entries,
    scale,
    COST: tl.constexpr,
    OPTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the slopes of a block, times ``scale``, and the sum of its costs."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < entries
    x = tl.load(logits + place, mask=inside, other=0.0)
    label = tl.load(labels + place, mask=inside, other=0)
    large = x >= tl.load(threshold)
    cost, slope = COST(x, label, large, numbers, epoch, OPTIONS)
    tl.store(slopes + place, slope * scale, mask=inside)
    tl.store(sums + tl.program_id(0), tl.sum(tl.where(inside, cost, 0.0), axis=0))


@triton.jit
def add_up(sums, total, count, scale, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the sum of all blocks, times ``scale``."""
    found = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(STEPS):
        place = step * BLOCK + tl.arange(0, BLOCK)
        found += tl.load(sums + place, mask=place < count, other=0.0)
    tl.store(total, tl.sum(found, axis=0) * scale)


@triton.jit(do_not_specialize_on_alignment=["gradient"])
def rescale(slopes, gradient, entries, BLOCK: tl.constexpr):
    """Multiply by the gradient that comes in, in place; nothing is read or written where it is 1."""
    factor = tl.load(gradient)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    changed = place < tl.where(factor != 1.0, entries, 0)
    tl.store(slopes + place, factor * tl.load(slopes + place, mask=changed, other=0.0), mask=changed)


def evaluate(form: KernelForm, logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Return the "mean" or "sum" of the costs of float32 logits and int8 labels, dense and in the same order."""
    with torch.cuda.device_of(logits):
        loss: Tensor = _OnePass.apply(logits, labels, form, reduction)
    return loss


def warm_up(logits: Tensor) -> None:
    """Compile the backward pass, where a failure would come too late; times 1, which changes nothing."""
    with torch.cuda.device_of(logits):
        _rescale(logits, torch.ones((), device=logits.device))


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, form: KernelForm, reduction: str) -> Tensor:
        entries, threshold = logits.numel(), logits
        if form.selects:
            threshold = kth_largest(form, logits, labels, BLOCK, WARPS)
        weights = _on_device(form.weights, logits.device) if form.weights else logits
        blocks, scale = triton.cdiv(entries, BLOCK), 1.0 / entries if reduction == "mean" else 1.0
        slopes, sums, total = torch.empty_like(logits), logits.new_empty(blocks), logits.new_empty(())
        epoch = logits if form.epoch is None else form.epoch
        launching.launch(
            cost_and_slope,
            blocks,
            *(logits, labels, threshold, weights, epoch, slopes, sums, entries, scale),
            COST=getattr(costs, form.family),
            OPTIONS=form.options,
            BLOCK=BLOCK,
            warps=WARPS,
        )
        steps = triton.cdiv(blocks, SUMS)
        launching.launch(add_up, 1, *(sums, total, blocks, scale), STEPS=steps, BLOCK=SUMS, warps=32)
        ctx.slopes = slopes
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Hand the slopes over; autograd may make them the gradient without a copy, as nothing else holds them."""
        refuse_second_derivative()
        slopes = ctx.slopes
        if slopes is None:
            raise RuntimeError(
                "Trying to backward through the graph of a loss a second time: its gradient was handed over. Specify "
                "retain_graph=True in the first backward pass."
            )
        if _is_retained():
            slopes = slopes.clone()
        else:
            ctx.slopes = None
        _rescale(slopes, gradients[0])
        return slopes, None, None, None


def _is_retained() -> bool:
    """Return whether the graph is kept for another backward pass; True where PyTorch does not tell."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return asked is None or bool(asked())


def _rescale(slopes: Tensor, gradient: Tensor) -> None:
    entries = slopes.numel()
    launching.launch(rescale, triton.cdiv(entries, RESCALED), *(slopes, gradient, entries), BLOCK=RESCALED, warps=16)


@cache
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers in memory of the device, which is never freed: a captured graph may read them."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)
