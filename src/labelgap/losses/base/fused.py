r"""Cost and derivative of element-wise losses together, a block of entries at a time.

Autograd keeps a buffer for every step of a formula and passes over memory twice for each. A *form* returns the cost of
a block of entries and its derivative in closed form; only the derivative is kept, one buffer as large as the logits,
and the backward pass multiplies it with the gradient of the loss. The formula itself stays in the pure function of the
method, which is what a compiler fuses and what the tests compare the form with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labelgap.core.distributed import all_sum, world_size
from labelgap.core.errors import InputError
from labelgap.labels.codes import PRESENT
from labelgap.losses.base.terms import Number, constant, equals, per_head

Form = Callable[..., tuple[Tensor, ...]]
"""Takes a block of every input and of every constant; returns new tensors: the cost and its slope in each input."""

BLOCK_ENTRIES = {"cpu": 2**16, "cuda": 2**21}
"""Entries of a block by device: large enough for the calls to cost little; on a CPU its buffers stay in the cache."""


class Fused(NamedTuple):
    """What ``fused`` evaluates.

    Attributes:
        form: computes a block of rows.
        inputs: ``(…, B, K)`` each, all of one shape and float type.
        constants: what else has a row per image: labels, masks, weights, ``(…, B, K)``, ``(B, K)`` or ``(B, 1)``.
    """

    form: Form
    inputs: Sequence[Tensor]
    constants: Sequence[Tensor] = ()


def is_fusible(eps: Number) -> bool:
    """Return whether a form may stand for the formula: not in a compiled loss, and without ε inside logarithms."""
    return not (isinstance(eps, Tensor) or eps or torch.compiler.is_compiling())


def fused(parts: Fused, reduction: str = "none") -> Tensor:
    """Return the cost of every entry ``(…, B, K)``, or their "sum" or "mean" over the global batch, ``(…)``.

    Its gradient is the slopes of the form. It can be differentiated once; a second time is an error.

    Example:
        >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> fused(Fused(lambda x: (x * x, 2 * x), [x]), "sum").backward()
        >>> x.grad
        tensor([[6., 8.]])
    """
    form, inputs, constants = parts
    *heads, rows, classes = inputs[0].shape
    if heads:
        constants = [values.expand(*heads, *values.shape[-2:]) for values in constants]
    alone = world_size() == 1
    scale = None if reduction == "none" else 1.0 / max(rows * classes, 1) if reduction == "mean" and alone else 1.0
    cost: Tensor = _Fused.apply(form, scale, len(inputs), *inputs, *constants)  # type: ignore[no-untyped-call]
    if scale is None or alone:
        return cost
    total = all_sum(cost)
    return total if reduction == "sum" else total / all_sum(total.new_full((), rows * classes)).clamp(min=1)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, scale: float | None, count: int, *tensors: Tensor) -> Tensor:
        like = tensors[0]
        entries, block = like.numel(), BLOCK_ENTRIES.get(like.device.type)
        if block is None or entries <= block:
            cost, *slopes = form(*tensors)
            cost = cost if scale is None else _total(cost, scale)
        else:
            cost, slopes = _in_blocks(form, scale, count, tensors, block)
        ctx.scale, ctx.constants = scale, len(tensors) - count
        ctx.save_for_backward(*slopes)
        return cost

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        gradient = gradients[0]
        if ctx.scale is not None:
            gradient = gradient * constant(ctx.scale, gradient)
            gradient = gradient[..., None, None] if gradient.ndim else gradient
        slopes = zip(ctx.saved_tensors, ctx.needs_input_grad[3:], strict=False)
        found = [slope * gradient if needed else None for slope, needed in slopes]
        return None, None, None, *found, *[None] * ctx.constants


def _total(cost: Tensor, scale: float) -> Tensor:
    """Return the sum over the batch of each head, times ``scale``: 1, or what makes it the mean."""
    total = cost.sum() if cost.ndim == 2 else cost.sum(dim=(-2, -1))
    return total if scale == 1.0 else total * constant(scale, total)


def _in_blocks(
    form: Form, scale: float | None, count: int, tensors: Sequence[Tensor], block: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the cost, of every entry or summed, and the slopes in ``count`` inputs, by blocks of rows."""
    like = tensors[0]
    step = max(1, block * like.shape[-2] // like.numel())
    total = torch.empty_like(like) if scale is None else like.new_zeros(like.shape[:-2])
    found = [*([total] if scale is None else []), *(torch.empty_like(like) for _ in range(count))]
    targets = zip(*(torch.split(values, step, dim=-2) for values in found), strict=True)
    for parts, results in zip(
        zip(*(torch.split(values, step, dim=-2) for values in tensors), strict=True), targets, strict=True
    ):
        values = form(*parts)
        if scale is not None:
            total.add_(_total(values[0], 1.0))
            values = values[1:]
        for target, part in zip(results, values, strict=True):
            target.copy_(part)
    return (total, found[1:]) if scale is None else (total.mul_(scale), found)


def with_gradient(logits: Tensor, cost: Tensor, gradient: Tensor) -> Tensor:
    """Return a cost ``(…)`` whose derivative in the logits ``(…, B, K)`` was computed along with it.

    Example:
        >>> x = torch.zeros(1, 1, requires_grad=True)
        >>> with_gradient(x, torch.tensor(3.0), torch.full((1, 1), 2.0)).backward()
        >>> x.grad
        tensor([[2.]])
    """
    result: Tensor = _WithGradient.apply(logits, cost, gradient)  # type: ignore[no-untyped-call]
    return result


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, cost: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return cost.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (gradient,), scale = ctx.saved_tensors, upstream[0]
        return gradient * (scale[..., None, None] if scale.ndim else scale), None, None


def refuse_second_derivative() -> None:
    """Raise ``InputError`` in a backward pass that builds a graph of its own (``create_graph=True``)."""
    if torch.is_grad_enabled():
        raise InputError(
            "a loss can be differentiated once: its first derivative is computed in closed form. For second "
            "derivatives (create_graph=True) take the formula of the method in labelgap.functional."
        )


def with_heads(logits: Tensor, *numbers: Number) -> Tensor:
    """Give logits ``(B, K)`` the leading axes of numbers that have one value per head.

    Example:
        >>> with_heads(torch.zeros(4, 5), 0.1, torch.tensor([0.1, 0.2])).shape
        torch.Size([2, 4, 5])
    """
    shapes = [number.shape for number in numbers if not isinstance(number, int | float)]
    if all(len(shape) <= logits.ndim - 2 for shape in shapes):
        return logits
    heads = torch.broadcast_shapes(logits.shape[:-2], *shapes)  # type: ignore[no-untyped-call]
    return logits.expand(*heads, *logits.shape[-2:])


def over_batch(value: Number, like: Tensor) -> Number:
    """Return a plain number as it is, and a tensor of shape ``(…)`` so that it broadcasts over its head's batch.

    Example:
        >>> over_batch(0.1, torch.zeros(2, 8, 20))
        0.1
    """
    return value if isinstance(value, int | float) else per_head(value, like)


def mask_of(labels: Tensor, like: Tensor, code: int = PRESENT) -> Tensor:
    """Return 1 where a label has a state and 0 elsewhere, in the float type of ``like``: faster than a mask.

    Example:
        >>> mask_of(torch.tensor([[1, 0, -1]]), torch.zeros(1))
        tensor([[1., 0., 0.]])
    """
    if labels.dtype == torch.int8:  # one call; of wider integers it is slower
        return torch.eq(labels, constant(code, labels), out=torch.empty_like(labels, dtype=like.dtype))
    return labels.to(like.dtype, copy=True).eq_(constant(code, like))


def linear(values: Tensor, slope: Number, offset: Number) -> Tensor:
    """Return ``slope · values + offset``, in one call for plain numbers on the CPU.

    Example:
        >>> linear(torch.tensor([1.0, 0.0]), 2.0, -1.0)
        tensor([ 1., -1.])
    """
    start = constant(offset, values)
    if isinstance(start, Tensor) and not isinstance(slope, Tensor):
        return torch.add(start, values, alpha=slope)
    return values * slope + start


def add_product(total: Tensor, first: Tensor, second: Tensor, factor: Number) -> Tensor:
    """Add ``first · second · factor`` in place; the factor is a plain number or broadcasts.

    Example:
        >>> add_product(torch.ones(1), torch.ones(1), torch.ones(1), 2.0)
        tensor([3.])
    """
    if isinstance(factor, Tensor):
        return total.addcmul_(first * factor, second)
    return total.addcmul_(first, second, value=factor)


def focused_form(
    logits: Tensor, gamma: Number, *, probability: Tensor | None = None, detach: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Return the focused log-likelihood g of a present label, and the derivative of its cost −g.

    .. math:: g = (1-p)^\gamma \ln p, \qquad -g' = (1-p)^\gamma \bigl(p - 1 + \gamma\,p \ln p\bigr),
        \quad -(1-p)^{\gamma+1} \text{ if the focus is detached}

    The cost is that of ``focused_cost``. ``gamma`` is a plain number or broadcasts over the logits. The logarithm is
    that of p, and x itself where p is too small for it. ``probability`` is p, where it is known.

    Example:
        >>> focused_form(torch.zeros(1), 2.0)
        (tensor([-0.1733]), tensor([-0.2983]))
    """
    probability = torch.sigmoid(logits) if probability is None else probability
    log, slope = _log(probability, logits), linear(probability, 1.0, -1.0)
    if equals(gamma, 0):
        return log, slope
    focus = slope.square() if equals(gamma, 2) else (log - logits).clamp_(max=0.0).mul_(gamma).exp_()
    if not detach:
        add_product(slope, probability, log, gamma)
    return log.mul_(focus), slope.mul_(focus)


def power_form(logits: Tensor, probability: Tensor, gamma: Number) -> Tensor:
    r"""Return :math:`p^\gamma`; ``gamma`` is a plain number or broadcasts over the logits.

    Example:
        >>> power_form(torch.zeros(1), torch.full((1,), 0.5), 4.0)
        tensor([0.0625])
    """
    if not isinstance(gamma, Tensor) and gamma in (0, 1, 2, 4):
        square = probability.square() if gamma > 1 else probability
        return torch.ones_like(probability) if gamma == 0 else square.square_() if gamma == 4 else square
    return log_probability(logits).mul_(gamma).exp_()


def log_probability(logits: Tensor) -> Tensor:
    r"""Return :math:`\ln p`, to the precision of p: with one exponential, and finite for logits of −10,000.

    Example:
        >>> log_probability(torch.tensor([0.0, -1e4]))
        tensor([-6.9315e-01, -1.0000e+04])
    """
    return _log(torch.sigmoid(logits), logits)


def _log(probability: Tensor, logits: Tensor) -> Tensor:
    return torch.minimum(probability.clamp(min=torch.finfo(logits.dtype).tiny).log_(), logits)
