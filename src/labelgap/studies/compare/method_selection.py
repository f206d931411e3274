"""From trained heads to the table of a comparison: the setting of each method, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """A method that takes part: what it sees, and the settings to be tried."""

    method: str
    shown: LabelView
    settings: tuple[Hyperparameters, ...]


@dataclass(frozen=True, eq=False)
class SelectedMethod:
    """An entrant at the setting that val chose, with a head for each seed."""

    entrant: MethodPlan
    setting: Hyperparameters
    heads: tuple[StoredHead, ...]
    seconds: float


def evaluate_methods(
    entrants: Sequence[MethodPlan],
    heads: Mapping[MethodPlan, Sequence[StoredHead]],
    features: SplitFeatures,
    data: Dataset,
    selection: Selection,
    folder: Path,
    reporter: Reporter,
) -> Comparison:
    """Choose the setting of every method, and measure its heads.

    Args:
        entrants: the methods.
        heads: of each, setting by setting, all seeds of one before the next.
        features: of all splits.
        data: what is compared on.
        selection: by which epochs were chosen.
        folder: of the comparison.
        reporter: shows how far it is.
    """
    scale = choose_metric(data, selection)
    chosen = [select_setting(entrant, heads[entrant]) for entrant in entrants]
    failed = [each for each in chosen if isinstance(each, SkippedMethod)]
    played = [each for each in chosen if isinstance(each, SelectedMethod)]
    results: list[MethodResult] = []
    values: dict[str, list[float]] = {}
    logits: dict[str, list[NDArray[np.float32]]] = {}
    with reporter.bar("measuring", len(played)):
        for each in played:
            scored = [
                evaluate_head(head, features.splits, shown, scale)
                for head, shown in zip(each.heads, each.entrant.shown.data, strict=True)
            ]
            results.append(_result(each, scored))
            if not each.entrant.shown.extra_labels and scale.codes is not None:
                values[each.entrant.method] = results[-1].values
                logits[each.entrant.method] = [one.logits for one in scored if one.logits is not None]
            reporter.advance()
    behind = gaps_over_seeds_and_images(values, logits, scale) if values else {}
    results = [replace(row, gap=behind.get(row.method)) for row in results]
    results.sort(key=lambda row: (row.extra_labels, -(row.mean if row.mean is not None else -1.0)))
    return Comparison(
        folder,
        f"Which method on {data.name}?",
        {},
        selection.rule,
        scale.measure,
        tuple(results),
        tuple(failed),
        tuple(_tried(played, heads)),
    )


def select_setting(entrant: MethodPlan, heads: Sequence[StoredHead]) -> SelectedMethod | SkippedMethod:
    """Take the setting with the highest mean score over seeds; the first of those that are equal."""
    seeds = len(entrant.shown.data)
    best: tuple[float, Hyperparameters, tuple[StoredHead, ...]] | None = None
    for place, setting in enumerate(entrant.settings):
        mine = tuple(heads[place * seeds : (place + 1) * seeds])
        if any(head.failed is not None for head in mine):
            continue
        score = float(np.mean([0.0 if head.score is None else head.score for head in mine]))
        if best is None or score > best[0]:
            best = score, setting, mine
    if best is None:
        return SkippedMethod(entrant.method, next(head.failed for head in heads if head.failed is not None))
    return SelectedMethod(entrant, best[1], best[2], sum(head.seconds for head in heads))


def _result(chosen: SelectedMethod, scored: Sequence[HeadEvaluation]) -> MethodResult:
    shown = chosen.entrant.shown
    seeds = [
        SeedResult(
            seed=number,
            label_seed=shown.label_seeds[number],
            value=one.value,
            epoch=head.epoch,
            score=head.score,
            test=one.test,
            train_map=one.train_map,
            seconds=head.seconds,
        )
        for number, (head, one) in enumerate(zip(chosen.heads, scored, strict=True))
    ]
    return MethodResult(
        chosen.entrant.method,
        dict(chosen.setting.options),
        chosen.setting.lr,
        chosen.setting.batch_size,
        shown.words,
        shown.extra_labels,
        len(chosen.entrant.settings),
        chosen.seconds,
        tuple(seeds),
    )


def _tried(played: Sequence[SelectedMethod], heads: Mapping[MethodPlan, Sequence[StoredHead]]) -> Iterable[Trial]:
    for each in played:
        seeds = len(each.entrant.shown.data)
        for place, head in enumerate(heads[each.entrant]):
            setting = each.entrant.settings[place // seeds]
            yield Trial(
                each.entrant.method,
                dict(setting.options),
                setting.lr,
                setting.batch_size,
                place % seeds,
                head.epoch,
                head.score,
                setting is each.setting,
                head.failed,
            )
