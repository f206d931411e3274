r"""The selected heads of a comparison, measured: the metric that its labels support, and which gaps are significant.

A mean varies with the seeds and with the test images. Both are paired: all methods have the same. For the difference
:math:`d` of two methods, over :math:`S` seeds,

.. math:: d \pm \sqrt{(t_{0.975,\,S-1} \; s / \sqrt S)^2 + (1.96 \; b)^2}

with :math:`s` the standard deviation of the seeds' differences and :math:`b` that of the difference over images drawn
with replacement (the bootstrap). A method is called better only where this interval is above zero. One seed says
nothing about other seeds, so it supports no claim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.seeds import numpy_generator
from labelgap.core.special import expit, student_quantile
from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import Thresholds, average_precision, choose_thresholds
from labelgap.metrics.bootstrap import bootstrap_weights, resampled_average_precision
from labelgap.studies.compare.heads import HeadTrainingSetup, StoredHead
from labelgap.studies.compare.results import (
    BASELINE,
    Comparison,
    ComparisonMetric,
    GapToBest,
    MethodResult,
    SeedResult,
    SkippedMethod,
    variant_name,
)
from labelgap.studies.compare.settings import LabelView
from labelgap.training.auto import SearchSpace
from labelgap.training.config import RunConfig
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.selection import Selection, measurable_labels

DIVERGED: Final = "training has diverged in a fold: give a lower --lr, or a higher --weight-decay"
MAX_RESAMPLES: Final = 100
MIN_RESAMPLES: Final = 40
_MAX_ENTRIES: Final = 3e9  # number of entries over all resamples above which fewer resamples are drawn
_SETTING: Final = ("options", "lr", "batch_size", "weight_decay", "optimizer", "standardize")
"""Of a configuration: what a result tells."""
_REMEDY: Final = "for a true estimate label a few hundred random images in full"

Edge = Literal["lowest", "highest", "last"]
Logits = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class MethodPlan:
    """A row of the comparison."""

    method: str
    view: LabelView  # the labels it sees
    config: RunConfig  # before any search
    variant: Mapping[str, Any] = field(default_factory=dict)  # what sets it apart from other rows of the method
    first_seed: int = 0
    baseline: bool = False  # whether it is logistic regression, by the method `an`, and not a method of its own
    candidates: Sequence[RunConfig] = ()  # the settings that are compared first
    left_open: SearchSpace = field(default_factory=SearchSpace)  # what is searched further

    @property
    def label(self) -> str:
        """The name of the method in results."""
        return BASELINE if self.baseline else self.method

    @property
    def name(self) -> str:
        """The method, and the values of its variant."""
        return variant_name(self.label, self.variant)


@dataclass(frozen=True, eq=False)
class MethodHeads:
    """The heads of a method."""

    grid: Sequence[Sequence[StoredHead]]  # for each setting those of each seed; of folds the final heads of the best
    configs: Sequence[RunConfig]  # the settings that were compared
    best: int | None  # the chosen setting; None where training failed
    out_of_fold: Sequence[NDArray[np.float32]] | None = None
    """``(N, K)`` logits of the training images for each seed, by heads that have not seen them; None with val."""

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings that were compared, by name."""
        return [{name: getattr(config, name) for name in _SETTING} for config in self.configs]


class MetricEvaluator(NamedTuple):
    """A metric, the split it is measured on, and the ``(N, K)`` labels; None where nothing can be measured."""

    metric: ComparisonMetric
    split: str
    codes: NDArray[np.int8] | None


def choose_metric(data: Dataset, selection: Selection) -> MetricEvaluator:
    """Choose the best metric that the known labels support: test mAP, val mAP, or the observed ranking."""
    classes, reason = len(data.classes), "there is no test split"
    if data.test is not None:
        labels = measurable_labels(data.test.evaluation_labels)
        counted = classes_with_both(labels)
        if 2 * counted >= classes:
            return MetricEvaluator(ComparisonMetric("test mAP", True, counted, ""), "test", labels.to_dense())
        reason = f"only {counted} of {classes} classes have a known present and enough known absent labels on test"
    if selection.labels is not None and selection.rule in ("clean", "known"):
        name, split, chosen = "val mAP", "val", "epochs and settings"
        if data.val is None:
            name, split, chosen = "out-of-fold mAP", "train", "settings"
        reason += f": methods are ordered by {name}, which also chose their {chosen} and is too optimistic"
        metric = ComparisonMetric(name, True, classes_with_both(selection.labels), reason)
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


