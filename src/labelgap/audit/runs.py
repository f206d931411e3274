"""``find_missing``: from runs to a ranked list of labels that are probably present but unknown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from labelgap.audit.candidates import (
    FILE,
    FORMAT,
    KINDS,
    REVIEW_FILE,
    Audit,
    CandidateLimits,
    CandidateRanking,
    describe_review,
    rank_candidates,
    read_metadata,
    read_review_file,
    write_candidates,
    write_review_file,
)
from labelgap.audit.scorers import AuditContext, PathLike, prior_scorers, run_scorers, zero_shot_scorers
from labelgap.core.distributed import is_distributed, is_main_process, single_process
from labelgap.core.errors import InputError, RunError
from labelgap.core.files import remove_partials_of
from labelgap.core.lock import LOCK_FILE
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataIdentity
from labelgap.labels import PRESENT, LabelTable
from labelgap.training import Run, open_run
from labelgap.training.config import CONFIG_FILE
from labelgap.training.devices import choose_device
from labelgap.training.loop.processes import check_same, fail_together, init_distributed, lock_together
from labelgap.training.progress import Reporter
from labelgap.training.reviewed_labels import reviewed_labels
from labelgap.training.run_folder import clean_folder

RunOrRuns = Run | PathLike | Sequence[Run | PathLike]


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
        per_class: largest number of candidates of a class.
        limit: largest number of candidates in all. Half of it is divided evenly among the classes.
        seed: the seed of folds, order and random candidates.
        data: what the runs were trained on; loaded again by the first run's recipe when None.
        out: a folder, or a file that ends in .parquet; the first run's folder when None.
        zero_shot: a model with a text tower, ``open_clip:MODEL/TAG``, whose scores of the class names are a prior;
            ``audit.scorers`` says how it counts.
        zero_shot_weights: a file of that model's weights, instead of those of the tag.
        workers: processes that decode images, where features are not in the cache.

    Returns:
        The candidates: of the kind "missing", ranked; "wrong", known labels that look wrong; and "random", a tenth as
        many, drawn from all unknown labels, from which a review estimates how many are missing.
    """
    init_distributed(choose_device(device))
    with fail_together():
        opened = _open_runs(runs)
        target = opened[0].path if out is None else Path(out)
        path = target if target.suffix == ".parquet" else target / FILE
        is_review = path.name == FILE and (path.parent / REVIEW_FILE).exists()
        if is_review and read_review_file(path.parent).images is not None:
            raise InputError(f"{path.parent} holds a review of random images. Choose another folder with --out.")
    name = LOCK_FILE if path.name == FILE else f".{path.name}.lock"
    with lock_together(path.absolute().parent, "auditing", name=name):
        with fail_together():
            opened = _open_runs(runs)  # as they are now that no training changes them
            loaded, names = _load_data(opened, data, splits)
            if is_main_process():
                remove_partials_of(path)
                if opened[0].finished and path.parent == opened[0].path:  # what a stopped command left there
                    clean_folder(path.parent, interrupted=opened[0].metrics["interrupted"])
        check_same({"data": DataIdentity.of(loaded).digest()} if is_distributed() else {})
        settings = folds, seed, device, workers, Reporter(quiet), zero_shot, zero_shot_weights
        return _audit(opened, AuditContext(loaded, names, *settings), CandidateLimits(per_class, limit), path)


def _open_runs(runs: RunOrRuns) -> list[Run]:
    if isinstance(runs, Run | str | os.PathLike):
        runs = [runs]
    if not runs:
        raise InputError("an audit needs at least one run.")
    return [run if isinstance(run, Run) else open_run(run) for run in runs]


def _load_data(
    runs: Sequence[Run], data: Dataset | None, splits: str | Sequence[str]
) -> tuple[Dataset, tuple[str, ...]]:
    loaded = runs[0].load_data() if data is None else data
    names = (splits,) if isinstance(splits, str) else tuple(dict.fromkeys(splits))
    names = tuple(split.name for split in loaded.splits) if names == ("all",) else names
    if not names:
        raise InputError("no split was named: choose train, val, test, several of them, or all.")
    labels = {name: loaded.split(name).labels for name in ("train", *names)}
    for run in runs:
        if run.config.classes != loaded.classes:
            raise InputError(f"{run.path} was trained on other classes than {loaded.name} has.")
        if data is None and run.config.data != runs[0].config.data:
            other = run.load_data()
            if any(other.split(name).labels != own for name, own in labels.items()):
                raise InputError(f"{run.path} was trained on other labels than {runs[0].path}: audit them separately.")
    return loaded, names


