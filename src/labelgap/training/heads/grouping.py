"""Which heads share a loss object: those of one method whose options differ in numbers only.

The numbers become tensors with one value per head, and the loss receives logits ``(n, B, K)``. A loss with per-image
state, or with random numbers, is shared only by heads of the same labels and seed. A loss without the ``MultiHead``
protocol, or with a parameter that has no axis of heads, serves a single head, and so does one that a kernel computes in
one pass (see ``labelgap.losses.kernels``): at the sizes where it does, every head is large enough for a kernel alone.
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
from labelgap.losses.base.loss import LogLoss, is_replaced
from labelgap.losses.base.mixture import Mixture
from labelgap.losses.base.terms import widen, widest_float
from labelgap.losses.kernels.dispatch import are_taken
from labelgap.training.heads.plans import HeadPlan


@dataclass(frozen=True, eq=False)
class HeadGroup:
    """Heads that share a loss.

    Attributes:
        loss_fn: prepared; it has an axis of heads where there are several of them.
        plans: their numbers among all plans, in the order of that axis.
        slots: their positions in the logits and losses of all heads.
        mixture: of the loss; None where it is none, where a subclass has replaced the cost, and where a kernel
            computes it.
        part: which features the loss sees; that of its first head where it needs none.
    """

    loss_fn: Loss
    plans: tuple[int, ...]
    slots: slice
    mixture: Mixture | None
    part: int = 0

    @property
    def multi_head(self) -> MultiHead:
        """What the loss offers to the engine; the defaults of the protocol where it is a plain ``Loss``."""
        return self.loss_fn if isinstance(self.loss_fn, MultiHead) else MultiHead()

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

    Args:
        plans: all heads.
        tables: for every plan the number of its label table; equal numbers mean equal tables.
        epochs: how many will be trained.
        device: of the losses.
        dtype: float64 makes their parameters float64.
        batch_size: of a full batch.
    """
    classes = len(plans[0].labels.classes)
    rows = batch_size if are_taken(device, dtype, batch_size * classes) else 0
    by_key: dict[tuple[Any, ...], list[int]] = {}
    for number, plan in enumerate(plans):
        by_key.setdefault(_key(plan, number, tables[number], (rows, classes)), []).append(number)
    found: list[tuple[list[int], Loss, Mixture | None]] = []
    for numbers in by_key.values():
        loss_fn = _create_loss(plans, numbers, tables, epochs, device, dtype)
        stackable = all(parameter.shape[:1] == (len(numbers),) for parameter in loss_fn.parameters())
        for some in [numbers] if stackable or len(numbers) == 1 else [[number] for number in numbers]:
            own = loss_fn if some is numbers else _create_loss(plans, some, tables, epochs, device, dtype)
            found.append((some, own, _mixture(own, rows, classes)))
    groups, slot = [], 0
    for numbers, loss_fn, mixture in sorted(found, key=lambda group: _mixture_kind(group[2])):
        slots, part = slice(slot, slot + len(numbers)), plans[numbers[0]].part
        groups.append(HeadGroup(loss_fn, tuple(numbers), slots, mixture, part))
        slot += len(numbers)
    return groups


def _mixture(loss_fn: Loss, rows: int, classes: int) -> Mixture | None:
    """Return the mixture of a loss that no kernel computes; None where a subclass has replaced the cost."""
    if not isinstance(loss_fn, MultiHead) or _has_kernel(loss_fn, rows, classes):
        return None
    return None if is_replaced(type(loss_fn), "mixture", "weights") else loss_fn.mixture(classes)


def _has_kernel(loss_fn: Loss, rows: int, classes: int) -> bool:
    """Return whether a kernel computes the loss of full batches; ``rows`` is 0 where none does."""
    return rows > 0 and isinstance(loss_fn, LogLoss) and loss_fn.usable_kernel_form(rows, classes) is not None


def _mixture_kind(mixture: Mixture | None) -> tuple[bool, ...]:
    """Return what groups in adjacent slots have in common; label estimates come after expected positives."""
    if mixture is None:
        return ()
    return (
        True,
        mixture.expected_positives is not None,
        mixture.label_estimate is not None,
        mixture.has_entropy,
        mixture.modified is not None,
    )


def _key(plan: HeadPlan, number: int, table: int, shape: tuple[int, int]) -> tuple[Any, ...]:
    """Return what two heads of a group have in common."""
    loss_fn = loss(plan.method, **plan.options)
    if loss_fn.reduction == "none":
        raise InputError(f"{plan}: reduction='none' returns a matrix, and training needs a scalar: 'mean' or 'sum'.")
    if not plan.lr > 0:
        raise InputError(f"{plan}: lr={plan.lr}: a learning rate must be above 0.")
    if not isinstance(loss_fn, MultiHead) or _has_kernel(loss_fn, *shape):
        return plan.method, number
    options = {**method_options(plan.method), **plan.options}
    fixed = tuple(
        (name, repr(_plain(value)))
        for name, value in sorted(options.items())
        if name in loss_fn.shared_options or not _is_number(value)
    )
    state = (table, plan.seed) if "index" in loss_fn.needs else ()
    part = plan.part if "features" in loss_fn.needs else 0
    return plan.method, fixed, state, part


def _create_loss(
    plans: Sequence[HeadPlan],
    numbers: Sequence[int],
    tables: Sequence[int],
    epochs: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Loss:
    method = plans[numbers[0]].method
    options = [{**method_options(method), **plans[number].options} for number in numbers]
    stacked = {name: _stack_option([each[name] for each in options], widest_float(device)) for name in options[0]}
    loss_fn = loss(method, **stacked).to(device)
    if isinstance(loss_fn, MultiHead) and len(numbers) > 1:
        loss_fn.heads = (len(numbers),)
    for number in {tables[number]: number for number in numbers}.values():
        loss_fn.prepare(plans[number].labels, epochs=epochs, seed=plans[number].seed)
    return loss_fn.to(dtype) if dtype == torch.float64 else loss_fn


def _stack_option(values: Sequence[Any], dtype: torch.dtype) -> Any:
    """Return one option for several heads: unchanged where all agree, else a tensor."""
    if not _is_number(values[0]) or all(value == values[0] for value in values):
        return values[0]
    return torch.tensor([float(value) for value in values], dtype=dtype)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value
