"""The features that a review's live heads learn on: those of the run's backbone, from the cache if possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.scorers import feature_options
from labelgap.models import Backbone, create_backbone, is_pretrained
from labelgap.review.folder import ReviewFolder
from labelgap.training.devices import choose_device
from labelgap.training.features import split_features
from labelgap.training.plan import default_linear_backbone
from labelgap.training.progress import Reporter


def image_features(folder: ReviewFolder, images: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
    """Return ``(M, D)`` features of images, each given by split and name; zeros for one that the data do not have.

    They are those of the audit: of the run's pretrained backbone. A run whose network was trained from nothing has that
    of its own, and a review without a run that of the default backbone.
    """
    data, device = folder.data, choose_device("auto")
    splits = sorted({split for split, _ in images})
    build, options = _backbone(folder)
    found = split_features(data, splits, build, device, 0, Reporter(quiet=True), **options)
    rows = {split: {name: row for row, name in enumerate(data.split(split).labels.images)} for split in splits}
    features = np.zeros((len(images), next(iter(found.values())).shape[1]), dtype=np.float32)
    for split in splits:
        pairs = [(at, rows[split].get(name)) for at, (of, name) in enumerate(images) if of == split]
        known = [(at, row) for at, row in pairs if row is not None]
        to, of_split = np.array(known, dtype=np.int64).reshape(-1, 2).T
        features[to] = found[split][of_split]
    return features


def _backbone(folder: ReviewFolder) -> tuple[Callable[[], Backbone], dict[str, Any]]:
    run = folder.run
    if run is None:
        return lambda: create_backbone(default_linear_backbone(folder.data)), {}
    if is_pretrained(run.config.backbone, run.config.weights):
        return run.initial_backbone, feature_options(run.config, choose_device("auto"))
    return lambda: run.model.backbone, {}
