"""The plans of heads, and which of them share a loss: those of one method whose options differ in numbers only.

The numbers become tensors with one value per head, and the loss receives logits ``(n, B, K)``. A loss with per-image
state is shared only by heads of the same labels and seed, unless it takes their tables. A loss without ``MultiHead``,
or with a parameter that has no axis of heads, serves a single head, and so does one that a kernel computes in one pass
(see ``labelgap.losses.kernels``): at the sizes where it does, every head is large enough for a kernel alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses import Loss, MultiHead, loss, method_options
from labelgap.losses.base.fused import closed_gradient
from labelgap.losses.base.loss import LogLoss, is_replaced
from labelgap.losses.base.mixture import Mixture
from labelgap.losses.base.terms import widen, widest_float
from labelgap.losses.kernels.dispatch import are_taken


@dataclass(frozen=True)
class HeadPlan:
    """One of many heads that are trained at once."""

    method: str
    options: Mapping[str, Any]
    lr: float  # those of a loss's own parameters follow from it (ROLE's estimate learns ten times as fast)
    labels: LabelTable  # the observed ones; heads may differ in them, but have the same images and classes
    seed: int = 0  # of the initial weights, and of what the method draws
    weight_decay: float = 0.0  # not for the parameters of losses, and not for the biases under the optimizer "newton"
    name: str = ""  # for tables and messages
    part: int = 0  # which features it is trained on, where there are several: those of its fold

    def __str__(self) -> str:
        """Return the name, or the method and the learning rate."""
        return self.name or f"{self.method}, lr {self.lr:g}"


@dataclass(frozen=True, eq=False)
class HeadGroup:
    """Heads that share a loss."""

    loss_fn: Loss  # prepared; it has an axis of heads where there are several of them
    plans: tuple[int, ...]  # their numbers among all plans, in the order of that axis
    slots: slice  # their positions in the logits and losses of all heads
    mixture: Mixture | None  # of the loss, where the linear engine evaluates it
    part: int = 0  # which features the loss sees; that of its first head where it needs none

    def loss_and_gradient(
        self, logits: Tensor, labels: Tensor, index: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses ``(n,)`` of these heads and their derivatives in the logits, ``(n, K, B)``.

        Both are without a graph. The logits are those of all heads, ``(M, K, B)``. The derivatives in the parameters of
        the loss are left in their ``grad``.
        """
        leaf = widen(self.select(logits)).detach().requires_grad_()
        inputs = [leaf, *(parameter for parameter in self.loss_fn.parameters() if parameter.requires_grad)]
        with torch.enable_grad():
            if type(self.loss_fn).forward is Loss.forward:  # its checks are done once, by the engine
                cost = self.loss_fn.cost(leaf, labels, index, features)
            else:
                cost = self.loss_fn(leaf, labels, index=index, features=features)
            if (closed := closed_gradient(cost, leaf)) is not None:
                return self.with_axis(cost.detach()), self.with_axis(closed).mT.contiguous()
            gradients = torch.autograd.grad(cost.sum(), inputs, allow_unused=True, materialize_grads=True)
        for value, gradient in zip(inputs[1:], gradients[1:], strict=True):
            value.grad = gradient
        return self.with_axis(cost.detach()), self.with_axis(gradients[0]).mT.contiguous()

    def with_axis(self, values: Tensor) -> Tensor:
        """Return an output of the loss as ``(n, …)``."""
        return values if len(self.plans) > 1 else values[None]

    def without_axis(self, values: Tensor) -> Tensor:
        """Return ``(n, …)`` as an input of the loss."""
        return values if len(self.plans) > 1 else values[0]

    def select(self, values: Tensor) -> Tensor:
        """Return these heads of ``(M, K, B)`` as an input of the loss, ``(…, B, K)``."""
        return self.without_axis(values[self.slots]).mT


