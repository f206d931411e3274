"""Differentiable sums and gathers over processes, each of which sees its shard of the batch; alone, the identity.

Every process computes the same global loss, and the gradient that reaches its own logits is W times its share (W
processes): the mean that DistributedDataParallel takes is then exactly the gradient of one process on the whole batch.
Shards may differ in size, and may be empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_SINGLE: ContextVar[bool] = ContextVar("single_process", default=False)


def is_distributed() -> bool:
    """Return whether processes work together: there is a process group, and no ``single_process`` context."""
    return dist.is_available() and dist.is_initialized() and not _SINGLE.get()


def world_size() -> int:
    """Return the number of processes; 1 outside of ``torch.distributed``."""
    return dist.get_world_size() if is_distributed() else 1


@contextmanager
def single_process() -> Iterator[None]:
    """Inside this context every process works alone: nothing is summed or gathered; ``rank`` keeps its value."""
    token = _SINGLE.set(True)
    try:
        yield
    finally:
        _SINGLE.reset(token)


def rank() -> int:
    """Return the rank of this process, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_main_process() -> bool:
    """Return whether this process is the one that prints and writes."""
    return rank() == 0


def all_sum(values: Tensor) -> Tensor:
    """Sum a tensor over all processes; its gradient is summed over all processes as well."""
    if not is_distributed():
        return values
    result: Tensor = _AllSum.apply(values)  # type: ignore[no-untyped-call]
    return result


def all_max(values: Tensor) -> Tensor:
    """Take the maximum of a tensor over all processes. No gradient flows through it."""
    values = values.detach()
    if not is_distributed():
        return values
    values = values.clone()
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values


def gather_rows(values: Tensor, dim: int = 0) -> Tensor:
    """Concatenate the shards of all processes along ``dim``, in the order of the processes.

    The gradient of the result is summed over the processes, and each takes the rows that were its own.
    """
    if not is_distributed():
        return values
    result: Tensor = _GatherRows.apply(values, dim)  # type: ignore[no-untyped-call]
    return result


def _summed(values: Tensor) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return _summed(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _summed(gradients[0])


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, dim: int) -> Tensor:
        rows = torch.zeros(world_size(), dtype=torch.int64, device=values.device)
        rows[rank()] = values.shape[dim]
        dist.all_reduce(rows)
        sizes: list[int] = rows.tolist()
        ctx.dim, ctx.start, ctx.count = dim, sum(sizes[: rank()]), values.shape[dim]
        padded = list(values.shape)
        padded[dim] = max(sizes)
        sent = values.new_zeros(padded)
        sent.narrow(dim, 0, values.shape[dim]).copy_(values)
        received = [torch.empty_like(sent) for _ in sizes]
        dist.all_gather(received, sent)
        return torch.cat([part.narrow(dim, 0, size) for part, size in zip(received, sizes, strict=True)], dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _summed(gradients[0]).narrow(ctx.dim, ctx.start, ctx.count), None
