"""The optimizer of a run, its learning-rate schedule and the moving average of its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from labelgap.training.config import RunConfig


def build_optimizer(groups: Sequence[dict[str, Any]], config: RunConfig) -> torch.optim.Optimizer:
    """Build the fused optimizer of a run, which can skip a step on the device.

    Weight decay is added to the gradient (L2), as in the papers' code; in "adamw" it shrinks the weights instead. A
    group may have its own.
    """
    options: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    if config.optimizer not in ("adam", "adamw"):
        return torch.optim.SGD(list(groups), momentum=config.momentum, nesterov=config.nesterov, **options)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(list(groups), **options)


def build_scheduler(optimizer: torch.optim.Optimizer, config: RunConfig, steps_per_epoch: int) -> LambdaLR:
    r"""Build the scheduler of the learning rates; its ``step`` follows every optimizer step.

    .. math:: f(s) = \frac{s+1}{w} \;(s < w), \qquad 1 \text{ or } \tfrac12 (1 + \cos \pi \tfrac{s-w}{S-w})

    is the factor of every group's rate in step s of S, counted from 0, with w warm-up steps.
    """
    steps, warmup = config.epochs * steps_per_epoch, round(config.warmup * steps_per_epoch)
    return LambdaLR(optimizer, lambda step: rate_factor(config.schedule, step + (step < warmup), warmup, steps))


def rate_factor(schedule: str, done: float, warmup: float, total: float) -> float:
    """Return the factor of the learning rates after so many of all steps, or of all epochs."""
    if done < warmup:
        return done / warmup
    if schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / max(total - warmup, 1e-9)))


class MovingAverage(AveragedModel):
    r"""An exponential moving average of a network's weights, with a warm-up of its decay.

    .. math:: \bar\theta \leftarrow d_t\, \bar\theta + (1 - d_t)\, \theta, \qquad d_t = \min(d, (1+t)/(10+t))

    after step t, starting from the weights before the first step; ``module`` is the average. Buffers are copied.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__(network)
        self.decay = decay
        self.n_averaged.fill_(1)  # the weights before the first step; on the CPU, so that reading it does not wait

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take the weights after a step into the average, without waiting for the device."""
        step = int(self.n_averaged)
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.module.parameters()), list(model.parameters()), weight)
        for average, buffer in zip(self.module.buffers(), model.buffers(), strict=True):
            average.copy_(buffer, non_blocking=True)
        self.n_averaged += 1
