r"""Mixtures with their derivative in closed form, block by block (see ``labelgap.losses.base.fused``).

.. math:: \ell = u\,(-\ln p) + v\,(-\ln(1-p)) + w\,H(p) = (u+v)\,\lambda + (u+v) \max(x, 0) - u\,x + w\,H(p)

.. math:: H(p) = \lambda + |x|\,t, \quad t = \sigma(-|x|), \qquad
    \frac{d\ell}{dx} = (u+v)\,p - u - w\,x\,t\,(1-t)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labelgap.core.distributed import all_sum, world_size
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.losses.base.fused import (
    Form,
    Fused,
    fused,
    is_fusible,
    mask_of,
    over_batch,
    refuse_second_derivative,
    with_heads,
)
from labelgap.losses.base.mixture import Mixture, mixture_entries
from labelgap.losses.base.terms import Number, reduce, widen

__all__ = ["fused_mixture", "mixed"]


def fused_mixture(
    logits: Tensor,
    labels: Tensor,
    mixture: Mixture,
    *,
    modified: Tensor | None = None,
    eps: Number = 0.0,
    reduction: str = "none",
) -> Tensor:
    """Return what ``mixture_entries`` returns, reduced and faster; entries that are ``modified`` are unknown.

    Example:
        >>> fused_mixture(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), Mixture(unknown=(0.0, 0.5, 0.0)))
        tensor([[0.6931, 0.6931, 0.3466]])
    """
    if not is_fusible(eps):
        return reduce(mixture_entries(logits, labels, mixture, modified=modified, eps=eps), reduction)
    expected = 0.0 if mixture.expected_positives is None else mixture.expected_positives
    logits = with_heads(widen(logits), expected, *(weight for row in mixture.rows for weight in row))
    constants = [labels] if modified is None else [labels, modified]
    estimate = mixture.label_estimate
    form = _form(mixture, logits) if estimate is None else _estimate_form(mixture, logits)
    inputs = [logits] if estimate is None else [logits, estimate.logits]
    cost = fused(Fused(form, inputs, constants), reduction)
    if mixture.expected_positives is None:
        return cost
    penalty: Tensor = _ExpectedPositives.apply(mixture, *inputs)  # type: ignore[no-untyped-call]
    if reduction == "none":
        return cost + penalty[..., None, None]
    entries = logits.shape[-2] * logits.shape[-1]
    return cost + (penalty if reduction == "mean" else penalty * all_sum(penalty.new_full((), entries)))


class _ExpectedPositives(torch.autograd.Function):
    r"""The penalties on the number of positives of all inputs, with P positives per image of the global batch.

    .. math:: R = w \Bigl( \frac{P - \kappa}{K} \Bigr)^2, \qquad
        \frac{dR}{dx} = \frac{2 w}{B K} \cdot \frac{P - \kappa}{K}\, p\,(1-p)
    """

    @staticmethod
    def forward(ctx: Any, mixture: Mixture, *inputs: Tensor) -> Tensor:
        rows, classes = inputs[0].shape[-2:]
        probabilities = [torch.sigmoid(values) for values in inputs]
        positives = all_sum(torch.stack([p.sum(dim=(-2, -1)) for p in probabilities]))
        ctx.alone = world_size() == 1  # backward passes on a GPU run in a thread without the context of single_process
        images = max(rows, 1) if ctx.alone else all_sum(positives.new_full((), rows)).clamp(min=1)
        expected, weight = mixture.expected_positives, 0.0 if ctx.alone and not rows else mixture.expected_weight
        assert expected is not None
        expected = expected.to(positives.dtype) if isinstance(expected, Tensor) else expected
        excess = (positives / images - expected) / classes
        ctx.save_for_backward(excess * (2.0 * weight / classes) / images, *probabilities)
        return excess.square().sum(dim=0) * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        factors, *probabilities = ctx.saved_tensors
        factors = factors * gradients[0]
        factors = (factors if ctx.alone else all_sum(factors))[..., None, None]
        pairs = zip(factors, probabilities, strict=True)
        return None, *(torch.addcmul(p, p, p, value=-1.0).mul_(factor) for factor, p in pairs)


def mixed(
    logits: Tensor, both: Number, present: Number, entropy: Number = 0.0, *, probability: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the cost of a block and its derivative in the logits, as new tensors.

    Args:
        logits: x
        both: u + v; like the next two, a plain number or what broadcasts over the logits.
        present: u
        entropy: w
        probability: p, where it is known; it is not overwritten.

    Example:
        >>> mixed(torch.zeros(1), 1.0, 0.0)
        (tensor([0.6931]), tensor([0.5000]))
    """
    minus = logits.abs().neg_()
    small = minus.exp()
    log = small.log1p()
    has_entropy = isinstance(entropy, Tensor) or entropy != 0
    total = small + 1.0 if has_entropy or probability is None else small
    if probability is None:
        p = torch.maximum(small, logits.sign()).div_(total)  # e^min(x, 0) / (1 + e^-|x|), accurate for both signs
    slope = _times(p, both) if probability is None else probability * both
    cost = _times(logits.clamp(min=0.0), both)
    if isinstance(present, Tensor) or present:
        slope, cost = slope.sub_(present), _add(cost, logits, present, -1.0)
    cost = _add(cost, log, both)  # last: a present label with a high logit costs little, but not nothing
    if has_entropy:
        tail = small.div_(total)
        _add(cost, log.addcmul_(minus, tail, value=-1.0), entropy)
        _add(slope, tail.addcmul_(tail, tail, value=-1.0).mul_(logits), entropy, -1.0)
    return cost, slope


