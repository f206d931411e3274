"""A method: unknown labels count as absent, with a weight."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from labelgap import ABSENT, PRESENT, UNKNOWN
from labelgap.losses import ElementwiseLoss


class WeightedNegative(ElementwiseLoss):
    """Unknown labels count as absent, with a weight.

    The parameters of ``__init__`` are the options of the method. Each is kept as an attribute of the same name.

    Args:
        weight: of an unknown label.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, weight: float = 0.1, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = weight

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cost of every entry, ``(…, B, K)``."""
        negative = (labels == ABSENT) + self.weight * (labels == UNKNOWN)
        return (labels == PRESENT) * softplus(-logits) + negative * softplus(logits)
