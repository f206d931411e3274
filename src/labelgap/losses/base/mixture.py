r"""Costs that are a mixture of three: the cost of an entry as present, as absent, and its entropy.

Many methods differ only in the weights that they give to an entry by the state of its label:

.. math:: \ell = u_y\,(-\ln p) + v_y\,(-\ln(1-p)) + w_y\,H(p)

and perhaps in the number of positives that they expect of a batch, or in an estimate of the labels that is learned
along with the classifier. Such a method declares its ``Mixture`` once, in a ``MixtureLoss``: ``mixture_entries`` is its
element-wise formula. What computes it faster has the derivative in closed form: ``fused_mixture``, a kernel on large
batches, and the linear engine, which evaluates the heads of all such methods at once.

.. math:: \frac{d\ell}{dx} = (u_y + v_y)\,p - u_y - w_y\,x\,p\,(1-p)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelgap.losses.base.terms import (
    Number,
    cost_absent,
    cost_present,
    entropy,
    expected_positive_regularization,
    per_head,
    states,
    widen,
)

SOFTPLUS_THRESHOLD = 50.0
"""From here on ln(1 + eˣ) is x, even in float64."""

MixtureWeights = tuple[Number, Number, Number]
"""The weights u of −ln p, v of −ln(1 − p) and w of H(p); a tensor of shape ``(…)`` gives every head its own."""

AS_PRESENT: MixtureWeights = (1.0, 0.0, 0.0)
AS_ABSENT: MixtureWeights = (0.0, 1.0, 0.0)
IGNORED: MixtureWeights = (0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class LabelEstimate:
    """An estimate of the labels that is learned along with the classifier (`role`), with a cost of the same mixture.

    Each of the two teaches the other: where one gives a label the probability p, ``weight`` · p of the other's weight
    of −ln(1 − p) goes to −ln p. The teacher is a constant to the gradient.
    """

    logits: Tensor  # of every training image, (…, N, K), or of those of a batch, (…, B, K)
    weight: float  # how much of the weight the teacher distributes


class SoftTargets(NamedTuple):
    r"""Soft labels of some images, ``(B, K)`` each: an unknown label with the target t and the weight s costs

    .. math:: (1 - s)\,\ell + s\,\bigl(-t \ln p - (1-t) \ln(1-p)\bigr)

    where :math:`\ell` is its cost by the method. That is a mixture again.
    """

    target: Tensor
    weight: Tensor


@dataclass(frozen=True, eq=False)
class Mixture:
    """The weights of a mixture, by the state of the label."""

    unknown: MixtureWeights
    absent: MixtureWeights = AS_ABSENT
    present: MixtureWeights = AS_PRESENT
    modified: MixtureWeights | None = None  # of the loss's ``modified`` entries; None where the method modifies none
    expected_positives: Number | None = None  # per image of a batch (`epr`), (…); None where any number is accepted
    expected_weight: float = 1.0  # of the penalty for another number, relative to `epr`
    label_estimate: LabelEstimate | None = None  # what is learned along
    soft: SoftTargets | None = None  # of the images of a batch; not with an estimate

    @property
    def rows(self) -> tuple[MixtureWeights, ...]:
        """The weights of unknown, absent, present and modified entries."""
        return self.unknown, self.absent, self.present, self.unknown if self.modified is None else self.modified

    @cached_property
    def plain_rows(self) -> tuple[MixtureWeights, ...] | None:
        """The same, the modified ones where there are any, if all weights are plain numbers; else None."""
        rows = self.rows if self.modified is not None else self.rows[:3]
        return None if any(isinstance(weight, Tensor) for row in rows for weight in row) else rows

    @property
    def has_entropy(self) -> bool:
        """Whether any entry has a weight of H(p)."""
        return not all(is_plain(row[2], 0) for row in self.rows)

    def weights(self) -> Tensor:
        """Return the weights as ``(…, 4, 3)`` float64: of unknown, absent, present and modified entries."""
        numbers = [torch.as_tensor(weight, dtype=torch.float64).cpu() for row in self.rows for weight in row]
        stacked = torch.stack(torch.broadcast_tensors(*numbers), dim=-1)  # type: ignore[no-untyped-call]
        return stacked.reshape(*stacked.shape[:-1], 4, 3)


def is_plain(value: Number, number: float) -> bool:
    """Return whether a value is this plain number; a tensor never is."""
    return not isinstance(value, Tensor) and value == number


def mixture_entries(
    logits: Tensor, labels: Tensor, mixture: Mixture, *, modified: Tensor | None = None, eps: Number = 0.0
) -> Tensor:
    """Return the cost of every entry ``(…, B, K)`` of a batch under a mixture, in float32 or wider.

    The label estimate of the mixture, if any, has the rows of the batch; ``modified`` is the mask of modified entries,
    where it has weights for them. The penalty on the number of positives belongs to the batch and is on every entry.
    """
    logits = widen(logits)
    present, absent, unknown_mask = states(labels)

    def by_state(unknown: Number, *others: Number) -> Tensor:
        found = per_head(unknown, logits)
        for mask, value in zip((absent, present, modified), others, strict=True):
            same = isinstance(value, float) and is_plain(unknown, value)
            if mask is not None and not same:
                found = torch.where(mask, per_head(value, logits), found)
        return found

    as_present, as_absent, as_entropy = zip(*mixture.rows, strict=True)
    if mixture.soft is not None:
        target, share = (each.to(logits) for each in mixture.soft)
        share = share * unknown_mask
        u, v = torch.lerp(by_state(*as_present), target, share), torch.lerp(by_state(*as_absent), 1 - target, share)
        cost = u * cost_present(logits, eps) + v * cost_absent(logits, eps)
        if mixture.has_entropy:
            cost = cost + (1 - share) * by_state(*as_entropy) * entropy(logits, eps=eps)
        return cost + _expected_positives_penalty(logits, mixture)
    estimate = mixture.label_estimate
    if estimate is not None:
        u, v = by_state(*as_present), by_state(*as_absent)
        cost = torch.zeros_like(logits)
        for student, teacher in ((logits, estimate.logits), (estimate.logits, logits)):
            taught = estimate.weight * torch.sigmoid(teacher).detach()
            cost = cost + (u + taught) * cost_present(student, eps) + (v - taught) * cost_absent(student, eps)
            cost = cost + _expected_positives_penalty(student, mixture)
        return cost
    if all(is_plain(u, 0) or is_plain(v, 0) for u, v, _ in mixture.rows):  # one logarithm an entry
        side = by_state(*(-1.0 if is_plain(u, 0) else 1.0 for u in as_present))
        weight = by_state(*(v if is_plain(u, 0) else u for u, v, _ in mixture.rows))
        cost = weight * cost_present(side * logits, eps)
    else:
        cost = by_state(*as_present) * cost_present(logits, eps) + by_state(*as_absent) * cost_absent(logits, eps)
    if mixture.has_entropy:
        cost = cost + by_state(*as_entropy) * entropy(logits, eps=eps)
    return cost + _expected_positives_penalty(logits, mixture)


def _expected_positives_penalty(logits: Tensor, mixture: Mixture) -> Number:
    """Return the penalty on the number of positives, ``(…, 1, 1)``."""
    if mixture.expected_positives is None:
        return 0.0
    penalty = expected_positive_regularization(torch.sigmoid(logits), mixture.expected_positives)
    return mixture.expected_weight * penalty[..., None, None]


def mixture_cost(
    logits: Tensor, probability: Tensor, both: Tensor, minus_present: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mix the costs of present and absent, :math:`u\,(-\ln p) + v\,(-\ln(1-p)) = (u + v)(-\ln(1-p)) - u\,x`.

    Takes x, p, ``both`` = u + v and −u, all of one shape; returns the cost, its derivative in x, and −ln(1 − p).
    """
    absent = softplus(logits, threshold=SOFTPLUS_THRESHOLD)
    cost = torch.addcmul(both * absent, minus_present, logits)
    return cost, torch.addcmul(minus_present, both, probability), absent


def entropy_cost(logits: Tensor, weight: Tensor, probability: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`w\,H(p)` and its derivative :math:`-w\,x\,p\,(1-p)`; ``absent`` is −ln(1 − p)."""
    slope = -weight * logits * probability
    return torch.addcmul(slope, weight, absent), torch.addcmul(slope, slope, probability, value=-1.0)
