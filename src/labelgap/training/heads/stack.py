"""The stacked heads of an engine: their weights, labels and order, which of them are active, and their logits."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from labelgap.core.distributed import world_size
from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed
from labelgap.core.system import format_bytes
from labelgap.labels import PRESENT, LabelTable
from labelgap.losses.base.state import free_memory
from labelgap.metrics.label_model import platt_scaling
from labelgap.models.heads import LinearHead
from labelgap.models.open_clip import standardize_head, zero_shot_classifier
from labelgap.training.heads.grouping import HeadGroup, HeadPlan, group_plans
from labelgap.training.heads.optimizers import StackedParameter
from labelgap.training.heads.solver import FeatureBasis

CHUNK = 1 << 24
"""How many logits are computed at once."""
SMALL_FEATURES = 1 << 18
"""Features of fewer values are transposed in memory: a small product is several times as fast then."""
MEMORY_SHARE = 4
"""Label tables are dense, a byte per image and class, where they fit into this fraction of the free memory."""
_MAX_ENTRIES: Final = 2_000_000
"""The line of ``zero_shot_head`` is fitted on images at regular distances, with at most so many labels."""


def initial_head(width: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weights ``(K, D)`` and biases ``(K,)`` of a linear run with this seed before training."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "initialisation"))  # others take 1 ms without a GPU
        head = LinearHead(width, classes)
    return head.weight.detach(), head.bias.detach()


def zero_shot_head(
    name: str, weights: str | os.PathLike[str] | None, features: Tensor, labels: LabelTable
) -> tuple[Tensor, Tensor]:
    r"""Return weights ``(K, D)`` and biases ``(K,)`` that say of every label what the model says of its class's name.

    Zero-shot logits are standardized for each class over the training images, :math:`z`, and one line for all classes
    makes log-odds of them that a label is known to be present (Platt):

    .. math:: P_{ik} = \sigma(\beta z_{ik} + \gamma), \qquad \beta \ge 0

    This prior is linear in the features of the image tower, so it is a head, and training starts there instead of at
    random weights. Unknown labels stay unknown, and the loss decides how far they move.

    Args:
        name: ``open_clip:MODEL/TAG``.
        weights: a file of weights of the whole model, instead of those of the tag.
        features: ``(N, D)`` of the training images, by the image tower of that model.
        labels: of the training images.
    """
    vectors = features.detach().cpu().float().numpy()
    weight, bias = standardize_head([vectors], zero_shot_classifier(name, labels.classes, weights=weights).weight)
    rows = np.arange(0, len(vectors), max(1, -(-len(vectors) * len(weight) // _MAX_ENTRIES)))
    present = (labels.select(rows).to_dense() == PRESENT).ravel()
    scores = (vectors[rows] @ weight.T + bias).ravel()
    slope, intercept = 1.0, 0.0
    if present.any() and not present.all():
        slope, intercept = platt_scaling(scores, present, min_slope=0.0)
    return torch.from_numpy(slope * weight).float(), torch.from_numpy(slope * bias + intercept).float()


class LabelTables:
    """The labels of all heads on the device: distinct tables of the same images and classes, each once.

    Args:
        tables: one for every head; equal ones are stored once.
        device: of the labels.
        parts: for every head which images it sees; those of one part must be the same. One part when empty.

    Attributes:
        number: for every head the number of its table.
        dense: ``(T, N, K)`` int8; None where that is too large and labels are read from the sparse tables.
    """

    def __init__(self, tables: Sequence[LabelTable], device: torch.device, parts: Sequence[int] = ()) -> None:
        self.distinct: list[LabelTable] = []
        self.parts: list[int] = []
        self.device = device
        self.number = [self._number(*each) for each in zip(tables, parts or [0] * len(tables), strict=True)]
        images, classes = self.distinct[0].shape
        free, self.dense = free_memory(device), None
        if free is None or len(self.distinct) * images * classes <= free // MEMORY_SHARE:
            self.dense = torch.stack([torch.from_numpy(table.to_dense()) for table in self.distinct]).to(device)

    def rows(self, index: Tensor) -> Tensor:
        """Return the codes of some rows, ``(T, B, K)`` int8."""
        if self.dense is not None:
            return self.dense.index_select(1, index)
        return torch.stack([table.batch(index) for table in self.distinct]).to(self.device)

    def _number(self, table: LabelTable, part: int) -> int:
        for number, other in enumerate(self.distinct):
            if part == self.parts[number] and (table is other or table == other):
                return number
        if self.distinct:
            first = self.distinct[self.parts.index(part) if part in self.parts else 0]
            same = table.images == first.images if part in self.parts else len(table) == len(first)
            if table.classes != first.classes or not same:
                raise InputError(
                    "heads that are trained together need labels of the same images and classes, in the same order; "
                    f"one has {table!r}, another {first!r}."
                )
        self.distinct.append(table)
        self.parts.append(part)
        return len(self.distinct) - 1


class HeadStack:
    """The heads of an engine. See ``LinearEngine`` for the arguments.

    A head has the number of its plan; a *slot* in logits and losses, where heads that share a loss are adjacent; and a
    *row* in the weights, where heads of the same learning rate are adjacent.

    Attributes:
        plans: the heads, in the order of the caller.
        groups: heads that share a loss, in the order of their slots.
        plan_of_slot: M numbers, as is ``table_of_slot``, the number of each slot's label table.
        slot_of_plan: ``(M,)``, as are ``row_of_plan``, ``row_of_slot`` and ``slot_of_row``.
        reordered: whether slots and rows differ.
        basis: the coordinates of the features in which heads are trained; None for the features themselves.
        width: D, the number of features.
        features: ``(N, R)`` or ``(P, N, R)`` coordinates of the training images.
        part_rows: the rows of weights of each of the P parts.
        weight: ``(M · K, R)``, by row.
        bias: ``(M · K,)``, by row.
        active: ``(M,)`` bool by slot; False for frozen heads.
        failed_epoch: ``(M,)`` by slot, the epoch in which the loss was not finite; 0 where it always was.
        failed_step: ``(M,)`` by slot, the step of that epoch, counted from 1.
        steps_done: steps of the current epoch.
        host_syncs: whether the host reads the losses; it does not where it would have to wait for the device.
        all_active: whether no head is frozen, as far as the host knows.
    """

    def __init__(
        self,
        features: Tensor,
        plans: Sequence[HeadPlan],
        *,
        epochs: int,
        batch_size: int,
        device: torch.device,
        dtype: torch.dtype,
        basis: FeatureBasis | None = None,
    ) -> None:
        self.plans, self.batch_size, self.device, self.dtype = tuple(plans), batch_size, device, dtype
        _check(features, self.plans, batch_size, dtype)
        self.classes, self.width, self.basis = len(plans[0].labels.classes), features.shape[-1], basis
        _check_memory(features, len(plans) * self.classes, device, dtype)
        self.features = self.coordinates(features)
        self.tables = LabelTables([plan.labels for plan in plans], device, [plan.part for plan in plans])
        most = min(batch_size, features.shape[-2])
        shared: dict[str, Any] = {"epochs": epochs, "device": device, "dtype": dtype, "batch_size": most}
        self.groups = group_plans(self.plans, self.tables.number, **shared)
        self.plan_of_slot = [plan for group in self.groups for plan in group.plans]
        settings = [(plans[plan].part, -plans[plan].lr, plans[plan].weight_decay) for plan in self.plan_of_slot]
        by_rate = sorted(range(len(plans)), key=settings.__getitem__)
        self.slot_of_plan, self.slot_of_row = self.index(self.plan_of_slot).argsort(), self.index(by_rate)
        self.row_of_slot = self.slot_of_row.argsort()
        self.row_of_plan = self.row_of_slot[self.slot_of_plan]
        self.reordered = by_rate != list(range(len(plans)))
        counts = np.bincount([plan.part for plan in plans], minlength=1 if features.ndim == 2 else len(features))
        ends = (self.classes * counts).cumsum().tolist()
        self.part_rows = [slice(start, end) for start, end in itertools.pairwise([0, *ends])]
        self.table_of_slot = [self.tables.number[plan] for plan in self.plan_of_slot]
        self.weight = self.features.new_empty(len(plans) * self.classes, self.features.shape[-1])
        self.bias = self.features.new_empty(len(plans) * self.classes)
        self.active = torch.ones(len(plans), dtype=torch.bool, device=device)
        self.failed_epoch = torch.zeros(len(plans), dtype=torch.int64, device=device)
        self.failed_step = torch.zeros_like(self.failed_epoch)
        self.host_syncs = self.all_active = device.type == "cpu"
        self.steps_done = torch.zeros((), dtype=torch.int64, device=device)
        seeds, width = {plan.seed for plan in plans}, self.features.shape[-1]
        first = {seed: initial_head(width, self.classes, seed) for seed in seeds}
        weights, biases = zip(*(first[plan.seed] for plan in plans), strict=True)
        self._set_weights(torch.stack(weights), torch.stack(biases))

    def index(self, numbers: Sequence[int]) -> Tensor:
        """Return numbers as an index on the device."""
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    def stacked_parameter(self, values: Tensor, *, decays: bool = True) -> StackedParameter:
        """Return weights of all heads for the optimizer, with or without their weight decay."""
        slots = self.slot_of_row.tolist()
        plans = [self.plans[self.plan_of_slot[slot]] for slot in slots]
        decay = [plan.weight_decay for plan in plans] if decays else ()
        return StackedParameter(values.view(len(slots), -1), [plan.lr for plan in plans], slots, decay)

    def coordinates(self, features: Tensor) -> Tensor:
        """Return the coordinates ``(N, R)`` of features ``(N, D)``, on the device."""
        features = features.detach().to(self.device, self.dtype)
        return features if self.basis is None else self.basis.apply(features)

    @property
    def heads(self) -> tuple[Tensor, Tensor]:
        """Copies of the weights ``(M, K, D)`` and biases ``(M, K)`` of all plans, on the features."""
        shape = len(self.plans), self.classes
        weight, bias = self.weight.view(*shape, -1), self.bias.view(shape)
        weight, bias = weight.index_select(0, self.row_of_plan), bias.index_select(0, self.row_of_plan)
        return (weight, bias) if self.basis is None else self.basis.to_features(weight, bias)

    @torch.no_grad()
    def set_heads(self, weight: Tensor, bias: Tensor) -> None:
        """Replace the weights ``(M, K, D)`` and biases ``(M, K)`` on the features, in the order of the plans."""
        shape = len(self.plans), self.classes, self.width
        if tuple(weight.shape) != shape or tuple(bias.shape) != shape[:2]:
            raise InputError(
                f"the heads' weights have shape {shape} and their biases {shape[:2]}; "
                f"not {tuple(weight.shape)} and {tuple(bias.shape)}."
            )
        weight, bias = (values.detach().to(self.device, self.dtype) for values in (weight, bias))
        self._set_weights(*((weight, bias) if self.basis is None else self.basis.from_features(weight, bias)))

    def _set_weights(self, weight: Tensor, bias: Tensor) -> None:
        """Set the weights ``(M, K, R)`` and biases ``(M, K)`` on the coordinates, in the order of the plans."""
        plan_of_row = self.row_of_plan.argsort()
        self.weight.view(weight.shape).copy_(weight.to(self.device).index_select(0, plan_of_row))
        self.bias.view(bias.shape).copy_(bias.to(self.device).index_select(0, plan_of_row))

    @property
    def failed(self) -> list[int | None]:
        """For every plan the epoch in which its loss was not finite; None where it always was."""
        return [epoch or None for epoch in self.failed_epoch.index_select(0, self.slot_of_plan).tolist()]

    @property
    def steady(self) -> list[int]:
        """The heads whose loss is the same function of the logits in every epoch."""
        return [plan for group in self.groups if not group.loss_fn.epoch_dependent for plan in group.plans]

    def part_logits(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the logits ``(M · K, B)``, by row, of batches ``(B, R)`` of all parts."""
        flat = [each.t().contiguous() if each.numel() < SMALL_FEATURES else each.t() for each in parts]
        own = zip(self.part_rows, flat, strict=True)
        return torch.cat([torch.addmm(self.bias[rows, None], self.weight[rows], each) for rows, each in own])

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        """Return the logits ``(M, N, K)`` of images by their features ``(N, D)``, in the order of the plans."""
        pairs = self.iterate_logits(self.coordinates(features), self.row_of_plan)
        return torch.cat([logits for _, logits in pairs], dim=1)

    @torch.no_grad()
    def iterate_logits(self, coordinates: Tensor, heads: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images ``(B,)`` and their logits ``(n, B, K)``, of heads by row, a bounded number at a time."""
        shape = len(heads), self.classes
        weight = self.weight.view(-1, self.classes, self.weight.shape[1]).index_select(0, heads).flatten(0, 1)
        bias = self.bias.view(-1, self.classes).index_select(0, heads).flatten()
        step = max(1, CHUNK // max(len(bias), 1))
        for first in range(0, max(len(coordinates), 1), step):
            part = coordinates[first : first + step]
            rows = torch.arange(first, first + len(part), device=self.device)
            yield rows, torch.addmm(bias[:, None], weight, part.t()).view(*shape, -1).mT

    def training_logits(self, group: HeadGroup) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all training images and their logits for the loss of a group; 0 for failed heads."""
        bad = (self.failed_epoch[group.slots] > 0)[:, None, None]
        features = self.features if self.features.ndim == 2 else self.features[group.part]
        for images, logits in self.iterate_logits(features, self.row_of_slot[group.slots]):
            yield images, group.without_axis(logits.masked_fill(bad, 0.0))

    def stack_state(self) -> dict[str, Any]:
        """Return the tensors of the stack."""
        return {"weight": self.weight, "bias": self.bias, "active": self.active, "failed_epoch": self.failed_epoch}

    def load_stack_state(self, state: dict[str, Any]) -> None:
        """Restore ``stack_state``."""
        for name, values in self.stack_state().items():
            if state[name].shape != values.shape:
                raise InputError(
                    f"the stored engine has a {name} of shape {tuple(state[name].shape)}, this one of "
                    f"{tuple(values.shape)}: only an engine with the same plans can load it."
                )
            values.copy_(state[name])


def _check(features: Tensor, plans: Sequence[HeadPlan], batch_size: int, dtype: torch.dtype) -> None:
    if world_size() > 1:
        raise InputError("the linear engine trains in one process: start it without torchrun, or on one rank's data.")
    if not plans:
        raise InputError("there is no head to train: pass at least one plan.")
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype={dtype}: heads are trained in torch.float32 or torch.float64.")
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: it must be at least 1.")
    if features.ndim not in (2, 3) or features.shape[-2] != len(plans[0].labels) or not features.shape[-2]:
        raise InputError(
            f"features have shape {tuple(features.shape)}: it needs a row for each of {len(plans[0].labels):,} images "
            "of the labels, and at least one."
        )


def _check_memory(features: Tensor, rows: int, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse heads, with their gradient and the moments of Adam, and copies of features that do not fit in memory."""
    needed = 4 * rows * (features.shape[-1] + 1) * dtype.itemsize
    if features.device != device or features.dtype != dtype:
        needed += features.numel() * dtype.itemsize
    free = free_memory(device)
    if free is not None and needed > free:
        raise InputError(
            f"{rows:,} rows of weights × {features.shape[-1]:,} features and their optimizer state take "
            f"{format_bytes(needed)}, and {format_bytes(free)} are free. Train fewer heads at a time."
        )
