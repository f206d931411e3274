"""Times of the losses and of their kernels on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

import torch
from benchmarks.bare_loop import Settings, bare_graph_speed
from benchmarks.loss_kernels.checks import make_loss
from benchmarks.loss_kernels.passes import Kernel, kernel_of
from benchmarks.losses import Step, extra_mebibytes, replay_ms, some_labels, some_logits
from torch import Tensor

__all__ = ["SHAPES", "copy_ms", "linear_steps", "loss_times", "network_step_ms", "tune"]

DEVICE: Final = "cuda"
SHAPES: Final = ((4096, 5000), (288, 5000))
FEATURES: Final = 2048
BYTES: Final = 9
"""That have to move for an entry: logit and label in, gradient out."""
COPY_BYTES: Final = 8
EPOCH: Final = 5
NETWORK: Final = (448, 16)
BLOCKS: Final = tuple(product((1024, 2048, 4096, 8192), (4, 8, 16)))

Function = Callable[[Tensor, Tensor], Tensor]


def step_of(function: Function, logits: Tensor, labels: Tensor) -> Step:
    """Return forward and backward pass of a loss."""

    def step() -> None:
        logits.grad = None
        torch.autograd.backward(function(logits, labels))

    return step


def both(method: str, shape: tuple[int, int]) -> tuple[Function, Kernel]:
    """Return a loss in the fifth epoch of ten, and its kernel."""
    loss_fn = make_loss(method, shape[1], DEVICE, EPOCH)
    return loss_fn, kernel_of(loss_fn, *shape)


def batch(shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    return some_logits(shape, DEVICE), torch.from_numpy(some_labels(shape)).to(DEVICE)


def copy_ms(shape: tuple[int, int]) -> float:
    """Return the time of a copy of the logits."""
    source = torch.zeros(shape, device=DEVICE)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    return replay_ms(copy)


def loss_times(method: str, logits: Tensor, labels: Tensor) -> list[tuple[float, float]]:
    """Return milliseconds and extra MiB of a loss, and of its kernel."""
    steps = [step_of(function, logits, labels) for function in both(method, (logits.shape[0], logits.shape[1]))]
    return [(replay_ms(step), extra_mebibytes(step, logits)) for step in steps]


def linear_steps(method: str, labels: Tensor) -> list[float]:
    """Return the milliseconds of a whole step of a linear head with the loss, and with its kernel."""
    rows, classes = labels.shape
    features = torch.randn(rows, FEATURES, device=DEVICE)
    found = []
    for function in both(method, (rows, classes)):
        head = torch.nn.Linear(FEATURES, classes, device=DEVICE)
        optimizer = torch.optim.Adam(head.parameters(), lr=1e-5, fused=True, capturable=True)

        def step(
            function: Function = function, head: torch.nn.Module = head, optimizer: torch.optim.Adam = optimizer
        ) -> None:
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(function(head(features), labels))
            optimizer.step()

        found.append(replay_ms(step))
    return found


def network_step_ms() -> float:
    """Return the time of a step of ResNet-50 with a cheap loss; NaN where it cannot be captured."""
    settings = Settings(torch.device(DEVICE), 2.0, 0, Path(), Path(), float("inf"))
    return 1e3 * NETWORK[1] / bare_graph_speed(settings, *NETWORK)


def tune(method: str, logits: Tensor, labels: Tensor) -> dict[tuple[int, int], float]:
    """Return the milliseconds of a kernel by entries and warps of a block."""
    _, kernel = both(method, (logits.shape[0], logits.shape[1]))
    return {
        (block, warps): replay_ms(step_of(replace(kernel, block=block, warps=warps), logits, labels))
        for block, warps in BLOCKS
        if block >= 128 * warps
    }
