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
from labelgap.losses.base.terms import widest_float

OPTIMIZERS = "adam", "sgd", "newton"
BETAS = 0.9, 0.999
EPS = 1e-8


@dataclass(frozen=True, eq=False)
class StackedParameter:
    """A parameter with a leading axis of heads.

    Attributes:
        values: ``(n, …)``, changed in place.
        rates: the learning rate of every head.
        slots: the positions of the heads in the mask of active heads.
        decays: the weight decay of every head; none for the parameters of a loss (ROLE's estimate).
    """

    values: Tensor
    rates: Sequence[float]
    slots: Sequence[int]
    decays: Sequence[float] = ()

    def __post_init__(self) -> None:
        """Without decays, they are 0."""
        object.__setattr__(self, "decays", tuple(self.decays) or (0.0,) * len(self.rates))

    def per_head(self, numbers: Sequence[float]) -> Tensor:
        """Return a number of every head, in the shape of the values."""
        shape = -1, *[1] * (self.values.ndim - 1)
        return torch.tensor(numbers, dtype=self.values.dtype, device=self.values.device).view(shape)


class StackedOptimizer(ABC):
    """An optimizer of stacked parameters. Abstract.

    Args:
        parameters: what it changes.
        active: ``(M,)`` bool, of all heads, read in every step; frozen heads do not change.
    """

    def __init__(self, parameters: Sequence[StackedParameter], active: Tensor) -> None:
        self.parameters, self.active = tuple(parameters), active
        self.slots = [torch.tensor(parameter.slots, device=active.device) for parameter in parameters]
        self.rates = [parameter.per_head(parameter.rates) for parameter in parameters]
        self.decays = [parameter.per_head(each) if any(each := parameter.decays) else None for parameter in parameters]

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update all parameters; their gradients must be finite, those of frozen heads too."""
        for number, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            parameter.values.sub_(self.update(number, self.decayed(number, gradient), self.active_rates(number)))

    def decayed(self, number: int, gradient: Tensor) -> Tensor:
        """Return the gradient of a parameter with that of its weight decay."""
        decay = self.decays[number]
        return gradient if decay is None else gradient.addcmul(self.parameters[number].values, decay)

    def active_rates(self, number: int) -> Tensor:
        """Return the learning rates of a parameter's heads; 0 for frozen heads."""
        rates = self.rates[number]
        return rates * self.active.index_select(0, self.slots[number]).view(rates.shape)

    @abstractmethod
    def update(self, number: int, gradient: Tensor, rates: Tensor) -> Tensor:
        """Return what is subtracted from a parameter; ``rates`` are 0 for frozen heads."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the state: the tensors themselves, not copies."""

    def active_changed(self) -> None:  # noqa: B027 - most optimizers read the mask on the device
        """Read the mask of active heads on the host, where the optimizer needs it there."""


class _FusedArguments(NamedTuple):
    """The arguments of the fused kernel of one learning rate."""

    ranges: list[tuple[int, slice]]
    values: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]


class StackedAdam(StackedOptimizer):
    """Adam as in ``torch.optim.Adam``.

    Args:
        parameters: what it changes.
        active: the mask of active heads.
        fused: whether to use the fused kernel, on a CPU.
    """

    def __init__(self, parameters: Sequence[StackedParameter], active: Tensor, *, fused: bool = False) -> None:
        super().__init__(parameters, active)
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
        self.fused_arguments: dict[float, _FusedArguments] = {}
        if not self.fused:
            return
        active = self.active.tolist()
        for number, parameter in enumerate(self.parameters):
            heads_of = zip(parameter.rates, parameter.slots, strict=True)
            rates = [rate if active[slot] else 0.0 for rate, slot in heads_of]
            for rate, run in groupby(range(len(rates)), key=rates.__getitem__):
                heads = list(run)
                if rate:
                    arguments = self.fused_arguments.setdefault(rate, _FusedArguments([], [], [], []))
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
        decayed = [self.decayed(number, gradient) for number, gradient in enumerate(gradients)] if self.fused else []
        for rate, (ranges, values, means, squares) in self.fused_arguments.items():
            torch._fused_adam_(
                values,
                [decayed[number][part] for number, part in ranges],
                means,
                squares,
                [],
                [self.steps] * len(values),
                lr=rate,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=0.0,
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
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, active)
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


