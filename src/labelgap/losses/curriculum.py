"""Learning with partial labels by a curriculum (Durand et al., "Learning a Deep ConvNet for Multi-label Classification
with Partial Labels", CVPR 2019).

Only known labels count, and an image of which little is known counts as much as one of which all is. After some epochs
the network labels itself what it is surest of, and trains on with that.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import InputError
from labelgap.labels import LabelTable, Revisions
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.assume_negative import ignore_unknown
from labelgap.losses.base.loss import TrainingScores
from labelgap.losses.base.option_checks import check_choice, check_integer, check_number, exact_fractions
from labelgap.losses.base.papers import DURAND_2019
from labelgap.losses.base.per_image_state import PerImageState
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import Number, states

__all__ = ["CurriculumLabeling", "known_share_weight", "partial_cross_entropy"]

SLOPE, OFFSET = -4.45, 5.45

TEMPORARY_BYTES = 24
"""Bytes that a round takes for each image and class: the logits, their order, and what is left to choose."""


def known_share_weight(labels: Tensor, like: Tensor) -> Tensor:
    r"""Return the weight of each image, :math:`g(\rho) = -4.45\,\rho + 5.45`, ρ the share of its labels that is known.

    Example:
        >>> known_share_weight(torch.tensor([[1, 0], [1, -1]]), torch.zeros(1))
        tensor([[1.0000], [3.2250]])
    """
    known = (~states(labels).unknown).to(like.dtype).mean(dim=-1, keepdim=True)
    return SLOPE * known + OFFSET


def partial_cross_entropy(logits: Tensor, labels: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when only known labels count, each image weighted by how little of it is known.

    .. math:: \ell = g(\rho)\,\bigl([y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p))\bigr)

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        eps: added inside the logarithm.

    Returns:
        ``(…, B, K)``, not reduced; its mean is the paper's loss.

    Example:
        >>> partial_cross_entropy(torch.zeros(1, 2), torch.tensor([[1, -1]]))
        tensor([[2.2354, 0.0000]])
    """
    cost = ignore_unknown(logits, labels, eps=eps)
    return known_share_weight(labels, cost) * cost


@method("curriculum", paper=DURAND_2019, summary="known labels alone, and rounds in which the surest others are added")
class CurriculumLabeling(PerImageState):
    """Mean of ``partial_cross_entropy`` over observed labels and those the network gave itself; final.

    At the end of every epoch from ``warmup`` on, but the last, unknown labels are added, for good:

    - "threshold": present where p ≥ τ, absent where p ≤ 1 − τ;
    - "positives": only the present ones of these;
    - "proportion": the share θ of the labels unknown at the start of which the network is surest, either way.

    It makes no sense where no absent label is known: everything would be called present.

    Args:
        strategy: "threshold", "proportion" or "positives".
        tau: τ, from which probability on a label is added.
        theta: θ, the share of labels added in a round.
        warmup: epochs before the first round.
        eps: added inside the logarithm.
        reduction: "mean", "sum" or "none".
    """

    needs = frozenset({"index", "scores"})
    tau: Number
    theta: Number
    warmup: Number
    eps: Number
    given: Tensor
    _added: Tensor | None = None

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
        self.register_options(
            tau=check_number("tau", tau, 0.5, 1, above=True), theta=check_number("theta", theta, 0, 1)
        )
        self.register_options(eps=check_number("eps", eps, 0, 1))
        self.register_options(warmup=check_integer("warmup", warmup, 1))

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Make room, one byte for each image and class, and say so where no round will be held."""
        super().prepare(table, epochs, seed)
        present, absent, _ = table.counts().total
        if not present or not absent:
            missing = "absent" if present else "present"
            raise InputError(
                f"'{self.name}' learns from known labels alone, and none is known to be {missing}: it would call "
                f"everything {'present' if present else 'absent'}. Take a method for such labels (em, role, ll-ct)."
            )
        if np.all(exact_fractions(self.warmup) >= epochs) and is_main_process():
            warnings.warn(
                f"{self.name}: the first round is held after {self.warmup} epochs and {epochs} are trained, so the "
                "network labels nothing itself. Give more epochs, or a smaller warmup.",
                stacklevel=2,
            )
        self.register_buffer("given", self.allocate(torch.int8, UNKNOWN, temporary=TEMPORARY_BYTES))

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Lay the labels that the network gave itself over the unknown ones."""
        own = self.state_rows("given", index)
        revised = torch.where(states(labels).unknown, own.to(labels.dtype), labels)
        return self.reduce(partial_cross_entropy(logits, revised, eps=self.eps))

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries that the network has labelled itself."""
        return ~states(self.state_rows("given", index)).unknown & states(labels).unknown

    @torch.no_grad()
    def end_epoch(self, scores: TrainingScores | None = None) -> Revisions:
        """Hold a round, if it is time for one, and return what it added; of many heads, see ``revisions_of``."""
        self._added = None
        if (
            self.epoch >= self.epochs
            or np.all(exact_fractions(self.warmup) > self.epoch)
            or self.prepared_table().complete
        ):
            return Revisions()
        logits = self.all_logits(scores)
        due = torch.as_tensor(self.warmup, device=logits.device)[..., None, None] <= self.epoch_tensor
        free = states(self.given).unknown & ~self.known_mask() & due
        added = free & self._sure(logits, free)
        value = torch.where(logits > 0, PRESENT, ABSENT).to(torch.int8)
        self.given.copy_(torch.where(added, value, self.given))
        self._added = added
        return Revisions() if self.heads else self.revisions_of(())

    def revisions_of(self, head: tuple[int, ...]) -> Revisions:
        """Return what the last round added."""
        if self._added is None:
            return Revisions()
        rows, columns = (place.cpu().numpy() for place in torch.nonzero(self._added[head], as_tuple=True))
        became = self.given[head].cpu().numpy()[rows, columns]
        return Revisions.from_arrays(
            self.prepared_table(), rows, columns, values=became, source=self.name, epoch=self.epoch
        )

    def _sure(self, logits: Tensor, free: Tensor) -> Tensor:
        """Mark what the strategy is sure of."""
        if self.strategy == "proportion":
            return self._surest(logits, free)
        level = torch.logit(torch.as_tensor(self.tau, dtype=torch.float64, device=logits.device))[..., None, None]
        present = logits >= level
        return present if self.strategy == "positives" else present | (logits <= -level)

    def _surest(self, logits: Tensor, free: Tensor) -> Tensor:
        """Mark the share θ of the initially unknown labels with the largest |logit|; of equal ones the first."""
        unknown, shares = self.prepared_table().counts().total[2], exact_fractions(self.theta)
        counts = torch.tensor([int(share * unknown) for share in shares.flat], device=logits.device)
        sureness = torch.where(free, logits.abs(), -torch.inf).flatten(-2)
        order = sureness.argsort(dim=-1, descending=True, stable=True)
        taken = torch.arange(order.shape[-1], device=order.device) < counts.reshape(*shares.shape, 1)
        marked = torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, taken.expand(order.shape))
        return marked.reshape(free.shape)
