"""Packages whose names are imported when they are first used (PEP 562): what only lists or reads takes no PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str, *modules: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that finds the names of its ``__all__`` in modules below it, in turn:
    those that take long to import come last."""
    own = vars(sys.modules[package])
    own["__dir__"] = lambda: sorted({*own, *own["__all__"]})

    def find(name: str) -> Any:
        for module in modules if name in own["__all__"] else ():
            found = vars(importlib.import_module(f"{package}.{module}"))
            if name in found:
                return own.setdefault(name, found[name])
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
