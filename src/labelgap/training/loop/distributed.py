"""Training over several processes: PyTorch's DistributedDataParallel, started by ``torchrun``.

    torchrun --nproc-per-node 2 -m labelgap train tags.csv --out runs/a

A batch of B images is one batch over all processes, and each takes its part of it. A run with two processes therefore
sees the batches and ends with the revisions of a run with one. A network with batch normalization computes its
statistics over the part of each process, unless ``batchnorm`` is "sync" or "frozen". Only the first process prints and
writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labelgap.core.distributed import gather_rows, is_distributed, rank, world_size
from labelgap.core.errors import InputError


def wrap_distributed(network: nn.Module) -> nn.Module:
    """Return the network wrapped in DistributedDataParallel; with one process, as it is.

    All processes then have the weights of the first.
    """
    return DistributedDataParallel(network) if is_distributed() else network


def no_sync(network: nn.Module) -> AbstractContextManager[None]:
    """Accumulate gradients in each process without averaging them."""
    return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Average the gradients of parameters outside of the wrapped network over the processes."""
    if not is_distributed():
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size()


@torch.no_grad()
def broadcast_buffers(network: nn.Module) -> None:
    """Copy the running statistics of the first process, whose network is saved, to all others."""
    if is_distributed():
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch that has fewer rows than there are processes."""
    if batch_size < world_size():
        raise InputError(f"a batch of {batch_size} cannot be shared by {world_size()} processes: raise --batch-size.")


def shard_batches(rows: NDArray[np.int64], batch_size: int) -> tuple[NDArray[np.int64], int, bool]:
    """Return this process's part of every batch.

    Args:
        rows: all rows, in the order of the epoch.
        batch_size: images per batch, over all processes.

    Returns:
        The rows of this process; how many of them are in a batch; and whether the last batch had none for this
        process. It then has one row, so that all processes take the same number of steps; that row must not count.
    """
    processes, process = world_size(), rank()
    if processes == 1:
        return rows, batch_size, False
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    parts = [np.array_split(batch, processes)[process] for batch in batches]
    padded = len(parts) > 0 and len(parts[-1]) == 0
    if padded:
        parts[-1] = batches[-1][:1]
    size = len(np.array_split(np.arange(batch_size), processes)[process])
    return np.concatenate([*parts, np.zeros(0, dtype=np.int64)]).astype(np.int64), size, padded


def gather_all(*values: Tensor) -> tuple[Tensor, ...]:
    """Return tensors with the rows of all processes, in their order."""
    return tuple(gather_rows(value.contiguous()) for value in values)
