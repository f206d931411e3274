"""Asymmetric pseudo-labeling (Zhou et al., "Acknowledging the Unknown for Multi-label Learning with Single Positive
Labels", ECCV 2022).

Most unknown labels are absent, so a network trained with `em` finds absent ones far more reliably than present ones.
After some epochs, a few more unknown labels of each class, those with the lowest probability, become soft negatives.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import InputError
from labelgap.labels import LabelTable, Revisions
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.losses.base.fused import Fused, fused, is_fusible, linear, mask_of, over_batch, with_heads
from labelgap.losses.base.loss import TrainingScores
from labelgap.losses.base.mixture_form import mixed
from labelgap.losses.base.option_checks import check_flag, check_integer, check_number, exact_fractions
from labelgap.losses.base.papers import ZHOU_2022
from labelgap.losses.base.per_image_state import PerImageState
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import Number, constant, cross_entropy, per_head, states
from labelgap.losses.entropy import entropy_on_unknown

ENTRIES_PER_SORT = 2**24
"""How many entries are sorted at once: each class is sorted by itself, so a few classes at a time are enough."""

TEMPORARY_BYTES = 20
"""Bytes that a round takes for each image and class: the logits, their probabilities, and what can be chosen."""
LARGE_TEMPORARY_BYTES = 3
"""The same beyond 100 million images × classes: the logits in half precision, and what is known."""


def lowest_per_class(values: Tensor, allowed: Tensor, counts: Tensor) -> Tensor:
    """Mark, in every class, the ``counts`` allowed entries with the lowest values; of equal ones the first rows.

    Values and masks are ``(…, N, K)``, counts ``(…, K)``.

    Example:
        >>> values = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 3.0]])
        >>> lowest_per_class(values, torch.ones(3, 2, dtype=torch.bool), torch.tensor([2, 1])).int().tolist()
        [[0, 1], [1, 0], [1, 0]]
    """
    chosen, step = torch.zeros_like(allowed), max(1, ENTRIES_PER_SORT * values.shape[-1] // max(values.numel(), 1))
    for start in range(0, values.shape[-1], step):
        part = slice(start, start + step)
        candidates, sizes = torch.where(allowed[..., part], values[..., part], torch.inf), counts[..., part]
        if values.device.type == "cpu":
            chosen[..., part] = _selected(candidates, sizes)
            continue
        order = candidates.argsort(dim=-2, stable=True)
        taken = torch.arange(values.shape[-2], device=values.device)[:, None] < sizes[..., None, :]
        chosen[..., part].scatter_(-2, order, taken.expand(order.shape))
    return chosen & allowed


def _selected(candidates: Tensor, counts: Tensor) -> Tensor:
    """Mark the lowest candidates of each class by their k-th lowest: ten times as fast as a sort, but k is read."""
    columns = candidates.mT.contiguous()
    sizes = counts.expand(columns.shape[:-1]).clamp(max=columns.shape[-1])
    rankings = zip(columns.flatten(0, -2), sizes.flatten().tolist(), strict=True)
    cuts = [ranking.kthvalue(size).values if size else ranking.new_tensor(-torch.inf) for ranking, size in rankings]
    cut = torch.stack(cuts).reshape(*sizes.shape, 1)
    below, equal = columns < cut, columns == cut
    left = sizes[..., None] - below.sum(dim=-1, keepdim=True)
    return (below | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= left))).mT


class PseudoLabelRounds(PerImageState, ABC):
    """A loss that assigns pseudo-labels to unknown labels at the end of epochs, permanently. Abstract.

    Attributes:
        warmup: epochs before the first round; the last epoch has none.
    """

    needs = frozenset({"index", "scores"})
    epoch_dependent = True
    warmup: Number
    _assigned: Tensor | None = None

    @abstractmethod
    def assign(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """Assign pseudo-labels to some of the allowed entries ``(…, N, K)``, and return the mask of those."""

    @abstractmethod
    def pseudo_labels(
        self, head: tuple[int, ...], rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], NDArray[np.float32] | None]:
        """Return the states that were assigned to entries, and their soft targets where those are soft."""

    @torch.no_grad()
    def end_epoch(self, scores: TrainingScores | None = None) -> Revisions:
        """Hold a round, if one is due, and return its pseudo-labels; of many heads, see ``revisions_of``."""
        self._assigned = None
        early = np.all(exact_fractions(self.warmup) > self.epoch)
        if self.epoch >= self.epochs or early or self.prepared_table().complete:
            return Revisions()
        self.hold_round(scores, torch.as_tensor(self.warmup, device=self.epoch_tensor.device) <= self.epoch_tensor)
        return Revisions() if self.heads else self.revisions_of(())

    def hold_round(self, scores: TrainingScores | None, due: Tensor) -> None:
        """Assign pseudo-labels; ``due`` is ``(…)``, or a single value for all heads."""
        logits = self.all_logits(scores)
        self._assigned = self.assign(logits, ~self.known_mask() & due[..., None, None])

    def revisions_of(self, head: tuple[int, ...]) -> Revisions:
        """Return the pseudo-labels of the last round."""
        if self._assigned is None:
            return Revisions()
        rows, columns = (place.cpu().numpy() for place in self.listed_places(self._assigned, head))
        values, targets = self.pseudo_labels(head, rows, columns)
        table = self.prepared_table()
        return Revisions.from_arrays(
            table, rows, columns, values=values, targets=targets, source=self.name, epoch=self.epoch
        )

    def listed_places(self, assigned: Tensor, head: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return the rows and the classes that the revisions of a head list."""
        return torch.nonzero(assigned[head], as_tuple=True)


