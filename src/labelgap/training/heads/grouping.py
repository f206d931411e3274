"""Which heads can share an objective: those of one method whose options differ in numbers only.

The numbers become tensors with one value a head, and the objective sees logits ``(n, B, K)``. What remembers something
of every image, or draws at random, is shared only by heads of the same labels and seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.losses import Loss, MultiHead, loss, method_options
from labelgap.losses.base.terms import widen
from labelgap.training.heads.plans import HeadPlan

__all__ = ["HeadGroup", "group_plans"]


@dataclass(frozen=True, eq=False)
class HeadGroup:
    """Heads under one objective.

    Attributes:
        objective: prepared for them; with one axis of heads where there are several, with none for a single one.
        plans: their numbers among all plans, in the order of that axis.
    """

    loss_fn: Loss
    plans: tuple[int, ...]

    @property
    def several(self) -> bool:
        """Whether the objective has an axis of heads."""
        return len(self.plans) > 1

    @property
    def multi_head(self) -> MultiHead:
        """What the loss offers to the engine; the defaults of the protocol where it is a plain ``Loss``."""
        return self.loss_fn if isinstance(self.loss_fn, MultiHead) else MultiHead()

    def loss_and_gradient(
        self, logits: Tensor, labels: Tensor, index: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss ``(…)`` and its derivative in the logits ``(…, B, K)``, both without a graph.

        The derivatives in the parameters of the loss are left in their ``grad``.
        """
        leaf = widen(logits).detach().requires_grad_()
        inputs = [leaf, *(parameter for parameter in self.loss_fn.parameters() if parameter.requires_grad)]
        with torch.enable_grad():
            cost = self.loss_fn.cost(leaf, labels, index, features)
            found = torch.autograd.grad(cost.sum(), inputs, allow_unused=True)
        for value, gradient in zip(inputs, found, strict=True):
            value.grad = torch.zeros_like(value) if gradient is None else gradient
        assert leaf.grad is not None
        return cost.detach(), leaf.grad

    def with_axis(self, values: Tensor) -> Tensor:
        """Return what the objective gave as ``(n, …)``."""
        return values if self.several else values[None]

    def without_axis(self, values: Tensor) -> Tensor:
        """Return ``(n, …)`` as the objective takes it."""
        return values if self.several else values[0]


def group_plans(
    plans: Sequence[HeadPlan], tables: Sequence[int], *, epochs: int, device: torch.device, dtype: torch.dtype
) -> list[HeadGroup]:
    """Put plans together and prepare an objective for each group.

    Args:
        plans: all heads.
        tables: for every plan the number of its label table; equal numbers mean equal tables.
        epochs: how many will be trained.
        device: where the objectives are to be.
        dtype: float64 makes what they learn float64 as well.
    """
    members: dict[tuple[Any, ...], list[int]] = {}
    for number, plan in enumerate(plans):
        members.setdefault(_key(plan, number, tables[number]), []).append(number)
    return [
        _group(plans, tuple(numbers), epochs, device, dtype, {tables[number]: number for number in numbers})
        for numbers in members.values()
    ]


def _key(plan: HeadPlan, number: int, table: int) -> tuple[Any, ...]:
    """Return what two heads must have in common."""
    loss_fn = loss(plan.method, **plan.options)
    if loss_fn.reduction == "none":
        raise InputError(f"{plan}: reduction='none' gives a matrix, and training needs one number: 'mean' or 'sum'.")
    if not plan.lr > 0:
        raise InputError(f"{plan}: lr={plan.lr}: a learning rate is above 0.")
    if not isinstance(loss_fn, MultiHead):
        return plan.method, number
    options = {**method_options(plan.method), **plan.options}
    texts = tuple((name, repr(_plain(value))) for name, value in sorted(options.items()) if not _is_number(value))
    alone = (table, plan.seed) if "index" in loss_fn.needs else ()
    return plan.method, texts, alone


def _group(
    plans: Sequence[HeadPlan],
    numbers: tuple[int, ...],
    epochs: int,
    device: torch.device,
    dtype: torch.dtype,
    tables: dict[int, int],
) -> HeadGroup:
    method = plans[numbers[0]].method
    options = [{**method_options(method), **plans[number].options} for number in numbers]
    loss_fn = loss(method, **{name: _together([each[name] for each in options]) for name in options[0]}).to(device)
    if isinstance(loss_fn, MultiHead) and len(numbers) > 1:
        loss_fn.heads = (len(numbers),)
    for number in tables.values():
        loss_fn.prepare(plans[number].labels, epochs=epochs, seed=plans[number].seed)
    return HeadGroup(loss_fn.to(dtype) if dtype == torch.float64 else loss_fn, numbers)


def _together(values: Sequence[Any]) -> Any:
    """Return one option for several heads: as it is where all agree, else a tensor."""
    if not _is_number(values[0]) or all(value == values[0] for value in values):
        return values[0]
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value
