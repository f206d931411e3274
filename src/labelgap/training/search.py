"""The search for the settings of a linear head that were left open: its method, penalty and learning rate.

Each candidate is trained on all training images and scored on val, or without val cross-validated: then thresholds,
calibration and accuracy come from out-of-fold scores, and the final head is trained on all images.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from torch import Tensor

from labelgap.core.errors import RunError
from labelgap.core.seeds import numpy_generator
from labelgap.core.stored import damaged, parse_json, reading, validate
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.labels import LabelTable
from labelgap.metrics import average_precision
from labelgap.metrics.bootstrap import bootstrap_weights, resampled_average_precision
from labelgap.training.auto import SearchSpace, candidate_configs, neighbors
from labelgap.training.config import RunConfig
from labelgap.training.folds import FoldTask, assign_folds, fold_groups, out_of_fold_logits, select_rows, train_configs
from labelgap.training.history import ComparedSettings, SearchedSettings, finite
from labelgap.training.plan import TrainingPlan
from labelgap.training.progress import Reporter
from labelgap.training.run_files import SEARCH_FILE
from labelgap.training.selection import Selection, choose_selection

MIN_SEARCH_IMAGES: Final = 2000
"""Of more images, so many are enough to compare settings: the best penalty hardly depends on their number."""
MAX_SEARCH_VALUES: Final = 80_000_000
"""They are compared on all images whose number, times features and classes, is no larger."""
QUICK_EPOCHS: Final = {False: 15, True: 5}
"""Of "newton" at most; fewer from half of these values on: the order of penalties shows before they converge."""
RESAMPLES: Final = 200
ROUNDS: Final = 5  # rounds of a search: the first candidates, then those around the best ones so far
CLOSED: Final = SearchSpace()
_SEARCHED: Final = set(SearchedSettings.model_fields)
_REMEDY: Final = "Train into a new folder."


class _StoredSearch(BaseModel):
    settings: SearchedSettings
    compared: list[ComparedSettings] = Field(min_length=1)


@dataclass(frozen=True, eq=False)
class Search:
    """The settings that were found, and the score of each candidate; ``logits`` are out-of-fold, or None."""

    settings: Mapping[str, Any]
    compared: Sequence[Mapping[str, Any]]
    logits: NDArray[np.float32] | None = None

    @property
    def best_score(self) -> float | None:
        """The highest score; None where nothing can be ranked."""
        return max((line["score"] for line in self.compared if line["score"] is not None), default=None)

    @property
    def reason(self) -> str | None:
        """What was chosen among how many settings, and by which scores; None where nothing was open or ranked."""
        if len(self.compared) == 1 or self.best_score is None:
            return None
        best: dict[str, float] = {}
        for line in self.compared:
            if line["score"] is not None:
                best[line["method"]] = max(best.get(line["method"], 0.0), line["score"])
        scores = ", ".join(f"{method} {100 * score:.1f}" for method, score in best.items())
        by = "on val" if self.logits is None else "by cross-validation on the known labels"
        scores = f"average precision in %, weighted by known presents: {scores}"
        chosen = f"it was the best of {len(self.compared)} settings {by}"
        if best.get(self.settings["method"], 1.0) < max(best.values(), default=0.0):
            chosen = f"no other of {len(self.compared)} settings was ahead {by} by more than chance"
        return f"with weight decay {self.settings['weight_decay']:.3g} {chosen} ({scores})"

    def save(self, folder: Path, fingerprint: str) -> None:
        """Write it to the folder of a run."""
        tensors = {} if self.logits is None else {"logits": torch.from_numpy(self.logits)}
        about = {"settings": dict(self.settings), "compared": [dict(each) for each in self.compared]}
        metadata = {"fingerprint": fingerprint, **{name: json.dumps(value) for name, value in about.items()}}
        write_tensors(folder / SEARCH_FILE, tensors, metadata)

    @classmethod
    def load(cls, folder: Path, fingerprint: str, labels: LabelTable, methods: Collection[str]) -> Search | None:
        """Read that of some labels, of one of ``methods`` alone: a method can name code; None where there is none."""
        path = folder / SEARCH_FILE
        if not path.exists():
            return None
        tensors, metadata = read_tensors(path, remedy=_REMEDY)
        if metadata.get("fingerprint") != fingerprint:
            return None
        with reading(path, _REMEDY):
            about = {name: parse_json(metadata[name].encode()) for name in ("settings", "compared")}
            logits = tensors["logits"].numpy() if tensors else None
        stored = validate(about, _StoredSearch, path, _REMEDY)
        if stored.settings.method not in methods or (logits is not None and logits.shape != labels.shape):
            raise damaged(path, "it is of other images, classes or methods", _REMEDY)
        return cls(stored.settings.model_dump(), [line.model_dump() for line in stored.compared], logits)


def stored_logits(folder: Path, labels: LabelTable) -> NDArray[np.float32] | None:
    """Return the out-of-fold logits of a finished run with these training labels; None where it has none."""
    path = folder / SEARCH_FILE
    found = read_tensors(path, remedy=_REMEDY)[0].get("logits") if path.exists() else None
    if found is None or found.shape != labels.shape or found.dtype != torch.float32:
        return None
    logits: NDArray[np.float32] = found.numpy()
    return logits if np.isfinite(logits).all() else None


def search_settings(plan: TrainingPlan, features: Mapping[str, Tensor], reporter: Reporter) -> Search:
    """Compare the settings that a plan leaves to a search, on val or by the folds of its configuration."""
    assert plan.search is not None
    data, config, train = plan.data, plan.config, features["train"]
    candidates = candidate_configs(config, data.train.labels, train.shape[1], plan.search)
    judge, fold = plan.selection, None
    if data.val is None:
        groups = fold_groups(data, "train", train.cpu().numpy())
        fold = assign_folds(data.train.labels, config.folds, config.seed, groups)
    elif judge.labels is None:
        judge = choose_selection(data.val.labels, None)
    how: dict[str, Any] = {"device": plan.device, "space": plan.search, "advance": reporter.advance}
    with reporter.bar("search on val" if fold is None else "cross-validation", ROUNDS):
        return search_heads(features, data.train.labels, candidates, fold if fold is not None else judge, **how)


Row = TypeVar("Row", bound=Hashable)
Compared = tuple[list[RunConfig], list[float]]
"""Configurations, and the score of each: NaN where training has diverged, -inf where nothing can be ranked."""


def search_rounds(
    rows: Mapping[Row, tuple[Sequence[RunConfig], SearchSpace]],
    score: Callable[[Sequence[tuple[Row, RunConfig]]], list[float]],
) -> dict[Row, Compared]:
    """Score the first candidates of all rows together, then those around the best of each, round by round."""
    compared: dict[Row, Compared] = {row: ([], []) for row in rows}
    candidates = [(row, config) for row, (first, _) in rows.items() for config in first]
    for _ in range(ROUNDS):
        for (row, config), value in zip(candidates, score(candidates), strict=True):
            compared[row][0].append(config)
            compared[row][1].append(value)
        candidates = [(row, config) for row, (_, space) in rows.items() for config in neighbors(*compared[row], space)]
        if not candidates:
            break
    return compared


def best_of(scores: Sequence[float]) -> int | None:
    """Return the number of the highest score, the first of equals; None where all are NaN."""
    return None if all(map(math.isnan, scores)) else int(np.nanargmax(scores))


@dataclass(frozen=True)
class _Best:
    """The best candidate of a method: with its head where val judges, else with its out-of-fold logits."""

    config: RunConfig
    score: float
    found: Any


def search_heads(
    features: Mapping[str, Tensor],
    labels: LabelTable,
    candidates: Sequence[RunConfig],
    judge: Selection | NDArray[np.int64],
    *,
    device: torch.device,
    space: SearchSpace = CLOSED,
    advance: Callable[[int], None] = lambda count: None,
) -> Search:
    """Score every candidate, and those around the best ones; choose the one with the best score, the first of equals.

    The ``judge`` is the selection on val, or the fold ``(N,)`` of every image, which gives out-of-fold logits too.
    """
    rows = searched_rows(labels, features["train"].shape[1], candidates, seed=candidates[0].seed)
    part, searched, best = select_rows(features["train"], rows), labels.select(rows), dict[str, _Best]()
    part_fold = rows if isinstance(judge, Selection) else judge[rows]  # one array: heads with it share their features

    def score(asked: Sequence[tuple[str, RunConfig]]) -> list[float]:
        configs = [config for _, config in asked]
        quick, found = quick_configs(configs, part, labels), list[Any]()
        if isinstance(judge, Selection):
            how: dict[str, Any] = {"order_seed": configs[0].seed, "device": device, "images": len(labels)}
            found = train_configs({"train": part, "val": features["val"]}, searched, quick, judge, **how)
            scores = [
                math.nan if head.failed else -math.inf if head.best_score is None else head.best_score for head in found
            ]
        else:
            tasks = [FoldTask(config, searched, part_fold) for config in quick]
            scores, found = score_folds(part, tasks, device, images=len(labels))
        for each in map(_Best, configs, scores, found):
            before = best.get(each.config.method)
            if not math.isnan(each.score) and (before is None or each.score > before.score):
                best[each.config.method] = each
        advance(1)
        return scores

    configs, scores = search_rounds({"": (candidates, space)}, score)[""]
    if (number := best_of(scores)) is None:
        where = "with all settings" if isinstance(judge, Selection) else "in every fold"
        raise RunError(f"training has diverged {where}: give a lower --lr, or a higher --weight-decay.")
    compared = [
        {**config.model_dump(include=_SEARCHED), "score": finite(value)}
        for config, value in zip(configs, scores, strict=True)
    ]
    chosen, first = configs[number], candidates[0].method
    if isinstance(judge, Selection):
        if len(best) > 1 and judge.rule in ("clean", "known") and first in best:
            chosen = _simplest(best, first, features["val"], judge)
        return Search(chosen.model_dump(include=_SEARCHED), compared)
    logits = best[chosen.method].found
    if len(rows) < len(labels) or quick_configs([chosen], part, labels) != [chosen]:
        (logits,) = out_of_fold_logits(features["train"], [FoldTask(chosen, labels, judge)], device)
    return Search(chosen.model_dump(include=_SEARCHED), compared, logits)


def _simplest(best: Mapping[str, _Best], first: str, features: Tensor, selection: Selection) -> RunConfig:
    """Return the first method's best configuration, unless another is ahead on val by half a standard error or more."""
    assert selection.labels is not None
    vectors, codes = features.float().cpu().numpy(), selection.labels.to_dense()
    drawn = bootstrap_weights(len(codes), RESAMPLES, numpy_generator(0, "search on val"))
    weights = np.ascontiguousarray(np.concatenate(list(drawn), axis=1))
    resampled = {
        method: resampled_average_precision(vectors @ each.found.weight.T + each.found.bias, codes, weights)
        for method, each in best.items()
    }
    margins = {
        method: each.score - best[first].score - 0.5 * float(np.nanstd(resampled[method] - resampled[first]))
        for method, each in best.items()
    }
    return best[max(margins, key=lambda method: (margins[method], method == first))].config


