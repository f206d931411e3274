"""Forward and backward pass of a loss in one pass over the logits.

The forward pass reads logits and labels once and writes the gradient of the mean loss: 9 bytes an entry, which is what
has to move. The backward pass multiplies it in place by the gradient that comes in, and leaves at once where that is 1,
as it is where the loss is the end of the graph. So there is no buffer beyond the gradient itself. The sum is taken
over blocks, then over their sums in a fixed order: the same input gives the same bytes.
"""
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from benchmarks.loss_kernels import costs, launching
from benchmarks.loss_kernels.selection import Selection
from torch import Tensor

from labelgap import losses
from labelgap.losses.base.loss import Loss
from labelgap.losses.base.mixture_loss import MixtureLoss
from labelgap.losses.large_loss import RelativeLargeLoss

__all__ = ["METHODS", "Kernel", "kernel_of"]

METHODS = [
    *("an", "an-ls", "bce", "bce-ls", "n-ls", "wan", "dw", "em", "entmin"),
    *("focal", "hill", "splc", "asl", "gr", "ll-r", "ll-ct", "csl"),
]
"""The methods that have a kernel; `ls`, `iu`, `l1r` and `l2r` have the costs of some of them."""
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
    COST: tl.constexpr,  # noqa: N803
    OPTIONS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
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
def add_up(sums, total, count, scale, STEPS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Write the sum of all blocks, times ``scale``."""
    found = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in tl.static_range(STEPS):
        place = step * BLOCK + tl.arange(0, BLOCK)
        found += tl.load(sums + place, mask=place < count, other=0.0)
    tl.store(total, tl.sum(found, axis=0) * scale)


@triton.jit
def rescale(slopes, gradient, entries, BLOCK: tl.constexpr):  # noqa: N803
    """Multiply by the gradient that comes in, in place; nothing is read or written where it is 1."""
    factor = tl.load(gradient)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    changed = place < tl.where(factor != 1.0, entries, 0)
    tl.store(slopes + place, factor * tl.load(slopes + place, mask=changed, other=0.0), mask=changed)


@dataclass(frozen=True)
class Kernel:
    """A loss as one pass; called with float32 logits and int8 labels ``(B, K)``, it returns the mean.

    Attributes:
        cost: the family.
        numbers: of the method, on the device; with ``epoch`` what a captured graph follows.
        epoch: as counted by the loss.
        options: of the method; other options are another compiled kernel.
        selection: which losses are large, where the method selects any.
        block: entries of a block.
        warps: of a block.
    """

    cost: Callable[..., Any]
    numbers: Tensor
    epoch: Tensor
    options: tuple[Any, ...] = ()
    selection: Selection | None = None
    block: int = 2048
    warps: int = 8

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        loss: Tensor = _OnePass.apply(logits, labels, self)
        return loss


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, kernel: Kernel) -> Tensor:
        entries, block = logits.numel(), kernel.block
        assert logits.dtype == torch.float32 and labels.dtype == torch.int8 and 0 < entries < 2**31 - block
        assert logits.is_contiguous() and labels.is_contiguous() and logits.shape == labels.shape
        threshold = kernel.numbers
        if kernel.selection is not None:
            threshold = kernel.selection.threshold(logits, labels, block, kernel.warps)
        blocks, scale = triton.cdiv(entries, block), 1.0 / entries
        slopes, sums, total = torch.empty_like(logits), logits.new_empty(blocks), logits.new_empty(())
        launching.launch(
            cost_and_slope,
            blocks,
            *(logits, labels, threshold, kernel.numbers, kernel.epoch, slopes, sums, entries, scale),
            COST=kernel.cost,
            OPTIONS=kernel.options,
            BLOCK=block,
            warps=kernel.warps,
        )
        steps = triton.cdiv(blocks, SUMS)
        launching.launch(add_up, 1, *(sums, total, blocks, scale), STEPS=steps, BLOCK=SUMS, warps=32)
        ctx.slopes = slopes
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Hand the slopes over; autograd may make them the gradient without a copy, as nothing else holds them."""
        slopes, ctx.slopes = ctx.slopes, None
        if slopes is None:
            raise RuntimeError("a second backward pass: the first one took the gradient")
        entries = slopes.numel()
        programs = triton.cdiv(entries, RESCALED)
        launching.launch(rescale, programs, *(slopes, gradients[0], entries), BLOCK=RESCALED, warps=16)
        return slopes, None, None


def kernel_of(loss_fn: Loss, rows: int, classes: int) -> Kernel:
    """Return the kernel of a loss with plain options for batches of one shape, on the device of the loss."""
    epoch = loss_fn.epoch_tensor
    nothing = torch.zeros(1, device=epoch.device)
    match loss_fn:
        case MixtureLoss():
            mixture = loss_fn.weights(classes)
            selection = None
            if isinstance(loss_fn, RelativeLargeLoss) and loss_fn.base == "unknown":
                selection = Selection(epoch, loss_fn.share)
            assert (mixture.modified is None) == (selection is None)
            assert mixture.expected_positives is None and mixture.label_estimate is None
            u, v, w = mixture.weights().unbind(-1)
            numbers = torch.stack([u + v, u, w], dim=-1).to(epoch.device, torch.float32)
            return Kernel(costs.mixture, numbers, epoch, (selection is not None, mixture.has_entropy), selection)
        case losses.FocalLoss():
            return Kernel(costs.focal, nothing, epoch, (loss_fn.alpha, loss_fn.gamma))
        case losses.HillLoss():
            return Kernel(costs.hill, nothing, epoch)
        case losses.SelfPacedCorrection():
            return Kernel(costs.self_paced, nothing, epoch, (loss_fn.tau, loss_fn.gamma, loss_fn.warmup))
        case losses.AsymmetricLoss() if not loss_fn.detach_focus:
            return Kernel(costs.asymmetric, nothing, epoch, (loss_fn.gamma_pos, loss_fn.gamma_neg, loss_fn.margin))
        case losses.GeneralizedRobustLoss():
            return Kernel(costs.robust, nothing, epoch, (loss_fn.q2, loss_fn.q3, loss_fn.last_epoch))
        case losses.ClassAwareSelectiveLoss() if loss_fn.mode == "selective" and loss_fn.priors is None:
            options = (loss_fn.gamma_pos, loss_fn.gamma_neg, loss_fn.gamma_unknown)
            selection = Selection(epoch, wanted=rows * int(loss_fn.likelihood_topk))
            return Kernel(costs.selective, nothing, epoch, options, selection)
        case _:
            raise TypeError(f"{loss_fn.name} has no kernel")
