"""Acknowledging the unknown (Zhou et al., "Acknowledging the Unknown for Multi-label Learning with Single Positive
Labels", ECCV 2022).

Instead of taking an unknown label as absent, keep the prediction undecided there, by raising its entropy (`em`). What
the network learns from the known labels then shows on the unknown ones, weakly at first, and the gradient is small both
where the network is still undecided and where it has become certain. Lowering the entropy instead (`entmin`) is the
paper's counter-example.

Most unknown labels are absent, so a network trained with `em` finds absent ones far more reliably than present ones.
Asymmetric pseudo-labeling (`em-apl`): after some epochs, a few more unknown labels of each class, those with the lowest
probability, become soft negatives.
"""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.losses.base.fused import KNOWN, Fused, fused, is_fusible, linear, mask_of, mixed, over_batch, with_heads
from labelgap.losses.base.loss import MixtureLoss, TrainingScores
from labelgap.losses.base.mixture import Mixture, mixture_entries
from labelgap.losses.base.state import PseudoLabelRounds
from labelgap.losses.base.terms import (
    Number,
    check_flag,
    check_integer,
    check_number,
    cross_entropy,
    exact_fractions,
    per_head,
    states,
)

ENTRIES_PER_SORT = 2**24
"""How many entries are sorted at once: each class is sorted by itself, so a few classes at a time are enough."""

TEMPORARY_BYTES = 20
"""Bytes that a round takes for each image and class: the logits, their probabilities, and what can be chosen."""
LARGE_TEMPORARY_BYTES = 3
"""The same beyond 100 million images × classes: the logits in half precision, and what is known."""