def _times(values: Tensor, factor: Number) -> Tensor:
    """Multiply in place."""
    return values if not isinstance(factor, Tensor) and factor == 1.0 else values.mul_(factor)


def _add(total: Tensor, values: Tensor, factor: Number, sign: float = 1.0) -> Tensor:
    """Add values times a factor, in place."""
    if isinstance(factor, Tensor):
        return total.addcmul_(values, factor, value=sign)
    return total.add_(values, alpha=sign * factor)


class _States:
    """The weights of a block's entries by the state of their labels; masks are made once, if needed."""

    def __init__(self, like: Tensor, labels: Tensor, modified: Tensor | None) -> None:
        self.like, self.labels, self.modified = like, labels, modified
        self.masks: dict[int, Tensor] = {}

    def mask(self, number: int) -> Tensor:
        """Return where a label is absent (1), present (2) or modified (3), as floats."""
        if number not in self.masks:
            if number == 3:
                assert self.modified is not None
                self.masks[3] = self.modified.view(torch.uint8).to(self.like.dtype)
            else:
                self.masks[number] = mask_of(self.labels, self.like, (ABSENT, PRESENT)[number - 1])
        return self.masks[number]

    def weights(self, values: tuple[Number, ...]) -> Number:
        """Return the weight of every entry out of those of unknown, absent, present and modified ones."""
        unknown = found = values[0]
        for number, value in enumerate(values[1:], start=1):
            difference = value - unknown
            if (number == 3 and self.modified is None) or (not isinstance(difference, Tensor) and difference == 0):
                continue
            mask = self.mask(number)
            if isinstance(found, Tensor) and not isinstance(difference, Tensor):
                found = torch.add(found, mask, alpha=difference)
            else:
                share = mask if not isinstance(difference, Tensor) and difference == 1.0 else mask * difference
                found = share if not isinstance(found, Tensor) and found == 0.0 else share.add(found)
        return found


def _columns(mixture: Mixture, like: Tensor) -> tuple[tuple[Number, ...], ...]:
    """Return the weights u + v, u and w, each of unknown, absent, present and modified entries."""
    rows = [(u + v, u, w) for u, v, w in mixture.rows]
    numbers = [[over_batch(value, like) for value in row] for row in rows]
    return tuple(zip(*numbers, strict=True))


def _form(mixture: Mixture, like: Tensor) -> Form:
    columns = _columns(mixture, like)

    def form(logits: Tensor, labels: Tensor, modified: Tensor | None = None) -> tuple[Tensor, ...]:
        states = _States(logits, labels, modified)
        both, present, entropy = (states.weights(values) for values in columns)
        return mixed(logits, both, present, entropy)

    return form


def _estimate_form(mixture: Mixture, like: Tensor) -> Form:
    """Classifier and estimate teach each other: ``weight`` times the teacher's p is added to u and taken from v."""
    assert mixture.label_estimate is not None
    (both_values, present_values, _), weight = _columns(mixture, like), mixture.label_estimate.weight

    def form(logits: Tensor, estimate: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        states = _States(logits, labels, None)
        both, present = states.weights(both_values), states.weights(present_values)
        p, q = torch.sigmoid(logits), torch.sigmoid(estimate)
        cost, slope = mixed(logits, both, q * weight + present, probability=p)
        other_cost, other_slope = mixed(estimate, both, p * weight + present, probability=q)
        return cost.add_(other_cost), slope, other_slope

    return form
