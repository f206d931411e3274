r"""Log-sums of exponentials of positives and negatives along several axes, with their derivative in closed form.

An entry is a positive, a negative or neither, so one exponential per entry and axis serves both sums:

.. math:: S_P = \sum_p e^{-x_p/T_P - m_P}, \quad S_N = \sum_n e^{x_n/T_N - m_N}, \qquad
    \frac{dS_P}{dx_p} = -\frac{e^{-x_p/T_P - m_P}}{T_P}, \quad \frac{dS_N}{dx_n} = \frac{e^{x_n/T_N - m_N}}{T_N}

where m is the largest exponent. One buffer as large as the logits is kept, the exponents; the exponentials are computed
again in the backward pass.

Where the logits of a batch lie so close together that no exponential underflows, one exponential per entry serves all
axes, and ``close_contrasts`` has cost and derivative of the two-way losses in closed form, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus, threshold

from labelgap.core.distributed import all_max, all_sum, world_size
from labelgap.losses.base.fused import linear, over_batch, refuse_second_derivative, with_gradient
from labelgap.losses.base.mixture import SOFTPLUS_THRESHOLD
from labelgap.losses.base.terms import LOWEST, Number, on_host, only_where

IMAGES = -2
LEAST_EXPONENT: Final = -87.0
NEGLIGIBLE: Final = 1e-37
"""Above e to the ``LEAST_EXPONENT``, which is just above the smallest normal float32."""
CLOSE: Final = 80.0
"""Exponents that differ by less have exponentials, and sums of them, that float32 holds."""


class LogSums(NamedTuple):
    """Log-sums of positives and of negatives along all axes, one axis behind the other, ``(…, L)``.

    Attributes:
        positive: 0 where there is no positive.
        negative: 0 where there is no negative.
        any_positive: mask.
        any_negative: mask.
    """

    positive: Tensor
    negative: Tensor
    any_positive: Tensor
    any_negative: Tensor


def log_sums(
    logits: Tensor, positive: Tensor, negative: Tensor, axes: Sequence[int], t_pos: Number, t_neg: Number
) -> LogSums:
    r"""Return :math:`\ln \sum_p e^{-x_p/T_P}` and :math:`\ln \sum_n e^{x_n/T_N}` along each axis.

    Args:
        logits: ``(…, B, K)``
        positive: ``(…, B, K)`` mask.
        negative: ``(…, B, K)`` mask, of other entries.
        axes: −1 over the classes of each image, −2 over the images of each class, of the global batch.
        t_pos: ``T_P``.
        t_neg: ``T_N``.

    Example:
        >>> present = torch.tensor([[True, False, False]])
        >>> log_sums(torch.zeros(1, 3), present, ~present, [-1], 4.0, 1.0).negative
        tensor([0.6931])
    """
    with torch.no_grad():
        slope_pos, slope_neg = -1.0 / over_batch(t_pos, logits), 1.0 / over_batch(t_neg, logits)
        of_negatives = only_where(negative, logits * slope_neg)
        of_positives = only_where(positive, logits * slope_pos)
        tops = torch.stack([_largest(of_positives, axes), _largest(of_negatives, axes)])
        found = ~(tops <= LOWEST / 2)  # NaN is found
        tops = torch.where(found, tops, 0.0)
        exponents, mask = torch.maximum(of_negatives, of_positives), positive.view(torch.uint8).to(logits.dtype)
    constants = (exponents, mask, slope_pos, slope_neg, axes, tops)
    sums: Tensor = _ExpSums.apply(logits, *constants)  # type: ignore[no-untyped-call]
    if world_size() > 1:
        parts = zip(split_axes(sums, logits, axes), axes, strict=True)
        sums = torch.cat([all_sum(part) if axis == IMAGES else part for part, axis in parts], dim=-1)
    logs = torch.where(found, sums, 1.0).log() + tops
    return LogSums(*logs.unbind(0), *found.unbind(0))


def close_contrasts(
    logits: Tensor,
    positive: Tensor,
    negative: Tensor,
    axes: Sequence[int],
    t_pos: Number,
    t_neg: Number,
    bias: Number,
    reduction: str,
) -> Tensor | None:
    r"""Return the sum over axes of the mean contrast; None for several heads, or logits not close or not on the host.

    With exponents relative to the highest and the lowest logit, an image or a class has the gap
    :math:`g = T_N \ln S_N + T_P \ln S_P + x_{max} - x_{min} + \varepsilon`; a is 1 over the number of those that have a
    positive:

    .. math:: \ell = \sum_g a\,\ln(1 + e^g), \qquad \frac{d\ell}{dx_n} = \sum_{g \ni n} a\,\sigma(g)
        \frac{e^{(x_n - x_{max})/T_N}}{S_N}, \quad
        \frac{d\ell}{dx_p} = -\sum_{g \ni p} a\,\sigma(g) \frac{e^{(x_{min} - x_p)/T_P}}{S_P}

    Arguments: see ``log_sums``; ``bias`` is ε and ``reduction`` "mean" or "sum", with a = 1.

    Example:
        >>> present = torch.tensor([[True, False]])
        >>> close_contrasts(torch.zeros(1, 2), present, ~present, [-1], 4.0, 1.0, 0.0, "mean")
        tensor(0.6931)
    """
    several = logits.ndim > 2 or any(isinstance(number, Tensor) for number in (t_pos, t_neg, bias))
    if several or not logits.numel() or not on_host(logits):
        return None
    x = logits.detach()
    low, high = (float(end) for end in x.aminmax())
    if world_size() > 1 or not (high - low) / min(t_pos, t_neg) < CLOSE:
        return None
    with torch.no_grad():
        is_pos, is_neg = (mask.view(torch.uint8).to(x.dtype) for mask in (positive, negative))
        start = linear(is_pos, low / t_pos + high / t_neg, x.new_full((), -high / float(t_neg)))
        weights = torch.addcmul(start, x, linear(is_pos, -1.0 / t_pos - 1.0 / t_neg, 1.0 / t_neg)).exp_()
        of_pos, of_neg = weights * is_pos, weights.mul_(is_neg)
        cost: Number = 0.0
        shares: list[Number] = [0.0, 0.0]
        for axis in axes:
            sums = [part.sum(dim=axis, keepdim=True) for part in (of_pos, of_neg)]
            found, least = sums[0] > 0, torch.finfo(x.dtype).tiny
            counts = (found & (sums[1] > 0)).to(x.dtype)
            sum_pos, sum_neg = (part.clamp_(min=least) for part in sums)
            gap = (sum_neg.log() * t_neg).add_(sum_pos.log(), alpha=float(t_pos)).add_(high - low + bias)
            if reduction == "mean":
                counts = counts / found.sum().clamp(min=1)
            cost = cost + (softplus(gap, threshold=SOFTPLUS_THRESHOLD) * counts).sum()
            pull = gap.sigmoid_() * counts
            shares = [share + pull / part for share, part in zip(shares, (sum_pos, sum_neg), strict=True)]
        gradient = of_neg.mul_(shares[1]).sub_(of_pos.mul_(shares[0]))
    assert isinstance(cost, Tensor)
    return with_gradient(logits, cost, gradient)


def split_axes(values: Tensor, like: Tensor, axes: Sequence[int]) -> tuple[Tensor, ...]:
    """Divide what has all sums of the logits ``like``, ``(…, L)``, into those along each axis."""
    lengths = [like.shape[-1] if axis == IMAGES else like.shape[-2] for axis in axes]
    parts: tuple[Tensor, ...] = torch.split(values, lengths, dim=-1)
    return parts


def _largest(values: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the largest values along all axes, ``(…, L)``; −∞ where there are none."""
    found = []
    for axis in axes:
        empty = not values.shape[axis]
        top = values.new_full(values.sum(dim=axis).shape, -torch.inf) if empty else values.amax(dim=axis)
        found.append(all_max(top) if axis == IMAGES else top)
    return torch.cat(found, dim=-1)


