"""Times of the losses with and without their kernels on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Final

import torch
from benchmarks.bare_loop import Settings, bare_graph_speed
from benchmarks.loss_kernels.checks import Function, make_loss, without_kernel
from benchmarks.losses import Step, extra_mebibytes, fastest_replay, replay_ms, some_labels, some_logits
from torch import Tensor

import labelgap as lg
from labelgap.losses.kernels import disabled
from labelgap.training.heads import HeadPlan, LinearEngine

DEVICE: Final = "cuda"
SHAPES: Final = ((4096, 5000), (288, 5000), (64, 4096))
"""The last one is as small as a batch may be to take a kernel."""
FEATURES: Final = 2048
BYTES: Final = 9
"""That have to move for an entry: logit and label in, gradient out."""
COPY_BYTES: Final = 8
EPOCH: Final = 5
STEPS: Final = 5
"""Of an epoch: the linear engine captures the fourth."""
NETWORK: Final = (448, 16)


def step_of(function: Function, logits: Tensor, labels: Tensor) -> Step:
    """Return forward and backward pass of a loss."""

    def step() -> None:
        logits.grad = None
        torch.autograd.backward(function(logits, labels))

    return step


def both(method: str, classes: int) -> tuple[Function, Function]:
    """Return a loss in the fifth epoch of ten that takes no kernel, and one that does."""
    loss_fn = make_loss(method, classes, DEVICE, EPOCH)
    return without_kernel(loss_fn), loss_fn


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
    steps = [step_of(function, logits, labels) for function in both(method, logits.shape[1])]
    return [(replay_ms(step), extra_mebibytes(step, logits)) for step in steps]


def linear_steps(method: str, labels: Tensor) -> list[float]:
    """Return the milliseconds of a whole step of a linear head with the loss, and with its kernel."""
    rows, classes = labels.shape
    features = torch.randn(rows, FEATURES, device=DEVICE)
    found = []
    for function in both(method, classes):
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


def engine_data(labels: Tensor) -> tuple[Tensor, lg.LabelTable]:
    """Return features and labels of an epoch of a few steps."""
    table = lg.LabelTable.from_dense(labels.repeat(STEPS, 1).cpu().numpy())
    return torch.randn(len(table), FEATURES, device=DEVICE), table


def engine_ms(method: str, features: Tensor, table: lg.LabelTable, kernels: bool) -> float:
    """Return the milliseconds of a captured step of the linear engine, with or without kernels."""
    plan, rows = HeadPlan(method, {}, 1e-5, table), len(features) // STEPS
    with nullcontext() if kernels else disabled():
        engine = LinearEngine(features, [plan], epochs=10, batch_size=rows, device=DEVICE)
        engine.train_epoch(EPOCH)
    step = engine.graphed_step
    assert step is not None and step.graph is not None, step and step.disabled
    return fastest_replay(step.graph)


def network_step_ms() -> float:
    """Return the time of a step of ResNet-50 with a cheap loss; NaN where it cannot be captured."""
    settings = Settings(torch.device(DEVICE), 2.0, 0, Path(), Path(), float("inf"))
    return 1e3 * NETWORK[1] / bare_graph_speed(settings, *NETWORK)
