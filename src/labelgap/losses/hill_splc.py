"""Simple and robust losses (Zhang et al., "Simple and Robust Loss Design for Multi-Label Learning with Missing Labels",
arXiv 2021).

A negative that the network is sure is positive is probably a missing label, so its gradient should decrease again
(`hill`), or it should count as the positive it seems to be (`splc`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelgap.core.special import logit
from labelgap.labels.codes import ABSENT
from labelgap.losses.base.fused import Fused, KernelForm, focused_form, linear, mask_of, over_batch, with_heads
from labelgap.losses.base.loss import LogLoss
from labelgap.losses.base.terms import (
    Number,
    check_integer,
    check_number,
    cost_present,
    focused_cost,
    per_head,
    states,
    widen,
)

SHIFT = 1.0


def hill(logits: Tensor, labels: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when the gradient of a negative that looks positive decreases; unknown counts as absent.

    .. math:: \ell = [y=1]\,(1-s)^2(-\ln s) + [y \ne 1]\,(1.5-p)\,p^2, \qquad s = \sigma(x-1)

    The slope of a negative in its logit is :math:`3 p^2 (1-p)^2`, a hill with its top at p = ½.
    """
    logits = widen(logits)
    probability = torch.sigmoid(logits)
    on_present = torch.sigmoid(SHIFT - logits).square() * cost_present(logits - SHIFT, eps)
    return torch.where(states(labels).present, on_present, (1.5 - probability) * probability.square())


def self_paced_correction(
    logits: Tensor, labels: Tensor, corrected: Tensor, *, gamma: Number = 2.0, eps: Number = 0.0
) -> Tensor:
    r"""Cost of every entry when corrected unknown labels count as present and the others as absent, focused.

    .. math:: \ell = [y=1]\,(1-s)^\gamma(-\ln s) + [\text{corrected}]\,(1-p)^\gamma(-\ln p)
        + [\text{else}]\,p^\gamma(-\ln(1-p)), \qquad s = \sigma(x-1)

    ``corrected`` is a mask ``(…, B, K)`` of unknown entries only.

    Example:
        >>> logits, labels = torch.tensor([[1.0, 2.0]]), torch.tensor([[1, -1]])
        >>> self_paced_correction(logits, labels, torch.tensor([[False, True]]))
        tensor([[0.1733, 0.0018]])
    """
    logits = widen(logits)
    signed = torch.where(states(labels).present, logits - SHIFT, torch.where(corrected, logits, -logits))
    return focused_cost(signed, per_head(gamma, logits), eps)


class HillLoss(LogLoss):
    """Mean of ``hill``; final."""

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``hill``."""
        return hill(logits, labels, eps=self.eps)

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """It has no options."""
        return KernelForm("hill")

    def fused(self, logits: Tensor, labels: Tensor) -> Fused | None:
        """``focused_form`` of the positives, whose logit is shifted, and the hill with its slope."""

        def form(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            present = mask_of(labels, x)
            z = torch.sub(x, present, alpha=SHIFT)
            p = torch.sigmoid(z)
            log, slope = focused_form(z, 2.0, probability=p)
            square = p.square()
            negative_slope = (p - square).square_().mul_(3.0)
            cost = torch.lerp(linear(p, -1.0, 1.5).mul_(square), log.neg_(), present)
            return cost, negative_slope.lerp_(slope, present)

        return Fused(form, [logits], [labels])


class SelfPacedCorrection(LogLoss):
    """Mean of ``self_paced_correction``; final. Known labels are never corrected.

    Args:
        tau: τ, the probability above which an unknown label counts as present.
        gamma: γ, focus.
        warmup: epochs without correction.
    """

    def __init__(
        self, tau: Number = 0.6, gamma: Number = 2.0, warmup: Number = 1, eps: Number = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__(eps, reduction)
        self.tau = check_number("tau", tau, 0, 1)
        self.gamma = check_number("gamma", gamma, 0)
        self.level: Number = torch.logit(self.tau) if isinstance(self.tau, Tensor) else float(logit(self.tau))
        self.warmup = check_integer("warmup", warmup)
        self.epoch_dependent = bool(torch.as_tensor(warmup).any())

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries that count as present."""
        logits = widen(logits)
        likely = logits > per_head(self.level, logits)
        return states(labels).unknown & likely & (self.epoch_tensor > per_head(self.warmup, logits))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``self_paced_correction``."""
        corrected = self.modified(logits, labels)
        return self_paced_correction(logits, labels, corrected, gamma=self.gamma, eps=self.eps)

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """The epoch decides whether any label is corrected."""
        return KernelForm("self_paced", (self.level, self.gamma, self.warmup), epoch=self.epoch_tensor)

    def fused(self, logits: Tensor, labels: Tensor) -> Fused | None:
        r"""``focused_form`` of :math:`z = x - 1` where present, x where corrected and −x elsewhere."""
        logits = with_heads(logits, self.gamma, self.tau, self.warmup)
        gamma, level = over_batch(self.gamma, logits), over_batch(self.level, logits)
        started: bool | Tensor
        if isinstance(self.warmup, Tensor) or not logits.is_cpu:
            started = self.epoch_tensor > over_batch(self.warmup, logits)
        else:
            started = self.epoch > self.warmup

        def form(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            present = mask_of(labels, x)
            sign = linear(present, 2.0, -1.0)
            if started is not False:
                known = mask_of(labels, x, ABSENT).add_(present)
                likely = torch.gt(x, level, out=torch.empty_like(x))
                corrected = likely.addcmul_(likely, known, value=-1.0)
                sign.add_(corrected if started is True else corrected.mul_(started), alpha=2.0)
            log, slope = focused_form((sign * x).sub_(present, alpha=SHIFT), gamma)
            return log.neg_(), slope.mul_(sign)

        return Fused(form, [logits], [labels])
