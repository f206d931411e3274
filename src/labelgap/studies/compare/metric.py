"""The metric that orders the methods of a comparison: the best that the known labels support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import average_precision
from labelgap.studies.compare.results import ComparisonMetric
from labelgap.training.selection import Selection, measurable_labels

_REMEDY: Final = "for a true estimate label a few hundred random images in full"


class MetricEvaluator(NamedTuple):
    """A metric, the split it is measured on, and the ``(N, K)`` labels; None where nothing can be measured."""

    metric: ComparisonMetric
    split: str
    codes: NDArray[np.int8] | None

    def value(self, logits: Mapping[str, NDArray[np.float32]]) -> float | None:
        """Return the metric of a head from its logits on every split."""
        return None if self.codes is None else float(average_precision(logits[self.split], self.codes))


def choose_metric(data: Dataset, selection: Selection) -> MetricEvaluator:
    """Choose the best metric that the known labels support.

    Test mAP, if the known labels of at least half of the classes support an accuracy on test; else val mAP, if
    it was good enough to select epochs; else the observed ranking (unknown counts as absent), which is not an accuracy.
    Without val it is that of the training images, by out-of-fold scores.
    """
    classes = len(data.classes)
    if data.test is not None:
        labels = measurable_labels(data.test.evaluation_labels)
        counted = _classes_with_both(labels)
        if 2 * counted >= classes:
            return MetricEvaluator(ComparisonMetric("test mAP", True, counted, ""), "test", labels.to_dense())
        reason = f"only {counted} of {classes} classes have a known present and enough known absent labels on test"
    else:
        reason = "there is no test split"
    if selection.labels is not None and selection.rule in ("clean", "known"):
        name, split, chosen = "val mAP", "val", "epochs and settings"
        if data.val is None:
            name, split, chosen = "out-of-fold mAP", "train", "settings"
        reason += f": methods are ordered by {name}, which also chose their {chosen} and is too optimistic"
        metric = ComparisonMetric(name, True, _classes_with_both(selection.labels), reason)
        return MetricEvaluator(metric, split, selection.labels.to_dense())
    observed = {split.name: split.labels for split in (data.test, data.val) if split is not None}
    if data.val is None and selection.labels is not None:
        observed["train"] = selection.labels
    for name, labels in observed.items():
        codes = labels.to_dense()
        codes = np.where(codes == UNKNOWN, ABSENT, codes).astype(np.int8)
        counted = int(((codes == PRESENT).any(axis=0) & (codes == ABSENT).any(axis=0)).sum())
        if counted:
            reason += ": no accuracy can be measured. Methods are ordered by how high they rank the observed positives"
            where = "out of fold" if name == "train" else f"on {name}"
            metric = ComparisonMetric(f"observed ranking {where}", False, counted, f"{reason}; {_REMEDY}")
            return MetricEvaluator(metric, name, codes)
    reason += f", and nothing can be ranked: methods cannot be ordered; {_REMEDY}"
    return MetricEvaluator(ComparisonMetric("", False, 0, reason), "", None)


def _classes_with_both(table: LabelTable) -> int:
    counts = table.counts()
    return int(((counts.present > 0) & (counts.absent > 0)).sum())
