"""Assume negative, its softer relatives, and ignoring what is unknown (Cole et al., CVPR 2021; Zhou et al., ECCV 2022).

Most labels of most images are absent, so the simplest rule is to take every unknown label as absent (`an`). It is wrong
on the positives that were never annotated; smoothed targets (`an-ls`, for unknown labels alone `n-ls`) and a small
weight (`wan`, `dw`) soften the mistake, and a penalty on the weights of the network (`l1r`, `l2r`) keeps it from
fitting them. The alternative is to learn from the known labels alone (`iu`, `bce-ls`), which says nothing where only
positives are known; for that case `epr` adds how many there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from labelgap.losses.base.loss import MixtureLoss
from labelgap.losses.base.mixture import IGNORED, Mixture, mixture_entries
from labelgap.losses.base.terms import Number, check_number, widen


def _ignoring(smoothing: Number = 0.0) -> Mixture:
    """Known labels with smoothed targets; unknown labels cost nothing."""
    return Mixture(present=(1.0 - smoothing, smoothing, 0.0), absent=(smoothing, 1.0 - smoothing, 0.0), unknown=IGNORED)


def _assuming(smoothing: Number = 0.0) -> Mixture:
    """Unknown labels as absent, all targets smoothed."""
    absent = (smoothing, 1.0 - smoothing, 0.0)
    return Mixture(present=(1.0 - smoothing, smoothing, 0.0), absent=absent, unknown=absent)


def _weak(weight: Number | None, classes: int) -> Mixture:
    """Unknown labels as absent with a weight."""
    return Mixture(unknown=(0.0, 1.0 / max(classes - 1, 1) if weight is None else weight, 0.0))


def ignore_unknown(logits: Tensor, labels: Tensor, *, smoothing: Number = 0.0, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when only known labels count, with smoothed targets; s is ``smoothing``.

    .. math:: \ell = [y \ne ?]\,\bigl(-t \ln p - (1-t) \ln(1-p)\bigr), \qquad
        t = 1-s \text{ where } y=1, \; t = s \text{ where } y=0

    Unknown labels cost nothing, and are still counted in a mean.
    """
    return mixture_entries(logits, labels, _ignoring(smoothing), eps=eps)


