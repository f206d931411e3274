"""How kernels are started. Benchmarks put something else in its place."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def launch(kernel: Any, programs: int, *arguments: Tensor | float, warps: int, **constants: Any) -> None:
    """Start a kernel on the current device and stream."""
    kernel[(programs,)](*arguments, **constants, num_warps=warps)