def entropy_on_unknown(logits: Tensor, labels: Tensor, *, weight: Number, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when the known labels count as they are and unknown ones by their entropy.

    .. math:: \ell = [y=1]\,(-\ln p) + [y=0]\,(-\ln(1-p)) + [y=?]\; w\,H(p)

    The ``weight`` w = −α pushes unknown labels towards p = ½ (`em`, the cost may be negative), a positive one away from
    it (`entmin`).

    Example:
        >>> entropy_on_unknown(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), weight=-0.2)
        tensor([[ 0.6931,  0.6931, -0.1386]])
    """
    return mixture_entries(logits, labels, Mixture(unknown=(0.0, 0.0, weight)), eps=eps)


class EntropyMaximization(MixtureLoss):
    r"""Known labels as they are, unknown ones with :math:`-\alpha H(p)`; final. See ``entropy_on_unknown``.

    Args:
        alpha: α, the weight of the entropy.
    """

    def __init__(self, alpha: Number = 0.2, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.alpha = check_number("alpha", alpha, 0)

    def weights(self, classes: int) -> Mixture:
        """Unknown labels by their entropy, raised."""
        return Mixture(unknown=(0.0, 0.0, -self.alpha))


class EntropyMinimization(MixtureLoss):
    """Known labels as they are, unknown ones with w·H(p); final. See ``entropy_on_unknown``.

    Args:
        weight: w.
    """

    def __init__(self, weight: Number = 0.01, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self.weight = check_number("weight", weight, 0)

    def weights(self, classes: int) -> Mixture:
        """Unknown labels by their entropy, lowered."""
        return Mixture(unknown=(0.0, 0.0, self.weight))


def lowest_per_class(values: Tensor, allowed: Tensor, counts: Tensor) -> Tensor:
    """Mark, in every class, the ``counts`` allowed entries with the lowest values; of equal ones the first rows.

    Values and masks are ``(…, N, K)``, counts ``(…, K)``.
    """
    candidates = torch.where(allowed, values, torch.inf)
    if values.device.type == "cpu":
        return _selected(candidates, counts) & allowed if counts.any() else torch.zeros_like(allowed)
    order = candidates.argsort(dim=-2, stable=True)
    taken = torch.arange(values.shape[-2], device=values.device)[:, None] < counts[..., None, :]
    return torch.zeros_like(allowed).scatter_(-2, order, taken.expand(order.shape)) & allowed


def _selected(candidates: Tensor, counts: Tensor) -> Tensor:
    """Mark the lowest candidates of each class by their k-th lowest; NumPy sorts values ten times as fast as torch."""
    columns = candidates.mT.contiguous()
    sizes = counts.expand(columns.shape[:-1]).clamp(max=columns.shape[-1])[..., None]
    cut = torch.from_numpy(np.sort(columns.numpy())).gather(-1, (sizes - 1).clamp(min=0))
    cut.masked_fill_(sizes == 0, -torch.inf)
    marked = columns <= cut
    if torch.equal(marked.sum(dim=-1, keepdim=True), sizes):
        return marked.mT
    below, equal = columns < cut, columns == cut
    left = sizes - below.sum(dim=-1, keepdim=True)
    return (below | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= left))).mT


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
        self.alpha, self.beta = check_number("alpha", alpha, 0), check_number("beta", beta, 0)
        self.theta = check_number("theta", theta, 0, 1)
        self.warmup = check_integer("warmup", warmup, 1)
        self.positive_share = check_number("positive_share", positive_share, 0, 1)
        self.eps = check_number("eps", eps, 0, 1)
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
        """Use the pseudo-labels of the rows for unknown entries that have one.

        Where a label is unknown and has the target s: a mixture with u = β s, v = β (1 − s) and no entropy.
        """
        target = self.state_rows("targets", index).to(logits.dtype)
        if not is_fusible(self.eps):
            labeled = ~target.isnan() & states(labels).unknown
            soft = cross_entropy(logits, torch.where(labeled, target, 0.5), self.eps)
            undecided = entropy_on_unknown(logits, labels, weight=-self.alpha, eps=self.eps)
            return self.reduce(torch.where(labeled, per_head(self.beta, logits) * soft, undecided))
        logits = with_heads(logits, self.alpha, self.beta)
        alpha, beta = over_batch(self.alpha, logits), over_batch(self.beta, logits)

        present, known = mask_of(labels, logits), mask_of(labels, logits, KNOWN)
        unknown = linear(known, -1.0, 1.0)
        if logits.stride(-1) != 1:  # values in another order than the logits take twice as long
            target = target.mT.contiguous().mT

        def form(x: Tensor, present: Tensor, known: Tensor, unknown: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            labeled = (target == target).to(x.dtype).mul_(unknown)  # NaN is no target
            undecided = (labeled - unknown).mul_(alpha)
            labeled.mul_(beta)
            present = torch.addcmul(present, labeled, target.nan_to_num())
            return mixed(x, known + labeled, present, undecided, exact=self.reduction == "none")

        return fused(Fused(form, [logits], [present, known, unknown, target]), self.reduction)

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries that have a pseudo-label."""
        return ~self.state_rows("targets", index).isnan() & states(labels).unknown

    def round_sizes(self, share: Number) -> Tensor:
        """Return how many labels of each class a round takes, ``(…, K)``, exact for the decimals the user wrote."""
        tables = {id(table): table for table in self.tables_of_heads()}
        unknown = {key: table.counts().unknown.tolist() for key, table in tables.items()}
        of_head = np.array([id(table) for table in self.tables] if self.tables else id(self.table))
        every = np.broadcast_arrays(exact_fractions(share), exact_fractions(self.warmup), of_head)

        @cache
        def sizes(share: Fraction, warmup: Fraction, table: int) -> list[int]:
            each = share / (self.epochs - warmup) if warmup < self.epochs else Fraction(0)
            return [count * each.numerator // each.denominator for count in unknown[table]]

        found = [sizes(*each) for each in zip(*(values.flat for values in every), strict=True)]
        return torch.tensor(found, device=self.epoch_tensor.device).reshape(*every[0].shape, len(found[0]))

    def assign(self, scores: TrainingScores | None, due: Tensor) -> tuple[Tensor, Tensor]:
        """Take the least likely labels as absent and, with ``positive_share``, the likeliest as present.

        A few classes at a time. Where images × classes are many, only what became present is listed; see the class.
        """
        logits, known = self.all_logits(scores, self.targets.dtype), self.known_mask()
        negatives, positives = self.round_sizes(self.theta), self.round_sizes(self.positive_share)
        step, found = max(1, ENTRIES_PER_SORT // math.prod(logits.shape[:-1])), []
        for first in range(0, logits.shape[-1], step):
            part = slice(first, first + step)
            targets, values = self.targets[..., part], logits[..., part].float()
            allowed = ~known[..., part] & due[..., None, None] & targets.isnan()
            chosen = negative = lowest_per_class(values, allowed, negatives[..., part])
            positive = torch.zeros((), dtype=torch.bool, device=values.device).expand(chosen.shape)
            if positives.any():
                positive = lowest_per_class(-values, allowed & ~negative, positives[..., part])
                chosen = negative | positive
            target = positive.to(targets) if self.hard else torch.sigmoid(values).to(targets)
            targets.copy_(torch.where(chosen, target, targets))
            places = torch.nonzero(positive if self.is_large else chosen)
            state = torch.where(positive[places.unbind(1)], PRESENT, ABSENT).to(torch.int8)
            places[:, -1] += first
            found.append((places, state))
        parts, states = zip(*found, strict=True)
        return torch.cat(parts), torch.cat(states)

    def soft_targets(self, places: tuple[Any, ...]) -> NDArray[np.float32] | None:
        """Return the probabilities, unless ``hard``."""
        return None if self.hard else self.targets[places].cpu().numpy()
