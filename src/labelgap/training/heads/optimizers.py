r"""Optimisers of many heads at once: each has its own rate, and one that is out stays exactly as it is.

On a CPU Adam takes one fused kernel for all heads of a rate. Elsewhere the same arithmetic is written out with a rate
for every head, without a value that the host would have to know, so that it can be captured.

.. math:: m \leftarrow \beta_1 m + (1-\beta_1) g, \quad v \leftarrow \beta_2 v + (1-\beta_2) g^2, \quad
    \theta \leftarrow \theta - \eta\, \frac{m / (1-\beta_1^t)}{\sqrt{v / (1-\beta_2^t)} + \varepsilon}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.training.devices import widest_float

__all__ = ["StackedAdam", "StackedOptimizer", "StackedParameter", "StackedSGD", "updates"]

BETAS = 0.9, 0.999
EPS = 1e-8


@dataclass(frozen=True, eq=False)
class StackedParameter:
    """What is learned, an axis of heads in front.

    Attributes:
        values: ``(n, …)``, changed in place.
        rates: for every head.
        heads: their places in ``active``.
        decays: whether weight decay is for them; what a method learns itself (ROLE's estimate) is no weight.
    """

    values: Tensor
    rates: Sequence[float]
    heads: Sequence[int]
    decays: bool = True


class StackedOptimizer(ABC):
    """What all optimisers share. Abstract.

    Args:
        stacks: what they change.
        alive: ``(M,)`` bool, of all heads; those that are not stay as they are. It is looked at in every step.
        weight_decay: times the weights, added to their gradient; for stacks that decay.
    """

    def __init__(self, stacks: Sequence[StackedParameter], active: Tensor, weight_decay: float = 0.0) -> None:
        self.stacks, self.active, self.weight_decay = tuple(stacks), active, weight_decay
        self.places = [torch.tensor(stack.heads, device=active.device) for stack in stacks]
        self.rates = [
            torch.tensor(stack.rates, dtype=stack.values.dtype, device=stack.values.device) for stack in stacks
        ]

    @abstractmethod
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step; one gradient for each stack, of its shape. Those of heads that are out must be finite."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return what decides how it goes on: the tensors themselves."""

    @abstractmethod
    def heads_changed(self) -> None:
        """Be told that ``active`` has changed, where the host has to know."""

    def effective_rates(self, number: int) -> Tensor:
        """Return the rates of a stack's heads, 0 for those that are out, ``(n, 1, …)``."""
        here = self.rates[number] * self.active.index_select(0, self.places[number])
        return here.view(-1, *[1] * (self.stacks[number].values.ndim - 1))

    def decayed(self, number: int, gradient: Tensor) -> Tensor:
        """Return the gradient of a stack with its weights added."""
        decay = self.decay_of(number)
        return gradient.add(self.stacks[number].values, alpha=decay) if decay else gradient

    def decay_of(self, number: int) -> float:
        """Return the weight decay of a stack."""
        return self.weight_decay if self.stacks[number].decays else 0.0


@dataclass(eq=False)
class _Kernel:
    """What the fused kernel of one rate and decay runs over; gradients are cut into parts anew where they are new."""

    parts: list[tuple[int, slice]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    squares: list[Tensor] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    cut: list[Tensor] = field(default_factory=list)

    def slopes(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of ``values``."""
        if not self.seen:
            self.seen = [gradients[number] for number, _ in self.parts]
            self.cut = [gradients[number][part] for number, part in self.parts]
        for place, (number, part) in enumerate(self.parts):
            if gradients[number] is not self.seen[place]:
                self.seen[place], self.cut[place] = gradients[number], gradients[number][part]
        return self.cut


class StackedAdam(StackedOptimizer):
    """Adam as ``torch.optim.StackedAdam`` has it.

    Args:
        stacks: what it changes.
        alive: see ``StackedOptimizer``.
        weight_decay: see ``StackedOptimizer``.
        fused: whether to take the fused kernels, which run over all heads of a rate; for CPUs.
    """

    def __init__(
        self, stacks: Sequence[StackedParameter], active: Tensor, weight_decay: float = 0.0, *, fused: bool = False
    ) -> None:
        super().__init__(stacks, active, weight_decay)
        self.means = [torch.zeros_like(stack.values) for stack in stacks]
        self.squares = [torch.zeros_like(stack.values) for stack in stacks]
        self.fused = fused and hasattr(torch, "_fused_adam_")
        self.time = torch.zeros(
            (), dtype=torch.float32 if self.fused else widest_float(active.device), device=active.device
        )
        self.heads_changed()

    def state(self) -> dict[str, Tensor]:
        """Return the step and both moments."""
        moments = {f"mean {number}": values for number, values in enumerate(self.means)}
        return {"time": self.time, **moments, **{f"square {n}": values for n, values in enumerate(self.squares)}}

    def heads_changed(self) -> None:
        """Find the runs of neighbouring heads with the same rate that are still in, and lay out kernels' arguments."""
        self.kernels: dict[tuple[float, float], _Kernel] = {}
        if not self.fused:
            return
        active = self.active.tolist()
        for number, stack in enumerate(self.stacks):
            rates = [rate if active[head] else 0.0 for rate, head in zip(stack.rates, stack.heads, strict=True)]
            for rate, neighbours in groupby(range(len(rates)), key=rates.__getitem__):
                places = list(neighbours)
                if rate:
                    kernel = self.kernels.setdefault((rate, self.decay_of(number)), _Kernel())
                    part = slice(places[0], places[-1] + 1)
                    kernel.parts.append((number, part))
                    kernel.values.append(stack.values[part])
                    kernel.means.append(self.means[number][part])
                    kernel.squares.append(self.squares[number][part])

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step."""
        self.time.add_(1)
        if not self.fused:
            for number, gradient in enumerate(gradients):
                self._step(number, self.decayed(number, gradient))
            return
        for (rate, decay), kernel in self.kernels.items():
            torch._fused_adam_(
                kernel.values,
                kernel.slopes(gradients),
                kernel.means,
                kernel.squares,
                [],
                [self.time] * len(kernel.values),
                lr=rate,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=decay,
                eps=EPS,
                amsgrad=False,
                maximize=False,
            )

    def _step(self, number: int, gradient: Tensor) -> None:
        mean, square = self.means[number], self.squares[number]
        mean.lerp_(gradient, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        first, second = 1 - BETAS[0] ** self.time, (1 - BETAS[1] ** self.time).sqrt()
        spread = (square.sqrt() / second.to(square.dtype)).add_(EPS)
        rate = self.effective_rates(number) / first.to(square.dtype)
        self.stacks[number].values.sub_((mean * rate).div_(spread))


class StackedSGD(StackedOptimizer):
    r"""Stochastic gradient descent as ``torch.optim.SGD`` has it.

    .. math:: b \leftarrow \mu b + g, \qquad \theta \leftarrow \theta - \eta\, b \quad
        (\text{or } \theta - \eta\,(g + \mu b) \text{ after Nesterov})
    """

    def __init__(
        self,
        stacks: Sequence[StackedParameter],
        active: Tensor,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(stacks, active, weight_decay)
        self.momentum, self.nesterov = momentum, nesterov
        self.buffers = [torch.zeros_like(stack.values) for stack in stacks] if momentum else []

    def state(self) -> dict[str, Tensor]:
        """Return the momenta."""
        return {f"momentum {number}": values for number, values in enumerate(self.buffers)}

    def heads_changed(self) -> None:
        """Nothing to do: every step looks for itself."""

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step."""
        for number, gradient in enumerate(gradients):
            gradient = self.decayed(number, gradient)
            if self.momentum:
                buffer = self.buffers[number].mul_(self.momentum).add_(gradient)
                gradient = gradient.add(buffer, alpha=self.momentum) if self.nesterov else buffer
            self.stacks[number].values.sub_(gradient * self.effective_rates(number))


def updates(
    kind: str,
    stacks: Sequence[StackedParameter],
    active: Tensor,
    *,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> StackedOptimizer:
    """Make the optimiser of an engine.

    Args:
        kind: "adam" or "sgd".
        stacks: what it changes.
        alive: see ``StackedOptimizer``.
        momentum: of "sgd".
        nesterov: of "sgd".
        weight_decay: see ``StackedOptimizer``.
    """
    if kind == "adam":
        return StackedAdam(stacks, active, weight_decay, fused=active.device.type == "cpu")
    if kind != "sgd":
        raise UnknownNameError("optimizer", kind, ("adam", "sgd"))
    if nesterov and not momentum:
        raise InputError("nesterov=True looks ahead along the momentum: give momentum=0.9.")
    return StackedSGD(stacks, active, weight_decay, momentum=momentum, nesterov=nesterov)
