"""The baselines of Zhou et al. (ECCV 2022): the ways in which assume negative had been softened before.

Assumed negatives may count little (`dw`), have a soft target (`n-ls`, or `ls` with known labels softened as well) or
count the less the easier they are (`focal`); or the network may be kept from fitting them by a price on its own weights
(`l1r`, `l2r`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from labelgap.labels import LabelTable
from labelgap.losses.assume_negative import (
    SmoothedAssumeNegative,
    assume_negative,
    ignore_unknown,
    weak_assume_negative,
)
from labelgap.losses.base import ElementwiseLoss
from labelgap.losses.mixture import AS_ABSENT, Mixture, is_exact, make_mixture
from labelgap.losses.option_checks import check_number
from labelgap.losses.registry import method
from labelgap.losses.terms import Number, cost_absent, cost_present, cross_entropy, per_head, states, widen

__all__ = [
    "DownWeighting",
    "FocalLoss",
    "L1Penalty",
    "L2Penalty",
    "SmoothedUnknown",
    "WeightPenalty",
    "focal",
    "smoothed_unknown",
]

PAPER = "Zhou 2022"


def smoothed_unknown(logits: Tensor, labels: Tensor, *, smoothing: Number, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when an unknown label has the target ``s`` and known ones are not smoothed.

    .. math:: \ell = [y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p)) + [y=?]\,(-s \ln p - (1-s) \ln(1-p))

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        smoothing: ``s``; a tensor of shape ``(…)`` gives every head its own.
        eps: added inside the logarithm.

    Returns:
        ``(…, B, K)``, not reduced.

    Unknown labels have the target ``s``; ``s = 0`` takes them as absent.

    Example:
        >>> smoothed_unknown(torch.tensor([[2.0, 2.0]]), torch.tensor([[1, -1]]), smoothing=0.5)
        tensor([[0.1269, 1.1269]])
    """
    soft = cross_entropy(logits, per_head(smoothing, widen(logits)), eps)
    return ignore_unknown(logits, labels, eps=eps) + states(labels).unknown * soft


