r"""The zero-shot prior as a start: a linear head that says of every label what the model says of the name of its class.

Zero-shot logits are standardized for each class over the training images, :math:`z`, and one line for all classes makes
log-odds of them that a label is known to be present (Platt):

.. math:: P_{ik} = \sigma(\beta z_{ik} + \gamma), \qquad \beta \ge 0

This prior is linear in the features of the image tower, so it is a head, and training starts there instead of at random
weights. What is observed is not changed: unknown labels stay unknown, and the loss decides how far they move.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np
import torch
from torch import Tensor

from labelgap.labels import PRESENT, LabelTable
from labelgap.metrics.label_model import platt_scaling
from labelgap.models.open_clip.zero_shot import standardize_head, zero_shot_classifier

_MAX_ENTRIES: Final = 2_000_000
"""The line is fitted on images at regular distances, with at most so many labels."""


def zero_shot_head(
    name: str, weights: str | os.PathLike[str] | None, features: Tensor, labels: LabelTable
) -> tuple[Tensor, Tensor]:
    """Return weights ``(K, D)`` and biases ``(K,)`` whose logits are the log-odds of the zero-shot prior.

    Args:
        name: ``open_clip:MODEL/TAG``.
        weights: a file of weights of the whole model, instead of those of the tag.
        features: ``(N, D)`` of the training images, by the image tower of that model.
        labels: of the training images.
    """
    vectors = features.detach().cpu().float().numpy()
    weight, bias = standardize_head([vectors], zero_shot_classifier(name, labels.classes, weights=weights).weight)
    rows = np.arange(0, len(vectors), max(1, -(-len(vectors) * len(weight) // _MAX_ENTRIES)))
    present = (labels.select(rows).to_dense() == PRESENT).ravel()
    scores = (vectors[rows] @ weight.T + bias).ravel()
    slope, intercept = 1.0, 0.0
    if present.any() and not present.all():
        slope, intercept = platt_scaling(scores, present, min_slope=0.0)
    return torch.from_numpy(slope * weight).float(), torch.from_numpy(slope * bias + intercept).float()
