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
    from labelgap.audit import add_images, find_missing
    from labelgap.core.errors import InputError, LabelGapError, RunError
    from labelgap.data import Dataset, Split, load, register_dataset
    from labelgap.data.cleaning import clean_table
    from labelgap.inference.predictor import Predictor
    from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revision, Revisions
    from labelgap.losses import Loss, defaults, loss, methods, register_method
    from labelgap.metrics import average_precision, choose_thresholds, f1, precision, recall
    from labelgap.models import register_backbone
    from labelgap.reporting import write_report
    from labelgap.studies.compare import compare
    from labelgap.studies.features import features
    from labelgap.studies.sweep import sweep
    from labelgap.training import Run, open_run
    from labelgap.training.estimator import LabelGapClassifier, average_precision_scorer, observed_scorer
    from labelgap.training.fit import fit
    from labelgap.verification import verify_run

__all__ = [
    "ABSENT",
    "Dataset",
    "InputError",
    "LabelGapClassifier",
    "LabelGapError",
    "LabelTable",
    "Loss",
    "PRESENT",
    "Predictor",
    "Revision",
    "Revisions",
    "Run",
    "RunError",
    "Split",
    "UNKNOWN",
    "add_images",
    "average_precision",
    "average_precision_scorer",
    "choose_thresholds",
    "clean_table",
    "compare",
    "defaults",
    "f1",
    "features",
    "find_missing",
    "fit",
    "load",
    "loss",
    "methods",
    "observed_scorer",
    "open_run",
    "precision",
    "recall",
    "register_backbone",
    "register_dataset",
    "register_method",
    "sweep",
    "verify_run",
    "write_report",
]

_HOMES = {
    "audit": "add_images find_missing",
    "core.errors": "InputError LabelGapError RunError",
    "data": "Dataset Split load register_dataset",
    "data.cleaning": "clean_table",
    "inference.predictor": "Predictor",
    "labels": "ABSENT LabelTable PRESENT Revision Revisions UNKNOWN",
    "losses": "Loss defaults loss methods register_method",
    "metrics": "average_precision choose_thresholds f1 precision recall",
    "models": "register_backbone",
    "reporting": "write_report",
    "studies.compare": "compare",
    "studies.features": "features",
    "studies.sweep": "sweep",
    "training.run": "Run open_run",
    "training.fit": "fit",
    "training.estimator": "LabelGapClassifier average_precision_scorer observed_scorer",
    "verification": "verify_run",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

_MODULES = {name: name for name in ("data", "functional", "labels", "losses", "metrics", "models")}
_MODULES |= {name: f"inference.engines.{name}" for name in ("ray", "spark")}
"""What ``labelgap.NAME`` imports when it is first used."""

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"labelgap.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"labelgap has no '{name}'")
    value = getattr(importlib.import_module(f"labelgap.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
