r"""The scorers of an audit: what scores the images of runs with models that have not seen their labels.

A prior joins them if the user names a model: zero-shot logits :math:`x_{ik}` (``models.open_clip.zero_shot``), which no
label trained. Between classes they are not comparable, since some names are close to every image; so each class is
standardized over the audited images to :math:`z_{ik} = (x_{ik} - \mu_k) / \sigma_k`. How much :math:`z` counts beside
the runs, the known labels decide: ``calibration.prior_lines``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.fold_networks import FoldNetworks
from labelgap.audit.scorers import HeadScorer, Scorer, StoredScorer, train_head_scorers
from labelgap.core.distributed import is_main_process
from labelgap.core.errors import InputError
from labelgap.core.text import format_duration
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES, FeatureVectors
from labelgap.data.identity import DataIdentity
from labelgap.labels import LabelTable
from labelgap.models import is_pretrained
from labelgap.models.inference import inference_precision
from labelgap.models.open_clip.zero_shot import standardize_head, zero_shot_classifier
from labelgap.training import Run
from labelgap.training.config import RunConfig
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.features import split_features
from labelgap.training.folds import assign_folds, fold_groups, head_config
from labelgap.training.progress import Reporter
from labelgap.training.run_folder import read_data_identity
from labelgap.training.search import stored_logits
from labelgap.training.selection import choose_selection

PathLike = str | os.PathLike[str]


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
    networks: dict[Path, FoldNetworks] = {}
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


def _train_heads(runs: Sequence[Run], context: AuditContext) -> Sequence[Scorer]:
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
        how: dict[str, Any] = {"device": device, "advance": context.reporter.advance}
        configs = [head_config(run.config) for run in runs]
        return train_head_scorers(features, data.train.labels, fold, selection, configs, **how)


def _stored_logits(run: Run, context: AuditContext) -> NDArray[np.float32] | None:
    """Return the logits that the run's own folds have given to these images and labels; None where they are others."""
    asked = context.splits, context.folds, context.seed
    if asked != (("train",), run.config.folds, run.config.seed):
        return None
    trained = read_data_identity(run.path)
    if trained is None or trained.changes(DataIdentity.of(context.data)):
        return None
    return stored_logits(run.path, context.data.train.labels)


def feature_options(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """Return the options of ``split_features`` for the fixed features of a run.

    A linear head has its own: averaged with those of mirror images or not, and their precision. For a network that was
    trained they are computed in the fastest precision.
    """
    own = None if config.trains_backbone else config.feature_precision
    return {
        "average_flips": config.protocol == "linear" and config.average_flips,
        "precision": inference_precision(config.backbone, device, own),
    }


def _retraining_message(run: Run, folds: int) -> str:
    seconds = float(run.metrics.get("seconds", 0.0)) * (folds - 1)
    duration = f", about {format_duration(seconds)} in all" if seconds else ""
    return f"{run.config.backbone} has no pretrained weights: it is trained again for each of {folds} folds{duration}"
