"""Assume negative with a penalty on the weights of the network (baselines of Zhou et al., ECCV 2022)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from labelgap.losses.mixture import AS_ABSENT, Mixture
from labelgap.losses.mixture_loss import MixtureLoss
from labelgap.losses.option_checks import check_number
from labelgap.losses.papers import ZHOU_2022
from labelgap.losses.registry import method
from labelgap.losses.terms import Number, widen

__all__ = ["L1Penalty", "L2Penalty", "WeightPenalty"]


class WeightPenalty(MixtureLoss, ABC):
    """Assume negative, and a penalty on the weights of the network, which the loop adds. Abstract.

    Args:
        weight: of the penalty; a tensor of shape ``(…)`` gives every head its own.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    needs = frozenset({"penalty"})
    weight: Number

    def __init__(self, weight: Number = 1e-6, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.register_options(weight=check_number("weight", weight, 0))

    def weights(self, classes: int) -> Mixture:
        """Unknown labels as absent; the penalty is separate."""
        return Mixture(unknown=AS_ABSENT)

    @abstractmethod
    def size(self, values: Tensor) -> Tensor:
        """Return the cost of every single weight."""

    def penalty(self, parameters: Iterable[Tensor]) -> Number:
        """Return the sizes of all weights, added up and times ``weight``.

        Args:
            parameters: of the network; when many heads are trained at once their axes come first, ``(…, *shape)``.

        Returns:
            ``(…)``, the cost of each head's own weights.
        """
        heads = max(len(self.heads), self.weight.ndim if isinstance(self.weight, Tensor) else 0)
        sums = [self.size(widen(values)).reshape(*values.shape[:heads], -1).sum(dim=-1) for values in parameters]
        if not sums:
            return 0.0
        total = torch.stack(sums).sum(dim=0)
        return total * (self.weight.to(total.dtype) if isinstance(self.weight, Tensor) else self.weight)


@method("l1r", paper=ZHOU_2022, summary="assume negative with an L1 penalty on the weights")
class L1Penalty(WeightPenalty):
    r"""Assume negative, plus :math:`w \sum |\theta|` over the network's weights (the hook ``penalty``); final.

    Options: see ``WeightPenalty``.

    Example:
        >>> L1Penalty(weight=0.5).penalty([torch.tensor([1.0, -2.0]), torch.tensor([[3.0]])])
        tensor(3.)
    """

    def size(self, values: Tensor) -> Tensor:
        """Return absolute values."""
        return values.abs()


@method("l2r", paper=ZHOU_2022, summary="assume negative with an L2 penalty on the weights")
class L2Penalty(WeightPenalty):
    r"""Assume negative, plus :math:`w \sum \theta^2` over the network's weights (the hook ``penalty``); final.

    Options: see ``WeightPenalty``.

    Example:
        >>> L2Penalty(weight=0.5).penalty([torch.tensor([1.0, -2.0]), torch.tensor([[3.0]])])
        tensor(7.)
    """

    def size(self, values: Tensor) -> Tensor:
        """Return squares."""
        return values.square()