def focal(logits: Tensor, labels: Tensor, *, alpha: Number = 0.75, gamma: Number = 2.0, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when what is easy counts little, and an unknown label counts as absent.

    .. math:: \ell = [y=1]\,\alpha\,(1-p)^\gamma (-\ln p) + [y \ne 1]\,(1-\alpha)\,p^\gamma (-\ln(1-p))

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        alpha: weight of the positives; like ``gamma``, a tensor of shape ``(…)`` gives every head its own.
        gamma: how little the easy ones count; 0 is weighted cross-entropy.
        eps: added inside the logarithm.

    Returns:
        ``(…, B, K)``, not reduced.

    Unknown labels are taken as absent. The gradient flows through the focusing weights.

    Example:
        >>> focal(torch.zeros(1, 2), torch.tensor([[1, -1]]))
        tensor([[0.1300, 0.0433]])
    """
    logits = widen(logits)
    present = states(labels).present
    alpha, gamma = per_head(alpha, logits), per_head(gamma, logits)
    on_present = alpha * torch.exp(-gamma * cost_absent(logits)) * cost_present(logits, eps)
    on_rest = (1.0 - alpha) * torch.exp(-gamma * cost_present(logits)) * cost_absent(logits, eps)
    return torch.where(present, on_present, on_rest)


@method("dw", paper=PAPER, summary="down-weighting: assumed negatives count little")
class DownWeighting(ElementwiseLoss):
    """Assume negative, assumed negatives times ``weight``; final. See ``weak_assume_negative``.

    Args:
        weight: of an assumed negative.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    weight: Number
    eps: Number

    def __init__(self, weight: Number = 0.1, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(weight=check_number("weight", weight, 0), eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``weak_assume_negative``."""
        return weak_assume_negative(logits, labels, weight=self.weight, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Unknown labels as absent, weakly."""
        return make_mixture(unknown=(0.0, self.weight, 0.0)) if is_exact(self.eps) else None


@method("n-ls", paper=PAPER, summary="assume negative, only assumed negatives smoothed")
class SmoothedUnknown(ElementwiseLoss):
    """Known labels as they are, unknown ones with a soft target; final. See ``smoothed_unknown``.

    Args:
        smoothing: the target of an unknown label.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    smoothing: Number
    eps: Number

    def __init__(self, smoothing: Number = 0.1, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(smoothing=check_number("smoothing", smoothing, 0, 1), eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``smoothed_unknown``."""
        return smoothed_unknown(logits, labels, smoothing=self.smoothing, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Unknown labels with a soft target."""
        return make_mixture(unknown=(self.smoothing, 1.0 - self.smoothing, 0.0)) if is_exact(self.eps) else None


@method("focal", paper="Lin 2017", summary="focal loss: what is easy counts little; unknown counts as absent")
class FocalLoss(ElementwiseLoss):
    """Mean of ``focal``; final.

    Args:
        gamma: how little the easy ones count.
        alpha: weight of the positives.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    gamma: Number
    alpha: Number
    eps: Number

    def __init__(self, gamma: Number = 2.0, alpha: Number = 0.75, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(
            gamma=check_number("gamma", gamma, 0),
            alpha=check_number("alpha", alpha, 0, 1),
            eps=check_number("eps", eps, 0, 1),
        )

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``focal``."""
        return focal(logits, labels, alpha=self.alpha, gamma=self.gamma, eps=self.eps)


class WeightPenalty(ElementwiseLoss, ABC):
    """Assume negative, and a price on the weights of the network themselves, which the loop adds. Abstract.

    Args:
        weight: of the penalty; a tensor of shape ``(…)`` gives every head its own.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    needs = frozenset({"penalty"})
    weight: Number
    eps: Number

    def __init__(self, weight: Number = 1e-6, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(weight=check_number("weight", weight, 0), eps=check_number("eps", eps, 0, 1))
        self.heads = 0

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0, heads: tuple[int, ...] = ()) -> None:
        """Learn how many leading axes of every parameter count the heads."""
        super().prepare(table, epochs, seed, heads)
        self.heads = len(heads)

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``assume_negative``."""
        return assume_negative(logits, labels, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Unknown labels as absent; the price of the weights comes on top."""
        return make_mixture(unknown=AS_ABSENT) if is_exact(self.eps) else None

    @abstractmethod
    def size(self, values: Tensor) -> Tensor:
        """Return what every single weight costs."""

    def penalty(self, parameters: Iterable[Tensor]) -> Number:
        """Return the sizes of all weights, added up and times ``weight``.

        Args:
            parameters: of the network; when many heads are trained at once their axes come first, ``(…, *shape)``.

        Returns:
            ``(…)``, what each head's own weights cost.
        """
        heads = max(self.heads, self.weight.ndim if isinstance(self.weight, Tensor) else 0)
        sums = [self.size(widen(values)).reshape(*values.shape[:heads], -1).sum(dim=-1) for values in parameters]
        if not sums:
            return 0.0
        total = torch.stack(sums).sum(dim=0)
        return total * (self.weight.to(total.dtype) if isinstance(self.weight, Tensor) else self.weight)


@method("l1r", paper=PAPER, summary="assume negative with an L1 penalty on the weights")
class L1Penalty(WeightPenalty):
    r"""Assume negative, plus :math:`w \sum |\theta|` over the network's weights (the hook ``penalty``); final.

    Args:
        weight: w.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".

    Example:
        >>> L1Penalty(weight=0.5).penalty([torch.tensor([1.0, -2.0]), torch.tensor([[3.0]])])
        tensor(3.)
    """

    def size(self, values: Tensor) -> Tensor:
        """Return absolute values."""
        return values.abs()


@method("l2r", paper=PAPER, summary="assume negative with an L2 penalty on the weights")
class L2Penalty(WeightPenalty):
    r"""Assume negative, plus :math:`w \sum \theta^2` over the network's weights (the hook ``penalty``); final.

    Args:
        weight: w.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".

    Example:
        >>> L2Penalty(weight=0.5).penalty([torch.tensor([1.0, -2.0]), torch.tensor([[3.0]])])
        tensor(7.)
    """

    def size(self, values: Tensor) -> Tensor:
        """Return squares."""
        return values.square()


method("ls", paper=PAPER, summary="the same as `an-ls`, under this paper's name")(SmoothedAssumeNegative)
