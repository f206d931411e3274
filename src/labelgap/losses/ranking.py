"""Ranking losses: pairwise ranking (Cole et al., CVPR 2021), WARP (Weston et al., IJCAI 2011) and robust multi-label
ranking (Kobayashi, CVPR 2023).

Every positive of an image should rank above every negative. No tensor of pairs is built: negatives are sorted once, and
the sums over those above a positive are looked up, so memory stays at (…, B, K). On the CPU that is done for positives
alone, and the derivative is computed along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, relu
from torch.nn.functional import pad

from labelgap.core.distributed import all_sum, world_size
from labelgap.losses.base.fused import Fused, fused, over_batch, with_heads
from labelgap.losses.base.loss import ElementwiseLoss, MultiHead
from labelgap.losses.base.mixture import is_plain
from labelgap.losses.base.terms import (
    Number,
    check_choice,
    check_number,
    host_array,
    per_head,
    widen,
    widest_float,
)
from labelgap.losses.two_way import PairLoss, positives_and_negatives


def pairwise_ranking(logits: Tensor, labels: Tensor, *, unknown: str = "negative") -> Tensor:
    r"""Cost of every positive when it should have a higher probability, by 1, than every negative of its image.

    .. math:: \ell_i = [y_i=1] \sum_{j \in \mathcal{N}} \max(0,\, 1 - p_i + p_j)
        = [y_i=1] \Bigl( |\mathcal{N}|\,(1 - p_i) + \sum_{j \in \mathcal{N}} p_j \Bigr)

    Probabilities lie between 0 and 1, so the hinge is never negative and the sum over pairs is linear: no tensor of
    pairs is needed. Unknown labels are negatives, as known absents are, or in no pair with ``unknown="ignore"``. An
    image without a pair, and an entry that is not present, cost 0.

    Example:
        >>> pairwise_ranking(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))
        tensor([[2., 0., 0.]])
    """
    logits = widen(logits)
    present, negative = positives_and_negatives(labels, unknown)
    above = (negative * torch.sigmoid(logits)).sum(dim=-1, keepdim=True)
    return present * (negative.sum(dim=-1, keepdim=True) * torch.sigmoid(-logits) + above)


class SortedNegatives(NamedTuple):
    """The negatives of every row in rising order, in float64 where the device has it."""

    values: Tensor  # (…, B, K); the places that are left over come first and hold −∞
    above: Tensor  # (…, B, K + 1), the sum of the negatives from each place on; 0 behind the last


def sort_negatives(logits: Tensor, negative: Tensor) -> SortedNegatives:
    """Sort the negatives of every row, of the mask ``negative`` ``(…, B, K)``, once for all margins."""
    return with_sums(torch.where(negative, logits.to(widest_float(logits.device)), -torch.inf).sort(dim=-1).values)


def with_sums(values: Tensor) -> SortedNegatives:
    """Add the sums to values in rising order."""
    above = torch.where(values > -torch.inf, values, 0.0).flip(-1).cumsum(-1).flip(-1)
    return SortedNegatives(values, torch.cat([above, torch.zeros_like(above[..., :1])], dim=-1))


def hinge_sums(logits: Tensor, negatives: SortedNegatives, margin: Number) -> tuple[Tensor, Tensor]:
    r"""For every entry p, the ``negatives`` of its row that come nearer than the ``margin`` m: how many, and how much.

    .. math:: r_p = \#\{n : m - x_p + x_n > 0\}, \qquad h_p = \sum_n \max(0,\; m - x_p + x_n)

    Both are as large as the logits, ``(…, B, K)`` or fewer of a row; the gradient flows through ``h``. Time is
    K log K and memory K per row.
    """
    wide = logits.to(widest_float(logits.device))
    level = per_head(margin, wide)
    first = torch.searchsorted(negatives.values.detach().contiguous(), (wide - level).detach().contiguous(), right=True)
    count = negatives.values.shape[-1] - first
    return count, (negatives.above.gather(-1, first) + count * (level - wide)).to(logits.dtype)


def harmonic(ranks: Tensor, largest: int, like: Tensor) -> Tensor:
    r"""Return :math:`L(r) = \sum_{j \le r} 1/j` of whole numbers up to ``largest``, in the float type of ``like``."""
    steps = torch.arange(1, largest + 1, dtype=widest_float(like.device), device=like.device)
    return pad(steps.reciprocal_().cumsum(0), (1, 0))[ranks].to(like.dtype)


def ramp(values: Tensor, *, stop: Number, slope: Number) -> Tensor:
    r"""Return :math:`R(z) = \max(0, 1-z) - \beta \max(0, s-z)`: a hinge that grows slower beyond ``stop`` s.

    ``slope`` is β. In a corner, at 1 and at s, the slope is that of its upper side.
    """
    return relu(1.0 - values) - per_head(slope, values) * relu(per_head(stop, values) - values)


def sampled_rank(count: Tensor, negatives: Tensor, classes: int) -> Tensor:
    r"""Estimate ranks as WARP does: draw negatives until one is within the margin, :math:`\lfloor(K-1)/t\rfloor`.

    The number of trials t is geometric with the share of such negatives, so one uniform number per entry, of torch's
    own generator, is enough. Of ``count`` ``(…, B, K)`` negatives within the margin, among ``negatives`` ``(…, B, 1)``,
    it returns whole numbers ``(…, B, K)``; 0 where none is within the margin.
    """
    dtype = widest_float(count.device)
    share = count.to(dtype) / negatives.clamp(min=1)
    uniform = torch.rand(count.shape, dtype=dtype, device=count.device)
    trials = (torch.log1p(-uniform) / torch.log1p(-share)).ceil().clamp(min=1.0)
    return torch.where(count > 0, ((classes - 1) / trials).floor(), 0.0).long()


class RankingLoss(PairLoss, ABC):
    """Sums over the pairs of each image, averaged over images. Abstract.

    Denominator: the B images of the global batch, those without a pair included.
    """

    weight: Number = 0.0  # of the terms of single entries

    @abstractmethod
    def hinges(self) -> tuple[tuple[Number, Number], ...]:
        """Return the margins and factors of the hinges of a pair; the first margin tells the rank."""

    def weigh(self, count: Tensor, negatives: Tensor, logits: Tensor) -> Tensor:
        """Return the weights of positives with ``count`` negatives within the margin, a constant to the gradient."""
        return harmonic(count, logits.shape[-1], logits)

    def entries(self, logits: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the costs ``(…, B, K)``, those of a pair at its positive.

        A logit that is NaN, which sorts behind all others and is in no pair then, makes its entry NaN.
        """
        negatives, margins = sort_negatives(logits, negative), [margin for margin, _ in self.hinges()]
        counts, sums = zip(*(hinge_sums(logits, negatives, margin) for margin in margins), strict=True)
        hinged = sum(per_head(factor, logits) * part for (_, factor), part in zip(self.hinges(), sums, strict=True))
        weights = self.weigh(counts[0], negative.sum(dim=-1, keepdim=True), logits)
        return torch.where(logits.isnan(), torch.nan, torch.where(positive, weights * hinged, 0.0))

    def form(self, logits: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``entries`` summed over the classes, ``(…, B, 1)``, and their slopes, on the host.

        Only positives are looked up. A negative is pushed by the weights of all positives that it is too near to, which
        are those that have their first such negative at its place or before. Terms of single entries are pairs with an
        entry of logit 0: one that does not exist, as all places behind the positives of a row.
        """
        logits, classes = logits.detach(), logits.shape[-1]
        width = int(positive.numpy().sum(axis=-1).max(initial=0))
        alone = not is_plain(self.weight, 0)
        exists, places = positive.to(logits.dtype).topk(min(width + alone, classes))
        points, single = torch.where(exists > 0, logits.gather(-1, places), 0.0), over_batch(self.weight, logits)
        masked = torch.where(negative, logits, -torch.inf)
        order = torch.from_numpy(masked.numpy().argsort(axis=-1))
        negatives = with_sums(masked.gather(-1, order).to(widest_float(logits.device)))
        pushes, weights = torch.zeros_like(negatives.above), None
        cost, slopes = torch.zeros_like(points), torch.zeros_like(points)
        for margin, factor in self.hinges():
            count, hinge = hinge_sums(points, negatives, margin)
            margin, factor = over_batch(margin, logits), over_batch(factor, logits)
            if weights is None:
                weights = self.weigh(count, negative.sum(dim=-1, keepdim=True), logits) * exists
                if alone:
                    weights[..., -1:] += (1 - exists[..., -1:]) * single
            scaled = weights * factor
            cost.addcmul_(scaled, hinge)
            slopes.addcmul_(scaled, count, value=-1.0)
            if alone:
                own, gap = exists * factor * single, margin - points
                cost.addcmul_(own, gap.relu())
                slopes.mul_(exists).addcmul_(own, gap > 0, value=-1.0)
            pushes.scatter_add_(-1, classes - count, scaled.to(pushes.dtype))
        slope = torch.empty_like(logits).scatter_(-1, order, pushes.cumsum(dim=-1)[..., :-1].to(logits.dtype))
        invalid = torch.from_numpy(np.isnan(logits.numpy()).any(axis=-1, keepdims=True))
        return torch.where(invalid, torch.nan, cost.sum(dim=-1, keepdim=True)), slope.scatter_add_(-1, places, slopes)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Sum over the classes, and average over the images of the global batch."""
        masks = positives_and_negatives(labels, self.unknown)
        if host_array(logits.detach()) is not None:
            logits = with_heads(logits, self.weight, *(number for hinge in self.hinges() for number in hinge))
            total = fused(Fused(self.form, [logits], masks), "sum")
        else:
            total = all_sum(self.entries(logits, *masks).sum(dim=(-2, -1)))
        if self.reduction == "sum":
            return total
        images = logits.shape[-2]
        return total / (max(images, 1) if world_size() == 1 else all_sum(total.new_full((), images)).clamp(min=1))


class PairwiseRanking(MultiHead, ElementwiseLoss):
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


class WarpLoss(RankingLoss):
    r"""Weighted approximate-rank pairwise loss; final.

    .. math:: \ell = \sum_p L(r_p) \sum_n \max(0,\; 1 - x_p + x_n), \qquad L(r) = \sum_{j \le r} 1/j

    ``r_p`` is the number of negatives within the margin of p: exact, or the paper's estimate
    :math:`\lfloor (K-1) / \text{trials} \rfloor` from the number of random negatives that are tried until one lies
    within the margin. The rank weights are constants to the gradient. An image without a pair costs 0.

    Args:
        rank: "exact" or "sampled".
    """

    def __init__(self, rank: str = "exact", unknown: str = "negative", reduction: str = "mean") -> None:
        super().__init__(unknown, reduction)
        self.rank = check_choice("rank", rank, ("exact", "sampled"))

    def hinges(self) -> tuple[tuple[Number, Number], ...]:
        """One, of margin 1."""
        return ((1.0, 1.0),)

    def weigh(self, count: Tensor, negatives: Tensor, logits: Tensor) -> Tensor:
        """Weigh by the rank, or by an estimate of it."""
        if self.rank == "sampled":
            count = sampled_rank(count, negatives, logits.shape[-1])
        return super().weigh(count, negatives, logits)


class RobustRankingLoss(RankingLoss):
    r"""Robust multi-label ranking; final.

    .. math:: \ell = C \sum_p R(x_p) + C \sum_n R(-x_n) + \sum_p L(r_p) \sum_n R(x_p - x_n),
        \qquad R(z) = \max(0, 1-z) - \beta \max(0, s-z)

    The rank weights are those of WARP, constants to the gradient.

    Args:
        weight: ``C``, of the terms of single entries.
        beta: ``β``, how much slower the ramp grows beyond its stop.
        stop: ``s``, where it does.
    """

    def __init__(
        self,
        weight: Number = 5.0,
        beta: Number = 0.9,
        stop: Number = -0.8,
        unknown: str = "negative",
        reduction: str = "mean",
    ) -> None:
        super().__init__(unknown, reduction)
        self.weight = check_number("weight", weight, 0)
        self.beta = check_number("beta", beta, 0, 1)
        self.stop = check_number("stop", stop, high=1)

    def hinges(self) -> tuple[tuple[Number, Number], ...]:
        """The two of which the ramp is made."""
        return (1.0, 1.0), (self.stop, -self.beta)

    def entries(self, logits: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Add the terms of single entries."""
        single = ramp(torch.where(positive, logits, -logits), stop=self.stop, slope=self.beta)
        entries = torch.where(positive | negative, per_head(self.weight, logits) * single, 0.0)
        return entries + super().entries(logits, positive, negative)
