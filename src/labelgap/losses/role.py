"""Regularised online label estimation (Cole et al., "Multi-Label Learning from Single Positive Labels", CVPR 2021).

The labels that nobody gave are parameters, and are learned together with the classifier: each is the other's teacher,
both must agree with the known labels, and both must have the expected number of positives.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.losses.assume_negative import PAPER, ignore_unknown
from labelgap.losses.expected_positives import ExpectedPositivesLoss, expected_positive_regularization
from labelgap.losses.mixture import AS_ABSENT, LabelEstimate, Mixture, is_exact, make_mixture
from labelgap.losses.option_checks import check_number
from labelgap.losses.per_image_state import PerImageState
from labelgap.losses.registry import method
from labelgap.losses.terms import Number, cross_entropy

__all__ = ["OnlineLabelEstimation", "initial_label_logits", "online_label_estimation"]

KNOWN = math.log(0.995 / 0.005)
SPREAD = math.log(0.6 / 0.4)
NEAREST = 1e-5


def initial_label_logits(table: LabelTable, seed: int, heads: tuple[int, ...] = ()) -> Tensor:
    """Return the ``(…, N, K)`` logits that the estimate starts from.

    Uniform in logit space on ±logit(0.6); an observed positive starts at logit(0.995), an observed negative at
    logit(0.005). Every head starts from what it would start from alone.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "role"))
    logits = torch.empty(table.shape).uniform_(-SPREAD, SPREAD, generator=generator)
    rows, columns = torch.from_numpy(table.rows), torch.from_numpy(table.columns.astype("int64"))
    logits[rows, columns] = torch.where(torch.from_numpy(table.values == PRESENT), KNOWN, -KNOWN)
    return logits.expand(*heads, *table.shape).clone(memory_format=torch.contiguous_format)


def online_label_estimation(
    logits: Tensor, estimate: Tensor, labels: Tensor, *, expected_positives: Number, eps: Number = 0.0
) -> Tensor:
    """Cost of every entry when a classifier and an estimate of the labels teach each other; see the class.

    Args:
        logits: ``(…, B, K)`` of the classifier.
        estimate: ``(…, B, K)`` logits of the estimated labels.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        expected_positives: positives per image; a tensor of shape ``(…)`` gives every head its own.
        eps: added inside the logarithm.

    Returns:
        ``(…, B, K)``, not reduced. The regularisers belong to the batch and lie on every entry.

    Example:
        >>> online_label_estimation(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[1, -1]]), expected_positives=1.0)
        tensor([[1.3863, 0.6931]])
    """
    total = torch.zeros_like(logits)
    for mine, other in ((logits, estimate), (estimate, logits)):
        regulariser = expected_positive_regularization(torch.sigmoid(mine), expected_positives)
        taught = cross_entropy(mine, torch.sigmoid(other).detach(), eps)
        total = total + ignore_unknown(mine, labels, eps=eps) + taught + regulariser[..., None, None]
    return 0.5 * total


@method(
    "role", paper=PAPER, summary="online label estimation: the missing labels are learned along with the classifier"
)
class OnlineLabelEstimation(PerImageState, ExpectedPositivesLoss):
    r"""Classifier ``p`` and label estimate ``q = σ(φ[index])`` teach each other; final.

    .. math:: L = \tfrac12 \bigl\{ \mathrm{known}(p) + \mathrm{known}(q) + \mathrm{ce}(\bar q \to p)
        + \mathrm{ce}(\bar p \to q) + R(p) + R(q) \bigr\}

    where known(r) is the mean cost of the observed labels, ce(t → r) the mean cross-entropy with a target that is a
    constant to the gradient, and R the regulariser of `epr`. φ has a row per training image, and learns ten times as
    fast as the head. Adam keeps moving a row by its momentum also in steps that do not hold it.

    Args:
        expected_positives: positives per image; required, here or as an attribute before the first use.
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".
    """

    eps: Number
    phi: torch.nn.Parameter

    def __init__(self, expected_positives: Number | None = None, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(expected_positives, reduction)
        self.hold(eps=check_number("eps", eps, 0, 1))

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0, heads: tuple[int, ...] = ()) -> None:
        """Make φ: four times N × K floats, with its gradient and Adam's two."""
        super().prepare(table, epochs, seed, heads)
        self.reserve(kept=16)
        self.phi = torch.nn.Parameter(initial_label_logits(table, seed, heads).to(self.clock.device))

    def start_from(self, probabilities: Tensor) -> None:
        """Take over the estimate of an earlier phase, ``(…, N, K)`` probabilities, clipped to [1e-5, 1 − 1e-5]."""
        self.prepared()
        if probabilities.shape != self.phi.shape:
            raise InputError(f"the estimate has shape {tuple(probabilities.shape)}, φ {tuple(self.phi.shape)}.")
        with torch.no_grad():
            self.phi.copy_(torch.logit(probabilities.to(self.phi.dtype).clamp(NEAREST, 1 - NEAREST)))

    @torch.no_grad()
    def estimate(self) -> Tensor:
        """Return what the labels are thought to be, ``(…, N, K)`` probabilities."""
        self.prepared()
        return torch.sigmoid(self.phi)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Let φ learn at ten times the rate of the head."""
        self.prepared()
        return [{"params": [self.phi], "lr": 10 * lr}]

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Compare the classifier with the estimate of the rows."""
        estimate = self.recall("phi", index).to(logits.dtype)
        expected = self.required_positives()
        return self.reduced(
            online_label_estimation(logits, estimate, labels, expected_positives=expected, eps=self.eps)
        )

    def mixture(self, classes: int) -> Mixture | None:
        """Half of two mixtures, of the classifier and of the estimate, that are each other's soft targets."""
        if not is_exact(self.eps) or self.table is None:
            return None
        return make_mixture(
            unknown=(0.0, 0.5, 0.0),
            absent=AS_ABSENT,
            present=(0.5, 0.5, 0.0),
            expected=self.required_positives(),
            expected_weight=0.5,
            label_estimate=LabelEstimate(self.phi, 0.5),
        )
