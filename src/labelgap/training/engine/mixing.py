r"""One evaluation for the heads of all methods whose costs are mixtures (see ``labelgap.objectives.blends``).

The heads' logits lie as ``(M, K, B)``, the order in which the product of weights and features gives them, and heads
that need something more lie side by side. What follows from labels alone, the weights of every entry, is laid out for
several batches at once, a *block* of them: a product of the heads' shares and of where each table says what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.objectives.blends import Blend, mixed, mixed_entropy
from labelgap.training.engine.grouping import Group

__all__ = ["Labelled", "Member", "Mixing"]

CLOSED = -1e30
"""Added to the logit of an entry that may not be modified: it is never among the largest."""


class Member(NamedTuple):
    """A group, where its heads lie in the stack, and their mixture; None where the method is none."""

    group: Group
    part: slice
    blend: Blend | None

    @property
    def places(self) -> range:
        """The places of its heads."""
        return range(self.part.start, self.part.stop)

    def here(self, values: Tensor) -> Tensor:
        """Return its heads' part of ``(M, K, B)`` as its objective takes it, ``(…, B, K)``."""
        return self.group.without_axis(values[self.part]).mT


class Labelled(NamedTuple):
    """What the labels of one batch mean to the heads; of a block of S batches with an axis more, ``(S, …)``.

    Attributes:
        codes: ``(T, K, B)`` of every label table.
        weights: ``(R, K, B)``: of M heads the weight of −ln p and −ln(1 − p) together, divided as the reduction says;
            of M heads −1 times the weight of −ln p; of U heads the weight of H(p); of Q heads what closes an entry.
        place: ``(Q, 1)``, how many entries these heads modify, less one.
        least: ``(Q, 1)``, ∞ where they modify none, else −∞.
    """

    codes: Tensor
    weights: Tensor
    place: Tensor
    least: Tensor

    def batches(self) -> Iterator[Labelled]:
        """Yield the batches of a block."""
        for parts in zip(*(values.unbind(0) for values in self), strict=True):
            yield Labelled(*parts)


class _Sized(NamedTuple):
    """What depends on how many images a batch has, since sums of costs are divided by that.

    Attributes:
        shares: ``(R, 3 T)``, what the weights are where a table says unknown, absent or present.
        modified: ``(2, M, 1, 1)``, the first two kinds of weights for modified entries.
        expected: ``(M, 1, 1)``, −κ/K.
        scale: ``(M, 1, 1)``, by what the cost of κ is multiplied.
        most: how many entries a head may modify.
    """

    shares: Tensor
    modified: Tensor
    expected: Tensor
    scale: Tensor
    most: int


