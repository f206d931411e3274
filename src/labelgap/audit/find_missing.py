"""``find_missing``: from runs to a ranked list of labels that are probably present but were never given."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.candidates import FILE, FORMAT, Audit, write_candidates
from labelgap.audit.fold_heads import FoldTrainingSetup, HeadConfig, train_folds
from labelgap.audit.fold_networks import FoldNetworks
from labelgap.audit.folds import assign_folds, duplicate_groups
from labelgap.audit.ranking import CandidateLimits, CandidateRanking, rank_candidates
from labelgap.audit.scorers import Scorer
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.readers.features import FEATURES, FeatureVectors
from labelgap.data.registry import load_from_recipe
from labelgap.labels import LabelTable
from labelgap.models import is_pretrained
from labelgap.training import Run, open_run
from labelgap.training.config.cost import format_duration
from labelgap.training.config.schema import RunConfig
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.features.extract import extract_features
from labelgap.training.features.precomputed import build_classifier
from labelgap.training.progress import Reporter
from labelgap.training.selection import choose_selection

__all__ = ["Runs", "find_missing"]

Place = str | os.PathLike[str]
Runs = Run | Place | Sequence[Run | Place]


@dataclass(frozen=True, eq=False)
class _Work:
    """What all steps of an audit need."""

    data: Dataset
    splits: tuple[str, ...]
    folds: int
    seed: int
    device: str
    workers: int | None
    reporter: Reporter

    @property
    def tables(self) -> dict[str, LabelTable]:
        return {name: self.data.split(name).labels for name in self.splits}

    def fold(self, features: NDArray[Any] | None = None) -> NDArray[np.int64]:
        return assign_folds(
            self.data.train.labels, self.folds, self.seed, duplicate_groups(self.data, "train", features)
        )


def find_missing(
    runs: Runs,
    *,
    splits: str | Sequence[str] = "train",
    folds: int = 5,
    per_class: int = 2_000,
    limit: int = 100_000,
    seed: int = 0,
    data: Dataset | None = None,
    out: Place | None = None,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> Audit:
    """Rank the unknown labels of runs' data by the chance that they are present, and write ``candidates.parquet``.

    Every image is scored by models that have not seen its labels: for each fold, linear heads on the features of the
    runs' backbones as they came, trained with the runs' methods and settings. (A backbone without weights of its own is
    trained anew for each fold.) The log-odds of several runs are averaged.

    Args:
        runs: a run, its folder, or several that were trained on the same data.
        splits: which to look at: "train", "val", or both. No model has seen val; it is scored by those of all folds.
        folds: how many.
        per_class: candidates of a class that are kept.
        limit: candidates that are kept in all. Half of them are shared out evenly among the classes.
        seed: of folds, order and random candidates.
        data: what the runs were trained on; opened again as they say when not given.
        out: a folder, or a file that ends in .parquet; the first run's folder when not given.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images, where features are not in the cache.
        quiet: say nothing.

    Returns:
        The candidates: of the kind "missing", ranked; "wrong", known labels that look wrong; and "random", a tenth as
        many, drawn from all unknown labels, from which a review learns how many are missing.
    """
    opened = _opened(runs)
    names = (splits,) if isinstance(splits, str) else tuple(dict.fromkeys(splits))
    chosen = load_from_recipe(opened[0].config.data) if data is None else data
    _check(opened, chosen, names, data is None)
    work = _Work(chosen, names, folds, seed, device, workers, Reporter(quiet))
    amounts = CandidateLimits(per_class, limit)
    images = sum(map(len, work.tables.values()))
    with _scorers(opened, work) as scorers, work.reporter.bar("ranking", 2 * images):
        ranking = rank_candidates(work.tables, scorers, amounts, seed, advance=work.reporter.advance)
        target = opened[0].path if out is None else Path(out)
        path = target if target.suffix == ".parquet" else target / FILE
        return write_candidates(path, ranking, work.tables, _about(opened, work, amounts, ranking))


def _opened(runs: Runs) -> list[Run]:
    if isinstance(runs, Run | str | os.PathLike):
        runs = [runs]
    if not runs:
        raise InputError("an audit needs a run at least.")
    return [run if isinstance(run, Run) else open_run(run) for run in runs]


def _check(runs: Sequence[Run], data: Dataset, splits: Sequence[str], opened: bool) -> None:
    """Refuse runs that do not speak of the same labels, and splits that are none or that were never to be seen."""
    if not splits or any(name not in ("train", "val") for name in splits):
        raise InputError(f"splits {', '.join(splits) or 'none'}: look at train, val, or both; test is for measuring.")
    for name in splits:
        data.split(name)
    for run in runs:
        if run.config.classes != data.classes:
            raise InputError(f"{run.path} was trained on other classes than {data.name} has.")
        if opened and run.config.data != runs[0].config.data:
            other = load_from_recipe(run.config.data)
            if any(other.split(name).labels != data.split(name).labels for name in ("train", *splits)):
                raise InputError(f"{run.path} was trained on other labels than {runs[0].path}: audit them apart.")


@contextmanager
def _scorers(runs: Sequence[Run], work: _Work) -> Iterator[list[Scorer]]:
    """Yield a scorer for each run, in their order; what they keep on the disk is removed when all is done."""
    made: dict[int, Scorer] = {}
    sources: dict[tuple[Any, ...], list[int]] = {}
    networks: list[FoldNetworks] = []
    for number, run in enumerate(runs):
        if run.config.backbone != FEATURES and not is_pretrained(run.config.backbone, run.config.weights):
            networks.append(FoldNetworks(run, work.data, work.fold(), work.device, work.workers))
            work.reporter.log(_announced(run, work.folds))
            with work.reporter.bar(f"{run.config.method}: networks of {work.folds} folds", work.folds):
                made[number] = networks[-1].scorer(work.splits, work.reporter.advance)
        else:
            config = run.config
            sources.setdefault((config.backbone, config.weights, config.size, config.select), []).append(number)
    for members in sources.values():
        configs = [runs[number].config for number in members]
        made |= dict(zip(members, _heads(configs, work), strict=True))
    yield [made[number] for number in range(len(runs))]
    for network in networks:
        network.clear()


def _announced(run: Run, folds: int) -> str:
    """Say what is going to take long, and why."""
    seconds = float(run.metrics.get("seconds", 0.0)) * (folds - 1)
    long = f", about {format_duration(seconds)} in all" if seconds else ""
    return f"{run.config.backbone} starts from nothing: it is trained anew for each of {folds} folds{long}"


def _heads(configs: Sequence[RunConfig], work: _Work) -> Sequence[Scorer]:
    """Train the heads of runs that share their features."""
    data, device = work.data, choose_device(work.device)
    observed, truth = (None, None) if data.val is None else (data.val.labels, data.val.truth)
    selection = choose_selection(observed, truth, configs[0].select)
    needed = {*work.splits, "train", *(() if selection.labels is None else ("val",))}
    features = _features(configs[0], work, sorted(needed), device)
    learning = FoldTrainingSetup(
        features, data.train.labels, work.fold(features["train"]), selection, device, work.seed
    )
    settings = [HeadConfig.of(config) for config in configs]
    groups = len({each.alike() for each in settings})
    with work.reporter.bar(f"heads of {work.folds} folds", work.folds * groups):
        return train_folds(learning, settings, work.reporter.advance)


def _features(
    config: RunConfig, work: _Work, splits: Sequence[str], device: torch.device
) -> Mapping[str, NDArray[Any]]:
    """Return the features of splits: those that the data are, or those of the backbone as it came."""
    sources = {name: work.data.split(name).images for name in splits}
    given = {name: images.vectors for name, images in sources.items() if isinstance(images, FeatureVectors)}
    if given:
        return given
    backbone = build_classifier(config, None).backbone
    with work.reporter.bar("features", sum(map(len, sources.values()))):
        return {
            name: extract_features(
                images,
                backbone,
                device=device,
                workers=choose_workers(work.workers, device),
                advance=work.reporter.advance,
                log=work.reporter.log,
            )
            for name, images in sources.items()
        }


def _about(runs: Sequence[Run], work: _Work, amounts: CandidateLimits, ranking: CandidateRanking) -> dict[str, Any]:
    unknown = sum(table.counts().unknown for table in work.tables.values())
    return {
        "format": FORMAT,
        "runs": [str(run.path) for run in runs],
        "data": dict(runs[0].config.data),
        "splits": list(work.splits),
        "images": sum(map(len, work.tables.values())),
        "unknown_total": int(np.sum(unknown)),
        "unknown_per_class": dict(zip(work.data.classes, np.asarray(unknown).tolist(), strict=True)),
        "method": ", ".join(dict.fromkeys(run.config.method for run in runs)),
        "backbone": ", ".join(dict.fromkeys(run.config.backbone for run in runs)),
        "folds": work.folds,
        "seed": work.seed,
        "per_class": amounts.per_class,
        "limit": amounts.limit,
        "missing": len(ranking.missing.rows),
        "wrong": len(ranking.wrong.rows),
        "random": len(ranking.random.rows),
        "likely": int((ranking.scores >= 0.5).sum()),
        "estimate": None if ranking.estimate is None else ranking.estimate.as_json(work.data.classes),
    }
