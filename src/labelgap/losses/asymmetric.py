"""Focal loss (Lin et al., ICCV 2017) and asymmetric loss (Ridnik et al., ICCV 2021); unknown labels count as absent.

An image has few positives and many easy negatives. Focal loss gives easy entries little weight. Asymmetric loss focuses
negatives harder than positives, and drops negatives whose probability is below a margin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelgap.losses.base.fused import Fused, KernelForm, focused_form, linear, mask_of, over_batch, with_heads
from labelgap.losses.base.loss import LogLoss
from labelgap.losses.base.terms import (
    Number,
    check_flag,
    check_number,
    cost_absent,
    focused_cost,
    per_head,
    states,
    widen,
)


def focal(logits: Tensor, labels: Tensor, *, alpha: Number = 0.75, gamma: Number = 2.0, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when easy entries count little.

    .. math:: \ell = [y=1]\,\alpha\,(1-p)^\gamma (-\ln p) + [y \ne 1]\,(1-\alpha)\,p^\gamma (-\ln(1-p))

    The gradient flows through the focus; γ = 0 is weighted cross-entropy.
    """
    logits, present = widen(logits), states(labels).present
    alpha = per_head(alpha, logits)
    cost = focused_cost(torch.where(present, logits, -logits), per_head(gamma, logits), eps)
    return torch.where(present, alpha, 1.0 - alpha) * cost


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """Return ``base ** exponent`` for a base from 0 on, with a gradient of 0 where the base is 0."""
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
    r"""Cost of every entry when easy negatives count little, and very easy ones nothing.

    .. math:: \ell = [y=1]\,(1-p)^{\gamma_+}(-\ln p) + [y \ne 1]\,(1-p_m)^{\gamma_-}(-\ln p_m),
        \qquad p_m = \min(1 - p + m,\; 1)

    The focus is a constant to the gradient with ``detach_focus``, as in the authors' training; m is the ``margin``.

    Example:
        >>> asymmetric(torch.zeros(1, 2), torch.tensor([[1, -1]]), gamma_neg=1.0, margin=0.0)
        tensor([[0.6931, 0.3466]])
    """
    logits = widen(logits)
    focus = power((torch.sigmoid(logits) - per_head(margin, logits)).clamp(min=0.0), per_head(gamma_neg, logits))
    shifted = cost_absent(logits, margin + eps).clamp(min=-per_head(eps, logits).log1p())
    negative = (focus.detach() if detach_focus else focus) * shifted
    positive = focused_cost(logits, per_head(gamma_pos, logits), eps, detach=detach_focus)
    return torch.where(states(labels).present, positive, negative)