def group_plans(
    plans: Sequence[HeadPlan],
    tables: Sequence[int],
    *,
    epochs: int,
    device: torch.device,
    dtype: torch.dtype,
    batch_size: int,
) -> list[HeadGroup]:
    """Group plans, prepare the loss of each group, and give adjacent slots to groups with similar mixtures.

    ``tables`` are the numbers of the plans' label tables; float64 makes the parameters of losses float64.
    """
    classes = len(plans[0].labels.classes)
    shape = (batch_size if are_taken(device, dtype, batch_size * classes) else 0), classes

    def create(numbers: Sequence[int]) -> Loss:
        method, wide = plans[numbers[0]].method, widest_float(device)
        options = [{**method_options(method), **plans[number].options} for number in numbers]
        stacked = {name: _stack_option([each[name] for each in options], wide) for name in options[0]}
        loss_fn = loss(method, **stacked).to(device)
        if isinstance(loss_fn, MultiHead) and len(numbers) > 1:
            loss_fn.heads = (len(numbers),)
            if loss_fn.takes_tables and len({tables[number] for number in numbers}) > 1:
                loss_fn.tables = [plans[number].labels for number in numbers]
        for number in {tables[number]: number for number in numbers}.values():
            loss_fn.prepare(plans[number].labels, epochs=epochs, seed=plans[number].seed)
        return loss_fn.to(dtype) if dtype == torch.float64 else loss_fn

    by_key: dict[tuple[Any, ...], list[int]] = {}
    distinct = {(plan.method, id(plan.options)): plan for plan in plans}  # folds and seeds share their options
    losses = {key: loss(plan.method, **plan.options) for key, plan in distinct.items()}
    for number, plan in enumerate(plans):
        key = _key(plan, losses[plan.method, id(plan.options)], number, tables[number], shape)
        by_key.setdefault(key, []).append(number)
    found: list[tuple[list[int], Loss, Mixture | None]] = []
    for numbers in by_key.values():
        loss_fn = create(numbers)
        if all(parameter.shape[:1] == (len(numbers),) for parameter in loss_fn.parameters()) or len(numbers) == 1:
            found.append((numbers, loss_fn, _mixture(loss_fn, shape)))
            continue
        for number in numbers:
            found.append(([number], own := create([number]), _mixture(own, shape)))

    def kind(group: tuple[list[int], Loss, Mixture | None]) -> tuple[bool, ...]:
        """Return what groups in adjacent slots have in common; label estimates come after expected positives."""
        if (mixture := group[2]) is None:
            return ()
        return True, mixture.expected_positives is not None, mixture.label_estimate is not None, mixture.has_entropy

    groups, slot = [], 0
    for numbers, loss_fn, mixture in sorted(found, key=kind):
        slots, part = slice(slot, slot + len(numbers)), plans[numbers[0]].part
        groups.append(HeadGroup(loss_fn, tuple(numbers), slots, mixture, part))
        slot += len(numbers)
    return groups


def _mixture(loss_fn: Loss, shape: tuple[int, int]) -> Mixture | None:
    """Return the mixture of a loss that no kernel computes, whose cost no subclass has replaced, and all of whose
    weights follow from the labels."""
    if not isinstance(loss_fn, MultiHead) or _has_kernel(loss_fn, shape):
        return None
    mixture = None if is_replaced(type(loss_fn), "mixture", "weights") else loss_fn.mixture(shape[1])
    return None if mixture is None or mixture.modified is not None else mixture


def _has_kernel(loss_fn: Loss, shape: tuple[int, int]) -> bool:
    """Return whether a kernel computes the loss of full batches; their rows are 0 where none does."""
    return shape[0] > 0 and isinstance(loss_fn, LogLoss) and loss_fn.usable_kernel_form(*shape) is not None


def _key(plan: HeadPlan, loss_fn: Loss, number: int, table: int, shape: tuple[int, int]) -> tuple[Any, ...]:
    """Return what two heads of a group have in common."""
    if loss_fn.reduction == "none":
        raise InputError(f"{plan}: reduction='none' returns a matrix, and training needs a scalar: 'mean' or 'sum'.")
    if not plan.lr > 0:
        raise InputError(f"{plan}: lr={plan.lr}: a learning rate must be above 0.")
    if not isinstance(loss_fn, MultiHead) or _has_kernel(loss_fn, shape):
        return plan.method, number
    options = {**method_options(plan.method), **plan.options}
    fixed = tuple(
        (name, repr(value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value))
        for name, value in sorted(options.items())
        if name in loss_fn.shared_options or not _is_number(value)
    )
    own_state = "index" in loss_fn.needs and not loss_fn.takes_tables
    state = (table, plan.seed) if own_state or plan.labels.soft is not None else ()
    part = plan.part if "features" in loss_fn.needs else 0
    return plan.method, fixed, state, part


def _stack_option(values: Sequence[Any], dtype: torch.dtype) -> Any:
    """Return one option for several heads: unchanged where all agree, else a tensor."""
    if not _is_number(values[0]) or all(value == values[0] for value in values):
        return values[0]
    return torch.tensor([float(value) for value in values], dtype=dtype)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
