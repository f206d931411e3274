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

import torch
from torch import Tensor

from labelgap.losses.base.terms import widest_float

BETAS = 0.9, 0.999
EPS = 1e-8


@dataclass(frozen=True, eq=False)
class StackedParameter:
    """A parameter with a leading axis of heads; ``values`` are changed in place."""

    values: Tensor  # (n, …)
    rates: Sequence[float]  # the learning rate of every head
    slots: Sequence[int]  # the positions of the heads in the mask of active heads
    decays: Sequence[float] = ()  # the weight decay of every head; none for the parameters of a loss (ROLE's estimate)

    def per_head(self, numbers: Sequence[float]) -> Tensor:
        """Return a number of every head, in the shape of the values."""
        shape = -1, *[1] * (self.values.ndim - 1)
        return torch.tensor(numbers, dtype=self.values.dtype, device=self.values.device).view(shape)


class StackedOptimizer(ABC):
    """An optimizer of stacked parameters. Abstract. ``active``, ``(M,)``, is read in every step: frozen heads rest."""

    def __init__(self, parameters: Sequence[StackedParameter], active: Tensor) -> None:
        self.parameters, self.active = tuple(parameters), active
        self.slots = [torch.tensor(parameter.slots, device=active.device) for parameter in parameters]
        self.rates = [parameter.per_head(parameter.rates) for parameter in parameters]
        self.decays = [parameter.per_head(each) if any(each := parameter.decays) else None for parameter in parameters]

    @abstractmethod
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update all parameters; their gradients must be finite, those of frozen heads too."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the state: the tensors themselves, not copies."""

    def active_changed(self) -> None:  # noqa: B027 - most optimizers read the mask on the device
        """Read the mask of active heads on the host, where the optimizer needs it there."""

    def decayed(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients with those of the weight decay."""
        every = zip(gradients, self.parameters, self.decays, strict=True)
        return [each if decay is None else each.addcmul(own.values, decay) for each, own, decay in every]

    def active_rates(self, number: int) -> Tensor:
        """Return the learning rates of a parameter's heads; 0 for frozen heads."""
        rates = self.rates[number]
        return rates * self.active.index_select(0, self.slots[number]).view(rates.shape)


class StackedAdam(StackedOptimizer):
    """Adam as in ``torch.optim.Adam``; ``fused`` uses the kernel of the CPU."""

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
        self.runs: dict[float, list[tuple[int, slice]]] = {}
        active = self.active.tolist() if self.fused else []
        for number, parameter in enumerate(self.parameters if self.fused else ()):
            heads_of = zip(parameter.rates, parameter.slots, strict=True)
            rates = [rate if active[slot] else 0.0 for rate, slot in heads_of]
            for rate, run in groupby(range(len(rates)), key=rates.__getitem__):
                heads = list(run)
                if rate:
                    self.runs.setdefault(rate, []).append((number, slice(heads[0], heads[-1] + 1)))
        kept = [parameter.values for parameter in self.parameters], self.means, self.squares
        self.fused_state = {
            rate: [[values[number][part] for number, part in runs] for values in kept]
            for rate, runs in self.runs.items()
        }

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update all parameters."""
        self.steps.add_(1)
        gradients = self.decayed(gradients)
        for number, gradient in enumerate(gradients if not self.fused else ()):
            self.parameters[number].values.sub_(self._update(number, gradient))
        for rate, runs in self.runs.items():
            values, means, squares = self.fused_state[rate]
            torch._fused_adam_(
                values,
                [gradients[number][part] for number, part in runs],
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

    def _update(self, number: int, gradient: Tensor) -> Tensor:
        mean, square = self.means[number], self.squares[number]
        mean.lerp_(gradient, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        first, second = 1 - BETAS[0] ** self.steps, (1 - BETAS[1] ** self.steps).sqrt()
        deviation = (square.sqrt() / second.to(square.dtype)).add_(EPS)
        return (mean * (self.active_rates(number) / first.to(square.dtype))).div_(deviation)


class StackedSGD(StackedOptimizer):
    r"""Stochastic gradient descent as in ``torch.optim.SGD``.

    .. math:: b \leftarrow \mu b + g, \qquad \theta \leftarrow \theta - \eta\, b \quad
        (\text{with Nesterov } \theta - \eta\,(g + \mu b))
    """

    def __init__(
        self, parameters: Sequence[StackedParameter], active: Tensor, *, momentum: float = 0.0, nesterov: bool = False
    ) -> None:
        super().__init__(parameters, active)
        self.momentum, self.nesterov = momentum, nesterov
        self.buffers = [torch.zeros_like(parameter.values) for parameter in parameters] if momentum else []

    def state(self) -> dict[str, Tensor]:
        """Return the momentum buffers."""
        return {f"momentum {number}": values for number, values in enumerate(self.buffers)}

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update all parameters."""
        for number, gradient in enumerate(self.decayed(gradients)):
            if self.momentum:
                buffer = self.buffers[number].mul_(self.momentum).add_(gradient)
                gradient = gradient.add(buffer, alpha=self.momentum) if self.nesterov else buffer
            self.parameters[number].values.sub_(gradient * self.active_rates(number))