def asymmetric_form(
    logits: Tensor, labels: Tensor, gamma_pos: Number, gamma_neg: Number, margin: float, *, detach: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Cost and slope of ``asymmetric``, both sides at once.

    With :math:`z = x` where present and −x elsewhere, :math:`q = \sigma(z)`, :math:`n = 1 - q`, and the margin m = 0
    where present:

    .. math:: \ell = -f \ln w, \quad w = \min(q + m, 1), \quad f = \max(n - m, 0)^\gamma, \qquad
        \frac{d\ell}{dz} = -f\,n\,q\,\Bigl( \frac1w - \frac{\gamma \ln w}{n - m} \Bigr)
        \quad \text{where } n > m, \text{ else } 0

    The second term is absent if the focus is a constant to the gradient.
    """
    present, tiny = mask_of(labels, logits), torch.finfo(logits.dtype).tiny
    sign = linear(present, 2.0, -1.0)
    z = sign * logits
    q = torch.sigmoid(z).clamp_(min=tiny)
    if margin:
        n, shift = linear(q, -1.0, 1.0), linear(present, -margin, margin)
        w, base = (q + shift).clamp_(max=1.0), (n - shift).relu_()
        log = torch.minimum(w.log(), z.mul_(present))  # ln q is z where q is too small for it
    else:
        w, base = q.clone(), (n := torch.sigmoid(-z))
        log = torch.minimum(q.log(), z)
    focus = torch.lerp(_power(base, gamma_neg), _power(base, gamma_pos), present)
    slope = w.reciprocal_().neg_()
    if not detach:
        slope.add_(linear(present, gamma_pos - gamma_neg, gamma_neg).mul_(log).div_(base.clamp(min=tiny)))
    slope.mul_(n.mul_(q)).mul_(focus).mul_(sign)
    if margin and (isinstance(gamma_neg, Tensor) or gamma_neg == 0):
        slope.mul_(base.sign())
    return log.mul_(focus).neg_(), slope


def _power(base: Tensor, exponent: Number) -> Tensor:
    """Return a power; that of 4 by two squares, which is much faster."""
    if not isinstance(exponent, Tensor) and exponent in (0, 4):
        return base.square().square_() if exponent else base.new_ones(())
    return torch.pow(base, exponent)


class FocalLoss(LogLoss):
    """Mean of ``focal``; final.

    Args:
        gamma: focus.
        alpha: weight of the positives.
    """

    def __init__(self, gamma: Number = 2.0, alpha: Number = 0.75, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.gamma = check_number("gamma", gamma, 0)
        self.alpha = check_number("alpha", alpha, 0, 1)

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``focal``."""
        return focal(logits, labels, alpha=self.alpha, gamma=self.gamma, eps=self.eps)

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """Both sides at once."""
        return KernelForm("focal", (self.alpha, self.gamma))

    def fused(self, logits: Tensor, labels: Tensor) -> Fused | None:
        r"""With :math:`z = x` where present and −x elsewhere: ``focused_form`` of z."""
        logits = with_heads(logits, self.alpha, self.gamma)
        alpha, gamma = over_batch(self.alpha, logits), over_batch(self.gamma, logits)

        def form(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            present = mask_of(labels, x)
            log, slope = focused_form(linear(present, 2.0, -1.0).mul_(x), gamma)
            log.mul_(linear(present, 1.0 - 2.0 * alpha, alpha - 1.0))
            return log, slope.mul_(linear(present, 1.0, alpha - 1.0))

        return Fused(form, [logits], [labels])


class AsymmetricLoss(LogLoss):
    """Mean of ``asymmetric``; final. The published learning rates of this family assume ``reduction="sum"``.

    Args:
        gamma_pos: γ₊, focus of the positives.
        gamma_neg: γ₋, focus of the negatives.
        margin: m, the probability below which a negative is dropped.
        detach_focus: whether the focus is a constant to the gradient.
    """

    def __init__(
        self,
        gamma_pos: Number = 0.0,
        gamma_neg: Number = 2.0,
        margin: Number = 0.2,
        detach_focus: bool = False,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(eps, reduction)
        self.gamma_pos = check_number("gamma_pos", gamma_pos, 0)
        self.gamma_neg = check_number("gamma_neg", gamma_neg, 0)
        self.margin = check_number("margin", margin, 0, 1)
        self.detach_focus = check_flag("detach_focus", detach_focus)

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``asymmetric``."""
        return asymmetric(logits, labels, **self.options("gamma_pos", "gamma_neg", "margin", "detach_focus", "eps"))

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """No kernel has a focus that is a constant to the gradient."""
        return None if self.detach_focus else KernelForm("asymmetric", (self.gamma_pos, self.gamma_neg, self.margin))

    def fused(self, logits: Tensor, labels: Tensor) -> Fused | None:
        """See ``asymmetric_form``; a margin per head takes the formula."""
        if isinstance(self.margin, Tensor):
            return None
        logits, margin = with_heads(logits, self.gamma_pos, self.gamma_neg), self.margin
        gammas = over_batch(self.gamma_pos, logits), over_batch(self.gamma_neg, logits)
        detach = self.detach_focus
        return Fused(lambda x, labels: asymmetric_form(x, labels, *gammas, margin, detach=detach), [logits], [labels])
