r"""Out-of-fold logits: every image is scored by models that have not seen its labels.

For each fold, linear heads on the features of the runs' backbones *before* training: a network that was trained on the
labels carries them in its features. Those of an untrained one carry nothing: such a run is repeated for each fold, on
the images of the other folds. The run's folder keeps finished folds until the audit is done: a killed audit resumes.

Priors join them: what the sources of the data's ``prior`` say, and, if the user names a model, zero-shot logits
(``models.open_clip``). No label trained these :math:`x_{ik}`. Between classes they are not comparable, since some names
are close to every image; so each class is standardized over the audited images to
:math:`z_{ik} = (x_{ik} - \mu_k) / \sigma_k`. How much :math:`z` counts beside the runs, the known labels decide:
``calibration.prior_lines``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.distributed import is_main_process, rank, single_process, world_size
from labelgap.core.errors import InputError, RunError
from labelgap.core.files import DiskError, make_folder
from labelgap.core.system import available_memory
from labelgap.core.text import format_duration
from labelgap.data.dataset import Dataset, Split
from labelgap.data.identity import DataIdentity
from labelgap.data.images import FEATURES, FeatureVectors
from labelgap.labels import LabelTable
from labelgap.models import is_pretrained
from labelgap.models.inference import inference_precision
from labelgap.models.open_clip import standardize_head, zero_shot_classifier
from labelgap.training import Run
from labelgap.training.config import CONFIG_FILE, RunConfig
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.features import split_features
from labelgap.training.fit import fit
from labelgap.training.folds import FoldTask, assign_folds, fold_groups, head_config, train_folds
from labelgap.training.loop.processes import barrier, broadcast_array, broadcast_object, fail_together, lock_together
from labelgap.training.loop.trainer import EpochCallback
from labelgap.training.progress import Reporter
from labelgap.training.rerun import fit_arguments
from labelgap.training.run_files import read_data_identity
from labelgap.training.run_folder import add_known_digests
from labelgap.training.search import stored_logits
from labelgap.training.selection import Selection, choose_selection

PathLike = str | os.PathLike[str]
FOLDER: Final = "audit"
_LOCK_FILE: Final = ".audit.lock"
BLOCK_SIZE: Final = 1 << 20  # largest number of logits, or of feature values, in a block
MEMORY_SHARE: Final = 0.25  # the share of the free memory that the training features of a fold may take


class Scorer(Protocol):
    """Gives the ``(B, K)`` logits of some rows of a split, from models that have not seen their labels."""

    @property
    def width(self) -> int:
        """How many numbers it reads per image; block sizes depend on it."""

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the logits."""


@dataclass(frozen=True, eq=False)
class HeadScorer:
    """Linear heads, ``(F, K, D)`` and ``(F, K)``, by the ``fold`` of a training row; others get mean logits."""

    features: Mapping[str, NDArray[Any]]
    fold: NDArray[np.int64]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    device: torch.device

    @property
    def width(self) -> int:
        """D, the number of features."""
        return int(self.weight.shape[2])

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the ``(B, K)`` logits of some rows of a split."""
        features = self.features[split][rows]
        return self.apply(features, self.fold[rows] if split == "train" else np.full(len(features), -1))

    def apply(self, features: NDArray[Any], fold: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits of features by the heads of their folds; by the mean of all where a fold is below 0."""
        vectors = torch.from_numpy(np.array(features, dtype=np.float32)).to(self.device)
        weight, bias = self._heads
        result = np.empty((len(fold), weight.shape[1]), dtype=np.float32)
        for number in np.unique(fold).tolist():
            members = np.flatnonzero(fold == number)
            selected = vectors.index_select(0, torch.from_numpy(members).to(self.device))
            own, offset = (weight.mean(0), bias.mean(0)) if number < 0 else (weight[number], bias[number])
            result[members] = torch.addmm(offset, selected, own.t()).cpu().numpy()
        return result

    @cached_property
    def _heads(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.weight).to(self.device), torch.from_numpy(self.bias).to(self.device)


def train_head_scorers(
    features: Mapping[str, NDArray[Any]],
    labels: LabelTable,
    fold: NDArray[np.int64],
    selection: Selection,
    configs: Sequence[RunConfig],
    *,
    device: torch.device,
    advance: Callable[[int], None] = lambda count: None,
) -> list[HeadScorer]:
    """Train heads of several configurations for each fold, divided over processes; return a scorer for each."""
    folds, width, processes = int(fold.max()) + 1, features["train"].shape[1], world_size()
    max_rows = int(MEMORY_SHARE * available_memory() / (4 * width))
    weight = np.empty((folds, len(configs), len(labels.classes), width), dtype=np.float32)
    bias = np.empty((folds, len(configs), len(labels.classes)), dtype=np.float32)
    tasks = [FoldTask(config, labels, fold) for config in configs]
    with fail_together(), single_process():
        own = range(rank() % processes, folds, processes)
        for member, number, head in train_folds(
            features, tasks, device, selection=selection, numbers=own, max_rows=max_rows
        ):
            if head.failed is not None:
                raise RunError(f"{head.plan} on fold {number + 1}: {head.failed}.")
            weight[number, member], bias[number, member] = head.weight, head.bias
            advance(processes)
    for number in range(folds):
        broadcast_array(weight[number], number % processes)
        broadcast_array(bias[number], number % processes)
    return [HeadScorer(features, fold, weight[:, member], bias[:, member], device) for member in range(len(configs))]


