"""Asymmetric loss (Ridnik et al., "Asymmetric Loss For Multi-Label Classification", ICCV 2021).

An image has few positives and many easy negatives. So negatives are focused harder than positives, and those whose
probability is below a margin are dropped altogether.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelgap.losses.base.loss import ElementwiseLoss
from labelgap.losses.base.multi_head import MultiHead
from labelgap.losses.base.option_checks import check_flag, check_number
from labelgap.losses.base.papers import LIN_2017, RIDNIK_2021
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import Number, cost_absent, cost_present, per_head, states, widen

__all__ = ["AsymmetricLoss", "FocalLoss", "asymmetric", "focal", "power"]


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


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """Return ``base ** exponent`` for a base from 0 on, with a gradient of 0 where the base is 0.

    Example:
        >>> power(torch.tensor([0.0, 4.0]), torch.tensor(0.5))
        tensor([0., 2.])
    """
    positive = base > 0
    powered = torch.where(positive, base, 1.0) ** exponent
    return torch.where(positive | (exponent == 0), powered, 0.0)


def asymmetric(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma_pos: Number = 0.0,
    gamma_neg: Number = 2.0,
    margin: Number = 0.2,
    detach_focus: bool = False,
    eps: Number = 0.0,
) -> Tensor:
    r"""Cost of every entry when easy negatives count little, and an unknown label counts as absent.

    .. math:: \ell = [y=1]\,(1-p)^{\gamma_+}(-\ln p) + [y \ne 1]\,(1-p_m)^{\gamma_-}(-\ln p_m),
        \qquad p_m = \min(1 - p + m,\; 1)

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        gamma_pos: γ₊; like the next two, a tensor of shape ``(…)`` gives every head its own.
        gamma_neg: γ₋.
        margin: m.
        detach_focus: whether the focusing weights are constants to the gradient, as in the authors' training.
        eps: added inside the logarithm.

    Returns:
        ``(…, B, K)``, not reduced.

    Unknown labels are taken as absent.

    Example:
        >>> asymmetric(torch.zeros(1, 2), torch.tensor([[1, -1]]), gamma_neg=1.0, margin=0.0)
        tensor([[0.6931, 0.3466]])
    """
    logits = widen(logits)
    present = states(labels).present
    level = per_head(margin, logits)
    focus_present = torch.exp(-per_head(gamma_pos, logits) * cost_absent(logits))
    focus_absent = power((torch.sigmoid(logits) - level).clamp(min=0.0), per_head(gamma_neg, logits))
    if detach_focus:
        focus_present, focus_absent = focus_present.detach(), focus_absent.detach()
    least = -per_head(eps, logits).log1p()
    shifted = cost_absent(logits, margin + eps).clamp(min=least)
    return torch.where(present, focus_present * cost_present(logits, eps), focus_absent * shifted)


@method("focal", paper=LIN_2017, summary="focal loss: what is easy counts little; unknown counts as absent")
class FocalLoss(MultiHead, ElementwiseLoss):
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
        self.register_options(
            gamma=check_number("gamma", gamma, 0),
            alpha=check_number("alpha", alpha, 0, 1),
            eps=check_number("eps", eps, 0, 1),
        )

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``focal``."""
        return focal(logits, labels, alpha=self.alpha, gamma=self.gamma, eps=self.eps)


@method("asl", paper=RIDNIK_2021, summary="asymmetric loss: easy negatives count little; unknown counts as absent")
class AsymmetricLoss(MultiHead, ElementwiseLoss):
    """Mean of ``asymmetric``; final. The published learning rates of this family assume ``reduction="sum"``.

    Args:
        gamma_pos: γ₊, focus of the positives.
        gamma_neg: γ₋, focus of the negatives.
        margin: m, the probability below which a negative is dropped.
        detach_focus: whether the focusing weights are constants to the gradient.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    gamma_pos: Number
    gamma_neg: Number
    margin: Number
    eps: Number

    def __init__(
        self,
        gamma_pos: Number = 0.0,
        gamma_neg: Number = 2.0,
        margin: Number = 0.2,
        detach_focus: bool = False,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.register_options(
            gamma_pos=check_number("gamma_pos", gamma_pos, 0), gamma_neg=check_number("gamma_neg", gamma_neg, 0)
        )
        self.register_options(margin=check_number("margin", margin, 0, 1), eps=check_number("eps", eps, 0, 1))
        self.detach_focus = check_flag("detach_focus", detach_focus)

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``asymmetric``."""
        return asymmetric(
            logits,
            labels,
            gamma_pos=self.gamma_pos,
            gamma_neg=self.gamma_neg,
            margin=self.margin,
            detach_focus=self.detach_focus,
            eps=self.eps,
        )
