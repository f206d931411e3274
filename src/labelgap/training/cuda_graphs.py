"""Training steps replayed from a CUDA graph: the host launches each with one call, and waits for none.

The first full batches are trained eagerly, because a capture needs warmed-up kernels; so are smaller ones, and
everything where a capture fails. Of a network forward and backward are replayed, of the linear engine whole steps.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from labelgap.core.distributed import is_distributed
from labelgap.losses import Loss

T = TypeVar("T")
StepResult = tuple[Tensor, Tensor]  # the loss of a batch, a scalar, and its logits, ``(B, K)``; both detached

WARMUP_STEPS: Final = 3
LAUNCH_SHARE: Final = 0.3  # a step is captured if launching its kernels takes more than this share of its time
FREE_SHARE: Final = 0.8
"""A graph has memory of its own, as much as an eager step: it may take this share of what is free."""


class GraphedStep:
    """Computes steps, from a graph where there is one, and for a network also the gradients of its parameters.

    ``modules`` have a part in a step. Nothing is captured where the host has one that a replay would leave out (random
    numbers, a count of calls); or where launching does not take long, unless ``always``. A ``lasting`` graph serves all
    epochs; else what the loss reads changes, or processes are forked, which must not inherit a graph. ``disabled`` says
    why steps are not replayed. It holds no reference to what trains the steps, so that both are freed at once.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        device: torch.device,
        *,
        batch_size: int,
        disabled: str | None = None,
        lasting: bool = False,
        always: bool = False,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.modules, self.device, self.batch_size, self.disabled = modules, device, batch_size, disabled
        self.parameters = [parameter for module in modules[:1] for parameter in module.parameters()]
        self.lasting, self.always, self.log = lasting, always, log
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warmup_steps = 0
        self._stream: torch.cuda.Stream | None = None
        self._batch: tuple[Tensor, ...] = ()
        self._gradients: list[Tensor | None] = []
        self._result: Any = None
        self._chosen_kernels = torch.backends.cudnn.benchmark

    def __call__(self, compute: Callable[..., T], *batch: Tensor) -> T:
        """Compute a batch, of which all tensors have a row per image; the result is valid until the next call."""
        full = len(batch[-1]) == self.batch_size
        if self.device.type == "cuda":  # cuDNN measures which kernels are fastest, for the shapes that come often
            torch.backends.cudnn.benchmark = full and not torch.backends.cudnn.deterministic
        if full and self.graph is None and self.disabled is None:
            if self.warmup_steps < WARMUP_STEPS:
                first, before = self.warmup_steps == 0, host_state(self.modules)
                result = self._warm_up(compute, *batch)
                if not first and host_state(self.modules) != before:  # in the first, modules may set themselves up
                    self.disabled = "a step changes random numbers or numbers of modules on the host"
                return result
            self._capture(compute, *batch)
        if not full or self.graph is None:
            return compute(*batch)
        for place, values in zip(self._batch, batch, strict=True):
            place.copy_(values)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        replayed: T = self._result
        return replayed

    def end_epoch(self) -> None:
        """Release a graph that is of one epoch only."""
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = self._chosen_kernels
        if not self.lasting:
            self.release()

    def release(self) -> None:
        """Free the graph and its memory."""
        for parameter, gradient in zip(self.parameters, self._gradients, strict=False):
            if parameter.grad is gradient:
                parameter.grad = None
        self.graph, self._batch, self._gradients, self._result = None, (), [], None

    def _warm_up(self, compute: Callable[..., T], *batch: Tensor) -> T:
        if self._stream is None:
            torch.cuda.empty_cache()
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.warmup_steps += 1
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self.device)
        first.record()
        started = time.perf_counter()
        result = run_on_side_stream(lambda: compute(*batch), self.device, self._stream)
        launching = time.perf_counter() - started
        last.record()
        last.synchronize()
        if self.warmup_steps == WARMUP_STEPS and not self.always:
            self.disabled = self._why_not_worth_it(1000 * launching / first.elapsed_time(last))
            if self.disabled is not None:
                torch.cuda.empty_cache()  # memory of the other stream
        return result

    def _why_not_worth_it(self, launch_share: float) -> str | None:
        """Return why a graph would not help or not fit, after a step that took this share of its time to launch."""
        if launch_share < LAUNCH_SHARE:
            return f"launching takes {100 * launch_share:.0f} % of a step"
        reserved, used = torch.cuda.memory_reserved(self.device), torch.cuda.memory_allocated(self.device)
        if reserved - used > FREE_SHARE * torch.cuda.mem_get_info(self.device)[0]:
            return "the memory of the device is too small for a second set of activations"
        return None

    def _capture(self, compute: Callable[..., Any], *batch: Tensor) -> None:
        """Capture a step without running it; where that fails, say so and continue eagerly."""
        places = tuple(values.clone() for values in batch)
        self._clear_gradients()
        try:
            self.graph, self._result = capture_graph(lambda: compute(*places), self.device)
        except RuntimeError as error:
            self.disabled = str(error).splitlines()[0]
            self._clear_gradients()
            self.log(f"steps are launched kernel by kernel, without a CUDA graph: {self.disabled}")
            return
        self._batch, self._gradients = places, [parameter.grad for parameter in self.parameters]

    def _clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def host_state(modules: Sequence[nn.Module]) -> tuple[object, ...]:
    """Return what a step may change on the host and a replay does not: random numbers, numbers and flags of modules."""
    _, numpy_keys, numpy_place, *_ = np.random.get_state(legacy=True)
    every = (vars(module) for root in modules for module in root.modules())
    numbers = [{name: value for name, value in each.items() if isinstance(value, int | float)} for each in every]
    torch_state = torch.get_rng_state().numpy().tobytes()
    return random.getstate(), np.asarray(numpy_keys).tobytes(), numpy_place, torch_state, numbers


def why_not_captured(loss_fn: Loss, device: torch.device, accumulate: int) -> str | None:
    """Return why the steps of a training cannot be replayed from a graph; None if they can, as far as is known."""
    if device.type != "cuda":
        return f"a device of type '{device.type}' has no CUDA graphs"
    if is_distributed():
        return "several processes exchange gradients in every step"
    if accumulate > 1:
        return "gradients of several batches are added"
    changes = any(getattr(type(loss_fn), hook) is not getattr(Loss, hook) for hook in ("mark", "commit", "after_step"))
    if changes or next(loss_fn.parameters(), None) is not None:
        return f"{loss_fn.name} changes its own state in every step"
    return None


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

    The garbage collector waits: a CUDA graph that it frees during a capture makes the capture fail.
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
