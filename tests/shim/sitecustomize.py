"""Lets torchvision be imported beside a torch that its compiled part was not built for.

The torchvision of PyPI is linked to CUDA. Beside a CPU-only torch its operators cannot be loaded, which it survives,
except that it describes two of them to the compiler (``nms`` and ``qnms``) without asking whether they are there. Here
they are declared, without a body, just before that: timm needs torchvision but none of its operators.

Python imports a module of this name by itself when it starts, wherever the folder is on ``PYTHONPATH``. Nothing is
imported and nothing happens until torchvision is.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

__all__ = ["install"]

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class BeforeTorchvision:
    """Finds no module; it only notices that torchvision has loaded its operators, or could not."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "torchvision._meta_registrations":
            declare_what_is_missing()


def declare_what_is_missing() -> None:
    import torch

    for operator in OPERATORS:
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", SCHEMA)


def install() -> None:
    sys.meta_path.insert(0, BeforeTorchvision())


def run_the_next_one() -> None:
    """Run the ``sitecustomize`` that this one hides, if the machine has one."""
    here = os.path.dirname(__file__)  # noqa: PTH120, pathlib would double the time that Python takes to start
    spec = PathFinder.find_spec(__name__, [place for place in sys.path if place != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(type(sys)(__name__))


if __name__ == "sitecustomize":
    install()
    run_the_next_one()
