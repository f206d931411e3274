"""How good a prediction is, as far as the known labels can tell.

Every metric keeps the third state: an unknown label is left out, never taken as absent unless that is asked for. A
class (or image) is **counted** only where it has at least one known present and one known absent label, and
``return_counted=True`` says how many were: a mean over 6 of 80 classes looks just like one over 80.

Functions take arrays, tensors on any device, nested lists and label tables. The classes ``AveragePrecision``, ``F1``,
``Precision`` and ``Recall`` do the same batch by batch and over processes: ``update``, ``compute``, ``reset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names
from labelgap.metrics.average_precision import average_precision

if TYPE_CHECKING:
    from labelgap.metrics.classification import f1, precision, recall
    from labelgap.metrics.label_model import CorrectedPrecision, LabelModel, corrected_average_precision
    from labelgap.metrics.modular import F1, AveragePrecision, Metric, Precision, Recall
    from labelgap.metrics.revisions import RevisionQuality, revision_quality
    from labelgap.metrics.thresholds import Thresholds, choose_thresholds

__all__ = [
    "AveragePrecision",
    "CorrectedPrecision",
    "F1",
    "LabelModel",
    "Metric",
    "Precision",
    "Recall",
    "RevisionQuality",
    "Thresholds",
    "average_precision",
    "choose_thresholds",
    "corrected_average_precision",
    "f1",
    "precision",
    "recall",
    "revision_quality",
]

__getattr__ = lazy_names(__name__, "thresholds", "classification", "revisions", "label_model", "modular")
