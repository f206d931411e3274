"""The device of a run and its number of loader processes."""

from __future__ import annotations

import os

import torch

from labelgap.core.errors import InputError


def choose_device(requested: str = "auto") -> torch.device:
    """Return the requested device, one GPU for each process of a machine; under "auto" CUDA, else MPS, else the CPU."""
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if requested == "auto":
        requested = "cuda" if has_cuda else "mps" if has_mps else "cpu"
    try:
        device = torch.device(requested)
        known = device.type in ("cpu", "cuda", "mps")
    except RuntimeError:
        known = False
    if not known:
        raise InputError(f"device '{requested}': it must be auto, cpu, cuda, cuda:1 … or mps.")
    lacking = device.type == "cuda" and (not has_cuda or (device.index or 0) >= torch.cuda.device_count())
    if lacking or (device.type == "mps" and not has_mps):
        raise InputError(f"device '{requested}' is not on this machine; `auto` takes what there is.")
    return _own_gpu() if device.type == "cuda" and device.index is None else device


def _own_gpu() -> torch.device:
    """Return the GPU of this process, among those of its machine; without an index where it is the only process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return torch.device("cuda")
    number, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= gpus:
        raise InputError(
            f"torchrun starts more processes on this machine than it has GPUs ({gpus}): --nproc-per-node {gpus}."
        )
    return torch.device("cuda", number)


def choose_workers(requested: int | None, device: torch.device) -> int:
    """Return the number of processes that decode images: as requested, else enough for a GPU, and 0 on a CPU."""
    if requested is not None:
        return requested
    return min(8, os.cpu_count() or 1) if device.type == "cuda" else 0