def score_folds(
    features: Tensor, tasks: Sequence[FoldTask], device: torch.device, *, images: int
) -> tuple[list[float], list[NDArray[np.float32]]]:
    """Return the score of every task, and its out-of-fold logits; there are ``images``, of which these are a part."""
    logits = out_of_fold_logits(features, tasks, device, images=images)
    tables = {id(task.labels): task.labels for task in tasks}
    judges = {key: choose_selection(table, None) for key, table in tables.items()}
    scores = [selection_score(judges[id(task.labels)], each) for task, each in zip(tasks, logits, strict=True)]
    return scores, logits


def selection_score(selection: Selection, logits: NDArray[np.float32]) -> float:
    """Return the average precision by a selection rule, classes weighted by known presents: rare ones are chance."""
    if not np.isfinite(logits).all():
        return math.nan
    if selection.labels is None:
        return -math.inf
    unknown: Literal["absent", "ignore"] = "absent" if selection.rule == "observed" else "ignore"
    values = average_precision(logits, selection.labels.to_dense(), average=None, unknown=unknown)
    counted = np.isfinite(values)
    weights = selection.labels.counts().present[counted]
    return float(np.average(values[counted], weights=weights)) if weights.sum() else -math.inf


def searched_rows(labels: LabelTable, width: int, candidates: Sequence[RunConfig], *, seed: int) -> NDArray[np.int64]:
    """Return the training images on which candidates are compared: all, or a part that is drawn."""
    rows, most = np.arange(len(labels)), max(MIN_SEARCH_IMAGES, MAX_SEARCH_VALUES // (width * len(labels.classes)))
    if len(rows) <= most or len(candidates) == 1:
        return rows
    return np.sort(numpy_generator(seed, "search").permutation(rows)[:most])


def quick_configs(configs: Sequence[RunConfig], features: Tensor, labels: LabelTable) -> list[RunConfig]:
    """Return configurations with as many epochs as a comparison needs; those of Adam are part of what is compared."""
    most = QUICK_EPOCHS[2 * features.numel() * len(labels.classes) > MAX_SEARCH_VALUES]
    epochs = [min(config.epochs, most) if config.optimizer == "newton" else config.epochs for config in configs]
    return [config.model_copy(update={"epochs": each}) for config, each in zip(configs, epochs, strict=True)]
