r"""One evaluation for the heads of all methods whose costs are mixtures (see ``labelgap.losses.base.mixture``).

The heads' logits lie as ``(M, K, B)``, the order in which the product of weights and features gives them, and heads
that need the same lie side by side. An estimate that learns along with a head (`role`) is evaluated as if it were one
more head, behind all others. What follows from labels alone, the weights of every entry, is laid out for several
batches at once, a *block* of them: a product of the heads' shares and of where each table says what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.base.mixture import LabelEstimate, Mixture, entropy_cost, mixture_cost
from labelgap.training.heads.grouping import HeadGroup

__all__ = ["BatchWeights", "MixtureKernel", "PlacedGroup"]

CLOSED = -1e30
"""Added to the logit of an entry that may not be modified: it is never among the largest."""


class PlacedGroup(NamedTuple):
    """A group, where its heads lie among all, and their mixture; None where the method is none."""

    group: HeadGroup
    part: slice
    mixture: Mixture | None

    @property
    def places(self) -> range:
        """The places of its heads."""
        return range(self.part.start, self.part.stop)

    def here(self, values: Tensor) -> Tensor:
        """Return its heads' part of ``(M, K, B)`` as its objective takes it, ``(…, B, K)``."""
        return self.group.without_axis(values[self.part]).mT


class BatchWeights(NamedTuple):
    """What the labels of one batch mean to the heads; of a block of S batches with an axis more, ``(S, …)``.

    Attributes:
        codes: ``(T, K, B)`` of every label table.
        both: ``(H, K, B)``, the weight of −ln p and −ln(1 − p) together, divided as the reduction says.
        minus_present: ``(H, K, B)``, −1 times the weight of −ln p.
        undecided: ``(U, K, B)``, the weight of H(p), of the heads that have one.
        closed: ``(Q, K, B)``, what closes an entry to heads that modify a number of them.
        place: ``(Q, 1)``, that number, less one.
        least: ``(Q, 1)``, ∞ where it is 0, else −∞.
    """

    codes: Tensor
    both: Tensor
    minus_present: Tensor
    undecided: Tensor
    closed: Tensor
    place: Tensor
    least: Tensor

    def batches(self) -> Iterator[BatchWeights]:
        """Yield the batches of a block."""
        for parts in zip(*(values.unbind(0) for values in self), strict=True):
            yield BatchWeights(*parts)


class _Taught(NamedTuple):
    """A member with a companion, and where that lies behind all heads."""

    member: PlacedGroup
    label_estimate: LabelEstimate
    part: slice


class _Sized(NamedTuple):
    """What depends on how many images a batch has, since sums of costs are divided by that.

    Attributes:
        shares: ``(R, 3 T)``, what the weights are where a table says unknown, absent or present.
        modified: ``(2, H, 1, 1)``, the first two kinds of weights, of modified entries.
        expected: ``(H, 1, 1)``, −κ/K.
        gap: ``(H, 1, 1)``, by what the cost of having more or fewer positives is multiplied.
        taught: for every companion, the weight that it gives.
        most: how many entries a head may modify.
    """

    shares: Tensor
    modified: Tensor
    expected: Tensor
    gap: Tensor
    taught: list[float]
    most: int


