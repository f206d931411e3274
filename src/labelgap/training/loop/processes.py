"""Several processes of one command: PyTorch's DistributedDataParallel, and how they exchange, fail and share a folder.

A batch of B images is one batch over all processes, and each takes its part of it: two processes see the batches and
end with the revisions of one. Only the first process prints and writes. Objects and arrays of the host travel over a
gloo group of their own, on a GPU too. A process waits there as long as the others work, but not for one that has died:
the system closes its connections, and every other process gets an error.
"""

from __future__ import annotations

import atexit
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.distributed import gather_rows, is_distributed, is_main_process, rank, world_size
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.lock import LOCK_FILE, lock_folder

STEP_TIMEOUT: Final = timedelta(minutes=30)
"""How long a process waits for the others within a training step; a machine that lost its power closes nothing."""
WAIT_TIMEOUT: Final = timedelta(days=7)
"""How long it waits between phases: the first process may train a linear head alone."""
FOLDER_SECONDS = 30.0
"""How long a network file system may take to show a new file to another machine."""
_BLOCK_BYTES: Final = 64 << 20


class ReportedError(RunError):
    """An error that another process of this machine reports."""


def init_distributed(device: torch.device) -> None:
    """Initialize the process group, where ``torchrun`` has started several processes; it ends with the program."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=STEP_TIMEOUT)
        atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)


def _host_group() -> Any:
    return _gloo_group(dist.group.WORLD)


@lru_cache(maxsize=1)
def _gloo_group(world: Any) -> Any:
    """Return the group of objects and arrays; all processes make it at its first use."""
    return dist.new_group(backend="gloo", timeout=WAIT_TIMEOUT)


def barrier() -> None:
    """Wait until every process is here."""
    if is_distributed():
        dist.barrier(group=_host_group())


def broadcast_object(value: Any) -> Any:
    """Return the object of the first process in all processes."""
    values = [value]
    if is_distributed():
        dist.broadcast_object_list(values, src=0, group=_host_group(), device=torch.device("cpu"))
    return values[0]


def gather_objects(value: Any) -> list[Any]:
    """Return the objects of all processes, in their order."""
    values = [value] * world_size()
    if is_distributed():
        dist.all_gather_object(values, value, group=_host_group())
    return values


def broadcast_array(array: NDArray[Any], process: int) -> None:
    """Copy an array, contiguous and of the same shape everywhere, from one process to the others."""
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, len(flat) if is_distributed() else 0, _BLOCK_BYTES):
        dist.broadcast(torch.from_numpy(flat[start : start + _BLOCK_BYTES]), src=process, group=_host_group())


def own_rows(count: int) -> NDArray[np.int64]:
    """Return the rows of this process: every W-th of W processes, so that all have equal shares of any part."""
    return np.arange(rank(), count, world_size()) if is_distributed() else np.arange(count)


def gather_own_rows(own: NDArray[Any], count: int, *, everywhere: bool = True) -> NDArray[Any]:
    """Return an array of all ``count`` rows from the ``own_rows`` of every process, a block at a time.

    With ``everywhere=False`` only the first process gets them, and the others an array without rows.
    """
    if not is_distributed():
        return own
    result = np.empty((count if everywhere or is_main_process() else 0, *own.shape[1:]), dtype=own.dtype)
    step, processes = max(1, _BLOCK_BYTES // (own.itemsize * math.prod(own.shape[1:]) or 1)), world_size()
    for start in range(0, -(-count // processes), step):
        for process, block in enumerate(gather_objects(own[start : start + step])):
            if len(result):
                result[process::processes][start : start + len(block)] = block
    return result


@contextmanager
def fail_together() -> Iterator[None]:
    """Raise an error of one process in all of them, at the end of the block; no process waits for one that failed.

    The block must not communicate. On every machine one process raises the error, the others a ``ReportedError``.
    """
    if not is_distributed():
        yield
        return
    own: LabelGapError | None = None
    try:
        yield
    except LabelGapError as error:
        own = error
    node = f"{socket.gethostname()} {os.environ.get('GROUP_RANK', '')}"
    found: list[tuple[str, str | None]] = gather_objects((node, None if own is None else str(own)))
    failed = [number for number, (_, text) in enumerate(found) if text is not None]
    if not failed:
        return
    here = [number for number, (where, _) in enumerate(found) if where == node]
    reporter = next((number for number in failed if number in here), here[0])
    if own is not None and (rank() == reporter or found[reporter][1] != str(own)):
        raise own
    where, text = found[failed[0]]
    if rank() != reporter:
        raise ReportedError(text)
    raise RunError(f"process {failed[0]} of {len(found)}, on {where.split()[0]}: {text}")


def check_same(values: Mapping[str, str]) -> None:
    """Refuse processes that were started differently; ``values`` has a digest or text of each thing to compare."""
    if not is_distributed():
        return
    first: Mapping[str, str] = broadcast_object(dict(values))
    with fail_together():
        different = [name for name, value in values.items() if first.get(name) != value]
        if different:
            raise InputError(
                f"process {rank()} ({socket.gethostname()}) has other {different[0]} than process 0: start all "
                "processes with the same command, on the same data and version of labelgap."
            )


@contextmanager
def lock_together(folder: Path, purpose: str, *, name: str = LOCK_FILE) -> Iterator[None]:
    """Hold the lock of a folder in the first process, and check that all processes see that folder."""
    with ExitStack() as stack:
        with fail_together():
            if is_main_process():
                stack.enter_context(lock_folder(folder, purpose, name=name))
        if is_distributed():
            _check_shared(folder / name)
        yield


def _check_shared(lock: Path) -> None:
    """Refuse a folder that is another one in some processes: its lock file is not that of the first process."""

    def content() -> bytes | None:
        try:
            return lock.read_bytes()[:1000]
        except OSError:
            return None

    first, deadline = broadcast_object(content()), time.monotonic() + FOLDER_SECONDS
    with fail_together():
        while content() != first:
            if time.monotonic() >= deadline:
                raise RunError(
                    f"{lock.parent} on {socket.gethostname()} is not the folder of process 0: choose an --out that "
                    "all machines share (a network file system), with the same path everywhere."
                )
            time.sleep(0.2)


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
    """Return this process's part of every batch of so many rows: its rows, and how many of them are in a batch.

    The third value is whether the last batch had none for this process. It then has one row, so that all processes take
    the same number of steps; that row must not count.
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
