"""Run a function in two processes of one gloo group."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from tests.waiting import PATIENCE


def run_pair(function: Callable[[Path], None], folder: Path) -> None:
    """Call ``function(folder)`` in two processes at once; it must be importable. Both must end without an error."""
    context = multiprocessing.get_context("forkserver")
    workers = [context.Process(target=_work, args=(function, folder, rank), daemon=True) for rank in range(2)]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join(3 * PATIENCE)  # a whole training
        assert [worker.exitcode for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _work(function: Callable[[Path], None], folder: Path, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder.resolve()}/store", rank=rank, world_size=2)
    function(folder)
    dist.barrier()
    dist.destroy_process_group()
