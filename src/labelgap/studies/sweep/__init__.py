"""Sweep the settings of one method: many trials, chosen by optuna, selected by the score of val."""

from labelgap.studies.sweep.results import Sweep
from labelgap.studies.sweep.runner import sweep

__all__ = ["Sweep", "sweep"]
