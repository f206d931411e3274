"""The device of a run and its number of loader processes."""

from __future__ import annotations

import os

import torch

from labelgap.core.errors import InputError

__all__ = ["choose_device", "choose_workers", "widest_float"]


def choose_device(requested: str = "auto") -> torch.device:
    """Return the requested device; under "auto" CUDA, else MPS, else the CPU.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if requested == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    try:
        device = torch.device(requested)
        known = device.type in ("cpu", "cuda", "mps")
    except RuntimeError:
        known = False
    if not known:
        raise InputError(f"device '{requested}': it is auto, cpu, cuda, cuda:1 … or mps.")
    lacking = device.type == "cuda" and (not has_cuda or (device.index or 0) >= torch.cuda.device_count())
    if lacking or (device.type == "mps" and not has_mps):
        raise InputError(f"device '{requested}' is not on this machine; `auto` takes what there is.")
    return device


def choose_workers(requested: int | None, device: torch.device) -> int:
    """Return the number of processes that decode images: as requested, else enough for a GPU, and 0 on a CPU.

    Example:
        >>> choose_workers(None, torch.device("cpu"))
        0
    """
    if requested is not None:
        return requested
    return min(8, os.cpu_count() or 1) if device.type == "cuda" else 0


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float type of a device.

    Example:
        >>> widest_float(torch.device("mps"))
        torch.float32
    """
    return torch.float32 if device.type == "mps" else torch.float64