def _audit(runs: Sequence[Run], context: AuditContext, limits: CandidateLimits, path: Path) -> Audit:
    sources, zero_shot = prior_scorers(context), zero_shot_scorers(context)
    with run_scorers(runs, context) as scorers, fail_together(), single_process():
        if is_main_process():
            with context.reporter.bar("ranking", 2 * sum(map(len, context.tables.values()))):
                ranking = rank_candidates(
                    context.tables,
                    [*scorers, *sources.values(), *zero_shot],
                    limits,
                    context.seed,
                    advance=context.reporter.advance,
                    reviewed=reviewed_labels(context.data, context.tables),
                    priors=len(sources) + len(zero_shot),
                )
                lists = {kind: getattr(ranking, kind) for kind in KINDS}
                trained = [runs[0].count_training_images(context.data, name) for name in context.splits]
                audited = {
                    "data": dict(runs[0].config.data),
                    "splits": list(context.splits),
                    "trained_images": None if None in trained else sum(count or 0 for count in trained),
                    "folds": context.folds,
                    "seed": context.seed,
                }
                metadata = describe_audit(runs, context.tables, limits, ranking, audited)
                metadata["replaces"] = _has_other_draw(path, metadata)
                slopes = prior_slopes(ranking, len(runs))
                metadata["priors"] = dict(zip(sources, slopes, strict=False))
                if context.zero_shot is not None:
                    metadata["zero_shot"] = {"model": context.zero_shot, "slope": slopes[-1]}
                write_candidates(path, lists, context.tables, metadata)
            if path.name == FILE and not (path.parent / CONFIG_FILE).exists() and context.data.recipe:
                about = describe_review(path.parent, context.data.recipe, context.data.classes)
                write_review_file(path.parent, about)
    return Audit(path)


def prior_slopes(ranking: CandidateRanking, runs: int) -> list[float]:
    """Return the log-odds that a standard deviation of each prior adds to the scores of some runs."""
    lines, mean_line = ranking.calibration.lines, ranking.calibration.mean_line
    slopes: list[float] = np.round(lines[runs:, 0] / len(lines) * mean_line[0], 6).tolist()
    return slopes


def _has_other_draw(path: Path, metadata: Mapping[str, Any]) -> bool:
    """Return whether an audit is there whose random candidates were drawn otherwise, or that has replaced one."""
    if not path.is_file():
        return False
    with suppress(RunError):  # a damaged one is replaced
        before, drawn = read_metadata(path), ("seed", "splits", "images", "unknown_per_class", "random")
        return bool(before["replaces"] or any(before[name] != metadata[name] for name in drawn))
    return False


def describe_audit(
    runs: Sequence[Run],
    tables: Mapping[str, LabelTable],
    limits: CandidateLimits,
    ranking: CandidateRanking,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the metadata of candidates; ``about`` are data, splits, trained_images, folds and seed."""
    classes, tagged, unknown = runs[0].config.classes, 0, np.zeros(len(runs[0].config.classes), dtype=np.int64)
    for table in tables.values():  # one pass: a table may be a part that is read here
        unknown += table.counts().unknown
        tagged += len(np.unique(table.rows[table.values == PRESENT]))
    return {
        "format": FORMAT,
        "runs": [str(run.path) for run in runs],
        **about,
        "images": sum(map(len, tables.values())),
        "tagged_images": tagged,
        "unknown_total": int(unknown.sum()),
        "unknown_per_class": dict(zip(classes, unknown.tolist(), strict=True)),
        "method": ", ".join(dict.fromkeys(run.config.method for run in runs)),
        "backbone": ", ".join(dict.fromkeys(run.config.backbone for run in runs)),
        "per_class": limits.per_class,
        "limit": limits.limit,
        "missing": len(ranking.missing),
        "wrong": len(ranking.wrong),
        "expected_wrong": round(ranking.expected_wrong, 3),
        "random": len(ranking.random),
        "likely": int((ranking.missing.scores >= 0.5).sum()),
        "zero_shot": None,
        "estimate": None if ranking.estimate is None else ranking.estimate.to_json(classes),
    }