def classes_with_both(table: LabelTable) -> int:
    """Return how many classes are known to be present in one image and absent in another."""
    counts = table.counts()
    return int(((counts.present > 0) & (counts.absent > 0)).sum())


def evaluate_methods(heads: Mapping[MethodPlan, MethodHeads], data: Dataset, setup: HeadTrainingSetup) -> Comparison:
    """Evaluate the selected heads of every method on the features of every split, and compare the methods."""
    evaluator = choose_metric(data, setup.selection)
    results, skipped, trials = list[MethodResult](), list[SkippedMethod](), list[dict[str, Any]]()
    logits: dict[str, list[NDArray[np.float32]]] = {}
    with setup.reporter.bar("measuring", len(heads)):
        for plan, trained in heads.items():
            setup.reporter.advance()
            if trained.best is None:
                failures = [head.failed for seeds in trained.grid for head in seeds if head.failed is not None]
                skipped.append(SkippedMethod(plan.name, failures[0] if failures else DIVERGED))
                continue
            result, own_logits = _evaluate_method(plan, trained, trained.best, setup.features, evaluator)
            results.append(result)
            for number, (setting, seeds) in enumerate(zip(trained.settings, trained.grid, strict=True)):
                for seed, head in enumerate(seeds, plan.first_seed):
                    told: dict[str, Any] = {"seed": seed, "epoch": head.epoch, "score": head.score}
                    told |= {"selected": number == trained.best, "failed": head.failed or ""}
                    trials.append({"method": plan.label, **setting, **told})
            if not plan.view.extra_labels and evaluator.codes is not None:
                logits[plan.name] = [each[evaluator.split] for each in own_logits]
    gaps, resampled, codes = dict[str, GapToBest](), None, evaluator.codes
    if codes is not None and logits:
        if all(len(seeds) > 1 for seeds in logits.values()):
            weights = draw_resamples(codes.shape[0], codes.shape[1], sum(map(len, logits.values())))
            resampled = {}
            for name, own in logits.items():  # under "newton" all seeds may have one head
                distinct = {id(each): each for each in own}
                found = {key: resampled_average_precision(each, codes, weights) for key, each in distinct.items()}
                resampled[name] = np.mean([found[id(each)] for each in own], axis=0)
        gaps = gaps_to_best({row.name: row.values for row in results if row.name in logits}, resampled)
    results = [replace(row, gap=gaps.get(row.name)) for row in results]
    results.sort(key=lambda row: (row.extra_labels, -(row.mean if row.mean is not None else -1.0)))
    parts = tuple(results), tuple(skipped), tuple(trials)
    title = f"Which method on {data.name}?"
    return Comparison(setup.folder, title, {}, setup.selection.rule, evaluator.metric, *parts)


