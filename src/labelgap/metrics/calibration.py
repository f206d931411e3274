"""Platt scaling: from a logit to a probability, where known labels say how often such a logit was right.

The sigmoid of a logit ranks images. It is not a probability: trained with most labels missing, a network gives 0.3 to
what is present in nine of ten images. The line of the label model corrects that; a run stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.metrics.label_model import LabelModel
from labelgap.metrics.validation import MIN_KNOWN_LABELS, format_labels


@dataclass(frozen=True)
class PlattCalibration:
    """A line through the logits of each class: the probability is the sigmoid of ``scale`` × logit + ``offset``.

    Attributes:
        scale: above 0, so the order stays.
        offset: what is added, per class.
        classes: whether each class of the run is calibrated: with at least five known present labels.
        present: known present labels it was found on.
        absent: known absent labels it was found on.
        known: the share of these classes' labels that is known. Below 1, the probability is an estimate: right where
            labels are missing at random.
    """

    scale: float
    offset: tuple[float, ...]
    classes: tuple[bool, ...]
    present: int
    absent: int
    known: float

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return ``(N, K)``, NaN for a class that is not calibrated."""
        chance = expit(self.scale * logits.astype(np.float64) + np.asarray(self.offset))
        return np.where(np.asarray(self.classes)[None, :], chance, np.nan).astype(np.float32)


def fit_platt_calibration(logits: NDArray[np.float32], labels: LabelTable | NDArray[np.int8]) -> dict[str, Any] | None:
    """Find the calibration of a run on logits ``(N, K)`` of held-out images, or out-of-fold, as its summary keeps it.

    None where no class takes part, or where higher logits are not more often present.
    """
    codes = format_labels(labels)
    present, absent = (np.count_nonzero(codes == state, axis=0) for state in (PRESENT, ABSENT))
    supported = present >= MIN_KNOWN_LABELS
    line = LabelModel.fit(logits, codes) if supported.any() and np.isfinite(logits).all() else None
    if line is None or not line.is_informative:
        return None
    counts = int(present[supported].sum()), int(absent[supported].sum())
    share = sum(counts) / (len(codes) * int(supported.sum()))
    found = PlattCalibration(line.scale, tuple(line.offset.tolist()), tuple(supported.tolist()), *counts, share)
    return {"method": "platt", **asdict(found), "offset": list(found.offset), "classes": list(found.classes)}


def read_calibration(summary: Mapping[str, Any]) -> PlattCalibration | None:
    """Return the calibration in a run's summary; None for a run without one. Older runs have one offset for all."""
    stored = summary.get("calibration")
    if not stored:
        return None
    classes, offset = tuple(stored["classes"]), stored["offset"]
    offsets = tuple(offset) if isinstance(offset, list) else (offset,) * len(classes)
    numbers = {name: stored[name] for name in ("scale", "present", "absent", "known")}
    return PlattCalibration(classes=classes, offset=offsets, **numbers)
