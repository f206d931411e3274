"""``find_missing``: from runs to a ranked list of labels that are probably present but unknown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.calibration import ScoreCalibration
from labelgap.audit.candidates import FILE, FORMAT, KINDS, Audit, write_candidates
from labelgap.audit.fold_heads import HeadConfig, group_configs, train_folds
from labelgap.audit.fold_networks import FoldNetworks
from labelgap.audit.ranking import CandidateLimits, CandidateRanking, rank_candidates
from labelgap.audit.review_file import REVIEW_FILE, describe_review, read_review_file, write_review_file
from labelgap.audit.scorers import Scorer
from labelgap.audit.zero_shot import zero_shot_scorer
from labelgap.core.distributed import is_distributed, is_main_process, single_process
from labelgap.core.errors import InputError
from labelgap.core.files import remove_partials_of
from labelgap.core.lock import LOCK_FILE
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.data.identity import DataIdentity
from labelgap.labels import LabelTable
from labelgap.models import is_pretrained
from labelgap.training import Run, open_run
from labelgap.training.config.cost import format_duration
from labelgap.training.config.schema import CONFIG_FILE, RunConfig
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.features.extract import split_features
from labelgap.training.folds import assign_folds, fold_groups
from labelgap.training.loop.processes import check_same, fail_together, init_distributed, lock_together
from labelgap.training.progress import Reporter
from labelgap.training.reviewed_labels import reviewed_labels
from labelgap.training.run_folder import clean_folder
from labelgap.training.selection import choose_selection

__all__ = ["RunOrRuns", "find_missing"]

PathLike = str | os.PathLike[str]
RunOrRuns = Run | PathLike | Sequence[Run | PathLike]


@dataclass(frozen=True, eq=False)
class _Context:
    """The arguments that all steps of an audit share."""

    data: Dataset
    splits: tuple[str, ...]
    folds: int
    seed: int
    device: str
    workers: int | None
    reporter: Reporter
    zero_shot: str | None
    zero_shot_weights: PathLike | None

    @property
    def tables(self) -> dict[str, LabelTable]:
        return {name: self.data.split(name).labels for name in self.splits}

    def assign_folds(self, features: NDArray[Any] | None = None) -> NDArray[np.int64]:
        groups = fold_groups(self.data, "train", features)
        return assign_folds(self.data.train.labels, self.folds, self.seed, groups)


def find_missing(
    runs: RunOrRuns,
    *,
    splits: str | Sequence[str] = "train",
    folds: int = 5,
    per_class: int = 2_000,
    limit: int = 100_000,
    seed: int = 0,
    data: Dataset | None = None,
    out: PathLike | None = None,
    zero_shot: str | None = None,
    zero_shot_weights: PathLike | None = None,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> Audit:
    """Rank the unknown labels of runs' data by the probability that they are present; write ``candidates.parquet``.

    Models that have not seen an image's labels score it: for each fold, linear heads on the features of the runs'
    pretrained backbones, trained with the runs' methods and settings. (A backbone without pretrained weights is trained
    again for each fold.) The log-odds of several runs are averaged. Several processes divide the features and the
    folds; the first one ranks and writes.

    Args:
        runs: a run, its folder, or several that were trained on the same data.
        splits: "train", "val", "test", several of them, or "all". No model has seen val and test; the models of all
            folds score them.
        folds: how many.
        per_class: largest number of candidates of a class.
        limit: largest number of candidates in all. Half of it is divided evenly among the classes.
        seed: of folds, order and random candidates.
        data: what the runs were trained on; loaded again by the first run's recipe when None.
        out: a folder, or a file that ends in .parquet; the first run's folder when None.
        zero_shot: a model with a text tower, ``open_clip:MODEL/TAG``, whose scores of the class names are a prior;
            ``audit.zero_shot`` says how it counts.
        zero_shot_weights: a file of that model's weights, instead of those of the tag.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images, where features are not in the cache.
        quiet: print nothing.

    Returns:
        The candidates: of the kind "missing", ranked; "wrong", known labels that look wrong; and "random", a tenth as
        many, drawn from all unknown labels, from which a review estimates how many are missing.
    """
    init_distributed(choose_device(device))
    with fail_together():
        opened = _open_runs(runs)
        path = _output_file(opened[0].path if out is None else Path(out))
    name = LOCK_FILE if path.name == FILE else f".{path.name}.lock"
    with lock_together(path.absolute().parent, "auditing", name=name):
        with fail_together():
            opened = _open_runs(runs)  # as they are now that no training changes them
            loaded, names = _load_data(opened, data, splits)
            if is_main_process():
                remove_partials_of(path)
                if opened[0].finished and path.parent == opened[0].path:
                    clean_folder(opened[0].path, interrupted=opened[0].metrics["interrupted"])
        check_same({"data": DataIdentity.of(loaded).digest()} if is_distributed() else {})
        context = _Context(loaded, names, folds, seed, device, workers, Reporter(quiet), zero_shot, zero_shot_weights)
        return _audit(opened, context, CandidateLimits(per_class, limit), path)


def _load_data(
    runs: Sequence[Run], data: Dataset | None, splits: str | Sequence[str]
) -> tuple[Dataset, tuple[str, ...]]:
    """Return the data and the names of the splits; an error where they do not fit the runs."""
    loaded = runs[0].load_data() if data is None else data
    names = (splits,) if isinstance(splits, str) else tuple(dict.fromkeys(splits))
    names = tuple(split.name for split in loaded.splits) if names == ("all",) else names
    _check_runs(runs, loaded, names, from_recipe=data is None)
    return loaded, names


def _output_file(target: Path) -> Path:
    """Return the file to write; an error where it would mix with a review of random images."""
    path = target if target.suffix == ".parquet" else target / FILE
    if path.name == FILE and (path.parent / REVIEW_FILE).exists() and read_review_file(path.parent).images is not None:
        raise InputError(f"{path.parent} holds a review of random images. Choose another folder with --out.")
    return path


def _audit(runs: Sequence[Run], context: _Context, limits: CandidateLimits, path: Path) -> Audit:
    """Score and rank the labels, and write the candidates."""
    prior = _zero_shot_scorers(context)
    with _scorers(runs, context) as scorers, fail_together(), single_process():
        if is_main_process():
            _write_ranking(runs, context, limits, path, [*scorers, *prior])
    return Audit(path)


def _write_ranking(
    runs: Sequence[Run], context: _Context, limits: CandidateLimits, path: Path, scorers: Sequence[Scorer]
) -> None:
    """Rank the labels and write the candidates, in one process."""
    images = sum(map(len, context.tables.values()))
    with context.reporter.bar("ranking", 2 * images):
        ranking = rank_candidates(
            context.tables,
            scorers,
            limits,
            context.seed,
            advance=context.reporter.advance,
            reviewed=reviewed_labels(context.data, context.tables),
            prior=context.zero_shot is not None,
        )
        lists = {kind: getattr(ranking, kind) for kind in KINDS}
        write_candidates(path, lists, context.tables, _metadata(runs, context, limits, ranking))
    if path.name == FILE and not (path.parent / CONFIG_FILE).exists() and context.data.recipe:
        about = describe_review(path.parent, context.data.recipe, context.data.classes)
        write_review_file(path.parent, about)


def _zero_shot_scorers(context: _Context) -> list[Scorer]:
    """Return the scorer of the zero-shot scores; none if the user names no model for them."""
    if context.zero_shot is None:
        if context.zero_shot_weights is not None:
            raise InputError("--zero-shot-weights belongs to --zero-shot: say of which model they are.")
        return []
    device = choose_device(context.device)
    workers = choose_workers(context.workers, device)
    name, weights = context.zero_shot, context.zero_shot_weights
    options: Any = {"device": device, "workers": workers, "reporter": context.reporter}
    return [zero_shot_scorer(context.data, context.splits, name, weights, **options)]


def _open_runs(runs: RunOrRuns) -> list[Run]:
    if isinstance(runs, Run | str | os.PathLike):
        runs = [runs]
    if not runs:
        raise InputError("an audit needs at least one run.")
    return [run if isinstance(run, Run) else open_run(run) for run in runs]


def _check_runs(runs: Sequence[Run], data: Dataset, splits: Sequence[str], *, from_recipe: bool) -> None:
    """Refuse runs with different labels or classes, and splits that do not exist."""
    if not splits:
        raise InputError("no split was named: choose train, val, test, several of them, or all.")
    for name in splits:
        data.split(name)
    for run in runs:
        if run.config.classes != data.classes:
            raise InputError(f"{run.path} was trained on other classes than {data.name} has.")
        if from_recipe and run.config.data != runs[0].config.data:
            other = run.load_data()
            if any(other.split(name).labels != data.split(name).labels for name in ("train", *splits)):
                raise InputError(f"{run.path} was trained on other labels than {runs[0].path}: audit them separately.")


@contextmanager
def _scorers(runs: Sequence[Run], context: _Context) -> Iterator[list[Scorer]]:
    """Yield a scorer for each run, in their order; remove what they store on disk after success."""
    scorers: dict[int, Scorer] = {}
    groups: dict[tuple[Any, ...], list[int]] = {}
    networks: dict[Path, FoldNetworks] = {}
    with ExitStack() as locks:
        for number, run in enumerate(runs):
            config = run.config
            if config.backbone == FEATURES or is_pretrained(config.backbone, config.weights):
                key = (config.backbone, config.weights, config.size, config.select, _averages_flips(config))
                groups.setdefault(key, []).append(number)
                continue
            network = FoldNetworks(run, context.data, context.assign_folds(), context.device, context.workers)
            if run.path not in networks:
                locks.enter_context(network.locked())
            networks[run.path] = network
            context.reporter.log(_retraining_message(run, context.folds))
            with context.reporter.bar(f"{config.method}: networks of {context.folds} folds", context.folds):
                scorers[number] = network.scorer(context.splits, context.reporter.advance)
        for group in groups.values():
            scorers |= dict(zip(group, _train_heads([runs[number] for number in group], context), strict=True))
        yield [scorers[number] for number in range(len(runs))]
        if is_main_process():
            for network in networks.values():
                network.clear()


def _averages_flips(config: RunConfig) -> bool:
    """Return whether the linear head of a run was trained on features averaged with those of mirror images."""
    return config.protocol == "linear" and config.average_flips


def _retraining_message(run: Run, folds: int) -> str:
    seconds = float(run.metrics.get("seconds", 0.0)) * (folds - 1)
    duration = f", about {format_duration(seconds)} in all" if seconds else ""
    return f"{run.config.backbone} has no pretrained weights: it is trained again for each of {folds} folds{duration}"


def _train_heads(runs: Sequence[Run], context: _Context) -> Sequence[Scorer]:
    """Train the heads of runs that share their features."""
    data, device = context.data, choose_device(context.device)
    observed, truth = (None, None) if data.val is None else (data.val.labels, data.val.truth)
    selection = choose_selection(observed, truth, runs[0].config.select)
    features = split_features(
        data,
        sorted({*context.splits, "train", *(() if selection.labels is None else ("val",))}),
        runs[0].initial_backbone,
        device,
        choose_workers(context.workers, device),
        context.reporter,
        average_flips=_averages_flips(runs[0].config),
    )
    fold = context.assign_folds(features["train"])
    heads = [HeadConfig.from_run(run.config, len(data.train)) for run in runs]
    with context.reporter.bar(f"heads of {context.folds} folds", context.folds * len(group_configs(heads))):
        return train_folds(
            features,
            data.train.labels,
            fold,
            selection,
            heads,
            device=device,
            seed=context.seed,
            advance=context.reporter.advance,
        )


def _trained_images(run: Run, context: _Context) -> int | None:
    counts = [run.count_training_images(context.data, name) for name in context.splits]
    return None if None in counts else sum(count or 0 for count in counts)


def _metadata(
    runs: Sequence[Run], context: _Context, limits: CandidateLimits, ranking: CandidateRanking
) -> dict[str, Any]:
    unknown = np.asarray(sum(table.counts().unknown for table in context.tables.values()))
    return {
        "format": FORMAT,
        "runs": [str(run.path) for run in runs],
        "data": dict(runs[0].config.data),
        "splits": list(context.splits),
        "images": sum(map(len, context.tables.values())),
        "trained_images": _trained_images(runs[0], context),
        "unknown_total": int(np.sum(unknown)),
        "unknown_per_class": dict(zip(context.data.classes, unknown.tolist(), strict=True)),
        "method": ", ".join(dict.fromkeys(run.config.method for run in runs)),
        "backbone": ", ".join(dict.fromkeys(run.config.backbone for run in runs)),
        "folds": context.folds,
        "seed": context.seed,
        "per_class": limits.per_class,
        "limit": limits.limit,
        "missing": len(ranking.missing),
        "wrong": len(ranking.wrong),
        "random": len(ranking.random),
        "likely": int((ranking.missing.scores >= 0.5).sum()),
        "zero_shot": None if context.zero_shot is None else _zero_shot_effect(context.zero_shot, ranking.calibration),
        "estimate": None if ranking.estimate is None else ranking.estimate.to_json(context.data.classes),
    }


def _zero_shot_effect(model: str, calibration: ScoreCalibration) -> dict[str, Any]:
    slope = calibration.lines[-1, 0] / len(calibration.lines) * calibration.mean_line[0]
    return {"model": model, "slope": round(float(slope), 6)}
