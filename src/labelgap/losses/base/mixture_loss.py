"""The classes of the element-wise methods: those that are a ``Mixture``, and the others."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from torch import Tensor

from labelgap.losses.base.fused import Fused, fused, is_fusible
from labelgap.losses.base.loss import ElementwiseLoss, is_replaced
from labelgap.losses.base.mixture import Mixture, mixture_entries
from labelgap.losses.base.mixture_form import fused_mixture
from labelgap.losses.base.multi_head import MultiHead
from labelgap.losses.base.option_checks import check_number
from labelgap.losses.base.terms import Number
from labelgap.losses.kernels.dispatch import are_taken, one_pass
from labelgap.losses.kernels.form import KernelForm


def mixture_kernel_form(
    mixture: Mixture, epoch: Tensor | None = None, share: Tensor | None = None
) -> KernelForm | None:
    """Return the kernel of a mixture, with or without a share of modified entries; None where it has more terms."""
    if mixture.expected_positives is not None or mixture.label_estimate is not None:
        return None
    weights = tuple(number for u, v, w in mixture.rows for number in (u + v, u, w))
    return KernelForm("mixture", (share is not None, mixture.has_entropy), weights, epoch, share)


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

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """Return what computes the loss of a batch in one pass, where there is such a kernel."""
        return None

    def usable_kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """Return the form where it stands for the formula: with plain options, and not of a changed subclass."""
        if not is_fusible(self.eps) or self.reduction == "none" or is_replaced(type(self), "kernel_form"):
            return None
        form = self.kernel_form(rows, classes)
        return form if form is not None and form.is_plain else None

    def one_pass(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Return the loss as a kernel computes it; None where none does (see ``labelgap.losses.kernels.dispatch``)."""
        if not are_taken(logits.device, logits.dtype, logits.numel()) or logits.ndim != 2 or not is_fusible(self.eps):
            return None
        form = self.usable_kernel_form(*logits.shape)
        return None if form is None else one_pass(form, logits, labels, self.reduction)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Reduce the entries."""
        loss = self.one_pass(logits, labels)
        if loss is not None:
            return loss
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
        loss = self.one_pass(logits, labels)
        if loss is not None:
            return loss
        mixture = self.weights(logits.shape[-1])
        modified = None if mixture.modified is None else self.modified(logits, labels)
        return fused_mixture(logits, labels, mixture, modified=modified, eps=self.eps, reduction=self.reduction)

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """A mixture whose weights follow from the labels alone."""
        mixture = self.weights(classes)
        return None if mixture.modified is not None else mixture_kernel_form(mixture)

    def mixture(self, classes: int) -> Mixture | None:
        """Return the mixture where nothing is added inside the logarithms."""
        return None if isinstance(self.eps, Tensor) or self.eps else self.weights(classes)