@method("em-apl", paper=ZHOU_2022, summary="`em`, and unlikely labels become soft negatives round by round")
class AsymmetricPseudoLabeling(PseudoLabelRounds):
    r"""`em` on what is unknown, and :math:`\beta\,(-s \ln p - (1-s) \ln(1-p))` on pseudo-labels; final.

    At the end of the epochs :math:`T_w \dots E-1`, per class, the :math:`\lfloor \theta U_c / (E - T_w) \rfloor`
    still unknown images with the lowest ``p`` get the target ``s = p``, permanently; ``U_c`` is how many were unknown
    at the start. Known labels are never changed.

    Beyond 100 million images × classes, logits and targets are in half precision, two bytes each, and the revisions
    list only labels that became present: the soft negatives are nearly all labels there are.

    Args:
        alpha: α of `em`.
        beta: β, weight of the pseudo-labels; 1 is one of the paper's ablations.
        theta: θ, the share of each class's unknown labels that become negatives by the end.
        warmup: ``T_w``, epochs before the first round.
        hard: whether targets are 0 (and 1) instead of the probability.
        positive_share: the share of each class's unknown labels, the likeliest ones, that become *positives* by the
            end: the paper's counterpart, 0.1 there, which turns out unreliable.
        eps: added inside the logarithm; 1e-5 in the authors' code.
        reduction: "mean", "sum" or "none".
    """

    alpha: Number
    beta: Number
    theta: Number
    positive_share: Number
    eps: Number
    targets: Tensor

    def __init__(
        self,
        alpha: Number = 0.2,
        beta: Number = 0.02,
        theta: Number = 0.9,
        warmup: Number = 5,
        hard: bool = False,
        positive_share: Number = 0.0,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.register_options(
            alpha=check_number("alpha", alpha, 0),
            beta=check_number("beta", beta, 0),
            theta=check_number("theta", theta, 0, 1),
            warmup=check_integer("warmup", warmup, 1),
            positive_share=check_number("positive_share", positive_share, 0, 1),
            eps=check_number("eps", eps, 0, 1),
        )
        self.hard = check_flag("hard", hard)

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Allocate four bytes (two) for each image and class, and check that a round is due before the last epoch."""
        super().prepare(table, epochs, seed)
        if np.any(exact_fractions(self.warmup) >= epochs):
            raise InputError(
                f"'{self.name}' begins its rounds after {self.warmup} epochs and {epochs} are trained: give more "
                "epochs, or a smaller warmup."
            )
        if np.any(exact_fractions(self.theta) + exact_fractions(self.positive_share) > 1):
            raise InputError("theta and positive_share are shares of the same labels: together they are at most 1.")
        if table.complete and is_main_process():
            warnings.warn(f"{self.name}: nothing is unknown, so there is nothing to pseudo-label.", stacklevel=2)
        dtype, temporary = torch.float32, TEMPORARY_BYTES
        if self.is_large:
            dtype, temporary = torch.float16, LARGE_TEMPORARY_BYTES
            self.state_form = " in half precision; its revisions leave the soft negatives out"
        self.register_buffer("targets", self.allocate(dtype, torch.nan, temporary=temporary))

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Use the pseudo-labels of the rows for unknown entries that have one."""
        target = self.state_rows("targets", index).to(logits.dtype)
        if is_fusible(self.eps):
            return fused(self._fused(logits, labels, target), self.reduction)
        labeled = ~target.isnan() & states(labels).unknown
        soft = cross_entropy(logits, torch.where(labeled, target, 0.5), self.eps)
        undecided = entropy_on_unknown(logits, labels, weight=-self.alpha, eps=self.eps)
        return self.reduce(torch.where(labeled, per_head(self.beta, logits) * soft, undecided))

    def _fused(self, logits: Tensor, labels: Tensor, target: Tensor) -> Fused:
        """Where a label is unknown and has the target s: a mixture with u = β s, v = β (1 − s) and no entropy."""
        logits = with_heads(logits, self.alpha, self.beta)
        alpha, beta = over_batch(self.alpha, logits), over_batch(self.beta, logits)

        def form(x: Tensor, labels: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            present = mask_of(labels, x)
            known = mask_of(labels, x, ABSENT).add_(present)
            unknown = linear(known, -1.0, 1.0)
            labeled = torch.eq(target, target, out=torch.empty_like(x)).mul_(unknown)  # NaN is no target
            undecided = unknown.sub_(labeled).mul_(constant(-alpha, x))
            labeled.mul_(constant(beta, x))
            both, present = known.add_(labeled), present.addcmul_(labeled, target.nan_to_num())
            return mixed(x, both, present, undecided, exact=self.reduction == "none")

        return Fused(form, [logits], [labels, target])

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries that have a pseudo-label."""
        return ~self.state_rows("targets", index).isnan() & states(labels).unknown

    def round_sizes(self, share: Number) -> Tensor:
        """Return how many labels of each class a round takes, ``(…, K)``, exact for the decimals the user wrote."""
        unknown = self.prepared_table().counts().unknown.tolist()
        shares, warmups = np.broadcast_arrays(exact_fractions(share), exact_fractions(self.warmup))

        def sizes(share: Fraction, warmup: Fraction) -> list[int]:
            rounds = self.epochs - warmup
            return [int(share * count / rounds) if rounds > 0 else 0 for count in unknown]

        every = [sizes(*pair) for pair in zip(shares.flat, warmups.flat, strict=True)]
        return torch.tensor(every, device=self.epoch_tensor.device).reshape(*shares.shape, len(unknown))

    def assign(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """Take the least likely labels as absent and, with ``positive_share``, the likeliest as present."""
        sizes = [self.round_sizes(share) for share in (self.theta, self.positive_share)]
        negative, self._positive = self._assign_classes(self.targets, logits, allowed, sizes)
        return negative | self._positive

    def _assign_classes(
        self, targets: Tensor, logits: Tensor, allowed: Tensor, sizes: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Write the targets of some classes; return the masks of what becomes absent and present."""
        allowed = allowed & targets.isnan()
        negative = lowest_per_class(logits, allowed, sizes[0])
        positive = lowest_per_class(-logits, allowed & ~negative, sizes[1])
        target = positive.to(targets) if self.hard else torch.sigmoid(logits).to(targets)
        targets.copy_(torch.where(negative | positive, target, targets))
        return negative, positive

    def hold_round(self, scores: TrainingScores | None, due: Tensor) -> None:
        """Assign pseudo-labels, a few classes at a time where images × classes are many; see the class."""
        if not self.is_large:
            return super().hold_round(scores, due)
        logits, known = self.all_logits(scores, torch.float16), self.known_mask()
        sizes = [self.round_sizes(share) for share in (self.theta, self.positive_share)]
        step, found = max(1, ENTRIES_PER_SORT // math.prod(logits.shape[:-1])), []
        for first in range(0, logits.shape[-1], step):
            part = slice(first, first + step)
            allowed, own = ~known[:, part] & due[..., None, None], [size[..., part] for size in sizes]
            _, positive = self._assign_classes(self.targets[..., part], logits[..., part].float(), allowed, own)
            places = torch.nonzero(positive)
            places[:, -1] += first
            found.append(places)
        self._assigned = torch.cat(found)
        return None

    def listed_places(self, assigned: Tensor, head: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return the rows and the classes of the revisions; those that became present where there are very many."""
        if not self.is_large:
            return super().listed_places(assigned, head)
        own = (assigned[:, :-2] == assigned.new_tensor(head)).all(dim=1)
        return assigned[own, -2], assigned[own, -1]

    def pseudo_labels(
        self, head: tuple[int, ...], rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], Any]:
        """Return the states of the last round, and the probabilities unless ``hard``."""
        places = tuple(torch.from_numpy(place).to(self.targets.device) for place in (rows, columns))
        positive = True if self.is_large else self._positive[head][places].cpu().numpy()
        targets = None if self.hard else self.targets[head][places].cpu().numpy()
        return np.broadcast_to(np.where(positive, PRESENT, ABSENT), rows.shape).astype(np.int8), targets
