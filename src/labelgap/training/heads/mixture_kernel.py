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

EXCLUDED = -1e30
"""Added to the logit of an entry that may not be modified, so that it is never among the largest."""


class BatchWeights(NamedTuple):
    """The weights of the entries of one batch; of a block of S batches with a leading axis, ``(S, …)``.

    Attributes:
        codes: ``(T, K, B)`` of every label table.
        both: ``(H, K, B)``, the weight of −ln p plus that of −ln(1 − p), scaled by the reduction.
        minus_present: ``(H, K, B)``, −1 times the weight of −ln p.
        entropy: ``(U, K, B)``, the weight of H(p), of the heads that have one.
        excluded: ``(Q, K, B)``, added to the logits of heads that modify a given number of entries.
        rank: ``(Q, 1)``, that number, less one.
        floor: ``(Q, 1)``, ∞ where it is 0, else −∞.
    """

    codes: Tensor
    both: Tensor
    minus_present: Tensor
    entropy: Tensor
    excluded: Tensor
    rank: Tensor
    floor: Tensor

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
    """What depends on the number of images of a batch, by which a mean is divided.

    Attributes:
        weights: ``(R, 3 T)``, for an entry that is unknown, absent or present in each table.
        modified: ``(2, H, 1, 1)``, ``both`` and ``minus_present`` of modified entries.
        expected: ``(H, 1, 1)``, −κ/K.
        gap_weight: ``(H, 1, 1)``, of the squared gap to the expected positives.
        estimates: the weight of every label estimate.
        max_modified: the largest number of entries that a head modifies.
    """

    weights: Tensor
    modified: Tensor
    expected: Tensor
    gap_weight: Tensor
    estimates: list[float]
    max_modified: int


