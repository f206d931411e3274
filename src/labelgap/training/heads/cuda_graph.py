"""Training steps replayed from a CUDA graph: the host launches each with one call and waits for none.

Everything that changes from step to step lies on the device: the order of the images, the position in it, the epoch,
the optimizer's step count, the mask of active heads. One capture therefore serves all full batches of a training. The
first steps run eagerly, because a capture needs warmed-up kernels; so does the smaller last batch of every epoch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

Step = Callable[[Tensor], Tensor]
"""Trains one batch of rows ``(B,)`` and returns the losses ``(M,)``."""

WARMUP_STEPS = 3


class CudaGraphRunner:
    """Runs the steps of an engine with M heads on a GPU, over epochs of N rows in batches of B.

    It holds no reference to the engine, so that both are freed at once. ``disabled`` says why steps are not replayed
    from a graph; None where they are, or may be.
    """

    def __init__(
        self, images: int, batch_size: int, heads: int, device: torch.device, disabled: str | None = None
    ) -> None:
        self.batch_size, self.device, self.disabled = batch_size, device, disabled
        self.graph: torch.cuda.CUDAGraph | None = None
        self.order = torch.zeros(images, dtype=torch.int64, device=device)
        self.offsets = torch.arange(batch_size, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.total = torch.zeros(heads, dtype=torch.float64, device=device)
        self.warmup_steps = 0

    def run_epoch(self, order: Tensor, step: Step) -> Tensor:
        """Train on all images in this order; return the summed losses of every head, ``(M,)`` by slot."""
        self.order.copy_(order)
        self.cursor.zero_()
        self.total.zero_()
        for _ in range(len(order) // self.batch_size):
            self._next_batch(step)
        if rest := len(order) % self.batch_size:
            self._train(self.order[len(order) - rest :], step)
        return self.total.clone()

    def train_full_batch(self, step: Step) -> None:
        """Train on the next full batch, without the graph."""
        self._train(self.order.index_select(0, self.cursor + self.offsets), step)

    def _next_batch(self, step: Step) -> None:
        if self.graph is None and self.disabled is None:
            if self.warmup_steps < WARMUP_STEPS:
                run_on_side_stream(lambda: self.train_full_batch(step), self.device)
                self.warmup_steps += 1
                return
            try:
                self.graph, _ = capture_graph(lambda: self.train_full_batch(step), self.device)
            except RuntimeError as error:
                self.disabled = str(error).splitlines()[0]
        if self.graph is not None:
            self.graph.replay()
        else:
            self.train_full_batch(step)

    def _train(self, rows: Tensor, step: Step) -> None:
        self.total.add_(step(rows).double() * len(rows))
        self.cursor.add_(len(rows))


def run_on_side_stream(work: Callable[[], T], device: torch.device, stream: torch.cuda.Stream | None = None) -> T:
    """Run work on another stream, as ``torch.cuda.graph`` requires of what is captured later."""
    side = torch.cuda.Stream(device) if stream is None else stream  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        result = work()
    torch.cuda.current_stream(device).wait_stream(side)
    return result


def capture_graph(work: Callable[[], T], device: torch.device) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture work in a CUDA graph without running it; return the graph and the tensors that a replay fills.

    The garbage collector waits: a CUDA graph that it frees during a capture makes the capture fail. Other threads, such
    as a loader's, may use the device meanwhile.

    Raises:
        RuntimeError: something in the work cannot be captured; the device can be used as before.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch.cuda.synchronize(device)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        # a capture that fails may leave its stream current: the outer context returns to the one before
        with (
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, pool, capture_error_mode="thread_local"),
        ):
            result = work()
    except RuntimeError:
        _end_failed_capture(pool, torch.cuda.current_device() if device.index is None else device.index)
        raise
    finally:
        if collecting:
            gc.enable()
    return graph, result


def _end_failed_capture(pool: Any, device: int) -> None:
    """Make torch's allocator and its random numbers leave a capture that failed; it may have left them in there."""
    with suppress(AttributeError, RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)
    with suppress(RuntimeError):
        generator = torch.cuda.default_generators[device]
        generator.graphsafe_set_state(generator.clone_state())  # the copy is not in a capture
