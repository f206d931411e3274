"""Sweep the settings of one method: many trials, chosen by optuna, selected by the score of val."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names

if TYPE_CHECKING:
    from labelgap.studies.sweep.results import Sweep
    from labelgap.studies.sweep.runner import sweep

__all__ = ["Sweep", "sweep"]

__getattr__ = lazy_names(__name__, "results", "runner")
