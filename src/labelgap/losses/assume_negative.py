"""Learning from single positive labels (Cole et al., "Multi-Label Learning from Single Positive Labels", CVPR 2021).

Most labels of most images are absent, so the simplest thing is to take every label that nobody gave as absent
(`an`). It is wrong exactly where it hurts, on the positives that were never annotated; smoothed targets (`an-ls`), a
small weight (`wan`) and comparing instead of classifying (`pr`) soften the mistake. The other way is to learn from the
known labels alone (`iu`, `bce-ls`), which says nothing where only positives are known; for that case
``cole2021_expected`` says how many positives are to be expected.
"""

from __future__ import annotations

from torch import Tensor, sigmoid

from labelgap.losses.base import ElementwiseLoss
from labelgap.losses.mixture import AS_ABSENT, IGNORED, Mixture, is_exact, make_mixture
from labelgap.losses.option_checks import check_choice, check_number
from labelgap.losses.registry import method
from labelgap.losses.terms import Number, cost_known, cross_entropy, per_head, states, widen

__all__ = [
    "AssumeNegative",
    "IgnoreUnknown",
    "PairwiseRanking",
    "SmoothedAssumeNegative",
    "SmoothedIgnoreUnknown",
    "WeakAssumeNegative",
    "assume_negative",
    "ignore_unknown",
    "pairwise_ranking",
    "weak_assume_negative",
]

PAPER = "Cole 2021"


def ignore_unknown(logits: Tensor, labels: Tensor, *, smoothing: Number = 0.0, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when only known labels count, with smoothed targets.

    .. math:: \ell = [y \ne ?]\,\bigl(-t \ln p - (1-t) \ln(1-p)\bigr), \qquad
        t = 1-s \text{ where } y=1, \; t = s \text{ where } y=0

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        smoothing: ``s``; 0 is plain cross-entropy. A tensor of shape ``(…)`` gives every head its own.
        eps: added inside the logarithm, as the authors' code does with 1e-5.

    Returns:
        ``(…, B, K)``, not reduced.

    Unknown labels cost nothing, and are still counted in a mean.

    Example:
        >>> import torch
        >>> ignore_unknown(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))
        tensor([[0.6931, 0.6931, 0.0000]])
    """
    return ~states(labels).unknown * assume_negative(logits, labels, smoothing=smoothing, eps=eps)


def assume_negative(logits: Tensor, labels: Tensor, *, smoothing: Number = 0.0, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when an unknown label counts as absent, with smoothed targets.

    .. math:: \ell = -t \ln p - (1-t) \ln(1-p), \qquad
        t = 1-s \text{ where } y=1, \; t = s \text{ where } y=0 \text{ or } y=?

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        smoothing: ``s``; 0 is plain cross-entropy. A tensor of shape ``(…)`` gives every head its own.
        eps: added inside the logarithm, as the authors' code does with 1e-5.

    Returns:
        ``(…, B, K)``, not reduced.

    Unknown labels are taken as absent.

    Example:
        >>> import torch
        >>> assume_negative(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))
        tensor([[0.6931, 0.6931, 0.6931]])
    """
    present = states(labels).present
    if isinstance(smoothing, Tensor) or smoothing:
        logits = widen(logits)
        smoothing = per_head(smoothing, logits)
        return cross_entropy(logits, present * (1.0 - 2.0 * smoothing) + smoothing, eps)
    return cost_known(logits, present, eps)


