"""Import what needs torchvision, also beside a torch that cannot load its compiled operators.

The torchvision of PyPI is linked to CUDA. Beside a CPU-only torch it describes two operators that it could not load to
the compiler all the same: ``declared_operators`` declares them just before that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_OPERATORS: Final = ("nms", "qnms")
_SCHEMA: Final = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _BeforeRegistration:
    """An import hook that finds no module; it declares the operators that torchvision could not load."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "torchvision._meta_registrations":
            import torch

            for operator in _OPERATORS:
                if not hasattr(torch.ops.torchvision, operator):
                    torch.library.define(f"torchvision::{operator}", _SCHEMA)


@contextmanager
def declared_operators() -> Iterator[None]:
    """Let torchvision be imported within this context, also where its compiled operators cannot be loaded."""
    hook: Any = _BeforeRegistration()
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        sys.meta_path.remove(hook)
