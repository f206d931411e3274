"""Training over several processes: PyTorch's DistributedDataParallel, started by ``torchrun``.

    torchrun --nproc-per-node 2 -m labelgap train tags.csv --out runs/a

A batch of B images is one batch over all processes: each takes its part of it, so that a run with two processes sees
the batches, makes the corrections and ends with the revisions of a run with one. (A network with batch statistics takes
them over each process's part, so there the numbers differ a little.) Only the first process prints and writes.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labelgap.core.distributed import gather_rows, rank, world_size
from labelgap.core.errors import InputError

__all__ = [
    "average_gradients",
    "barrier",
    "broadcast_buffers",
    "check_batch_size",
    "gather_all",
    "init_distributed",
    "is_distributed",
    "local_device",
    "no_sync",
    "shard_batches",
    "wrap_distributed",
]


TIMEOUT: Final = timedelta(days=1)
"""How long processes wait for each other: the first computes the features of all images while the others do."""


def init_distributed(device: torch.device) -> None:
    """Join the other processes, where ``torchrun`` has started several; they stay together until the program ends."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        atexit.register(dist.destroy_process_group)


def local_device(device: torch.device) -> torch.device:
    """Give every process a GPU of its own."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def is_distributed() -> bool:
    """Return whether several processes train together."""
    return world_size() > 1


def barrier() -> None:
    """Wait until every process has come here."""
    if is_distributed():
        dist.barrier()


def wrap_distributed(network: nn.Module) -> nn.Module:
    """Wrap a network so that its gradients are averaged over the processes; alone it stays as it is."""
    return DistributedDataParallel(network) if is_distributed() else network


def no_sync(network: nn.Module) -> AbstractContextManager[None]:
    """Let gradients pile up in each process for a while, where several of them make one step."""
    return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Average the gradients of what is outside of the network, as the wrapper does for those inside."""
    if not is_distributed():
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size()


@torch.no_grad()
def broadcast_buffers(network: nn.Module) -> None:
    """Give every process the first one's running statistics, so that all score with the network that is saved."""
    if is_distributed():
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch that does not have a row for every process."""
    if batch_size < world_size():
        raise InputError(f"a batch of {batch_size} cannot be shared by {world_size()} processes: raise --batch-size.")


def shard_batches(rows: NDArray[np.int64], batch_size: int) -> tuple[NDArray[np.int64], int, bool]:
    """Cut this process's part out of every batch.

    Args:
        rows: all rows, in the order of the epoch.
        batch_size: images per batch, over all processes.

    Returns:
        the rows of this process; how many of them a batch holds; and whether the last batch was too small to give this
        process any: it then comes with one row, so that all processes take the same steps, and that row must not count.
    """
    processes, mine = world_size(), rank()
    if processes == 1:
        return rows, batch_size, False
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    parts = [np.array_split(batch, processes)[mine] for batch in batches]
    spare = len(parts) > 0 and len(parts[-1]) == 0
    if spare:
        parts[-1] = batches[-1][:1]
    size = len(np.array_split(np.arange(batch_size), processes)[mine])
    return np.concatenate([*parts, np.zeros(0, dtype=np.int64)]).astype(np.int64), size, spare


def gather_all(*values: Tensor) -> tuple[Tensor, ...]:
    """Put the rows of all processes together, in their order."""
    return tuple(gather_rows(value.contiguous()) for value in values)
