"""Select the setting of each method, and evaluate the selected heads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from labelgap.data.dataset import Dataset
from labelgap.metrics import Thresholds, average_precision, choose_thresholds
from labelgap.metrics.bootstrap import resampled_average_precision
from labelgap.studies.compare.comparison import Comparison
from labelgap.studies.compare.grid import Hyperparameters
from labelgap.studies.compare.heads import StoredHead
from labelgap.studies.compare.label_views import LabelView
from labelgap.studies.compare.metric import MetricEvaluator, choose_metric
from labelgap.studies.compare.results import BASELINE, MethodResult, SeedResult, SkippedMethod, Trial
from labelgap.studies.compare.significance import GapToBest, draw_resamples, gaps_to_best
from labelgap.studies.compare.variants import variant_name
from labelgap.training.config import RunConfig
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.progress import Reporter
from labelgap.training.selection import Selection

DIVERGED: Final = "training has diverged in a fold: give a lower --lr, or a higher --weight-decay"

HeadGrid = Sequence[Sequence[StoredHead]]
"""The heads of a method: for each setting of its grid, one for each seed."""
Logits = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class MethodPlan:
    """A row of the comparison.

    Attributes:
        method: its name.
        view: the labels it sees.
        config: before any search.
        variant: the values that set it apart from other rows of the method.
        first_seed: of its seeds.
        baseline: whether it is logistic regression, by the method `an`, and not a method of its own.
        candidates: the settings that are compared first.
        left_open: which of them are searched further, as ``neighbors`` takes it.
    """

    method: str
    view: LabelView
    config: RunConfig
    variant: Mapping[str, Any] = field(default_factory=dict)
    first_seed: int = 0
    baseline: bool = False
    candidates: Sequence[RunConfig] = ()
    left_open: Mapping[str, bool] = field(default_factory=dict)

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
    """The heads of a method.

    Attributes:
        grid: for each setting those of each seed; of a cross-validation, the final heads of the chosen setting.
        settings: that were compared.
        best: the chosen setting; None where training failed.
        out_of_fold: ``(N, K)`` logits of the training images for each seed, by heads that have not seen their labels;
            None where val chose the setting.
    """

    grid: HeadGrid
    settings: Sequence[Hyperparameters]
    best: int | None
    out_of_fold: Sequence[NDArray[np.float32]] | None = None


def evaluate_methods(
    heads: Mapping[MethodPlan, MethodHeads],
    features: Mapping[str, Tensor],
    data: Dataset,
    selection: Selection,
    folder: Path,
    reporter: Reporter,
) -> Comparison:
    """Select the setting of every method, and evaluate its heads on the features of every split."""
    evaluator = choose_metric(data, selection)
    results: list[MethodResult] = []
    skipped: list[SkippedMethod] = []
    trials: list[Trial] = []
    logits: dict[str, list[NDArray[np.float32]]] = {}
    with reporter.bar("measuring", len(heads)):
        for plan, trained in heads.items():
            reporter.advance()
            grid, best = trained.grid, trained.best
            if best is None:
                failures = [head.failed for seeds in grid for head in seeds if head.failed is not None]
                skipped.append(SkippedMethod(plan.name, failures[0] if failures else DIVERGED))
                continue
            result, own_logits = _evaluate_method(plan, trained, best, features, evaluator)
            results.append(result)
            trials += [
                Trial(
                    plan.label,
                    **asdict(setting),
                    seed=seed,
                    epoch=head.epoch,
                    score=head.score,
                    selected=number == best,
                    failed=head.failed,
                )
                for number, (setting, seeds) in enumerate(zip(trained.settings, grid, strict=True))
                for seed, head in enumerate(seeds, plan.first_seed)
            ]
            if not plan.view.extra_labels and evaluator.codes is not None:
                logits[plan.name] = [each[evaluator.split] for each in own_logits]
    gaps = _gaps({row.name: row.values for row in results if row.name in logits}, logits, evaluator)
    results = [replace(row, gap=gaps.get(row.name)) for row in results]
    results.sort(key=lambda row: (row.extra_labels, -(row.mean if row.mean is not None else -1.0)))
    title = f"Which method on {data.name}?"
    parts = tuple(results), tuple(skipped), tuple(trials)
    return Comparison(folder, title, {}, selection.rule, evaluator.metric, *parts)


def _evaluate_method(
    plan: MethodPlan, trained: MethodHeads, best: int, features: Mapping[str, Tensor], evaluator: MetricEvaluator
) -> tuple[MethodResult, list[Logits]]:
    """Return the result of a method, and the logits of its selected heads on every split."""
    grid, seeds = trained.grid, list[SeedResult]()
    logits: list[Logits] = []
    for seed, (head, data) in enumerate(zip(grid[best], plan.view.datasets, strict=True)):
        weight, bias = (values.to(features["train"].device) for values in head.weights())
        scores = {name: torch.addmm(bias, values, weight.t()).cpu().numpy() for name, values in features.items()}
        cuts = Thresholds.default(len(data.classes))
        if trained.out_of_fold is not None:
            scores["train"] = trained.out_of_fold[seed]
            cuts = choose_thresholds(expit(scores["train"]), data.train.labels.to_dense())
        elif data.val is not None:
            cuts = choose_thresholds(expit(scores["val"]), data.val.labels.to_dense())
        test = None if data.test is None else evaluate_scores(scores["test"], data.test.evaluation_labels, cuts)
        train_map = None
        if data.train.truth is not None:
            value, counted = average_precision(scores["train"], data.train.truth.to_dense(), return_counted=True)
            train_map = float(value) if counted else None
        measured = (evaluator.value(scores), head.epoch, head.score, test, train_map, head.seconds, head.scores)
        known = int(sum(data.train.labels.counts().total[:2]))
        seeds.append(SeedResult(plan.first_seed + seed, plan.view.label_seeds[seed], *measured, known))
        logits.append(scores)
    result = MethodResult(
        plan.label,
        **asdict(trained.settings[best]),
        label_view=plan.view.description,
        extra_labels=plan.view.extra_labels,
        settings_tried=len(grid),
        seconds=sum(head.seconds for each in grid for head in each),
        seeds=tuple(seeds),
        variant=dict(plan.variant),
        baseline=plan.baseline,
        at_edge=_edges(trained, best, 0 if trained.out_of_fold is not None else plan.candidates[0].epochs),
    )
    return result, logits


def _edges(trained: MethodHeads, best: int, epochs: int) -> dict[str, Literal["lowest", "highest", "last"]]:
    """Return which of the chosen values are the lowest or highest that were compared with the others as chosen.

    The epoch is "last" where it is so for most seeds; not where val selects none, with 0 ``epochs``, nor of "newton".
    """
    chosen = trained.settings[best]
    edges: dict[str, Literal["lowest", "highest", "last"]] = {}
    for name, other in (("weight_decay", "lr"), ("lr", "weight_decay")):
        alike = [each for each in trained.settings if _close(getattr(each, other), getattr(chosen, other))]
        values = [
            getattr(each, name)
            for each in alike
            if replace(each, weight_decay=chosen.weight_decay, lr=chosen.lr) == chosen
        ]
        low, high = (_close(edge, getattr(chosen, name)) for edge in (min(values), max(values)))
        if low != high:
            edges[name] = "lowest" if low else "highest"
    late = [head.epoch == epochs > 1 and bool(head.scores) for head in trained.grid[best]]
    if chosen.optimizer != "newton" and 2 * sum(late) > len(late):
        edges["epoch"] = "last"
    return edges


def _close(one: float, other: float) -> bool:
    """Return whether two values are the same step of a search, which rounds them."""
    return math.isclose(one, other, rel_tol=0.01)


def _gaps(
    values: Mapping[str, Sequence[float]],
    logits: Mapping[str, Sequence[NDArray[np.float32]]],
    evaluator: MetricEvaluator,
) -> dict[str, GapToBest]:
    """Compare every method with the best: over seeds, and over images drawn with replacement."""
    resampled = None
    if evaluator.codes is not None and values and all(len(seeds) > 1 for seeds in values.values()):
        images, classes = evaluator.codes.shape
        weights = draw_resamples(images, classes, sum(map(len, logits.values())))
        resampled = {
            name: np.mean([resampled_average_precision(each, evaluator.codes, weights) for each in seeds], axis=0)
            for name, seeds in logits.items()
        }
    return gaps_to_best(values, resampled) if values else {}
