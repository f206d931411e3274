r"""Optimizers of many heads at once: each head has its own learning rate, and a frozen one does not change at all.

On a CPU Adam runs one fused kernel for all heads of a learning rate. On other devices the same arithmetic is written
out with a rate per head and without a value that the host must know, so that a CUDA graph can capture it.

.. math:: m \leftarrow \beta_1 m + (1-\beta_1) g, \quad v \leftarrow \beta_2 v + (1-\beta_2) g^2, \quad
    \theta \leftarrow \theta - \eta\, \frac{m / (1-\beta_1^t)}{\sqrt{v / (1-\beta_2^t)} + \varepsilon}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.training.devices import widest_float

__all__ = ["StackedAdam", "StackedOptimizer", "StackedParameter", "StackedSGD", "create_optimizer"]

BETAS = 0.9, 0.999
EPS = 1e-8


@dataclass(frozen=True, eq=False)
class StackedParameter:
    """A parameter with a leading axis of heads.

    Attributes:
        values: ``(n, …)``, changed in place.
        rates: the learning rate of every head.
        slots: the positions of the heads in the mask of active heads.
        decays: whether weight decay applies; not to the parameters of a loss (ROLE's estimate).
    """

    values: Tensor
    rates: Sequence[float]
    slots: Sequence[int]
    decays: bool = True


class StackedOptimizer(ABC):
    """An optimizer of stacked parameters. Abstract.

    Args:
        parameters: what it changes.
        active: ``(M,)`` bool, of all heads, read in every step; frozen heads do not change.
        weight_decay: times the values, added to their gradient.
    """

    def __init__(self, parameters: Sequence[StackedParameter], active: Tensor, weight_decay: float = 0.0) -> None:
        self.parameters, self.active = tuple(parameters), active
        self.decays = [weight_decay if parameter.decays else 0.0 for parameter in parameters]
        self.slots = [torch.tensor(parameter.slots, device=active.device) for parameter in parameters]
        self.rates = [
            torch.tensor(parameter.rates, dtype=parameter.values.dtype, device=parameter.values.device)
            for parameter in parameters
        ]

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update all parameters; their gradients must be finite, those of frozen heads too."""
        for number, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            decay = self.decays[number]
            gradient = gradient.add(parameter.values, alpha=decay) if decay else gradient
            rates = self.rates[number] * self.active.index_select(0, self.slots[number])
            rates = rates.view(-1, *[1] * (parameter.values.ndim - 1))
            parameter.values.sub_(self.update(number, gradient, rates))

    @abstractmethod
    def update(self, number: int, gradient: Tensor, rates: Tensor) -> Tensor:
        """Return what is subtracted from a parameter; ``rates`` are 0 for frozen heads."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the state: the tensors themselves, not copies."""

    def active_changed(self) -> None:  # noqa: B027 - most optimizers read the mask on the device
        """Read the mask of active heads on the host, where the optimizer needs it there."""


class _FusedArguments(NamedTuple):
    """The arguments of the fused kernel of one learning rate and decay."""

    ranges: list[tuple[int, slice]]
    values: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]