def weak_assume_negative(logits: Tensor, labels: Tensor, *, weight: Number | None = None, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when an unknown label counts as absent, but only weakly.

    .. math:: \ell = [y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p)) + [y=?]\; w\,(-\ln(1-p)), \qquad w = 1 / \max(K-1,\, 1)

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        weight: ``w``; a tensor of shape ``(…)`` gives every head its own.
        eps: added inside the logarithm, as the authors' code does with 1e-5.

    Returns:
        ``(…, B, K)``, not reduced.

    Unknown labels are taken as absent with weight ``w``; known absents keep their full weight.

    Example:
        >>> import torch
        >>> weak_assume_negative(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))
        tensor([[0.6931, 0.6931, 0.3466]])
    """
    present, absent, unknown = states(labels)
    if weight is None:
        weight = 1.0 / max(logits.shape[-1] - 1, 1)
    logits = widen(logits)
    return (present + absent + per_head(weight, logits) * unknown) * cost_known(logits, present, eps)


def pairwise_ranking(logits: Tensor, labels: Tensor, *, unknown: str = "negative") -> Tensor:
    r"""Cost of every positive when it should have a higher probability, by 1, than every negative of its image.

    .. math:: \ell_i = [y_i=1] \sum_{j \in \mathcal{N}} \max(0,\, 1 - p_i + p_j)
        = [y_i=1] \Bigl( |\mathcal{N}|\,(1 - p_i) + \sum_{j \in \mathcal{N}} p_j \Bigr)

    Probabilities lie between 0 and 1, so the hinge is never negative and the sum over pairs is linear: it costs as much
    as a sum over classes, and no pair is ever laid out.

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        unknown: "negative" to rank positives above unknown labels too, "ignore" to leave those out.

    Returns:
        ``(…, B, K)``, not reduced: the pairs of each positive, 0 for all other entries.

    Unknown labels are negatives, as known absents are, unless ignored. An image without a pair costs 0.

    Example:
        >>> import torch
        >>> pairwise_ranking(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))
        tensor([[2., 0., 0.]])
    """
    logits = widen(logits)
    present, absent, _ = states(labels)
    negative = ~present if unknown == "negative" else absent
    above = (negative * sigmoid(logits)).sum(dim=-1, keepdim=True)
    return present * (negative.sum(dim=-1, keepdim=True) * sigmoid(-logits) + above)


@method("iun", paper=PAPER, summary="ignore unknown; meant for one positive and all negatives observed")
@method("bce", paper=PAPER, summary="binary cross-entropy: `iu` where nothing is unknown")
@method("iu", paper=PAPER, summary="ignore unknown: learn from the known labels alone")
class IgnoreUnknown(ElementwiseLoss):
    """Mean of ``ignore_unknown``; final.

    Args:
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".
    """

    eps: Number

    def __init__(self, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``ignore_unknown``."""
        return ignore_unknown(logits, labels, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Known labels as they are."""
        return make_mixture(unknown=IGNORED) if is_exact(self.eps) else None


@method("bce-ls", paper=PAPER, summary="binary cross-entropy of the known labels with smoothed targets")
class SmoothedIgnoreUnknown(ElementwiseLoss):
    """Mean of ``ignore_unknown`` with label smoothing; final.

    Args:
        smoothing: ``s``; targets are 1 − s and s, as in the authors' code (the paper writes s/2).
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".
    """

    smoothing: Number
    eps: Number

    def __init__(self, smoothing: Number = 0.1, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(smoothing=check_number("smoothing", smoothing, 0, 1), eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``ignore_unknown``."""
        return ignore_unknown(logits, labels, smoothing=self.smoothing, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Known labels, smoothed."""
        s = self.smoothing
        return (
            make_mixture(present=(1.0 - s, s, 0.0), absent=(s, 1.0 - s, 0.0), unknown=IGNORED)
            if is_exact(self.eps)
            else None
        )


@method("an", paper=PAPER, summary="assume negative: every unknown label counts as absent")
class AssumeNegative(ElementwiseLoss):
    """Mean of ``assume_negative``; final.

    Args:
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".
    """

    eps: Number

    def __init__(self, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``assume_negative``."""
        return assume_negative(logits, labels, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Unknown labels as absent."""
        return make_mixture(unknown=AS_ABSENT) if is_exact(self.eps) else None


@method("an-ls", paper=PAPER, summary="assume negative with smoothed targets")
class SmoothedAssumeNegative(ElementwiseLoss):
    """Mean of ``assume_negative`` with label smoothing; final.

    Args:
        smoothing: ``s``; targets are 1 − s and s, as in the authors' code (the paper writes s/2).
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".
    """

    smoothing: Number
    eps: Number

    def __init__(self, smoothing: Number = 0.1, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.hold(smoothing=check_number("smoothing", smoothing, 0, 1), eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``assume_negative``."""
        return assume_negative(logits, labels, smoothing=self.smoothing, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Unknown labels as absent, all smoothed."""
        s = self.smoothing
        return (
            make_mixture(present=(1.0 - s, s, 0.0), absent=(s, 1.0 - s, 0.0), unknown=(s, 1.0 - s, 0.0))
            if is_exact(self.eps)
            else None
        )


@method("wan", paper=PAPER, summary="weak assume negative: unknown labels count as absent with a small weight")
class WeakAssumeNegative(ElementwiseLoss):
    """Mean of ``weak_assume_negative``; final.

    Args:
        weight: of an assumed negative; 1 / max(K − 1, 1) when not given.
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".
    """

    weight: Number | None
    eps: Number

    def __init__(self, weight: Number | None = None, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if weight is None:
            self.weight = None
        else:
            self.hold(weight=check_number("weight", weight, 0))
        self.hold(eps=check_number("eps", eps, 0, 1))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``weak_assume_negative``."""
        return weak_assume_negative(logits, labels, weight=self.weight, eps=self.eps)

    def mixture(self, classes: int) -> Mixture | None:
        """Unknown labels as absent, weakly."""
        weight = 1.0 / max(classes - 1, 1) if self.weight is None else self.weight
        return make_mixture(unknown=(0.0, weight, 0.0)) if is_exact(self.eps) else None


@method("pr", paper=PAPER, summary="pairwise ranking of positives above everything else, on probabilities")
class PairwiseRanking(ElementwiseLoss):
    """``pairwise_ranking`` summed over all pairs, then divided by the B·K entries; final.

    Args:
        unknown: "negative" to rank positives above unknown labels too, "ignore" to leave those out.
        reduction: "mean", "sum" (of all pairs) or "none".
    """

    def __init__(self, unknown: str = "negative", reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.unknown = check_choice("unknown", unknown, ("negative", "ignore"))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``pairwise_ranking``."""
        return pairwise_ranking(logits, labels, unknown=self.unknown)
