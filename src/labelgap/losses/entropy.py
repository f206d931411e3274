"""Acknowledging the unknown (Zhou et al., "Acknowledging the Unknown for Multi-label Learning with Single Positive
Labels", ECCV 2022).

Instead of taking an unknown label as absent, keep the prediction undecided there, by raising its entropy (`em`). What
the network learns from the known labels then shows on the unknown ones, weakly at first, and the gradient is small both
where the network is still undecided and where it has become certain. Lowering the entropy instead (`entmin`) is the
paper's counter-example.
"""

from __future__ import annotations

from torch import Tensor

from labelgap.losses.base.mixture import Mixture, mixture_entries
from labelgap.losses.base.mixture_loss import MixtureLoss
from labelgap.losses.base.option_checks import check_number
from labelgap.losses.base.papers import ZHOU_2022
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import Number


def entropy_on_unknown(logits: Tensor, labels: Tensor, *, weight: Number, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when the known labels count as they are and unknown ones by their entropy.

    .. math:: \ell = [y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p)) + [y=?]\; w\,H(p)

    Args:
        weight: ``w``; −α raises the entropy (`em`, the cost may be negative), a positive weight lowers it (`entmin`).

    Unknown labels are pushed towards p = ½ by a negative weight, away from it by a positive one.

    Example:
        >>> import torch
        >>> entropy_on_unknown(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), weight=-0.2)
        tensor([[ 0.6931,  0.6931, -0.1386]])
    """
    return mixture_entries(logits, labels, Mixture(unknown=(0.0, 0.0, weight)), eps=eps)


@method("em", paper=ZHOU_2022, summary="entropy maximization: stay undecided where the label is unknown")
class EntropyMaximization(MixtureLoss):
    r"""Known labels as they are, unknown ones with :math:`-\alpha H(p)`; final. See ``entropy_on_unknown``.

    Args:
        alpha: α, the weight of the entropy.
    """

    alpha: Number

    def __init__(self, alpha: Number = 0.2, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.register_options(alpha=check_number("alpha", alpha, 0))

    def weights(self, classes: int) -> Mixture:
        """Unknown labels by their entropy, raised."""
        return Mixture(unknown=(0.0, 0.0, -self.alpha))


@method("entmin", paper=ZHOU_2022, summary="entropy minimization: be decided where the label is unknown")
class EntropyMinimization(MixtureLoss):
    """Known labels as they are, unknown ones with w·H(p); final. See ``entropy_on_unknown``.

    Args:
        weight: w.
    """

    weight: Number

    def __init__(self, weight: Number = 0.01, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.register_options(weight=check_number("weight", weight, 0))

    def weights(self, classes: int) -> Mixture:
        """Unknown labels by their entropy, lowered."""
        return Mixture(unknown=(0.0, 0.0, self.weight))