class StackedAdam(StackedOptimizer):
    """Adam as in ``torch.optim.Adam``.

    Args:
        parameters: what it changes.
        active: the mask of active heads.
        weight_decay: times the values, added to their gradient.
        fused: whether to use the fused kernel, on a CPU.
    """

    def __init__(
        self,
        parameters: Sequence[StackedParameter],
        active: Tensor,
        weight_decay: float = 0.0,
        *,
        fused: bool = False,
    ) -> None:
        super().__init__(parameters, active, weight_decay)
        self.means = [torch.zeros_like(parameter.values) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter.values) for parameter in parameters]
        self.fused = fused and hasattr(torch, "_fused_adam_")
        dtype = torch.float32 if self.fused else widest_float(active.device)
        self.steps = torch.zeros((), dtype=dtype, device=active.device)
        self.active_changed()

    def state(self) -> dict[str, Tensor]:
        """Return the number of steps and both moments."""
        moments = {f"mean {number}": values for number, values in enumerate(self.means)}
        return {"steps": self.steps, **moments, **{f"square {n}": values for n, values in enumerate(self.squares)}}

    def active_changed(self) -> None:
        """Collect the arguments of the fused kernels: runs of active heads with one learning rate."""
        self.fused_arguments: dict[tuple[float, float], _FusedArguments] = {}
        if not self.fused:
            return
        active = self.active.tolist()
        for number, parameter in enumerate(self.parameters):
            pairs = zip(parameter.rates, parameter.slots, strict=True)
            rates = [rate if active[slot] else 0.0 for rate, slot in pairs]
            for rate, run in groupby(range(len(rates)), key=rates.__getitem__):
                heads = list(run)
                if rate:
                    key = rate, self.decays[number]
                    arguments = self.fused_arguments.setdefault(key, _FusedArguments([], [], [], []))
                    part = slice(heads[0], heads[-1] + 1)
                    arguments.ranges.append((number, part))
                    arguments.values.append(parameter.values[part])
                    arguments.means.append(self.means[number][part])
                    arguments.squares.append(self.squares[number][part])

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update all parameters."""
        self.steps.add_(1)
        if not self.fused:
            super().step(gradients)
        for (rate, decay), (ranges, values, means, squares) in self.fused_arguments.items():
            torch._fused_adam_(
                values,
                [gradients[number][part] for number, part in ranges],
                means,
                squares,
                [],
                [self.steps] * len(values),
                lr=rate,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=decay,
                eps=EPS,
                amsgrad=False,
                maximize=False,
            )

    def update(self, number: int, gradient: Tensor, rates: Tensor) -> Tensor:
        """Return the step of Adam."""
        mean, square = self.means[number], self.squares[number]
        mean.lerp_(gradient, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        first, second = 1 - BETAS[0] ** self.steps, (1 - BETAS[1] ** self.steps).sqrt()
        deviation = (square.sqrt() / second.to(square.dtype)).add_(EPS)
        return (mean * (rates / first.to(square.dtype))).div_(deviation)


class StackedSGD(StackedOptimizer):
    r"""Stochastic gradient descent as in ``torch.optim.SGD``.

    .. math:: b \leftarrow \mu b + g, \qquad \theta \leftarrow \theta - \eta\, b \quad
        (\text{with Nesterov } \theta - \eta\,(g + \mu b))
    """

    def __init__(
        self,
        parameters: Sequence[StackedParameter],
        active: Tensor,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, active, weight_decay)
        self.momentum, self.nesterov = momentum, nesterov
        self.buffers = [torch.zeros_like(parameter.values) for parameter in parameters] if momentum else []

    def state(self) -> dict[str, Tensor]:
        """Return the momentum buffers."""
        return {f"momentum {number}": values for number, values in enumerate(self.buffers)}

    def update(self, number: int, gradient: Tensor, rates: Tensor) -> Tensor:
        """Return the step of SGD."""
        if self.momentum:
            buffer = self.buffers[number].mul_(self.momentum).add_(gradient)
            gradient = gradient.add(buffer, alpha=self.momentum) if self.nesterov else buffer
        return gradient * rates


def create_optimizer(
    name: str,
    parameters: Sequence[StackedParameter],
    active: Tensor,
    *,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> StackedOptimizer:
    """Return the optimizer "adam" or "sgd"; ``momentum`` and ``nesterov`` are for "sgd"."""
    if name == "adam":
        return StackedAdam(parameters, active, weight_decay, fused=active.device.type == "cpu")
    if name != "sgd":
        raise UnknownNameError("optimizer", name, ("adam", "sgd"))
    if nesterov and not momentum:
        raise InputError("nesterov=True needs a momentum: give momentum=0.9.")
    return StackedSGD(parameters, active, weight_decay, momentum=momentum, nesterov=nesterov)
