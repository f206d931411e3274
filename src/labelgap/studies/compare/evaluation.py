"""The metric of a comparison, and the evaluation of the selected heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
from labelgap.studies.compare.significance import GapToBest, draw_resamples, gaps_to_best
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.selection import Selection

__all__ = ["HeadEvaluation", "MetricEvaluator", "choose_metric", "evaluate_head", "gaps_over_seeds_and_images"]

_REMEDY: Final = "for a true estimate have a few hundred random images fully labeled"


@dataclass(frozen=True, eq=False)
class MetricEvaluator:
    """The metric, and the labels it uses.

    Attributes:
        metric: which one.
        split: whose images.
        codes: ``(N, K)``; None where nothing can be measured.
    """

    metric: ComparisonMetric
    split: str
    codes: NDArray[np.int8] | None

    def value(self, logits: Mapping[str, NDArray[np.float32]]) -> float | None:
        """Return the metric of a head from its logits on every split."""
        return None if self.codes is None else float(average_precision(logits[self.split], self.codes))


@dataclass(frozen=True, eq=False)
class HeadEvaluation:
    """The measured quality of one head.

    Attributes:
        value: of the comparison's metric.
        test: all metrics on test; None without one.
        train_map: on the training images against the truth, where it is known.
        logits: on the images of the metric, ``(N, K)``; None where there are none.
    """

    value: float | None
    test: dict[str, Any] | None
    train_map: float | None
    logits: NDArray[np.float32] | None


def choose_metric(data: Dataset, selection: Selection) -> MetricEvaluator:
    """Choose the best metric that the known labels support.

    Test mAP, if at least half of the classes have a known present and a known absent label on test; else val mAP, if
    it was good enough to select epochs; else the observed ranking (unknown counts as absent), which is not an accuracy.
    """
    classes = len(data.classes)
    if data.test is not None:
        labels = data.test.evaluation_labels
        counted = _classes_with_both(labels)
        if 2 * counted >= classes:
            return MetricEvaluator(ComparisonMetric("test mAP", True, counted, ""), "test", labels.to_dense())
        reason = f"only {counted} of {classes} classes have both a known present and a known absent label on test"
    else:
        reason = "there is no test split"
    if selection.labels is not None and selection.rule in ("clean", "known"):
        reason += ": methods are ordered by val mAP, which also chose their epochs and settings and is too optimistic"
        metric = ComparisonMetric("val mAP", True, _classes_with_both(selection.labels), reason)
        return MetricEvaluator(metric, "val", selection.labels.to_dense())
    for split in (data.test, data.val):
        if split is None:
            continue
        codes = split.labels.to_dense()
        codes = np.where(codes == UNKNOWN, ABSENT, codes).astype(np.int8)
        counted = int(((codes == PRESENT).any(axis=0) & (codes == ABSENT).any(axis=0)).sum())
        if counted:
            reason += ": no accuracy can be measured. Methods are ordered by how high they rank the observed positives"
            metric = ComparisonMetric(f"observed ranking on {split.name}", False, counted, f"{reason}; {_REMEDY}")
            return MetricEvaluator(metric, split.name, codes)
    reason += f", and nothing can be ranked: methods cannot be ordered; {_REMEDY}"
    return MetricEvaluator(ComparisonMetric("", False, 0, reason), "", None)


def evaluate_head(
    head: StoredHead, features: Mapping[str, Tensor], data: Dataset, evaluator: MetricEvaluator
) -> HeadEvaluation:
    """Evaluate a head on every split.

    Args:
        head: a trained one.
        features: of every split.
        data: with the labels that this head was trained on.
        evaluator: the metric of the comparison.
    """
    weight, bias = (values.to(features["train"].device) for values in head.weights())
    logits = {name: torch.addmm(bias, values, weight.t()).cpu().numpy() for name, values in features.items()}
    cuts = Thresholds.default(len(data.classes))
    if data.val is not None:
        cuts = choose_thresholds(expit(logits["val"]), data.val.labels.to_dense())
    test = None if data.test is None else evaluate_scores(logits["test"], data.test.evaluation_labels, cuts)
    train_map = None
    if data.train.truth is not None:
        value, counted = average_precision(logits["train"], data.train.truth.to_dense(), return_counted=True)
        train_map = float(value) if counted else None
    return HeadEvaluation(evaluator.value(logits), test, train_map, logits.get(evaluator.split))


def gaps_over_seeds_and_images(
    values: Mapping[str, Sequence[float]],
    logits: Mapping[str, Sequence[NDArray[np.float32]]],
    evaluator: MetricEvaluator,
) -> dict[str, GapToBest]:
    """Compare every method with the best: over seeds, and over images drawn with replacement.

    Args:
        values: method → the metric with each seed.
        logits: method → the logits of each seed's head on the images of the metric.
        evaluator: the metric.
    """
    resampled = None
    if evaluator.codes is not None and all(len(seeds) > 1 for seeds in values.values()):
        images, classes = evaluator.codes.shape
        weights = draw_resamples(images, classes, sum(map(len, logits.values())))
        resampled = {
            name: np.mean([resampled_average_precision(each, evaluator.codes, weights) for each in seeds], axis=0)
            for name, seeds in logits.items()
        }
    return gaps_to_best(values, resampled)


def _classes_with_both(table: LabelTable) -> int:
    counts = table.counts()
    return int(((counts.present > 0) & (counts.absent > 0)).sum())