class StackedNewton(StackedOptimizer):
    r"""Newton's method with a bound in the place of the Hessian, accelerated.

    The Hessian of a logistic loss is at most a quarter of the second moments of the features (Böhning and Lindsay,
    1988), which is diagonal in their principal components. With :math:`h` that bound and :math:`\lambda` the decay,

    .. math:: \theta_t = y - \eta\, \frac{g(y) + \lambda y}{h + \lambda}, \qquad
        y \leftarrow \theta_t + \beta_t (\theta_t - \theta_{t-1})

    with Nesterov's :math:`\beta_t`, which starts again from 0 for a head whose gradient points against its last
    step (O'Donoghue and Candès, 2015). The gradient must be that of all images.

    Args:
        parameters: what it changes.
        active: the mask of active heads.
        curvatures: the bound for each parameter, in the shape of the values of one head.
    """

    def __init__(self, parameters: Sequence[StackedParameter], active: Tensor, curvatures: Sequence[Tensor]) -> None:
        super().__init__(parameters, active)
        if len(curvatures) != len(parameters):
            raise InputError("optimizer='newton' is for losses without parameters of their own: use 'adam'.")
        self.scales = [
            rates / (curvature + (0.0 if decay is None else decay))
            for rates, curvature, decay in zip(self.rates, curvatures, self.decays, strict=True)
        ]
        self.previous = [parameter.values.clone() for parameter in parameters]
        self.ages = torch.ones(len(parameters[0].slots), dtype=parameters[0].values.dtype, device=active.device)

    def state(self) -> dict[str, Tensor]:
        """Return the last iterates, and the age of each head's momentum."""
        return {"ages": self.ages, **{f"previous {number}": values for number, values in enumerate(self.previous)}}

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update all parameters; the heads are in the same order in each."""
        decayed = [self.decayed(number, gradient) for number, gradient in enumerate(gradients)]
        updated = [
            parameter.values - gradient * scale
            for parameter, gradient, scale in zip(self.parameters, decayed, self.scales, strict=True)
        ]
        moves = [new - old for new, old in zip(updated, self.previous, strict=True)]
        against = sum((gradient * move).flatten(1).sum(dim=1) for gradient, move in zip(decayed, moves, strict=True))
        ages = torch.where(torch.as_tensor(against) > 0, torch.ones_like(self.ages), self.ages)
        following = (1 + (1 + 4 * ages.square()).sqrt()) / 2
        beta, active = (ages - 1) / following, self.active.index_select(0, self.slots[0])
        self.ages.copy_(torch.where(active, following, self.ages))
        for parameter, new, move, old in zip(self.parameters, updated, moves, self.previous, strict=True):
            shape = -1, *[1] * (new.ndim - 1)
            changed = active.view(shape)
            parameter.values.copy_(torch.where(changed, new + beta.view(shape) * move, parameter.values))
            old.copy_(torch.where(changed, new, old))

    def update(self, number: int, gradient: Tensor, rates: Tensor) -> Tensor:
        """Return a step without momentum."""
        return gradient * self.scales[number] * (rates > 0)


def create_optimizer(
    name: str,
    parameters: Sequence[StackedParameter],
    active: Tensor,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    curvatures: Sequence[Tensor] = (),
) -> StackedOptimizer:
    """Return an optimizer; ``momentum`` and ``nesterov`` are for "sgd", ``curvatures`` for "newton"."""
    if name == "adam":
        return StackedAdam(parameters, active, fused=active.device.type == "cpu")
    if name == "newton":
        return StackedNewton(parameters, active, curvatures)
    if name != "sgd":
        raise UnknownNameError("optimizer", name, OPTIMIZERS)
    if nesterov and not momentum:
        raise InputError("nesterov=True needs a momentum: give momentum=0.9.")
    return StackedSGD(parameters, active, momentum=momentum, nesterov=nesterov)
