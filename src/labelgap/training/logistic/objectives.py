r"""The losses of logistic regression as functions of logits, for many problems at once.

Logits have the shape ``(P, r, N)``: problems, logits of an image in one problem, images. A binary problem, e.g. a class
of a multi-label data set, has r = 1; a multinomial problem has a logit for each class. Losses are summed over images.
Their derivatives are functions of the probabilities p, which are therefore computed once at each point, and those along
a direction d of the logits need no product with the features:

.. math:: \varphi'(t) = \sum_{in} \frac{\partial \ell}{\partial x_{in}}(x + t d)\, d_{in}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor


class LogitLoss(ABC):
    """A loss of stacked problems. Abstract."""

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Return p, ``(P, r, N)``."""

    @abstractmethod
    def gradient(self, p: Tensor) -> Tensor:
        """Return the derivatives in the logits, ``(P, r, N)``."""

    @abstractmethod
    def directional(self, p: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative along a direction, ``(P,)`` each."""

    @abstractmethod
    def curvature(self, p: Tensor) -> Tensor:
        """Return the sum over images of the second derivative in each logit, ``(P, r)``."""

    @abstractmethod
    def select(self, problems: Tensor) -> LogitLoss:
        """Return the loss of some problems."""


@final
class BinaryLoss(LogitLoss):
    r"""Cross-entropy of a sigmoid over the known labels: :math:`\sum_n w_n (\ln(1 + e^{x_n}) - y_n x_n)`.

    Args:
        targets: ``(P, N)`` 1 where the label is present, else 0.
        known: ``(P, N)`` 1 where it is known, else 0; None where all are.
    """

    def __init__(self, targets: Tensor, known: Tensor | None = None) -> None:
        self.targets, self.known = targets[:, None], None if known is None else known[:, None]

    def _weighted(self, values: Tensor) -> Tensor:
        return values if self.known is None else values.mul_(self.known)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the sigmoids."""
        return torch.sigmoid(logits)

    def gradient(self, p: Tensor) -> Tensor:
        """Return p − y."""
        return self._weighted(p - self.targets)

    def directional(self, p: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative along a direction, ``(P,)`` each."""
        first = (self.gradient(p) * direction).sum(dim=(1, 2))
        second = self._weighted(torch.addcmul(p, p, p, value=-1)).mul_(direction) * direction
        return first, second.sum(dim=(1, 2))

    def curvature(self, p: Tensor) -> Tensor:
        """Return the sum of p (1 − p)."""
        return self._weighted(torch.addcmul(p, p, p, value=-1)).sum(dim=2)

    def select(self, problems: Tensor) -> BinaryLoss:
        """Return the loss of some problems."""
        known = None if self.known is None else self.known[problems, 0]
        return BinaryLoss(self.targets[problems, 0], known)


@final
class MultinomialLoss(LogitLoss):
    r"""Cross-entropy of a softmax: :math:`\sum_n (\ln \sum_k e^{x_{kn}} - x_{y_n n})`; all problems have these labels.

    Args:
        targets: ``(N,)`` class numbers.
    """

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets

    def _index(self, p: Tensor) -> Tensor:
        return self.targets.expand(len(p), 1, -1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax over the classes."""
        return logits.softmax(dim=1)

    def gradient(self, p: Tensor) -> Tensor:
        """Return p − y."""
        index = self._index(p)
        return p.scatter_add(1, index, p.new_full((), -1.0).expand(index.shape))

    def directional(self, p: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative along a direction, ``(P,)`` each."""
        weighted = p * direction
        mean = weighted.sum(dim=1)
        first = (mean - direction.gather(1, self._index(p))[:, 0]).sum(dim=1)
        return first, (weighted.mul_(direction).sum(dim=1) - mean.square()).sum(dim=1)

    def curvature(self, p: Tensor) -> Tensor:
        """Return the sum of p (1 − p)."""
        return torch.addcmul(p, p, p, value=-1).sum(dim=2)

    def select(self, problems: Tensor) -> MultinomialLoss:
        """Return the loss itself."""
        return self