def _evaluate_method(
    plan: MethodPlan, trained: MethodHeads, best: int, features: Mapping[str, Tensor], evaluator: MetricEvaluator
) -> tuple[MethodResult, list[Logits]]:
    seeds, logits = list[SeedResult](), list[Logits]()
    for seed, (head, data) in enumerate(zip(trained.grid[best], plan.view.datasets, strict=True)):
        number, label_seed = plan.first_seed + seed, plan.view.label_seeds[seed]
        if seed and trained.out_of_fold is None and head.path == trained.grid[best][0].path:
            seeds.append(replace(seeds[0], seed=number, label_seed=label_seed))
            logits.append(logits[0])
            continue
        weight, bias = (values.to(features["train"].device) for values in head.weights())
        scores = {name: torch.addmm(bias, values, weight.t()).cpu().numpy() for name, values in features.items()}
        if trained.out_of_fold is not None:
            scores["train"] = trained.out_of_fold[seed]
        chosen_on = data.val if trained.out_of_fold is None else data.train
        cuts = Thresholds.default(len(data.classes))
        if chosen_on is not None:
            cuts = choose_thresholds(expit(scores[chosen_on.name]), chosen_on.labels.to_dense())
        test = None if data.test is None else evaluate_scores(scores["test"], data.test.evaluation_labels, cuts)
        train_map = None
        if data.train.truth is not None:
            found, counted = average_precision(scores["train"], data.train.truth.to_dense(), return_counted=True)
            train_map = float(found) if counted else None
        _, split, codes = evaluator
        value = None if codes is None else float(average_precision(scores[split], codes))
        measured = (value, head.epoch, head.score, test, train_map, head.seconds, head.scores)
        known = int(sum(data.train.labels.counts().total[:2]))
        seeds.append(SeedResult(number, label_seed, *measured, known))
        logits.append(scores)
    result = MethodResult(
        plan.label,
        **trained.settings[best],
        label_view=plan.view.description,
        extra_labels=plan.view.extra_labels,
        settings_tried=len(trained.grid),
        seconds=sum(head.seconds for each in trained.grid for head in each),
        seeds=tuple(seeds),
        variant=dict(plan.variant),
        baseline=plan.baseline,
        at_edge=_edges(trained, best, 0 if trained.out_of_fold is not None else plan.candidates[0].epochs),
    )
    return result, logits


def _edges(trained: MethodHeads, best: int, epochs: int) -> dict[str, Edge]:
    """Return which of the chosen values are the lowest or highest compared; the epoch may be "last" for most seeds."""
    settings, close = trained.settings, partial(math.isclose, rel_tol=0.01)  # the search rounds its steps
    chosen, edges = settings[best], dict[str, Edge]()
    for name, other in (("weight_decay", "lr"), ("lr", "weight_decay")):
        own = {key: chosen[key] for key in ("weight_decay", "lr")}
        values = [each[name] for each in settings if close(each[other], own[other]) and {**each, **own} == chosen]
        low, high = (close(edge, own[name]) for edge in (min(values), max(values)))
        if low != high:
            edges[name] = "lowest" if low else "highest"
    late = [head.epoch == epochs > 1 and bool(head.scores) for head in trained.grid[best]]
    if chosen["optimizer"] != "newton" and 2 * sum(late) > len(late):
        edges["epoch"] = "last"
    return edges


def gaps_to_best(
    values: Mapping[str, Sequence[float]], resampled: Mapping[str, NDArray[np.float64]] | None
) -> dict[str, GapToBest]:
    """Return the gap of every method to the best, which is first, in ``values`` by seed and ``resampled`` images."""
    order = sorted(values, key=lambda name: -float(np.mean(values[name])))
    best, gaps = np.asarray(values[order[0]], dtype=np.float64), dict[str, GapToBest]()
    for name in order:
        difference, half_width, images = best - np.asarray(values[name], dtype=np.float64), None, 0.0
        if (count := len(difference)) > 1:
            seeds = float(student_quantile(count - 1, 0.975)) * float(difference.std(ddof=1)) / np.sqrt(count)
            if resampled is not None:  # a resample has a value where it has both states of a class
                found = resampled[order[0]] - resampled[name]
                found = found[np.isfinite(found)]
                images = 1.96 * float(np.std(found, ddof=1)) if len(found) > 1 else 0.0
            half_width = float(np.hypot(seeds, images))
        gaps[name] = GapToBest(float(difference.mean()), half_width)
    return gaps


def draw_resamples(images: int, classes: int, rankings: int) -> NDArray[np.float32]:
    """Draw images with replacement: how often each is in every resample, ``(N, R)``, which are fewer of large data."""
    count = int(np.clip(_MAX_ENTRIES / max(images * classes * rankings, 1), MIN_RESAMPLES, MAX_RESAMPLES))
    weights = bootstrap_weights(images, count, numpy_generator(0, "bootstrap"))
    return np.ascontiguousarray(np.concatenate(list(weights), axis=1))
