"""One evaluation for the heads of all methods whose costs are mixtures (see ``labelgap.losses.base.mixture``).

Logits have shape ``(M, K, B)``, as the product of weights and features gives them, and heads whose mixtures have the
same terms have adjacent slots. A label estimate that is learned with a head (`role`) is evaluated as one more head,
after all others. The weights of every entry follow from the labels alone: they are computed for a *block* of several
batches at once, as a product of the heads' weights per label state and the one-hot states of each table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.base.mixture import LabelEstimate, entropy_cost, mixture_cost
from labelgap.training.heads.grouping import HeadGroup


class BatchWeights(NamedTuple):
    """The weights of the entries of one batch; of a block of S batches with a leading axis, ``(S, …)``."""

    codes: Tensor  # (T, K, B) of every label table
    both: Tensor  # (H, K, B), the weight of −ln p plus that of −ln(1 − p), scaled by the reduction
    minus_present: Tensor  # (H, K, B), −1 times the weight of −ln p
    entropy: Tensor  # (U, K, B), the weight of H(p), of the heads that have one

    def batches(self) -> Iterator[BatchWeights]:
        """Yield the batches of a block."""
        for parts in zip(*(values.unbind(0) for values in self), strict=True):
            yield BatchWeights(*parts)


class _EstimateSlots(NamedTuple):
    """A group with a label estimate, and the slots of the estimate after all heads."""

    group: HeadGroup
    label_estimate: LabelEstimate
    slots: slice

    def logits(self, index: Tensor) -> Tensor:
        """Return the logits of the estimate in some rows, ``(n, K, B)``."""
        return self.group.with_axis(self.label_estimate.logits.detach().index_select(-2, index)).mT


class _Scaled(NamedTuple):
    """What depends on the number of images of a batch, by which a mean is divided."""

    weights: Tensor  # (R, 3 T), for an entry that is unknown, absent or present in each table
    unit: Tensor  # (H, 1, 1), the weight of an entry that is known
    expected: Tensor  # (H, 1, 1), −κ/K
    gap_weight: Tensor  # (H, 1, 1), of the squared gap to the expected positives
    estimates: list[float]  # the weight of every label estimate


class MixtureKernel:
    """The mixtures of all heads; heads of other methods have weights of 0.

    ``groups`` are all groups, in the order of their slots, and ``tables`` the numbers of the slots' label tables.
    """

    def __init__(
        self, groups: Sequence[HeadGroup], tables: Sequence[int], classes: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.heads, self.table_of, self.classes = len(tables), list(tables), classes
        self.dtype, self.device = dtype, device
        self.groups = [(group, group.mixture) for group in groups if group.mixture is not None]
        self.empty = not self.groups
        self.estimates: list[_EstimateSlots] = []
        for group, mixture in self.groups:
            if mixture.label_estimate is not None:
                slots = slice(len(self.table_of), len(self.table_of) + len(group.plans))
                self.estimates.append(_EstimateSlots(group, mixture.label_estimate, slots))
                self.table_of += self.table_of[group.slots]
        self.tables = torch.tensor(self.table_of, device=device)
        count = len(self.table_of)
        self.weights, self.sums = torch.zeros(count, 3, 3).double(), torch.zeros(count).bool()
        self.expected, self.gap = torch.zeros(count).double(), torch.zeros(count).double()
        for group, mixture in self.groups:
            for slots in self._slots([group]):
                self.weights[slots] = mixture.weights()[..., :3, :].expand(len(group.plans), 3, 3)
                self.sums[slots] = group.loss_fn.reduction == "sum"
                if mixture.expected_positives is not None:
                    expected = torch.as_tensor(mixture.expected_positives, dtype=torch.float64).cpu()
                    self.expected[slots], self.gap[slots] = -expected / classes, mixture.expected_weight
        self.entropy = _join(self._slots([group for group, mixture in self.groups if mixture.has_entropy]))
        self.with_entropy = [slot for slots in self.entropy for slot in range(slots.start, slots.stop)]
        expecting = [group for group, mixture in self.groups if mixture.expected_positives is not None]
        self.expecting = _join(self._slots(expecting))
        self.states = torch.tensor([UNKNOWN, ABSENT, PRESENT], dtype=torch.int8, device=device)[:, None, None]
        self.scaled = cache(self._scaled)

    def _slots(self, groups: Sequence[HeadGroup]) -> list[slice]:
        """Return the slots of groups and of their label estimates."""
        estimates = [estimate.slots for estimate in self.estimates if estimate.group in groups]
        return [*(group.slots for group in groups), *estimates]

    def _scaled(self, rows: int) -> _Scaled:
        size = rows * self.classes
        scale = torch.where(self.sums, float(size), 1.0).double()
        present, absent, entropy = (self.weights * (scale / size)[:, None, None]).unbind(-1)
        kinds = torch.cat([present + absent, -present, *(entropy[slots] for slots in self.entropy)])
        tables = self.tables.cpu()
        tables = torch.cat([tables, tables, *(tables[slots] for slots in self.entropy)])
        by_table = torch.zeros(len(tables), int(tables.max()) + 1, 3, dtype=torch.float64)
        by_table[torch.arange(len(tables)), tables] = kinds
        on_host = [by_table.flatten(1), (scale / size)[:, None, None]]
        on_host += [self.expected[:, None, None], (self.gap * scale)[:, None, None]]
        weights, unit, expected, gap = (values.to(self.device, self.dtype) for values in on_host)
        estimates = [each.label_estimate.weight * float(scale[each.slots.start]) / size for each in self.estimates]
        return _Scaled(weights, unit, expected, gap, estimates)

    def block(self, codes: Tensor) -> BatchWeights:
        """Return the weights of S batches, from the codes ``(S, T, K, B)`` of every label table."""
        batches, tables, classes, rows = codes.shape
        if self.empty:
            return BatchWeights(codes, *[codes.new_empty((batches, 0))] * 3)
        one_hot = (codes[:, :, None] == self.states).to(self.dtype).view(batches, 3 * tables, -1)
        weights = self.scaled(rows).weights
        weights = torch.bmm(weights.expand(batches, *weights.shape), one_hot).view(batches, -1, classes, rows)
        count = len(self.table_of)
        return BatchWeights(codes, *torch.tensor_split(weights, [count, 2 * count], dim=1))

    def lay_over(self, block: BatchWeights, table: int, target: Tensor, weight: Tensor) -> None:
        """Change a block's weights by the soft labels ``(S, K, B)`` of a table; see ``SoftTargets``."""
        share = (weight * (block.codes[:, table] == UNKNOWN))[:, None]
        for group, mixture in self.groups:
            if mixture.label_estimate is not None:  # its start is laid over instead
                continue
            slots = [slot for slot in range(group.slots.start, group.slots.stop) if self.table_of[slot] == table]
            unit = self.scaled(target.shape[-1]).unit[slots]
            for weights, soft in ((block.both, unit), (block.minus_present, -unit * target[:, None])):
                weights[:, slots] = torch.lerp(
                    weights[:, slots], soft.expand(len(target), -1, *target.shape[1:]), share
                )
            if mixture.has_entropy:
                places = [self.with_entropy.index(slot) for slot in slots]
                block.entropy[:, places] *= 1 - share

    def evaluate(self, logits: Tensor, batch: BatchWeights, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of every head, ``(M,)``, and its derivative in the logits, ``(M, K, B)``.

        ``logits`` are ``(M, K, B)`` of the rows ``index`` of the tables; the weights of the batch are overwritten. The
        derivatives of label estimates are left in their ``grad``, until ``zero_grad``.
        """
        scaled, minus_present = self.scaled(logits.shape[-1]), batch.minus_present
        if self.estimates:
            logits = torch.cat([logits, *(estimate.logits(index) for estimate in self.estimates)])
        probability = torch.sigmoid(logits)
        for (group, _, slots), weight in zip(self.estimates, scaled.estimates, strict=True):
            minus_present[group.slots].sub_(probability[slots], alpha=weight)
            minus_present[slots].sub_(probability[group.slots], alpha=weight)
        cost, gradient, absent_cost = mixture_cost(logits, probability, batch.both, minus_present)
        first = 0
        for slots in self.entropy:
            weights = batch.entropy[first : first + slots.stop - slots.start]
            first += len(weights)
            extra = entropy_cost(logits[slots], weights, probability[slots], absent_cost[slots])
            cost[slots].add_(extra[0])
            gradient[slots].add_(extra[1])
        loss = cost.sum(dim=(1, 2))
        for slots in self.expecting:
            p, size = probability[slots], logits.shape[1] * logits.shape[2]
            gap = torch.add(scaled.expected[slots], p.sum(dim=(1, 2), keepdim=True), alpha=1.0 / size)
            weighted = gap * scaled.gap_weight[slots]
            loss[slots].addcmul_(gap[:, 0, 0], weighted[:, 0, 0])
            gradient[slots].addcmul_(torch.addcmul(p, p, p, value=-1.0), weighted, value=2.0 / size)
        for group, estimate, slots in self.estimates:
            values = estimate.logits
            loss[group.slots].add_(loss[slots])
            if values.grad is None:
                values.grad = torch.zeros_like(values)
            values.grad.index_copy_(-2, index, group.without_axis(gradient[slots]).mT.to(values.dtype))
        return loss[: self.heads], gradient[: self.heads]

    def zero_grad(self, index: Tensor) -> None:
        """Set the derivatives of label estimates to 0 again, in the rows of the batch."""
        for estimate in self.estimates:
            assert estimate.label_estimate.logits.grad is not None
            estimate.label_estimate.logits.grad.index_fill_(-2, index, 0.0)

    def labels(self, group: HeadGroup, batch: BatchWeights) -> Tensor:
        """Return the labels of a group, ``(B, K)``, or ``(n, B, K)`` where its heads see different ones."""
        tables = self.table_of[group.slots]
        if len(set(tables)) == 1:
            return batch.codes[tables[0]].mT
        return batch.codes.index_select(0, self.tables[group.slots]).mT


def _join(ranges: Sequence[slice]) -> list[slice]:
    """Return ranges in order, adjacent ones joined."""
    joined: list[slice] = []
    for slots in sorted(ranges, key=lambda slots: slots.start):
        if joined and joined[-1].stop == slots.start:
            slots = slice(joined.pop().start, slots.stop)
        joined.append(slots)
    return joined