class _ExpSums(torch.autograd.Function):
    """Returns the sums of positives and negatives, ``(2, …, L)``, from the largest exponents of the same shape."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        exponents: Tensor,
        positive: Tensor,
        slope_pos: Number,
        slope_neg: Number,
        axes: Sequence[int],
        tops: Tensor,
    ) -> Tensor:
        ctx.axes, ctx.slopes = axes, (slope_pos, slope_neg)
        ctx.save_for_backward(exponents, positive, tops)
        sums: tuple[list[Tensor], list[Tensor]] = ([], [])
        for axis, (top_pos, top_neg) in zip(axes, _along(tops, exponents, axes), strict=True):
            weights = _weights(exponents, positive, top_pos, top_neg)
            of_positives = weights * positive
            sums[0].append(of_positives.sum(dim=axis))
            sums[1].append(weights.sub_(of_positives).sum(dim=axis))
        return torch.stack([torch.cat(parts, dim=-1) for parts in sums])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (exponents, positive, tops), (slope_pos, slope_neg) = ctx.saved_tensors, ctx.slopes
        result: Tensor | None = None
        both = zip(_along(tops, exponents, ctx.axes), _along(gradients[0], exponents, ctx.axes), strict=True)
        for (top_pos, top_neg), (pos, neg) in both:
            weights = _weights(exponents, positive, top_pos, top_neg)
            weights.mul_(torch.lerp(neg * slope_neg, pos * slope_pos, positive))
            result = weights if result is None else result.add_(weights)
        return result, None, None, None, None, None, None


def _along(values: Tensor, like: Tensor, axes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Return ``(2, …, L)`` as two tensors for each axis that broadcast over the logits."""
    parts = zip(split_axes(values, like, axes), axes, strict=True)
    return [part.unsqueeze(axis).unbind(0) for part, axis in parts]


def _weights(exponents: Tensor, positive: Tensor, top_pos: Tensor, top_neg: Tensor) -> Tensor:
    """Return e to the exponents, less the largest of their side; 0 where it is less than ``NEGLIGIBLE`` of it.

    On x86 an exponential that underflows takes 30 to 80 times as long as another, and masked entries all do.
    """
    differences = torch.sub(exponents, torch.lerp(top_neg, top_pos, positive))
    return threshold(differences.clamp_(min=LEAST_EXPONENT).exp_(), NEGLIGIBLE, 0.0, inplace=True)
