"""The settings of an estimator that cross-validation chooses, as a run without val chooses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.feature_vectors import FEATURES, FeatureVectors
from labelgap.labels import LabelTable
from labelgap.training.config.candidates import FOLDS, candidate_configs
from labelgap.training.config.defaults import TrainingSettings
from labelgap.training.config.request import TrainingRequest
from labelgap.training.config.resolve import resolve_config
from labelgap.training.config.schema import RunConfig
from labelgap.training.cross_validation import CrossValidation, cross_validate
from labelgap.training.folds import assign_folds, equal_row_groups

__all__ = ["search_settings"]


def search_settings(
    features: NDArray[np.float32],
    labels: LabelTable,
    *,
    method: str,
    options: Mapping[str, Any],
    seed: int,
    training: Mapping[str, Any],
    minibatch: Mapping[str, Any],
    device: torch.device,
) -> tuple[RunConfig, CrossValidation]:
    """Return the configuration that cross-validation chooses, and the out-of-fold scores of all rows.

    Args:
        features: ``(N, D)``
        labels: the observed ones.
        method: a method, or "auto", which leaves it open.
        options: of the method.
        seed: of the folds and the first weights.
        training: the settings that are given.
        minibatch: "lr" and "batch_size", for methods that are not trained by "newton".
        device: where to train.
    """
    groups = equal_row_groups(features)
    if len(np.unique(groups)) < FOLDS:
        raise InputError(
            f"weight_decay='auto' cross-validates over {FOLDS} folds, and X has {len(np.unique(groups))} different "
            "rows: give a number."
        )
    data = Dataset("X", Split("train", FeatureVectors(features), labels), backbone=FEATURES)
    settings = TrainingSettings(**training, folds=FOLDS)  # type: ignore[typeddict-item]
    request = TrainingRequest(method, options, protocol="linear", seed=seed, training=settings)
    config, _, _ = resolve_config(data, request, device)
    if config.optimizer != "newton":
        config = config.model_copy(update={**minibatch, "backbone_lr": minibatch["lr"]})
    candidates = candidate_configs(config, labels, features.shape[1], auto=method == "auto", decay=True, rate=False)
    found = cross_validate(
        torch.from_numpy(features).to(device),
        labels,
        candidates,
        assign_folds(labels, FOLDS, seed, groups),
        device=device,
    )
    return config.model_copy(update=dict(found.settings)), found
