"""Two-way multi-label loss (Kobayashi, "Two-way Multi-Label Loss", CVPR 2023).

A softmax contrasts the one positive of an image with its negatives. With several positives, contrast the hardest of
both: within each image over the classes, and within each class over the images of the batch. Together they train what
the mAP over samples and the mAP over classes measure.
"""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelgap.core.distributed import all_max, all_sum
from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.losses.base.fused import CLASSES, IMAGES, fused_contrasts, is_fusible
from labelgap.losses.base.loss import Loss, MultiHead
from labelgap.losses.base.terms import Number, check_choice, check_number, has_state


def positives_and_negatives(labels: Tensor, unknown: str) -> tuple[Tensor, Tensor]:
    """Return the masks of positives and negatives; ``unknown`` entries are in neither ("ignore"), or "negative"."""
    present = has_state(labels, PRESENT)
    return present, ~present if unknown == "negative" else has_state(labels, ABSENT)


def masked_logsumexp(values: Tensor, mask: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return ``ln Σ exp`` over the masked entries along an axis, and whether there were any.

    Where there are none the value is 0 and carries no gradient. Along the axis of images, −2, the sum is over the
    global batch.
    """
    everywhere = axis == IMAGES
    masked = torch.where(mask, values, -torch.inf).detach()
    top = masked.amax(dim=axis) if masked.shape[axis] else masked.new_full(masked.sum(dim=axis).shape, -torch.inf)
    top = all_max(top) if everywhere else top
    found = top != -torch.inf  # NaN is found
    top = torch.where(found, top, 0.0)
    total = torch.exp(torch.where(mask, values - top.unsqueeze(axis), -torch.inf)).sum(dim=axis)
    total = all_sum(total) if everywhere else total
    return torch.where(found, torch.log(torch.where(found, total, 1.0)) + top, 0.0), found


def contrast(
    logits: Tensor,
    positive: Tensor,
    negative: Tensor,
    axis: int,
    *,
    temperature_pos: Number = 4.0,
    temperature_neg: Number = 1.0,
    bias: Number = 0.0,
) -> tuple[Tensor, Tensor]:
    r"""Contrast the hardest positives with the hardest negatives along an axis.

    .. math:: \ell = \operatorname{softplus}\bigl( T_N \ln \sum_{n} e^{x_n / T_N} + T_P \ln \sum_{p} e^{-x_p / T_P}
        + \varepsilon \bigr)

    What is in neither of the masks ``(…, B, K)``, as unknown labels are by default, stays out of both sums. ``axis`` is
    −1 over the classes of each image, −2 over the images of each class, of the global batch. Returns the cost, of shape
    ``(…, B)`` or ``(…, K)`` and 0 where there is no pair, and where there was a positive.

    Example:
        >>> logits, present = torch.zeros(1, 2), torch.tensor([[True, False]])
        >>> contrast(logits, present, ~present, axis=-1, temperature_pos=1.0)
        (tensor([0.6931]), tensor([True]))
    """
    t_pos, t_neg, margin = (_number(value, logits) for value in (temperature_pos, temperature_neg, bias))
    hard_neg, any_neg = masked_logsumexp(logits / t_neg[..., None], negative, axis)
    hard_pos, any_pos = masked_logsumexp(-logits / t_pos[..., None], positive, axis)
    gap = t_neg * hard_neg + t_pos * hard_pos + margin
    return torch.where(any_neg & any_pos, -logsigmoid(-gap), 0.0), any_pos


def softmax_cross_entropy(logits: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    r"""Cross-entropy of a softmax over the classes, the target spread evenly over an image's positives.

    .. math:: \ell = \ln \sum_{c \in P \cup N} e^{x_c} - \frac1{|P|} \sum_{p \in P} x_p

    P and N are the masks ``positive`` and ``negative``, ``(…, B, K)``; what is in neither stays out of the softmax.
    Returns the cost ``(…, B)``, 0 for an image without positives and NaN for one with a logit that is NaN, wherever it
    stands, and where there was a positive.
    """
    everything, _ = masked_logsumexp(logits, positive | negative, CLASSES)
    count = positive.sum(dim=-1)
    shortfall = torch.where(positive, everything[..., None] - logits, 0.0).sum(dim=-1)
    cost = torch.where(logits.isnan().any(dim=-1), torch.nan, shortfall / count.clamp(min=1))
    return cost, count > 0


def mean_where(cost: Tensor, counted: Tensor, reduction: str, *, everywhere: bool) -> Tensor:
    """Average the costs that count, or add them up; ``everywhere`` when each process has its own part of them."""
    total, count = cost.sum(dim=-1), counted.sum(dim=-1)
    if everywhere:
        total, count = all_sum(total), all_sum(count)
    return total if reduction == "sum" else total / count.clamp(min=1)


class PairLoss(MultiHead, Loss, ABC):
    """A loss that compares the positives of a batch with its negatives. Abstract.

    Denominator: the images of the global batch that have a positive.

    Args:
        unknown: "negative": unknown labels count as absent; "ignore": they are in no pair, and cost nothing.
        reduction: "mean" or "sum"; the mean is over the images (and classes) that count.
    """

    def __init__(self, unknown: str = "negative", reduction: str = "mean") -> None:
        super().__init__()
        self.unknown = check_choice("unknown", unknown, ("negative", "ignore"))
        self.reduction = check_choice("reduction", reduction, ("mean", "sum"))


class ContrastLoss(PairLoss, ABC):
    """The two-way family: contrasts positives with negatives along ``axes``. Abstract.

    Denominator: within images, those that have a positive; within classes, those that have one in the global batch.

    Args:
        temperature_pos: ``T_P``, how many of the hard positives count.
        temperature_neg: ``T_N``, how many of the hard negatives count.
        bias: ``ε``, a margin.
        reduction: "mean" over the images (and classes) that have a positive, or "sum".
    """

    batch_dependent = True
    axes: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        temperature_pos: Number = 4.0,
        temperature_neg: Number = 1.0,
        bias: Number = 0.0,
        unknown: str = "ignore",
        reduction: str = "mean",
    ) -> None:
        super().__init__(unknown, reduction)
        self.temperature_pos = check_number("temperature_pos", temperature_pos, 0, above=True)
        self.temperature_neg = check_number("temperature_neg", temperature_neg, 0, above=True)
        self.bias = check_number("bias", bias)

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Raise ``InputError`` where there is nothing to contrast with."""
        super().prepare(table, epochs, seed)
        if self.unknown == "ignore" and not table.counts().total[1]:
            raise InputError(
                f"'{self.name}' contrasts positives with negatives, and no label is known to be absent: there is "
                'nothing to learn. Take unknown labels as negatives: unknown="negative", --option unknown=negative.'
            )

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Add ``contrast`` along all ``axes``."""
        positive, negative = positives_and_negatives(labels, self.unknown)
        numbers = self.temperature_pos, self.temperature_neg, self.bias
        if is_fusible(0.0):
            return fused_contrasts(logits, (positive, negative), self.axes, numbers, self.reduction)
        options = self.options("temperature_pos", "temperature_neg", "bias")
        costs = [contrast(logits, positive, negative, axis, **options) for axis in self.axes]
        parts = [
            mean_where(cost, counted, self.reduction, everywhere=axis == CLASSES)
            for axis, (cost, counted) in zip(self.axes, costs, strict=True)
        ]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


class TwoWayLoss(ContrastLoss):
    """``contrast`` over the classes of each image, plus over the images of each class; final. See ``ContrastLoss``."""

    axes = (CLASSES, IMAGES)


class TwoWaySampleLoss(ContrastLoss):
    """``contrast`` over the classes of each image; final. See ``ContrastLoss``."""

    axes = (CLASSES,)


class TwoWayClassLoss(ContrastLoss):
    """``contrast`` over the images of each class, of the global batch; final. See ``ContrastLoss``."""

    axes = (IMAGES,)


class SoftmaxCrossEntropy(PairLoss):
    """Mean of ``softmax_cross_entropy`` over the images with a positive; final. Options: see ``PairLoss``."""

    batch_dependent = True

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """See ``softmax_cross_entropy``."""
        cost, counted = softmax_cross_entropy(logits, *positives_and_negatives(labels, self.unknown))
        return mean_where(cost, counted, self.reduction, everywhere=True)


def _number(value: Number, like: Tensor) -> Tensor:
    """Give a number of shape ``(…)`` one axis more, so that it broadcasts over images or classes."""
    return value.to(like.dtype)[..., None] if isinstance(value, Tensor) else like.new_full((1,), value)
