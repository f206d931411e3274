"""Heads on top of each other: their weights, their order, which of them still learn, and what they say of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from labelgap.core.distributed import world_size
from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed
from labelgap.core.system import format_bytes
from labelgap.losses.base.mixture import Mixture
from labelgap.losses.base.per_image_state import free_memory
from labelgap.models.heads import LinearHead
from labelgap.training.heads.grouping import HeadGroup, group_plans
from labelgap.training.heads.label_tables import LabelTables
from labelgap.training.heads.mixture_kernel import PlacedGroup
from labelgap.training.heads.optimizers import StackedParameter
from labelgap.training.heads.plans import HeadPlan

__all__ = ["HeadStack", "initial_head"]

CHUNK = 1 << 24
"""How many logits are computed at once when images are scored."""


def initial_head(width: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weights ``(K, D)`` and biases ``(K,)`` that a linear run with this seed begins with.

    Example:
        >>> [tuple(values.shape) for values in initial_head(width=8, classes=3, seed=0)]
        [(3, 8), (3,)]
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initialisation"))
        head = LinearHead(width, classes)
    return head.weight.detach(), head.bias.detach()


class HeadStack:
    """The heads of an engine. See ``Engine`` for the arguments.

    A head has a number, that of its plan; a *place*, among logits and losses, where heads that share an objective are
    side by side; and a *row*, among the weights, where heads of the same rate are.

    Attributes:
        plans: the heads, in the order that was asked for.
        members: heads that share an objective, and their places.
        stacked: for every place the number of its plan.
        table_of: for every place the number of its label table.
        place_of_plan: ``(M,)``
        row_of_plan: ``(M,)``
        row_of_place: ``(M,)``
        place_of_row: ``(M,)``
        moved: whether places and rows differ.
        weight: ``(M · K, D)``, by row.
        bias: ``(M · K,)``, by row.
        alive: ``(M,)`` bool by place, which heads still learn.
        failed_in: ``(M,)`` by place, in which epoch a loss was no number; 0 where that did not happen.
        failed_step: ``(M,)`` by place, in which step of that epoch, counted from 1.
        taken: how many steps of the epoch were taken.
        host_looks: whether the host looks at losses; where it would have to wait for them it does not.
        all_in: whether every head still learns, as far as the host knows.
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
    ) -> None:
        self.plans, self.batch_size, self.device, self.dtype = tuple(plans), batch_size, device, dtype
        _check(features, self.plans, batch_size, dtype)
        self.classes, self.width = len(plans[0].labels.classes), features.shape[1]
        _refuse_what_cannot_fit(features, len(plans) * self.classes, device, dtype)
        self.features = features.detach().to(device, dtype)
        self.tables = LabelTables([plan.labels for plan in plans], device)
        groups = group_plans(self.plans, self.tables.number, epochs=epochs, device=device, dtype=dtype)
        self.members = list(_members(groups, self.classes))
        self.stacked = [plan for member in self.members for plan in member.group.plans]
        by_rate = sorted(range(len(plans)), key=lambda place: -plans[self.stacked[place]].lr)
        self.place_of_plan, self.place_of_row = self.index(self.stacked).argsort(), self.index(by_rate)
        self.row_of_place = self.place_of_row.argsort()
        self.row_of_plan = self.row_of_place[self.place_of_plan]
        self.moved = by_rate != list(range(len(plans)))
        self.table_of = [self.tables.number[plan] for plan in self.stacked]
        self.weight = torch.empty(len(plans) * self.classes, self.width, dtype=dtype, device=device)
        self.bias = torch.empty(len(plans) * self.classes, dtype=dtype, device=device)
        self.active = torch.ones(len(plans), dtype=torch.bool, device=device)
        self.failed_in = torch.zeros(len(plans), dtype=torch.int64, device=device)
        self.failed_step = torch.zeros_like(self.failed_in)
        self.host_syncs = self.all_active = device.type == "cpu"
        self.taken = torch.zeros((), dtype=torch.int64, device=device)
        first = [initial_head(self.width, self.classes, plan.seed) for plan in plans]
        self.set_heads(torch.stack([weight for weight, _ in first]), torch.stack([bias for _, bias in first]))

    def index(self, places: Sequence[int]) -> Tensor:
        """Return places as an index on the device."""
        return torch.tensor(places, dtype=torch.int64, device=self.device)

    def stack_of(self, values: Tensor) -> StackedParameter:
        """Return weights of all heads as an optimiser takes them."""
        places = self.place_of_row.tolist()
        return StackedParameter(
            values.view(len(places), -1), [self.plans[self.stacked[place]].lr for place in places], places
        )

    @property
    def heads(self) -> tuple[Tensor, Tensor]:
        """Copies of the weights ``(M, K, D)`` and biases ``(M, K)`` of all plans."""
        shape = len(self.plans), self.classes
        weight, bias = self.weight.view(*shape, -1), self.bias.view(shape)
        return weight.index_select(0, self.row_of_plan), bias.index_select(0, self.row_of_plan)

    @torch.no_grad()
    def set_heads(self, weight: Tensor, bias: Tensor) -> None:
        """Let the heads go on from these weights ``(M, K, D)`` and biases ``(M, K)``, in the order of the plans."""
        shape = len(self.plans), self.classes, self.width
        if tuple(weight.shape) != shape or tuple(bias.shape) != shape[:2]:
            raise InputError(
                f"the heads' weights have shape {shape} and their biases {shape[:2]}; "
                f"given were {tuple(weight.shape)} and {tuple(bias.shape)}."
            )
        plan_of_row = self.row_of_plan.argsort()
        self.weight.view(shape).copy_(weight.detach().to(self.device).index_select(0, plan_of_row))
        self.bias.view(shape[:2]).copy_(bias.detach().to(self.device).index_select(0, plan_of_row))

    @property
    def failed(self) -> list[int | None]:
        """For every plan the epoch in which its head's loss was no number; None where that did not happen."""
        return [epoch or None for epoch in self.failed_in.index_select(0, self.place_of_plan).tolist()]

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Return the logits ``(M, N, K)`` of images by their features ``(N, D)``, in the order of the plans."""
        made = torch.empty(len(self.plans), len(features), self.classes, dtype=self.dtype, device=self.device)
        for rows, logits in self.scored(features, self.row_of_plan):
            made[:, rows] = logits
        return made

    @torch.no_grad()
    def scored(self, features: Tensor, heads: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images ``(B,)`` and their logits ``(n, B, K)``, of heads by row, a bounded number at once."""
        shape = len(heads), self.classes
        weight = self.weight.view(-1, self.classes, self.width).index_select(0, heads).flatten(0, 1)
        bias = self.bias.view(-1, self.classes).index_select(0, heads).flatten()
        step = max(1, CHUNK // max(len(bias), 1))
        for first in range(0, len(features), step):
            part = features[first : first + step].to(self.device, self.dtype)
            rows = torch.arange(first, first + len(part), device=self.device)
            yield rows, torch.addmm(bias[:, None], weight, part.t()).view(*shape, -1).mT

    def scores_of(self, member: PlacedGroup) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all training images and their logits for an objective; 0 for heads that failed."""
        bad = (self.failed_in[member.part] > 0)[:, None, None]
        for images, logits in self.scored(self.features, self.row_of_place[member.part]):
            yield images, member.group.without_axis(logits.masked_fill(bad, 0.0))

    def stack_state(self) -> dict[str, Any]:
        """Return the tensors of the stack."""
        return {"weight": self.weight, "bias": self.bias, "alive": self.active, "failed_in": self.failed_in}

    def load_stack_state(self, state: dict[str, Any]) -> None:
        """Take up what ``stack_state`` gave."""
        for name, values in self.stack_state().items():
            if state[name].shape != values.shape:
                raise InputError(
                    f"the stored engine has a {name} of shape {tuple(state[name].shape)}, this one of "
                    f"{tuple(values.shape)}: only an engine with the same plans can take it up."
                )
            values.copy_(state[name])


def _members(groups: Sequence[HeadGroup], classes: int) -> Iterator[PlacedGroup]:
    """Yield groups with their places, those side by side whose mixtures need the same."""

    blends = [group.multi_head.mixture(classes) for group in groups]
    first = 0
    for number in sorted(range(len(groups)), key=lambda number: _kind(blends[number])):
        last = first + len(groups[number].plans)
        yield PlacedGroup(groups[number], slice(first, last), blends[number])
        first = last


def _kind(mixture: Mixture | None) -> tuple[bool, ...]:
    """Return what heads have in common that lie side by side; companions lie behind those that expect positives."""
    if mixture is None:
        return ()
    return (
        True,
        mixture.expected_positives is not None,
        mixture.label_estimate is not None,
        mixture.has_entropy,
        mixture.modified is not None,
    )


def _check(features: Tensor, plans: Sequence[HeadPlan], batch_size: int, dtype: torch.dtype) -> None:
    if world_size() > 1:
        raise InputError("the linear engine trains in one process: start it without torchrun, or on one rank's data.")
    if not plans:
        raise InputError("there is no head to train: give at least one plan.")
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype={dtype}: heads are trained in torch.float32 or torch.float64.")
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: at least one image a step.")
    if features.ndim != 2 or len(features) != len(plans[0].labels) or not len(features):
        raise InputError(
            f"features have shape {tuple(features.shape)}: a row is needed for each of {len(plans[0].labels):,} images "
            "of the labels, and at least one."
        )


def _refuse_what_cannot_fit(features: Tensor, rows: int, device: torch.device, dtype: torch.dtype) -> None:
    """Count the heads with their gradient and Adam's two, and the features where they must be copied."""
    needed = 4 * rows * (features.shape[1] + 1) * dtype.itemsize
    if features.device != device or features.dtype != dtype:
        needed += features.numel() * dtype.itemsize
    free = free_memory(device)
    if free is not None and needed > free:
        raise InputError(
            f"{rows:,} rows of weights × {features.shape[1]:,} features and what training them takes are "
            f"{format_bytes(needed)}, and {format_bytes(free)} are free. Train fewer heads at a time."
        )
