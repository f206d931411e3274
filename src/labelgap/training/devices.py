"""Which device a run works on."""

from __future__ import annotations

import os

import torch

from labelgap.core.errors import InputError

__all__ = ["choose_device", "choose_workers", "widest_float"]


def choose_device(asked: str = "auto") -> torch.device:
    """Return CUDA, else MPS, else the CPU under "auto"; or the one asked for, if it is there.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if asked == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    try:
        device = torch.device(asked)
        known = device.type in ("cpu", "cuda", "mps")
    except RuntimeError:
        known = False
    if not known:
        raise InputError(f"device '{asked}': it is auto, cpu, cuda, cuda:1 … or mps.")
    lacking = device.type == "cuda" and (not has_cuda or (device.index or 0) >= torch.cuda.device_count())
    if lacking or (device.type == "mps" and not has_mps):
        raise InputError(f"device '{asked}' is not on this machine; `auto` takes what there is.")
    return device


def choose_workers(asked: int | None, device: torch.device) -> int:
    """Return how many processes decode images: as asked, else enough to keep a GPU busy, and none beside a CPU.

    Example:
        >>> choose_workers(None, torch.device("cpu"))
        0
    """
    if asked is not None:
        return asked
    return min(8, os.cpu_count() or 1) if device.type == "cuda" else 0


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float type of a device.

    Example:
        >>> widest_float(torch.device("mps"))
        torch.float32
    """
    return torch.float32 if device.type == "mps" else torch.float64
