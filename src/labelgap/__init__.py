"""labelgap: train multi-label image classifiers when most labels are missing, and find the labels that are missing.

>>> import labelgap as lg
>>> "ll-r" in lg.methods()
True

Names are loaded when they are first used, so that ``import labelgap`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelgap.core.errors import InputError, LabelGapError, RunError
    from labelgap.data import Dataset, Split, load
    from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revision, Revisions
    from labelgap.metrics import average_precision, f1, precision, recall, thresholds
    from labelgap.objectives import Objective, defaults, methods, objective
    from labelgap.reporting import write_report
    from labelgap.training import Run, fit, open_run

__all__ = [
    "ABSENT",
    "Dataset",
    "InputError",
    "LabelGapError",
    "LabelTable",
    "Objective",
    "PRESENT",
    "Revision",
    "Revisions",
    "Run",
    "RunError",
    "Split",
    "UNKNOWN",
    "average_precision",
    "defaults",
    "f1",
    "fit",
    "load",
    "methods",
    "objective",
    "open_run",
    "precision",
    "recall",
    "thresholds",
    "write_report",
]

_HOMES = {
    "core.errors": ("InputError", "LabelGapError", "RunError"),
    "data": ("Dataset", "Split", "load"),
    "labels": ("ABSENT", "PRESENT", "UNKNOWN", "LabelTable", "Revision", "Revisions"),
    "metrics": ("average_precision", "f1", "precision", "recall", "thresholds"),
    "objectives": ("Objective", "defaults", "methods", "objective"),
    "reporting": ("write_report",),
    "training": ("Run", "fit", "open_run"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    if name == "functional":
        return importlib.import_module("labelgap.functional")
    if name not in _HOME:
        raise AttributeError(f"labelgap has no '{name}'")
    value = getattr(importlib.import_module(f"labelgap.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
