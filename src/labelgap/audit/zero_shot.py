r"""Zero-shot scores of class names as a prior of the audit: a scorer that no label trained.

Zero-shot logits :math:`x_{ik}` (``models.open_clip.zero_shot``) of one class rank its images. Between classes they are
not comparable: some names are close to every image. So each class is standardized over the audited images, which needs
no label:

.. math:: z_{ik} = (x_{ik} - \mu_k) / \sigma_k

How much :math:`z` counts beside the runs, the known labels decide: ``calibration`` fits
:math:`P(\text{observed present}) = \sigma(\alpha\, m + \beta z + \gamma)`, where :math:`m` are the runs' out-of-fold
log-odds. Without runs, the prior of an unknown label is :math:`\sigma(\beta z + \gamma)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.audit.scorers import BLOCK_SIZE, HeadScorer
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.models.open_clip.zero_shot import zero_shot_classifier
from labelgap.training.features.extract import split_features
from labelgap.training.progress import Reporter

__all__ = ["standardize_head", "zero_shot_scorer"]


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
    classifier = zero_shot_classifier(name, data.classes, weights=weights)
    features = split_features(data, splits, lambda: classifier.backbone, device, workers, reporter)
    weight, bias = standardize_head(list(features.values()), classifier.weight)
    fold = np.zeros(len(data.train), dtype=np.int64)
    return HeadScorer(features, fold, weight[None], bias[None], device)


def standardize_head(
    features: Sequence[NDArray[Any]], weight: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    r"""Return the head whose logits are those of another, standardized over some images.

    .. math:: w'_k = w_k / \sigma_k, \qquad b'_k = -w_k^\top \bar f / \sigma_k

    with the mean features :math:`\bar f`: the bias of the head cancels. A class of constant logits gets zeros.

    Args:
        features: ``(N, D)`` of each split.
        weight: ``(K, D)``
    """
    count = sum(map(len, features))
    step = max(1, BLOCK_SIZE // max(weight.shape))
    blocks = [part[start : start + step] for part in features for start in range(0, len(part), step)]
    wide = weight.astype(np.float64)
    center = sum((block.sum(axis=0, dtype=np.float64) for block in blocks), np.zeros(weight.shape[1])) / max(count, 1)
    squares = sum(((((block - center) @ wide.T) ** 2).sum(axis=0) for block in blocks), np.zeros(len(weight)))
    deviation = np.sqrt(squares / max(count, 1))
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 1e-9)
    return (wide * scale[:, None]).astype(np.float32), (-(wide @ center) * scale).astype(np.float32)