def assume_negative(logits: Tensor, labels: Tensor, *, smoothing: Number = 0.0, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when an unknown label counts as absent, with smoothed targets; s is ``smoothing``.

    .. math:: \ell = -t \ln p - (1-t) \ln(1-p), \qquad
        t = 1-s \text{ where } y=1, \; t = s \text{ where } y=0 \text{ or } y=?
    """
    return mixture_entries(logits, labels, _assuming(smoothing), eps=eps)


def weak_assume_negative(logits: Tensor, labels: Tensor, *, weight: Number | None = None, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when an unknown label counts as absent, but only with the ``weight`` w.

    .. math:: \ell = [y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p)) + [y=?]\; w\,(-\ln(1-p)), \qquad w = 1 / \max(K-1,\, 1)

    Known absents keep their full weight.

    Example:
        >>> weak_assume_negative(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))
        tensor([[0.6931, 0.6931, 0.3466]])
    """
    return mixture_entries(logits, labels, _weak(weight, logits.shape[-1]), eps=eps)


def smoothed_unknown(logits: Tensor, labels: Tensor, *, smoothing: Number, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when an unknown label has the target s, ``smoothing``, and known ones are not smoothed.

    .. math:: \ell = [y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p)) + [y=?]\,(-s \ln p - (1-s) \ln(1-p))

    ``s = 0`` takes unknown labels as absent.
    """
    return mixture_entries(logits, labels, Mixture(unknown=(smoothing, 1.0 - smoothing, 0.0)), eps=eps)


class IgnoreUnknown(MixtureLoss):
    """Mean of ``ignore_unknown``; final. Options: see ``MixtureLoss``.

    Denominator: all B·K entries, unknown ones included, as in Cole et al.; mlcpl 0.1.7 divides by the known ones. With
    68 % of the labels known this loss is 0.68 of that one, and so is its gradient.
    """

    declared = _ignoring()


class AssumeNegative(MixtureLoss):
    """Mean of ``assume_negative``; final. Options: see ``MixtureLoss``."""

    declared = _assuming()


class SmoothedLoss(MixtureLoss, ABC):
    """A mixture with smoothed targets. Abstract.

    Args:
        smoothing: ``s``; targets are 1 − s and s, as in the authors' code (the paper writes s/2).
    """

    def __init__(self, smoothing: Number = 0.1, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.smoothing = check_number("smoothing", smoothing, 0, 1)


class SmoothedIgnoreUnknown(SmoothedLoss):
    """Mean of ``ignore_unknown`` with label smoothing; final. Options: see ``SmoothedLoss``.

    Denominator: all B·K entries, unknown ones included, as in `iu`.
    """

    def weights(self, classes: int) -> Mixture:
        """Known labels, smoothed."""
        return _ignoring(self.smoothing)


class SmoothedAssumeNegative(SmoothedLoss):
    """Mean of ``assume_negative`` with label smoothing; final. Options: see ``SmoothedLoss``."""

    def weights(self, classes: int) -> Mixture:
        """Unknown labels as absent, all smoothed."""
        return _assuming(self.smoothing)


class SmoothedUnknown(SmoothedLoss):
    """Known labels as they are, unknown ones with a soft target; final. See ``smoothed_unknown``."""

    def weights(self, classes: int) -> Mixture:
        """Unknown labels with a soft target."""
        return Mixture(unknown=(self.smoothing, 1.0 - self.smoothing, 0.0))


class WeakAssumeNegative(MixtureLoss):
    """Mean of ``weak_assume_negative``; final.

    Args:
        weight: the weight of an assumed negative; 1 / max(K − 1, 1) when not given.
    """

    def __init__(self, weight: Number | None = None, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.weight = None if weight is None else check_number("weight", weight, 0)

    def weights(self, classes: int) -> Mixture:
        """Unknown labels as absent, weakly."""
        return _weak(self.weight, classes)


class DownWeighting(MixtureLoss):
    """Assume negative, assumed negatives times ``weight``; final. See ``weak_assume_negative``.

    Args:
        weight: the weight of an assumed negative.
    """

    def __init__(self, weight: Number = 0.1, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.weight = check_number("weight", weight, 0)

    def weights(self, classes: int) -> Mixture:
        """Unknown labels as absent, weakly."""
        return _weak(self.weight, classes)


class WeightPenalty(MixtureLoss, ABC):
    """Assume negative, and a penalty on the weights of the network, which the loop adds. Abstract.

    Args:
        weight: the weight of the penalty.
    """

    needs = frozenset({"penalty"})
    declared = _assuming()

    def __init__(self, weight: Number = 1e-6, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.weight = check_number("weight", weight, 0)

    @abstractmethod
    def size(self, values: Tensor) -> Tensor:
        """Return the cost of every single weight."""

    def penalty(self, parameters: Iterable[Tensor]) -> Number:
        """Return the sizes of all weights ``(…, *shape)``, added up for each head ``(…)`` and times ``weight``."""
        heads = max(len(self.heads), self.weight.ndim if isinstance(self.weight, Tensor) else 0)
        sums = [self.size(widen(values)).reshape(*values.shape[:heads], -1).sum(dim=-1) for values in parameters]
        if not sums:
            return 0.0
        total = torch.stack(sums).sum(dim=0)
        return total * (self.weight.to(total.dtype) if isinstance(self.weight, Tensor) else self.weight)


class L1Penalty(WeightPenalty):
    r"""Assume negative, plus :math:`w \sum |\theta|` over the network's weights; final. See ``WeightPenalty``."""

    def size(self, values: Tensor) -> Tensor:
        """Return absolute values."""
        return values.abs()


class L2Penalty(WeightPenalty):
    r"""Assume negative, plus :math:`w \sum \theta^2` over the network's weights; final. See ``WeightPenalty``.

    The paper prints five weights for its four data sets (1e-6, 1e-7, 1e-7, 1e-6, 1e-8), so that the one of NUS-WIDE is
    not certain: 1e-7 is taken here, and may have been 1e-6.
    """

    def size(self, values: Tensor) -> Tensor:
        """Return squares."""
        return values.square()
