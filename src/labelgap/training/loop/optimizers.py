"""Optimisers, the course of their rates, and the moving average of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelgap.training.config.schema import RunConfig

__all__ = ["LRSchedule", "MovingAverage", "build_optimizer"]


def build_optimizer(groups: Sequence[dict[str, Any]], config: RunConfig) -> torch.optim.Optimizer:
    """Make the optimiser of a run; one kernel over all weights, which can be told on the device to skip a step.

    Weight decay is added to the gradient (L2), as in the papers' code. A group may have its own.
    """
    decay = config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(list(groups), weight_decay=decay, fused=True)
    momentum, nesterov = config.momentum, config.nesterov
    return torch.optim.SGD(list(groups), momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=True)


class LRSchedule(NamedTuple):
    """How high the rates are in each of so many steps, as a share of their full height.

    .. math:: f(s) = \\frac{s+1}{w} \\;(s < w), \\qquad 1 \\text{ or } \\tfrac12 (1 + \\cos \\pi \\tfrac{s-w}{S-w})

    for step s of S, counted from 0, and w steps of warm-up. It has no state: a resumed run asks for the step it is at.

    Example:
        >>> [round(LRSchedule("cosine", 4, 0).factor(step), 2) for step in range(4)]
        [1.0, 0.85, 0.5, 0.15]
    """

    schedule: str
    steps: int
    warmup: int

    @classmethod
    def of(cls, config: RunConfig, steps_an_epoch: int) -> LRSchedule:
        """Return the course of a run."""
        return cls(config.schedule, config.epochs * steps_an_epoch, round(config.warmup * steps_an_epoch))

    def factor(self, step: int) -> float:
        """Return the share of the full rate in a step."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - self.warmup) / max(self.steps - self.warmup, 1)))

    def set_rates(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Give every group its rate for a step."""
        if self.schedule == "constant" and not self.warmup:
            return
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("full_lr", group["lr"]) * self.factor(step)


class MovingAverage:
    """An exponential moving average of a network's weights: smoother than the last step, and often better.

    .. math:: \\bar\\theta \\leftarrow d_t\\, \\bar\\theta + (1 - d_t)\\, \\theta, \\qquad d_t = \\min(d, (1+t)/(10+t))

    after step t; it forgets its beginning sooner than d alone would let it. Buffers are copied.

    Args:
        network: what is averaged.
        decay: d.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = deepcopy(network).requires_grad_(False)
        self.decay = decay
        self.steps = 0

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the weights after a step."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        averages: list[Tensor] = list(self.network.parameters())
        weights: list[Tensor] = list(network.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)
        for kept, buffer in zip(self.network.buffers(), network.buffers(), strict=True):
            kept.copy_(buffer)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"network": self.network.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint kept."""
        self.network.load_state_dict(state["network"])
        self.steps = int(state["steps"])
