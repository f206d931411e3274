"""The classes of the element-wise methods: those that are a ``Mixture``, and the others."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from torch import Tensor

from labelgap.losses.base.fused import Fused, fused, is_fusible
from labelgap.losses.base.loss import ElementwiseLoss
from labelgap.losses.base.mixture import Mixture, mixture_entries
from labelgap.losses.base.mixture_form import fused_mixture
from labelgap.losses.base.multi_head import MultiHead
from labelgap.losses.base.option_checks import check_number
from labelgap.losses.base.terms import Number

__all__ = ["LogLoss", "MixtureLoss"]


class LogLoss(MultiHead, ElementwiseLoss, ABC):
    """An element-wise loss with logarithms, for many heads. Abstract.

    Args:
        eps: added inside the logarithms; 1e-5 in the code of several papers.
        reduction: "mean", "sum" or "none".
    """

    eps: Number

    def __init__(self, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_options(eps=check_number("eps", eps, 0, 1))

    def fused(self, logits: Tensor, labels: Tensor) -> Fused | None:
        """Return what computes ``entries`` faster, where there is such a form (see ``labelgap.losses.base.fused``)."""
        return None

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Reduce the entries."""
        parts = self.fused(logits, labels) if is_fusible(self.eps) else None
        return self.reduce(self.entries(logits, labels)) if parts is None else fused(parts, self.reduction)


class MixtureLoss(LogLoss, ABC):
    """A loss whose cost per entry is a mixture. Abstract: a method declares ``declared`` or, from options, ``weights``.

    Example:
        >>> import torch
        >>> class HalfNegative(MixtureLoss):
        ...     declared = Mixture(unknown=(0.0, 0.5, 0.0))
        >>> HalfNegative()(torch.zeros(1, 2), torch.tensor([[1, -1]]))
        tensor(0.5199)
    """

    declared: ClassVar[Mixture]

    def weights(self, classes: int) -> Mixture:
        """Return the weights of the mixture for ``classes`` classes."""
        return self.declared

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the costs of the mixture; see ``mixture_entries``."""
        mixture = self.weights(logits.shape[-1])
        modified = None if mixture.modified is None else self.modified(logits, labels)
        return mixture_entries(logits, labels, mixture, modified=modified, eps=self.eps)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Reduce the costs of the mixture, or the ``entries`` of a subclass that has its own."""
        if type(self).entries is not MixtureLoss.entries:
            return self.reduce(self.entries(logits, labels))
        mixture = self.weights(logits.shape[-1])
        modified = None if mixture.modified is None else self.modified(logits, labels)
        return fused_mixture(logits, labels, mixture, modified=modified, eps=self.eps, reduction=self.reduction)

    def mixture(self, classes: int) -> Mixture | None:
        """Return the mixture where nothing is added inside the logarithms."""
        return None if isinstance(self.eps, Tensor) or self.eps else self.weights(classes)