class MixtureKernel:
    """The mixtures of all heads; heads of other methods have weights of 0.

    Args:
        groups: all groups, in the order of their slots.
        tables: for every slot the number of its label table.
        classes: K.
        epochs: how many will be trained.
        dtype: of the logits, as is the device.
    """

    def __init__(
        self,
        groups: Sequence[HeadGroup],
        tables: Sequence[int],
        *,
        classes: int,
        epochs: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.heads, self.table_of, self.classes, self.epochs = len(tables), list(tables), classes, epochs
        self.dtype, self.device = dtype, device
        self.groups = [(group, group.mixture) for group in groups if group.mixture is not None]
        self.empty = not self.groups
        self.estimates: list[_EstimateSlots] = []
        for group, mixture in self.groups:
            if mixture.label_estimate is not None:
                slots = slice(len(self.table_of), len(self.table_of) + len(group.plans))
                self.estimates.append(_EstimateSlots(group, mixture.label_estimate, slots))
                self.table_of += self.table_of[group.slots]
        self._collect_weights()
        self.entropy = _runs(self._slots([group for group, mixture in self.groups if mixture.has_entropy]))
        expecting = [group for group, mixture in self.groups if mixture.expected_positives is not None]
        self.expecting = _runs(self._slots(expecting))
        modifying, blank = [group for group, mixture in self.groups if mixture.modified is not None], self._blank(1)
        self.counting = [group for group in modifying if group.multi_head.modified_count(blank) is not None]
        self.masking = [group for group in modifying if group not in self.counting]
        self.counted = _runs([group.slots for group in self.counting])
        self.states = torch.tensor([UNKNOWN, ABSENT, PRESENT], dtype=torch.int8, device=device)[:, None, None]
        lengths = [runs[-1][1].stop if runs else 0 for runs in (self.entropy, self.counted)]
        self.sizes = [len(self.table_of)] * 2 + lengths
        self.scaled = cache(self._scaled)

    def _slots(self, groups: Sequence[HeadGroup]) -> list[slice]:
        """Return the slots of groups and of their label estimates."""
        estimates = [estimate.slots for estimate in self.estimates if estimate.group in groups]
        return [*(group.slots for group in groups), *estimates]

    def _collect_weights(self) -> None:
        """Collect the weights of all heads and label estimates per label state."""
        count = len(self.table_of)
        self.weights, self.sums = torch.zeros(count, 4, 3).double(), torch.zeros(count).bool()
        self.expected, self.gap = torch.zeros(count).double(), torch.zeros(count).double()
        for group, mixture in self.groups:
            for slots in self._slots([group]):
                self.weights[slots] = mixture.weights().expand(len(group.plans), 4, 3)
                self.sums[slots] = group.loss_fn.reduction == "sum"
                if mixture.expected_positives is not None:
                    expected = torch.as_tensor(mixture.expected_positives, dtype=torch.float64).cpu()
                    self.expected[slots], self.gap[slots] = -expected / self.classes, mixture.expected_weight

    def _blank(self, rows: int) -> Tensor:
        return torch.full((rows, self.classes), UNKNOWN, dtype=torch.int8, device=self.device)

    def _scaled(self, rows: int) -> _Scaled:
        size = rows * self.classes
        scale = torch.where(self.sums, float(size), 1.0).double()
        present, absent, entropy = (self.weights * (scale / size)[:, None, None]).unbind(-1)
        excluded = torch.tensor([0.0, EXCLUDED, EXCLUDED, 0.0]).double().expand_as(present)
        kinds = [present + absent, -present, *(entropy[slots] for slots, _ in self.entropy)]
        kinds += [excluded[slots] for slots, _ in self.counted]
        tables = torch.tensor(self.table_of)
        ranges = [slots for slots, _ in (*self.entropy, *self.counted)]
        tables = torch.cat([tables, tables, *(tables[slots] for slots in ranges)])
        by_table = torch.zeros(len(tables), int(tables.max()) + 1, 3, dtype=torch.float64)
        by_table[torch.arange(len(tables)), tables] = torch.cat(kinds)[:, :3]
        modified = torch.stack(kinds[:2])[:, :, 3, None, None]
        on_host = [by_table.flatten(1), modified, self.expected[:, None, None], (self.gap * scale)[:, None, None]]
        weights, modified, expected, gap = (values.to(self.device, self.dtype) for values in on_host)
        estimates = [each.label_estimate.weight * float(scale[each.slots.start]) / size for each in self.estimates]
        return _Scaled(weights, modified, expected, gap, estimates, self._max_modified(rows))

    def _max_modified(self, rows: int) -> int:
        """Return the largest number of entries that a head modifies in any epoch, all of them unknown."""
        largest = 1
        for group in self.counting:
            loss_fn, current = group.loss_fn, group.loss_fn.epoch
            for epoch in range(1, self.epochs + 1):
                loss_fn.set_epoch(epoch)
                count = group.multi_head.modified_count(self._blank(rows))
                assert count is not None
                largest = max(largest, int(count.max()))
            loss_fn.set_epoch(current)
        return largest

    def block(self, codes: Tensor) -> BatchWeights:
        """Return the weights of S batches, from the codes ``(S, T, K, B)`` of every label table."""
        batches, tables, classes, rows = codes.shape
        if self.empty:
            nothing = codes.new_empty((batches, 0))
            return BatchWeights(codes, *[nothing] * 6)
        one_hot = (codes[:, :, None] == self.states).to(self.dtype).view(batches, 3 * tables, -1)
        weights = self.scaled(rows).weights
        weights = torch.bmm(weights.expand(batches, *weights.shape), one_hot).view(batches, -1, classes, rows)
        both, minus_present, entropy, excluded = torch.split(weights, self.sizes, dim=1)
        counts = [self._modified_count(group, codes) for group in self.counting]
        count = torch.cat([codes.new_zeros((batches, 0), dtype=torch.int64), *counts], dim=1)[:, :, None]
        floor = torch.where(count > 0, -torch.inf, torch.inf).to(self.dtype)
        return BatchWeights(codes, both, minus_present, entropy, excluded, (count - 1).clamp(min=0), floor)

    def _modified_count(self, group: HeadGroup, codes: Tensor) -> Tensor:
        labels = torch.stack([codes[:, table] for table in self.table_of[group.slots]], dim=1)
        count = group.multi_head.modified_count(labels if len(group.plans) > 1 else labels[:, 0])
        assert count is not None
        return count.view(len(codes), -1)

    def evaluate(self, logits: Tensor, batch: BatchWeights, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of every head, ``(M,)``, and its derivative in the logits, ``(M, K, B)``.

        ``logits`` are ``(M, K, B)`` of the rows ``index`` of the tables; the weights of the batch are overwritten. The
        derivatives of label estimates are left in their ``grad``, until ``zero_grad``.
        """
        scaled, minus_present = self.scaled(logits.shape[-1]), batch.minus_present
        for slots, mask in self._modified(logits, batch, index, scaled.max_modified):
            for weights, modified in zip((batch.both, minus_present), scaled.modified, strict=True):
                torch.where(mask, modified[slots], weights[slots], out=weights[slots])
        if self.estimates:
            logits = torch.cat([logits, *(estimate.logits(index) for estimate in self.estimates)])
        probability = torch.sigmoid(logits)
        for (group, _, slots), weight in zip(self.estimates, scaled.estimates, strict=True):
            minus_present[group.slots].sub_(probability[slots], alpha=weight)
            minus_present[slots].sub_(probability[group.slots], alpha=weight)
        cost, gradient, absent_cost = mixture_cost(logits, probability, batch.both, minus_present)
        for slots, columns in self.entropy:
            extra = entropy_cost(logits[slots], batch.entropy[columns], probability[slots], absent_cost[slots])
            cost[slots].add_(extra[0])
            gradient[slots].add_(extra[1])
        loss = cost.sum(dim=(1, 2))
        for slots, _ in self.expecting:
            _add_gap(probability[slots], loss[slots], gradient[slots], scaled.expected[slots], scaled.gap_weight[slots])
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

    def _modified(
        self, logits: Tensor, batch: BatchWeights, index: Tensor, max_modified: int
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield the slots of heads that modify entries, and which entries they modify."""
        for slots, columns in self.counted:
            value = logits[slots] + batch.excluded[columns]
            top = value.flatten(1).topk(max_modified, dim=1).values
            yield slots, value >= torch.maximum(top.gather(1, batch.rank[columns]), batch.floor[columns])[:, :, None]
        for group in self.masking:
            mask = group.loss_fn.modified(group.select(logits), self.labels(group, batch), index)
            yield group.slots, group.with_axis(mask).mT

    def labels(self, group: HeadGroup, batch: BatchWeights) -> Tensor:
        """Return the labels of a group, ``(B, K)``, or ``(n, B, K)`` where its heads see different ones."""
        tables = self.table_of[group.slots]
        if len(set(tables)) == 1:
            return batch.codes[tables[0]].mT
        return torch.stack([batch.codes[table] for table in tables]).mT


def _runs(ranges: Sequence[slice]) -> list[tuple[slice, slice]]:
    """Return ranges in order, adjacent ones joined, and the position of each in an array of them alone."""
    joined: list[slice] = []
    for slots in sorted(ranges, key=lambda slots: slots.start):
        if joined and joined[-1].stop == slots.start:
            slots = slice(joined.pop().start, slots.stop)
        joined.append(slots)
    runs, first = [], 0
    for slots in joined:
        runs.append((slots, slice(first, first + slots.stop - slots.start)))
        first = runs[-1][1].stop
    return runs


def _add_gap(probability: Tensor, loss: Tensor, gradient: Tensor, expected: Tensor, weight: Tensor) -> None:
    """Add the cost of having more or fewer positives in a batch than expected, and its derivative."""
    size = probability.shape[1] * probability.shape[2]
    gap = torch.add(expected, probability.sum(dim=(1, 2), keepdim=True), alpha=1.0 / size)
    weighted = gap * weight
    loss.addcmul_(gap[:, 0, 0], weighted[:, 0, 0])
    gradient.addcmul_(torch.addcmul(probability, probability, probability, value=-1.0), weighted, value=2.0 / size)
