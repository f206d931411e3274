"""Select the hyperparameters of each method on val, and evaluate the selected heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.studies.compare.comparison import Comparison, MethodResult, SeedResult, SkippedMethod, Trial
from labelgap.studies.compare.evaluation import HeadEvaluation, choose_metric, evaluate_head, gaps_over_seeds_and_images
from labelgap.studies.compare.features import SplitFeatures
from labelgap.studies.compare.grid import Hyperparameters
from labelgap.studies.compare.heads import StoredHead
from labelgap.studies.compare.label_views import LabelView
from labelgap.training.progress import Reporter
from labelgap.training.selection import Selection

__all__ = ["MethodPlan", "SelectedMethod", "evaluate_methods", "select_setting"]


@dataclass(frozen=True, eq=False)
class MethodPlan:
    """A method with the labels it sees and its grid."""

    method: str
    view: LabelView
    grid: tuple[Hyperparameters, ...]


@dataclass(frozen=True, eq=False)
class SelectedMethod:
    """A method at the setting that val selects, with a head for each seed."""

    plan: MethodPlan
    setting: Hyperparameters
    heads: tuple[StoredHead, ...]
    seconds: float


def evaluate_methods(
    plans: Sequence[MethodPlan],
    heads: Mapping[MethodPlan, Sequence[StoredHead]],
    features: SplitFeatures,
    data: Dataset,
    selection: Selection,
    folder: Path,
    reporter: Reporter,
) -> Comparison:
    """Select the setting of every method, and evaluate its heads.

    Args:
        plans: the methods.
        heads: of each plan, setting by setting, all seeds of one before the next.
        features: of all splits.
        data: the data set.
        selection: the rule that selected the epochs.
        folder: of the comparison.
        reporter: shows the progress.
    """
    evaluator = choose_metric(data, selection)
    outcomes = [select_setting(plan, heads[plan]) for plan in plans]
    selected = [outcome for outcome in outcomes if isinstance(outcome, SelectedMethod)]
    results: list[MethodResult] = []
    values: dict[str, list[float]] = {}
    logits: dict[str, list[NDArray[np.float32]]] = {}
    with reporter.bar("measuring", len(selected)):
        for chosen in selected:
            view = chosen.plan.view
            evaluations = [
                evaluate_head(head, features.splits, dataset, evaluator)
                for head, dataset in zip(chosen.heads, view.datasets, strict=True)
            ]
            results.append(_method_result(chosen, evaluations))
            if not view.extra_labels and evaluator.codes is not None:
                values[chosen.plan.method] = results[-1].values
                logits[chosen.plan.method] = [each.logits for each in evaluations if each.logits is not None]
            reporter.advance()
    gaps = gaps_over_seeds_and_images(values, logits, evaluator) if values else {}
    results = [replace(row, gap=gaps.get(row.method)) for row in results]
    results.sort(key=lambda row: (row.extra_labels, -(row.mean if row.mean is not None else -1.0)))
    return Comparison(
        folder,
        f"Which method on {data.name}?",
        {},
        selection.rule,
        evaluator.metric,
        tuple(results),
        tuple(outcome for outcome in outcomes if isinstance(outcome, SkippedMethod)),
        tuple(_trials(selected, heads)),
    )


def select_setting(plan: MethodPlan, heads: Sequence[StoredHead]) -> SelectedMethod | SkippedMethod:
    """Select the setting with the highest mean score over seeds; the first of equals."""
    seeds = len(plan.view.datasets)
    best: tuple[float, Hyperparameters, tuple[StoredHead, ...]] | None = None
    for number, setting in enumerate(plan.grid):
        own = tuple(heads[number * seeds : (number + 1) * seeds])
        if any(head.failed is not None for head in own):
            continue
        score = float(np.mean([0.0 if head.score is None else head.score for head in own]))
        if best is None or score > best[0]:
            best = score, setting, own
    if best is None:
        return SkippedMethod(plan.method, next(head.failed for head in heads if head.failed is not None))
    return SelectedMethod(plan, best[1], best[2], sum(head.seconds for head in heads))


def _method_result(selected: SelectedMethod, evaluations: Sequence[HeadEvaluation]) -> MethodResult:
    plan, setting = selected.plan, selected.setting
    seeds = [
        SeedResult(
            seed=number,
            label_seed=plan.view.label_seeds[number],
            value=evaluation.value,
            epoch=head.epoch,
            score=head.score,
            test=evaluation.test,
            train_map=evaluation.train_map,
            seconds=head.seconds,
        )
        for number, (head, evaluation) in enumerate(zip(selected.heads, evaluations, strict=True))
    ]
    return MethodResult(
        plan.method,
        dict(setting.options),
        setting.lr,
        setting.batch_size,
        plan.view.description,
        plan.view.extra_labels,
        len(plan.grid),
        selected.seconds,
        tuple(seeds),
    )


def _trials(selected: Sequence[SelectedMethod], heads: Mapping[MethodPlan, Sequence[StoredHead]]) -> Iterator[Trial]:
    for chosen in selected:
        plan, seeds = chosen.plan, len(chosen.plan.view.datasets)
        for number, head in enumerate(heads[plan]):
            setting = plan.grid[number // seeds]
            yield Trial(
                plan.method,
                dict(setting.options),
                setting.lr,
                setting.batch_size,
                number % seeds,
                head.epoch,
                head.score,
                setting is chosen.setting,
                head.failed,
            )
