r"""Zero-shot scores of class names as a prior of the audit: a scorer that no label trained.

Zero-shot logits :math:`x_{ik}` (``models.open_clip.zero_shot``) of one class rank its images. Between classes they are
not comparable: some names are close to every image. So each class is standardized over the audited images, which needs
no label, to :math:`z_{ik} = (x_{ik} - \mu_k) / \sigma_k`.

How much :math:`z` counts beside the runs, the known labels decide: ``calibration`` fits
:math:`P(\text{observed present}) = \sigma(\alpha\, m + \beta z + \gamma)`, where :math:`m` are the runs' out-of-fold
log-odds. Without runs, the prior of an unknown label is :math:`\sigma(\beta z + \gamma)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import torch

from labelgap.audit.scorers import HeadScorer
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.models.open_clip.zero_shot import standardize_head, zero_shot_classifier
from labelgap.training.features import split_features
from labelgap.training.progress import Reporter


def zero_shot_scorer(
    data: Dataset,
    splits: Iterable[str],
    name: str,
    weights: str | os.PathLike[str] | None,
    *,
    device: torch.device,
    workers: int,
    reporter: Reporter,
) -> HeadScorer:
    """Return the scorer of a model's zero-shot scores, standardized for each class over the images of some splits.

    Args:
        data: images; the names of their classes are what the model reads.
        splits: names of splits.
        name: ``open_clip:MODEL/TAG``.
        weights: a file of weights instead.
        device: where to compute features; they are cached as those of any backbone.
        workers: processes that decode images.
        reporter: shows the progress.
    """
    if isinstance(data.train.images, FeatureVectors):
        raise InputError(f"{data.name} holds features, and zero-shot scores need images: leave --zero-shot out.")
    try:
        classifier = zero_shot_classifier(name, data.classes, weights=weights)
    except InputError as error:
        remedy = " (In an audit the option is --zero-shot-weights FILE; random weights know no class names.)"
        raise InputError(f"{error}{remedy if '--weights' in str(error) else ''}") from error
    features = split_features(data, splits, lambda: classifier.backbone, device, workers, reporter)
    weight, bias = standardize_head(list(features.values()), classifier.weight)
    fold = np.zeros(len(data.train), dtype=np.int64)
    return HeadScorer(features, fold, weight[None], bias[None], device)