class MixtureKernel:
    """The mixtures of all heads; a head whose method is none has weights of 0.

    Args:
        members: all groups, in the order of their places.
        tables: for every place the number of its label table.
        classes: K.
        epochs: how many there will be.
        dtype: of the logits.
        device: where they are.

    Attributes:
        empty: whether no head's method is a mixture.
    """

    def __init__(
        self,
        members: Sequence[PlacedGroup],
        tables: Sequence[int],
        *,
        classes: int,
        epochs: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.heads, self.table_of, self.classes, self.epochs = len(tables), list(tables), classes, epochs
        self.dtype, self.device = dtype, device
        self.members = [(member, member.mixture) for member in members if member.mixture is not None]
        self.empty = not self.members
        self.taught: list[_Taught] = []
        for member, mixture in self.members:
            if mixture.label_estimate is not None:
                part = slice(len(self.table_of), len(self.table_of) + len(member.places))
                self.taught.append(_Taught(member, mixture.label_estimate, part))
                self.table_of += self.table_of[member.part]
        self._lay_out()
        self.undecided = _runs(self._parts([member for member, mixture in self.members if mixture.has_entropy]))
        self.wanting = _runs(
            self._parts([member for member, mixture in self.members if mixture.expected_positives is not None])
        )
        marking = [member for member, mixture in self.members if mixture.modified is not None]
        blank = self._blank(1)
        self.limited = [member for member in marking if member.group.multi_head.modified_count(blank) is not None]
        self.markers = [member for member in marking if member not in self.limited]
        self.modified_counts = _runs([member.part for member in self.limited])
        self.states = torch.tensor([UNKNOWN, ABSENT, PRESENT], dtype=torch.int8, device=device)[:, None, None]
        self.kinds = [len(self.table_of)] * 2 + [_length(self.undecided), _length(self.modified_counts)]
        self.sized = cache(self._sized)

    def _parts(self, members: Sequence[PlacedGroup]) -> list[slice]:
        """Return where members lie, and their companions."""
        chosen = [taught.part for taught in self.taught if taught.member in members]
        return [*(member.part for member in members), *chosen]

    def _lay_out(self) -> None:
        """Write down the shares of all heads and companions."""
        count = len(self.table_of)
        self.shares, self.sums = torch.zeros(count, 4, 3).double(), torch.zeros(count).bool()
        self.expected, self.gap = torch.zeros(count).double(), torch.zeros(count).double()
        for member, mixture in self.members:
            for part in self._parts([member]):
                self.shares[part] = mixture.weights().expand(len(member.places), 4, 3)
                self.sums[part] = member.group.loss_fn.reduction == "sum"
                if mixture.expected_positives is not None:
                    expected = torch.as_tensor(mixture.expected_positives, dtype=torch.float64).cpu()
                    self.expected[part], self.gap[part] = -expected / self.classes, mixture.expected_weight

    def _blank(self, rows: int) -> Tensor:
        return torch.full((rows, self.classes), UNKNOWN, dtype=torch.int8, device=self.device)

    def _sized(self, rows: int) -> _Sized:
        size = rows * self.classes
        scale = torch.where(self.sums, float(size), 1.0).double()
        present, absent, undecided = (self.shares * (scale / size)[:, None, None]).unbind(-1)
        closed = torch.tensor([0.0, CLOSED, CLOSED, 0.0]).double().expand_as(present)
        kinds = [present + absent, -present, *(undecided[part] for part, _ in self.undecided)]
        kinds += [closed[part] for part, _ in self.modified_counts]
        tables = torch.tensor(self.table_of)
        parts = [part for part, _ in (*self.undecided, *self.modified_counts)]
        tables = torch.cat([tables, tables, *(tables[part] for part in parts)])
        spread = torch.zeros(len(tables), int(tables.max()) + 1, 3, dtype=torch.float64)
        spread[torch.arange(len(tables)), tables] = torch.cat(kinds)[:, :3]
        modified = torch.stack(kinds[:2])[:, :, 3, None, None]
        made = [spread.flatten(1), modified, self.expected[:, None, None], (self.gap * scale)[:, None, None]]
        shares, modified, expected, gap = (values.to(self.device, self.dtype) for values in made)
        weights = [taught.label_estimate.weight * float(scale[taught.part.start]) / size for taught in self.taught]
        return _Sized(shares, modified, expected, gap, weights, self._most(rows))

    def _most(self, rows: int) -> int:
        """Return the most entries that any epoch lets a head modify, where nothing is known."""
        most = 1
        for member in self.limited:
            loss_fn, now = member.group.loss_fn, member.group.loss_fn.epoch
            for epoch in range(1, self.epochs + 1):
                loss_fn.set_epoch(epoch)
                modified_count = member.group.multi_head.modified_count(self._blank(rows))
                assert modified_count is not None
                most = max(most, int(modified_count.max()))
            loss_fn.set_epoch(now)
        return most

    def block(self, codes: Tensor) -> BatchWeights:
        """Lay out what the labels of S batches mean.

        Args:
            codes: ``(S, T, K, B)`` of every label table.
        """
        batches, tables, classes, rows = codes.shape
        said = (codes[:, :, None] == self.states).to(self.dtype).view(batches, 3 * tables, -1)
        shares = self.sized(rows).shares
        weights = torch.bmm(shares.expand(batches, *shares.shape), said).view(batches, -1, classes, rows)
        both, minus_present, undecided, closed = torch.split(weights, self.kinds, dim=1)
        counts = [self._modified_count(member, codes) for member in self.limited]
        count = torch.cat([codes.new_zeros((batches, 0), dtype=torch.int64), *counts], dim=1)[:, :, None]
        least = torch.where(count > 0, -torch.inf, torch.inf).to(self.dtype)
        return BatchWeights(codes, both, minus_present, undecided, closed, (count - 1).clamp(min=0), least)

    def _modified_count(self, member: PlacedGroup, codes: Tensor) -> Tensor:
        labels = torch.stack([codes[:, table] for table in self.table_of[member.part]], dim=1)
        modified_count = member.group.multi_head.modified_count(labels if member.group.several else labels[:, 0])
        assert modified_count is not None
        return modified_count.view(len(codes), -1)

    def evaluate(self, logits: Tensor, batch: BatchWeights, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of every head, ``(M,)``, and its derivative in the logits, ``(M, K, B)``.

        Companions' derivatives are left in the ``grad`` of their estimates, until ``forget``.

        Args:
            logits: ``(M, K, B)``
            batch: its weights are used up.
            index: ``(B,)`` rows of the tables.
        """
        sized, minus_present = self.sized(logits.shape[-1]), batch.minus_present
        for part, marked in self._marked(logits, batch, index, sized.most):
            for weights, modified in zip((batch.both, minus_present), sized.modified, strict=True):
                here = weights[part]
                torch.where(marked, modified[part], here, out=here)
        if self.taught:
            logits = torch.cat([logits, *(_rows_of(taught, index) for taught in self.taught)])
        chance = torch.sigmoid(logits)
        for (member, _, part), weight in zip(self.taught, sized.taught, strict=True):
            minus_present[member.part].sub_(chance[part], alpha=weight)
            minus_present[part].sub_(chance[member.part], alpha=weight)
        cost, slope, away = mixture_cost(logits, chance, batch.both, minus_present)
        for part, place in self.undecided:
            extra, bend = entropy_cost(logits[part], batch.undecided[place], chance[part], away[part])
            cost[part].add_(extra)
            slope[part].add_(bend)
        loss = cost.sum(dim=(1, 2))
        for part, _ in self.wanting:
            _expect(chance[part], loss[part], slope[part], sized.expected[part], sized.gap[part])
        for taught in self.taught:
            self._remember(taught, loss, slope, index)
        return loss[: self.heads], slope[: self.heads]

    def _remember(self, taught: _Taught, loss: Tensor, slope: Tensor, index: Tensor) -> None:
        """Add a companion's loss to its head's, and keep its derivatives: of the rows of the batch, else 0."""
        member, estimate, part = taught.member, taught.label_estimate.logits, taught.part
        loss[member.part].add_(loss[part])
        if estimate.grad is None:
            estimate.grad = torch.zeros_like(estimate)
        own = member.group.without_axis(slope[part]).mT
        estimate.grad.index_copy_(-2, index, own.to(estimate.dtype))

    def forget(self, index: Tensor) -> None:
        """Set companions' derivatives to 0 again, once the step has been taken."""
        for taught in self.taught:
            estimate = taught.label_estimate.logits
            assert estimate.grad is not None
            estimate.grad.index_fill_(-2, index, 0.0)

    def _marked(self, logits: Tensor, batch: BatchWeights, index: Tensor, most: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield where heads lie that modify entries, and which."""
        for part, place in self.modified_counts:
            value = logits[part] + batch.closed[place]
            top = value.flatten(1).topk(most, dim=1).values
            yield part, value >= torch.maximum(top.gather(1, batch.place[place]), batch.least[place])[:, :, None]
        for member in self.markers:
            mask = member.group.loss_fn.modified(member.here(logits), self.labels(member, batch), index)
            yield member.part, member.group.with_axis(mask).mT

    def labels(self, member: PlacedGroup, batch: BatchWeights) -> Tensor:
        """Return the labels of a group, ``(B, K)``, or ``(n, B, K)`` where its heads see different ones."""
        tables = self.table_of[member.part]
        if len(set(tables)) == 1:
            return batch.codes[tables[0]].mT
        return torch.stack([batch.codes[table] for table in tables]).mT


def _rows_of(taught: _Taught, index: Tensor) -> Tensor:
    """Return a companion's logits of some rows, ``(n, K, B)``."""
    return taught.member.group.with_axis(taught.label_estimate.logits.detach().index_select(-2, index)).mT


def _runs(parts: Sequence[slice]) -> list[tuple[slice, slice]]:
    """Return parts in their order, neighbours as one, and where each lies in an array of them alone."""
    joined: list[slice] = []
    for part in sorted(parts, key=lambda part: part.start):
        if joined and joined[-1].stop == part.start:
            part = slice(joined.pop().start, part.stop)
        joined.append(part)
    found, first = [], 0
    for part in joined:
        found.append((part, slice(first, first + part.stop - part.start)))
        first = found[-1][1].stop
    return found


def _length(found: Sequence[tuple[slice, slice]]) -> int:
    """Return how many heads lie in runs."""
    return found[-1][1].stop if found else 0


def _expect(chance: Tensor, loss: Tensor, slope: Tensor, expected: Tensor, scale: Tensor) -> None:
    """Add what it costs that a batch has more or fewer positives than expected."""
    size = chance.shape[1] * chance.shape[2]
    gap = torch.add(expected, chance.sum(dim=(1, 2), keepdim=True), alpha=1.0 / size)
    steep = gap * scale
    loss.addcmul_(gap[:, 0, 0], steep[:, 0, 0])
    slope.addcmul_(torch.addcmul(chance, chance, chance, value=-1.0), steep, value=2.0 / size)
