"""What can be said of scores against labels: only what the known labels support."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.labels import LabelTable
from labelgap.labels.codes import UNKNOWN
from labelgap.metrics import Thresholds, average_precision, f1

__all__ = ["evaluate_scores", "probabilities"]


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sigmoid of logits, without overflow."""
    return (0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))).astype(np.float32)


def evaluate_scores(logits: NDArray[np.float32], labels: LabelTable, thresholds: Thresholds) -> dict[str, Any]:
    """Measure logits against what is known of the labels.

    A class counts only if it has a known present and a known absent; ``classes_counted`` says how many do. A number
    that no class supports is None.

    Args:
        logits: ``(N, K)``
        labels: the truth where known, else what was observed.
        thresholds: per class. F1 is an honest estimate where they were chosen on other images; that of val, which
            chose them, is a little too good.
    """
    codes = labels.to_dense()
    counts = labels.counts()
    both = (counts.present > 0) & (counts.absent > 0)
    chance = probabilities(logits)
    value, counted = average_precision(logits, codes, return_counted=True)
    samples, images_counted = average_precision(logits, codes, average="samples", return_counted=True)
    supported = np.where(both[None, :], codes, UNKNOWN).astype(np.int8)
    each = average_precision(logits, codes, average=None)
    result: dict[str, Any] = {
        "images": len(labels),
        "classes": len(labels.classes),
        "classes_counted": int(counted),
        "map": float(value) if counted else None,
        "map_samples": float(samples) if images_counted else None,
        "images_counted": int(images_counted),
    }
    for average in ("micro", "macro"):
        for name, threshold in ((f"f1_{average}", thresholds.values), (f"f1_{average}_at_half", 0.5)):
            result[name] = float(f1(chance, supported, threshold=threshold, average=average)) if counted else None
    result["average_precision"] = {
        name: float(each[column]) if both[column] else None for column, name in enumerate(labels.classes)
    }
    return result
