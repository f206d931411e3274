"""Learning with partial labels by a curriculum (Durand et al., "Learning a Deep ConvNet for Multi-label Classification
with Partial Labels", CVPR 2019).

Only known labels count, and an image with few known labels counts as much as a fully labeled one. After some epochs the
network adds the labels that it is surest of, and trains on with them.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from labelgap.core.distributed import is_main_process
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.assume_negative import ignore_unknown
from labelgap.losses.base.fused import Fused, fused, is_fusible, linear, mask_of, mixed
from labelgap.losses.base.loss import TrainingScores
from labelgap.losses.base.state import PseudoLabelRounds
from labelgap.losses.base.terms import (
    Number,
    check_choice,
    check_integer,
    check_number,
    exact_fractions,
    is_unknown,
    states,
)

SLOPE, OFFSET = -4.45, 5.45

TEMPORARY_BYTES = 24
"""Bytes that a round takes for each image and class: the logits, their order, and what can be chosen."""


def confidence_level(tau: Number, device: torch.device) -> Tensor:
    """Return the logit of a probability, rounded up to a float32: ``x >= level`` of float32 logits is exact."""
    level = torch.logit(torch.as_tensor(tau, dtype=torch.float64, device="cpu"))
    narrow = level.float()
    return torch.where(narrow < level, narrow.nextafter(torch.full_like(narrow, torch.inf)), narrow).to(device)


def partial_cross_entropy(logits: Tensor, labels: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when only known labels count, with more weight on images of which little is known.

    .. math:: \ell = g(\rho)\,\bigl([y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p))\bigr), \qquad g(\rho) = -4.45\,\rho + 5.45

    ρ is the known share of the labels of an image.

    Example:
        >>> partial_cross_entropy(torch.zeros(1, 2), torch.tensor([[1, -1]]))
        tensor([[2.2354, 0.0000]])
    """
    cost = ignore_unknown(logits, labels, eps=eps)
    known = (~states(labels).unknown).to(cost.dtype).mean(dim=-1, keepdim=True)
    return (SLOPE * known + OFFSET) * cost


class CurriculumLabeling(PseudoLabelRounds):
    """Mean of ``partial_cross_entropy`` over observed labels and those that the network added; final.

    At the end of every epoch from ``warmup`` on, but the last, unknown labels are added, permanently:

    - "threshold": present where p ≥ τ, absent where p ≤ 1 − τ;
    - "positives": only the present ones of these;
    - "proportion": the share θ of the labels unknown at the start of which the network is surest, either way.

    Args:
        strategy: "threshold", "proportion" or "positives".
        tau: τ, from which probability on a label is added.
        theta: θ, the share of labels added in a round.
        warmup: epochs before the first round.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    added: Tensor

    def __init__(
        self,
        strategy: str = "threshold",
        tau: Number = 0.95,
        theta: Number = 0.1,
        warmup: Number = 1,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.strategy = check_choice("strategy", strategy, ("threshold", "proportion", "positives"))
        self.tau = check_number("tau", tau, 0.5, 1, above=True)
        self.theta = check_number("theta", theta, 0, 1)
        self.warmup = check_integer("warmup", warmup, 1)
        self.eps = check_number("eps", eps, 0, 1)

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Allocate one byte for each image and class, and warn where no round will be held."""
        super().prepare(table, epochs, seed)
        self.require_known_states()
        if np.all(exact_fractions(self.warmup) >= epochs) and is_main_process():
            warnings.warn(
                f"{self.name}: the first round is held after {self.warmup} epochs and {epochs} are trained, so the "
                "network adds no labels. Give more epochs, or a smaller warmup.",
                stacklevel=2,
            )
        self.register_buffer("added", self.allocate(torch.int8, UNKNOWN, temporary=TEMPORARY_BYTES))

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Use the added labels of the rows for unknown entries."""
        added, unknown = self.state_rows("added", index), is_unknown(labels)
        if labels.dtype == added.dtype:  # on a CPU a tenth of the time of selecting
            revised = torch.addcmul(labels, unknown.view(labels.dtype), added - labels)
        else:
            revised = torch.where(unknown, added.to(labels.dtype), labels)
        if not is_fusible(self.eps):
            return self.reduce(partial_cross_entropy(logits, revised, eps=self.eps))

        def form(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            present = mask_of(labels, x)
            known = mask_of(labels, x, ABSENT).add_(present)
            weight = linear(known.mean(dim=-1, keepdim=True), SLOPE, OFFSET)
            return mixed(x, known.mul_(weight), present.mul_(weight), exact=self.reduction == "none")

        return fused(Fused(form, [logits], [revised]), self.reduction)

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries that have an added label."""
        return ~states(self.state_rows("added", index)).unknown & states(labels).unknown

    def assign(self, scores: TrainingScores | None, due: Tensor) -> tuple[Tensor, Tensor]:
        """Add the labels that the strategy selects."""
        logits = self.all_logits(scores)
        allowed = ~self.known_mask() & due[..., None, None] & states(self.added).unknown
        chosen = allowed & self._select(logits, allowed)
        state = torch.where(logits > 0, PRESENT, ABSENT).to(torch.int8)
        self.added.copy_(torch.where(chosen, state, self.added))
        return torch.nonzero(chosen), self.added[chosen]

    def _select(self, logits: Tensor, allowed: Tensor) -> Tensor:
        if self.strategy == "proportion":
            return self._surest(logits, allowed)
        level = confidence_level(self.tau, logits.device)[..., None, None]
        present = logits >= level
        return present if self.strategy == "positives" else present | (logits <= -level)

    def _surest(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """Mark the share θ of the initially unknown labels with the largest |logit|; of equal ones the first."""
        unknown = np.array([table.counts().total[2] for table in self.tables_of_heads()], dtype=object)
        sizes = np.asarray(exact_fractions(self.theta) * (unknown if self.tables else unknown[0]))
        counts = torch.tensor([int(size) for size in sizes.flat], device=logits.device)
        order = torch.where(allowed, logits.abs(), -torch.inf).flatten(-2).argsort(dim=-1, descending=True, stable=True)
        taken = torch.arange(order.shape[-1], device=order.device) < counts.reshape(*sizes.shape, 1)
        marked = torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, taken.expand(order.shape))
        return marked.reshape(allowed.shape)