@dataclass(frozen=True, eq=False)
class StoredScorer:
    """Precomputed logits, ``(N, K)`` for each split; memory-mapped where they are large."""

    stored: Mapping[str, NDArray[np.float32]]
    width: int = 1

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the ``(B, K)`` logits of some rows of a split."""
        return np.array(self.stored[split][rows], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """Consecutive images from ``first`` with the logits ``(R, B, K)`` of R scorers; ``known`` are positions in it."""

    first: int
    logits: NDArray[np.float32]
    known: NDArray[np.int64]
    values: NDArray[np.int8]


def score_blocks(tables: Mapping[str, LabelTable], scorers: Sequence[Scorer]) -> Iterator[ScoreBlock]:
    """Iterate once over the images of all splits, in their order, in blocks of bounded memory."""
    before = 0
    for split, table in tables.items():
        classes = len(table.classes)
        step = max(1, BLOCK_SIZE // max(classes * len(scorers), *(scorer.width for scorer in scorers)))
        for start in range(0, len(table), step):
            rows = slice(start, min(start + step, len(table)))
            known = slice(table.starts[rows.start], table.starts[rows.stop])
            row = np.repeat(np.arange(rows.stop - start), np.diff(table.starts[start : rows.stop + 1]))
            logits = np.stack([scorer.logits(split, rows) for scorer in scorers])
            yield ScoreBlock(before + start, logits, row * classes + table.columns[known], table.values[known])
        before += len(table)


@dataclass(frozen=True, eq=False)
class FoldNetworks:
    """The networks of a run's folds: ``fold`` is ``(N,)``, of every row of train."""

    run: Run
    data: Dataset
    fold: NDArray[np.int64]
    device: str = "auto"
    workers: int | None = None

    @cached_property
    def folder(self) -> Path:
        """The folder of these labels, folds and settings, inside the run's."""
        labels = self.data.train.labels
        digest = hashlib.sha256(self.run.config.fingerprint().encode())
        for array in (self.fold, labels.starts, labels.columns, labels.values):
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\0".join(labels.images).encode("utf-8", "surrogatepass"))
        return self.run.path / FOLDER / digest.hexdigest()[:12]

    def scorer(self, splits: tuple[str, ...], advance: Callable[[int], None] = lambda count: None) -> StoredScorer:
        """Train the folds that are not finished, in all processes, score every image, and store the logits in files."""
        classes, stored = len(self.data.classes), {}
        if is_main_process():
            make_folder(self.folder)
            for name in splits:
                file, shape = self.folder / f"{name}.npy", (len(self.data.split(name)), classes)
                stored[name] = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
        folds, step = int(self.fold.max()) + 1, max(1, BLOCK_SIZE // max(classes, 1))
        for number in range(folds):
            run = self._train(number, lambda _: advance(0))
            for name in splits:
                split, own = self.data.split(name), name == "train"  # what no network was trained on gets their mean
                rows = np.flatnonzero(self.fold == number) if own else np.arange(len(split))
                for start in range(0, len(rows), step):
                    part = rows[start : start + step]
                    logits = run.logits(split.images.select(part), device=self.device, workers=self.workers or 0)
                    if is_main_process():
                        stored[name][part] += logits if own else logits / folds
            advance(1)
        return StoredScorer(stored)

    def _train(self, number: int, on_epoch: EpochCallback) -> Run:
        out = self.folder / f"fold-{number + 1}"
        rows = np.flatnonzero(self.fold != number)
        train = self.data.train
        part = Split("train", train.images.select(rows), train.labels.select(rows))
        data = replace(self.data, train=part, test=None, recipe={})
        settings = {**fit_arguments(self.run.config), "trace": "off"}
        if settings.get("optimizer") == "newton":  # whose batch is all images, here fewer
            settings.pop("batch_size")
        resume = bool(broadcast_object((out / CONFIG_FILE).exists()))
        settings |= {"out": out, "device": self.device, "workers": self.workers, "quiet": True, "on_epoch": on_epoch}
        try:
            run = fit(data, **settings, resume=resume)
            _ = run.finished and run.model
        except RunError as error:
            if not resume or isinstance(error, DiskError):
                raise
            barrier()
            if is_main_process():
                shutil.rmtree(out)
            barrier()
            run = fit(data, **settings)
        if not run.finished or run.metrics["interrupted"]:
            raise KeyboardInterrupt
        return run


@dataclass(frozen=True, eq=False)
class AuditContext:
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
        """The labels of each split that is audited."""
        return {name: self.data.split(name).labels for name in self.splits}

    def assign_folds(self, features: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """Return the fold of every training image; copies are in one fold."""
        groups = fold_groups(self.data, "train", features)
        return assign_folds(self.data.train.labels, self.folds, self.seed, groups)


@contextmanager
def run_scorers(runs: Sequence[Run], context: AuditContext) -> Iterator[list[Scorer]]:
    """Yield a scorer for each run, in their order; remove what they store on disk after success."""
    scorers: dict[int, Scorer] = {}
    groups: dict[tuple[Any, ...], list[int]] = {}
    networks: set[Path] = set()
    with ExitStack() as locks:
        for number, run in enumerate(runs):
            config = run.config
            stored = _stored_logits(run, context)
            if stored is not None:
                scorers[number] = StoredScorer({"train": stored})
                continue
            if config.backbone == FEATURES or is_pretrained(config.backbone, config.weights):
                options = feature_options(config, choose_device(context.device))
                key = (config.backbone, config.weights, config.size, config.select, *options.values())
                groups.setdefault(key, []).append(number)
                continue
            if run.path not in networks:
                # other audits of the run may write their candidates elsewhere, and use the same folds
                locks.enter_context(lock_together(run.path, "auditing", name=_LOCK_FILE))
                networks.add(run.path)
            seconds = float(run.metrics.get("seconds", 0.0)) * (context.folds - 1)
            duration = f", about {format_duration(seconds)} in all" if seconds else ""
            again = f"it is trained again for each of {context.folds} folds{duration}"
            context.reporter.log(f"{config.backbone} has no pretrained weights: {again}")
            network = FoldNetworks(run, context.data, context.assign_folds(), context.device, context.workers)
            with context.reporter.bar(f"{config.method}: networks of {context.folds} folds", context.folds):
                scorers[number] = network.scorer(context.splits, context.reporter.advance)
        for group in groups.values():
            scorers |= dict(zip(group, train_run_heads([runs[number] for number in group], context), strict=True))
        yield [scorers[number] for number in range(len(runs))]
        if is_main_process():
            for path in networks:
                shutil.rmtree(path / FOLDER, ignore_errors=True)


def zero_shot_scorers(context: AuditContext) -> list[Scorer]:
    """Return the scorer of the zero-shot scores of the class names; none if the user names no model for them."""
    name, weights, data = context.zero_shot, context.zero_shot_weights, context.data
    if name is None:
        if weights is not None:
            raise InputError("--zero-shot-weights belongs to --zero-shot: say of which model they are.")
        return []
    if isinstance(data.train.images, FeatureVectors):
        raise InputError(f"{data.name} holds features, and zero-shot scores need images: leave --zero-shot out.")
    try:
        classifier = zero_shot_classifier(name, data.classes, weights=weights)
    except InputError as error:
        remedy = " (In an audit the option is --zero-shot-weights FILE; random weights know no class names.)"
        raise InputError(f"{error}{remedy if '--weights' in str(error) else ''}") from error
    device = choose_device(context.device)
    workers = choose_workers(context.workers, device)
    features = split_features(data, context.splits, lambda: classifier.backbone, device, workers, context.reporter)
    weight, bias = standardize_head(list(features.values()), classifier.weight)
    fold = np.zeros(len(data.train), dtype=np.int64)
    return [HeadScorer(features, fold, weight[None], bias[None], device)]


def prior_scorers(context: AuditContext) -> dict[str, Scorer]:
    """Return a scorer for each source of the data's prior, by its name."""
    prior, tables = context.data.prior, context.tables
    return {} if prior is None else {name: StoredScorer(prior.standardized(name, tables)) for name in prior.sources}


def train_run_heads(runs: Sequence[Run], context: AuditContext) -> list[HeadScorer]:
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
        **feature_options(runs[0].config, device),
    )
    fold = context.assign_folds(features["train"])
    with context.reporter.bar(f"heads of {context.folds} folds", context.folds * len(runs)):
        configs = [head_config(run.config) for run in runs]
        learned = features, data.train.labels, fold, selection, configs
        return train_head_scorers(*learned, device=device, advance=context.reporter.advance)


def _stored_logits(run: Run, context: AuditContext) -> NDArray[np.float32] | None:
    """Return the logits that the run's own folds have given to these images and labels; None where they are others."""
    asked = context.splits, context.folds, context.seed
    if asked != (("train",), run.config.folds, run.config.seed):
        return None
    trained = read_data_identity(run.path)
    if trained is None or trained.changes(add_known_digests(DataIdentity.of(context.data), context.data, trained)):
        return None
    return stored_logits(run.path, context.data.train.labels)


def feature_options(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """Return the options of ``split_features`` for the fixed features of a run, the fastest of a trained network."""
    own = None if config.trains_backbone else config.feature_precision
    return {
        "average_flips": config.protocol == "linear" and config.average_flips,
        "precision": inference_precision(config.backbone, device, own),
    }
