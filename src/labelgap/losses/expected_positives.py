"""How many positives to expect (Cole et al., "Multi-Label Learning from Single Positive Labels", CVPR 2021).

Where only positives are known, learning from them alone calls everything present. One number stands against it: how
many labels an image has on average. A batch whose probabilities add up to more or to less than that pays for it
(`epr`).
"""

from __future__ import annotations

from abc import ABC

import torch
from torch import Tensor

from labelgap.core.distributed import all_sum
from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses.assume_negative import PAPER, ignore_unknown
from labelgap.losses.base import ElementwiseLoss, ReducedLoss
from labelgap.losses.mixture import IGNORED, Mixture, is_exact, make_mixture
from labelgap.losses.option_checks import check_number
from labelgap.losses.registry import method
from labelgap.losses.terms import Number, widen

__all__ = ["ExpectedPositiveRegularization", "ExpectedPositivesLoss", "expected_positive_regularization"]


def expected_positive_regularization(probabilities: Tensor, expected_positives: Number) -> Tensor:
    r"""Cost of a batch whose images have more or fewer positives, on average, than expected.

    .. math:: R = \Bigl( \frac{\frac1B \sum_{b,k} p_{bk} - \kappa}{K} \Bigr)^2

    Args:
        probabilities: ``(…, B, K)``
        expected_positives: ``κ``, positives per image; a tensor of shape ``(…)`` gives every head its own.

    Returns:
        ``(…)``. Over several processes the mean is that of the global batch.

    Labels play no part, so unknown ones do not either.

    Example:
        >>> expected_positive_regularization(torch.full((2, 4), 0.75), 1.0)
        tensor(0.2500)
    """
    total = all_sum(probabilities.sum(dim=(-2, -1)))
    images = all_sum(total.new_full((), probabilities.shape[-2])).clamp(min=1)
    if isinstance(expected_positives, Tensor):
        expected_positives = expected_positives.to(total.dtype)
    return ((total / images - expected_positives) / probabilities.shape[-1]) ** 2


class ExpectedPositivesLoss(ReducedLoss, ABC):
    """What the methods that know the number of positives share: the number, and saying that it is missing. Abstract.

    Args:
        expected_positives: κ, positives per image; may be set later, but before ``prepare`` or the first batch.
        reduction: "mean", "sum" or "none".
    """

    batch_dependent = True
    _expected_positives: Number | None

    def __init__(self, expected_positives: Number | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._expected_positives = None
        if expected_positives is not None:
            self.expected_positives = expected_positives

    @property
    def expected_positives(self) -> Number | None:
        """Positives per image; None until somebody says so. A training loop may set it from fully known images."""
        return self._expected_positives

    @expected_positives.setter
    def expected_positives(self, value: Number) -> None:
        self.hold(_expected_positives=check_number("expected_positives", value, 0, above=True))

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0, heads: tuple[int, ...] = ()) -> None:
        """Refuse to begin without the number, or with one that is larger than the number of classes."""
        super().prepare(table, epochs, seed, heads)
        classes = len(table.classes)
        check_number("expected_positives", self.required_positives(), 0, classes)

    def required_positives(self) -> Number:
        """Return the number of positives to expect, or say how to give it."""
        if self._expected_positives is None:
            raise InputError(
                f"'{self.name}' must know how many positives an image has on average: give expected_positives=…, or "
                "set `loss_fn.expected_positives` before training. The papers use 1.5 for VOC, 2.9 for COCO, 1.9 for "
                "NUS-WIDE and 31.4 for CUB; a hundred images with all labels known are enough to estimate it."
            )
        return self._expected_positives


@method("epr", paper=PAPER, summary="expected positive regularisation: known labels, and how many positives to expect")
class ExpectedPositiveRegularization(ExpectedPositivesLoss, ElementwiseLoss):
    r"""Known labels as they are, and probabilities that add up to the expected number of positives; final.

    .. math:: L = \operatorname{mean}\bigl([y=1](-\ln p) + [y=0](-\ln(1-p))\bigr)
        + \Bigl( \frac{\frac1B \sum_{b,k} p_{bk} - \kappa}{K} \Bigr)^2

    Unknown labels count only in the sum of probabilities. The regulariser belongs to the batch, so with "none" every
    entry carries it, and the mean of the matrix is the loss; "sum" is B·K times the mean.

    Args:
        expected_positives: κ, positives per image; required, here or as an attribute before the first use.
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".

    Example:
        >>> epr = ExpectedPositiveRegularization(expected_positives=1.0)
        >>> epr(torch.zeros(1, 4), torch.tensor([[1, -1, -1, -1]]))
        tensor(0.2358)
    """

    eps: Number

    def __init__(self, expected_positives: Number | None = None, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(expected_positives, reduction)
        self.hold(eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Add the regulariser to the cost of every entry."""
        expected = self.required_positives()
        regulariser = expected_positive_regularization(torch.sigmoid(widen(logits)), expected)
        return ignore_unknown(logits, labels, eps=self.eps) + regulariser[..., None, None]

    def mixture(self, classes: int) -> Mixture | None:
        """Known labels as they are, and the number of positives."""
        return make_mixture(unknown=IGNORED, expected=self.required_positives()) if is_exact(self.eps) else None
