"""What the chosen heads of a comparison are measured by, and how good they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import Thresholds, average_precision, choose_thresholds
from labelgap.metrics.bootstrap import resampled_average_precision
from labelgap.studies.compare.comparison import ComparisonMetric
from labelgap.studies.compare.heads import StoredHead
from labelgap.studies.compare.significance import GapToBest, gaps_to_best, resamples
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.selection import Selection

__all__ = ["HeadEvaluation", "MetricEvaluator", "choose_metric", "evaluate_head", "gaps_over_seeds_and_images"]

_REVIEW = "for a true estimate have a few hundred random images fully labelled"


@dataclass(frozen=True, eq=False)
class MetricEvaluator:
    """The measure, and the labels it looks at.

    Attributes:
        measure: what it is.
        split: whose images.
        codes: ``(N, K)``; None where nothing can be measured.
    """

    measure: ComparisonMetric
    split: str
    codes: NDArray[np.int8] | None

    def value(self, logits: Mapping[str, NDArray[np.float32]]) -> float | None:
        """Return the measure of a head from its logits on every split."""
        return None if self.codes is None else float(average_precision(logits[self.split], self.codes))


@dataclass(frozen=True, eq=False)
class HeadEvaluation:
    """What one head is worth.

    Attributes:
        value: of the measure.
        test: all measures on test; None without one.
        train_map: on the training images against the truth, where it is known.
        logits: on the images of the measure, ``(N, K)``; None where there are none.
    """

    value: float | None
    test: dict[str, Any] | None
    train_map: float | None
    logits: NDArray[np.float32] | None


def choose_metric(data: Dataset, selection: Selection) -> MetricEvaluator:
    """Take the best measure that the known labels support.

    Test mAP, where at least half of the classes have a known present and a known absent label on test; else val mAP, if
    it was good enough to choose epochs by; else how high the observed positives rank, unknown taken as absent, which is
    no accuracy and is not called one.
    """
    classes = len(data.classes)
    if data.test is not None:
        counted = _both(data.test.evaluation_labels)
        if 2 * counted >= classes:
            return MetricEvaluator(
                ComparisonMetric("test mAP", True, counted, ""), "test", data.test.evaluation_labels.to_dense()
            )
        reason = f"only {counted} of {classes} classes have both a known present and a known absent label on test"
    else:
        reason = "there is no test split"
    if selection.labels is not None and selection.rule in ("clean", "known"):
        why = f"{reason}: methods are ordered by val mAP, which also chose their epochs and settings and is too good"
        return MetricEvaluator(
            ComparisonMetric("val mAP", True, _both(selection.labels), why), "val", selection.labels.to_dense()
        )
    for split in (data.test, data.val):
        if split is not None and _rankable(split.labels):
            codes = split.labels.to_dense()
            codes = np.where(codes == UNKNOWN, ABSENT, codes).astype(np.int8)
            counted = int(((codes == PRESENT).any(axis=0) & (codes == ABSENT).any(axis=0)).sum())
            why = f"{reason}: no accuracy can be measured. Methods are ordered by how high they rank the observed "
            name = f"observed ranking on {split.name}"
            return MetricEvaluator(
                ComparisonMetric(name, False, counted, f"{why}positives; {_REVIEW}"), split.name, codes
            )
    return MetricEvaluator(
        ComparisonMetric("", False, 0, f"{reason}, and nothing to rank: methods cannot be ordered; {_REVIEW}"), "", None
    )


def evaluate_head(
    head: StoredHead, features: Mapping[str, Tensor], data: Dataset, scale: MetricEvaluator
) -> HeadEvaluation:
    """Measure a head on every split that has something to say of it.

    Args:
        head: a trained one.
        features: of every split.
        data: with the labels this head was shown.
        scale: what heads are ordered by.
    """
    weight, bias = (values.to(features["train"].device) for values in head.weights())
    logits = {name: torch.addmm(bias, values, weight.t()).cpu().numpy() for name, values in features.items()}
    cuts = Thresholds.default(len(data.classes))
    if data.val is not None:
        cuts = choose_thresholds(expit(logits["val"]), data.val.labels.to_dense())
    test = None if data.test is None else evaluate_scores(logits["test"], data.test.evaluation_labels, cuts)
    truth = data.train.truth
    train_map = None
    if truth is not None:
        value, counted = average_precision(logits["train"], truth.to_dense(), return_counted=True)
        train_map = float(value) if counted else None
    return HeadEvaluation(scale.value(logits), test, train_map, logits.get(scale.split))


def gaps_over_seeds_and_images(
    values: Mapping[str, Sequence[float]], logits: Mapping[str, Sequence[NDArray[np.float32]]], scale: MetricEvaluator
) -> dict[str, GapToBest]:
    """Compare every method with the best: over seeds, and over images drawn with replacement.

    Args:
        values: for every method the measure with each seed.
        logits: for every method the logits of each seed's head on the images of the measure.
        scale: the measure.
    """
    samples = None
    if scale.codes is not None and all(len(each) > 1 for each in values.values()):
        images, classes = scale.codes.shape
        drawn = resamples(images, classes, sum(map(len, logits.values())))
        samples = {
            name: np.mean([resampled_average_precision(each, scale.codes, drawn) for each in several], axis=0)
            for name, several in logits.items()
        }
    return gaps_to_best(values, samples)


def _both(table: LabelTable) -> int:
    counts = table.counts()
    return int(((counts.present > 0) & (counts.absent > 0)).sum())


def _rankable(table: LabelTable) -> bool:
    present = table.counts().present
    return bool(((present > 0) & (present < len(table))).any())
