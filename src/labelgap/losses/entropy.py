"""Acknowledging the unknown (Zhou et al., "Acknowledging the Unknown for Multi-label Learning with Single Positive
Labels", ECCV 2022).

Instead of calling an unknown label absent, admit that it is unknown: ask the network to be undecided there, by raising
the entropy of its answer (`em`). What it learns from the known labels then shows on the unknown ones, weakly at first,
and the gradient is small both where the network is still undecided and where it has become sure. Lowering the entropy
instead (`entmin`) is the paper's counter-example; its other baselines are in ``zhou2022_baselines``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelgap.losses.assume_negative import ignore_unknown
from labelgap.losses.base import ElementwiseLoss
from labelgap.losses.mixture import Mixture, is_exact, make_mixture
from labelgap.losses.option_checks import check_number
from labelgap.losses.registry import method
from labelgap.losses.terms import Number, cross_entropy, per_head, states, widen

__all__ = ["EntropyMaximization", "EntropyMinimization", "entropy", "entropy_on_unknown"]

PAPER = "Zhou 2022"


def entropy(logits: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Return how undecided every entry is, :math:`H(p) = -p \ln p - (1-p) \ln(1-p)`, between 0 and ln 2.

    Its derivative in the logit x is :math:`-x\,p\,(1-p)`.

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        eps: added inside both logarithms; a tensor of shape ``(…)`` gives every head its own.

    Returns:
        ``(…, B, K)``

    Example:
        >>> entropy(torch.zeros(1, 1))
        tensor([[0.6931]])
    """
    return cross_entropy(logits, torch.sigmoid(widen(logits)), eps)


def entropy_on_unknown(logits: Tensor, labels: Tensor, *, weight: Number, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when the known labels count as they are and unknown ones by their entropy.

    .. math:: \ell = [y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p)) + [y=?]\; w\,H(p)

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        weight: ``w``; −α raises the entropy (`em`, the cost may be negative), a positive weight lowers it (`entmin`).
            A tensor of shape ``(…)`` gives every head its own.
        eps: added inside the logarithm, as the authors' code does with 1e-5.

    Returns:
        ``(…, B, K)``, not reduced.

    Unknown labels are pushed towards p = ½ by a negative weight, away from it by a positive one.

    Example:
        >>> entropy_on_unknown(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), weight=-0.2)
        tensor([[ 0.6931,  0.6931, -0.1386]])
    """
    undecided = entropy(logits, eps=eps)
    return ignore_unknown(logits, labels, eps=eps) + states(labels).unknown * per_head(weight, undecided) * undecided


@method("em", paper=PAPER, summary="entropy maximisation: be undecided where nothing is known")
class EntropyMaximization(ElementwiseLoss):
    r"""Known labels as they are, unknown ones with :math:`-\alpha H(p)`; final. See ``entropy_on_unknown``.

    Args:
        alpha: α, how strongly the network is asked to be undecided.
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".
    """

    alpha: Number
    eps: Number

    def __init__(self, alpha: Number = 0.2, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(alpha=check_number("alpha", alpha, 0), eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``entropy_on_unknown``."""
        return entropy_on_unknown(logits, labels, weight=-self.alpha, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Unknown labels by their entropy, wanted high."""
        return make_mixture(unknown=(0.0, 0.0, -self.alpha)) if is_exact(self.eps) else None


@method("entmin", paper=PAPER, summary="entropy minimisation: be decided where nothing is known")
class EntropyMinimization(ElementwiseLoss):
    """Known labels as they are, unknown ones with w·H(p); final. See ``entropy_on_unknown``.

    Args:
        weight: w.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    weight: Number
    eps: Number

    def __init__(self, weight: Number = 0.01, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(weight=check_number("weight", weight, 0), eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``entropy_on_unknown``."""
        return entropy_on_unknown(logits, labels, weight=self.weight, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Unknown labels by their entropy, wanted low."""
        return make_mixture(unknown=(0.0, 0.0, self.weight)) if is_exact(self.eps) else None