class Mixing:
    """The mixtures of all heads; a head whose method is none has weights of 0.

    Args:
        members: all groups, in the order of the stack.
        tables: for every place in the stack the number of its label table.
        classes: K.
        epochs: how many there will be.
        dtype: of the logits.
        device: where they are.

    Attributes:
        empty: whether no head's method is a mixture.
    """

    def __init__(
        self,
        members: Sequence[Member],
        tables: Sequence[int],
        *,
        classes: int,
        epochs: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.members = [member for member in members if member.blend is not None]
        self.heads, self.table_of, self.classes, self.epochs = len(tables), list(tables), classes, epochs
        self.dtype, self.device, self.empty = dtype, device, not self.members
        self.sums = torch.zeros(self.heads, dtype=torch.bool)
        self.shares = torch.zeros(self.heads, 4, 3, dtype=torch.float64)
        for group, part, blend in self.members:
            assert blend is not None
            self.shares[part] = blend.shares.expand(len(group.plans), 4, 3)
            self.sums[part] = getattr(group.objective, "reduction", "mean") == "sum"
        blends = [(member, member.blend) for member in self.members if member.blend is not None]
        marking = [member for member, blend in blends if blend.marks]
        self.limited = [member for member in marking if member.group.objective.quota(self._blank(1)) is not None]
        self.markers = [member for member in marking if member not in self.limited]
        self.undecided = _runs([member for member, blend in blends if blend.undecided])
        self.wanting = _runs([member for member, blend in blends if blend.expected is not None])
        self.quotas = _runs(self.limited)
        self.sized = cache(self._sized)
        self.states = torch.tensor([UNKNOWN, ABSENT, PRESENT], dtype=torch.int8, device=device)[:, None, None]

    def _blank(self, rows: int) -> Tensor:
        return torch.full((rows, self.classes), UNKNOWN, dtype=torch.int8, device=self.device)

    def _sized(self, rows: int) -> _Sized:
        size = rows * self.classes
        scale = torch.where(self.sums, float(size), 1.0).double()
        present, absent, undecided = (self.shares * (scale / size)[:, None, None]).unbind(-1)
        closed = torch.tensor([0.0, CLOSED, CLOSED, 0.0]).double().expand(self.heads, 4)
        kinds = [present + absent, -present, *(undecided[part] for part, _ in self.undecided)]
        kinds += [closed[part] for part, _ in self.quotas]
        places = [range(self.heads), range(self.heads)]
        places += [range(part.start, part.stop) for part, _ in (*self.undecided, *self.quotas)]
        tables = torch.tensor([self.table_of[place] for some in places for place in some])
        spread = torch.zeros(len(tables), max(self.table_of) + 1, 3, dtype=torch.float64)
        spread[torch.arange(len(tables)), tables] = torch.cat(kinds)[:, :3]
        expected = torch.zeros(self.heads, dtype=torch.float64)
        for member in self.members:
            if member.blend is not None and member.blend.expected is not None:
                expected[member.part] = -member.blend.expected / self.classes
        modified = torch.stack(kinds[:2])[:, :, 3, None, None]
        parts = [spread.flatten(1), modified, expected[:, None, None], scale[:, None, None]]
        shares, modified, expected, scale = (part.to(self.device, self.dtype) for part in parts)
        return _Sized(shares, modified, expected, scale, self._most(rows))

    def _most(self, rows: int) -> int:
        """Return the most entries that any epoch lets a head modify, where nothing is known."""
        most = 1
        for member in self.limited:
            objective, now = member.group.objective, member.group.objective.epoch
            for epoch in range(1, self.epochs + 1):
                objective.set_epoch(epoch)
                quota = objective.quota(self._blank(rows))
                assert quota is not None
                most = max(most, int(quota.max()))
            objective.set_epoch(now)
        return most

    def block(self, codes: Tensor) -> Labelled:
        """Lay out what the labels of S batches mean.

        Args:
            codes: ``(S, T, K, B)`` of every label table.
        """
        batches, tables, classes, rows = codes.shape
        said = (codes[:, :, None] == self.states).to(self.dtype).view(batches, 3 * tables, -1)
        shares = self.sized(rows).shares
        weights = torch.bmm(shares.expand(batches, *shares.shape), said).view(batches, -1, classes, rows)
        counts = [self._quota(member, codes) for member in self.limited]
        count = torch.cat([codes.new_zeros((batches, 0), dtype=torch.int64), *counts], dim=1)[:, :, None]
        least = torch.where(count > 0, -torch.inf, torch.inf).to(self.dtype)
        return Labelled(codes, weights, (count - 1).clamp(min=0), least)

    def _quota(self, member: Member, codes: Tensor) -> Tensor:
        labels = torch.stack([codes[:, table] for table in self.table_of[member.part]], dim=1)
        quota = member.group.objective.quota(labels if member.group.several else labels[:, 0])
        assert quota is not None
        return quota.view(len(codes), -1)

    def evaluate(self, logits: Tensor, batch: Labelled, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of every head, ``(M,)``, and its derivative in the logits, ``(M, K, B)``.

        Args:
            logits: ``(M, K, B)``
            batch: its weights are used up.
            index: ``(B,)`` rows of the tables.
        """
        sized = self.sized(logits.shape[-1])
        both, minus_present = batch.weights[: self.heads], batch.weights[self.heads : 2 * self.heads]
        for part, marked in self._marked(logits, batch, index, sized.most):
            for weights, modified in ((both, sized.modified[0]), (minus_present, sized.modified[1])):
                torch.where(marked, modified[part], weights[part], out=weights[part])
        cost, slope, chance, away = mixed(logits, both, minus_present)
        loss = cost.sum(dim=(1, 2))
        for part, place in self.undecided:
            weight = batch.weights[2 * self.heads + place.start : 2 * self.heads + place.stop]
            extra, bend = mixed_entropy(logits[part], weight, chance[part], away[part])
            loss[part].add_(extra.sum(dim=(1, 2)))
            slope[part].add_(bend)
        for part, _ in self.wanting:
            _expect(chance[part], loss[part], slope[part], sized.expected[part], sized.scale[part])
        return loss, slope

    def _marked(self, logits: Tensor, batch: Labelled, index: Tensor, most: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield where heads lie that modify entries, and which."""
        first = 2 * self.heads + sum(place.stop - place.start for _, place in self.undecided)
        for part, place in self.quotas:
            value = logits[part] + batch.weights[first + place.start : first + place.stop]
            top = value.flatten(1).topk(most, dim=1).values
            yield part, value >= torch.maximum(top.gather(1, batch.place[place]), batch.least[place])[:, :, None]
        for member in self.markers:
            labels = self.labels(member, batch)
            mask = member.group.objective.modified(member.here(logits), labels, index)
            yield member.part, member.group.with_axis(mask).mT

    def labels(self, member: Member, batch: Labelled) -> Tensor:
        """Return the labels of a group, ``(B, K)``, or ``(n, B, K)`` where its heads see different ones."""
        tables = self.table_of[member.part]
        if len(set(tables)) == 1:
            return batch.codes[tables[0]].mT
        return torch.stack([batch.codes[table] for table in tables]).mT


def _runs(members: Sequence[Member]) -> list[tuple[slice, slice]]:
    """Return where members lie in the stack, neighbours as one, and where in an array of them alone."""
    found: list[tuple[slice, slice]] = []
    for member in members:
        if found and found[-1][0].stop == member.part.start:
            part, place = found.pop()
            found.append((slice(part.start, member.part.stop), slice(place.start, place.stop + len(member.places))))
        else:
            first = found[-1][1].stop if found else 0
            found.append((member.part, slice(first, first + len(member.places))))
    return found


def _expect(chance: Tensor, loss: Tensor, slope: Tensor, expected: Tensor, scale: Tensor) -> None:
    """Add what it costs that a batch has more or fewer positives than expected."""
    size = chance.shape[1] * chance.shape[2]
    gap = torch.add(expected, chance.sum(dim=(1, 2), keepdim=True), alpha=1.0 / size)
    steep = gap * scale
    loss.addcmul_(gap[:, 0, 0], steep[:, 0, 0])
    slope.addcmul_(torch.addcmul(chance, chance, chance, value=-1.0), steep, value=2.0 / size)
