"""The pure functions behind the methods, for training loops of your own: ``import labelgap.functional as F``.

Unless a function says otherwise, ``logits`` are ``(…, B, K)`` of any float type, computed in float32 or wider;
``labels`` are ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN; a number may be a tensor of shape ``(…)``, one per head;
``eps`` is added inside the logarithms; and the result is the cost of every entry, ``(…, B, K)``, not reduced.
``reduce`` makes one number of it, over the global batch.

>>> import torch
>>> logits, labels = torch.zeros(2, 3, requires_grad=True), torch.tensor([[1, -1, 0], [-1, 1, -1]])
>>> reduce(assume_negative(logits, labels), "mean")
tensor(0.6931, grad_fn=<DivBackward0>)
"""

from __future__ import annotations

from labelgap.losses.assume_negative import assume_negative, ignore_unknown, smoothed_unknown, weak_assume_negative
from labelgap.losses.asymmetric import asymmetric, focal
from labelgap.losses.base.terms import (
    cost_absent,
    cost_present,
    cross_entropy,
    entropy,
    expected_positive_regularization,
    reduce,
    states,
)
from labelgap.losses.curriculum import partial_cross_entropy
from labelgap.losses.entropy import entropy_on_unknown
from labelgap.losses.hill_splc import hill, self_paced_correction
from labelgap.losses.large_loss import (
    absolute_large_losses,
    large_loss_correction,
    large_loss_rejection,
    relative_large_losses,
)
from labelgap.losses.ranking import hinge_sums, pairwise_ranking, ramp, sort_negatives
from labelgap.losses.robust import generalized_robust
from labelgap.losses.role import online_label_estimation
from labelgap.losses.selective import partial_focal, selective_mask
from labelgap.losses.two_way import contrast, positives_and_negatives, softmax_cross_entropy

__all__ = [
    "absolute_large_losses",
    "assume_negative",
    "asymmetric",
    "contrast",
    "cost_absent",
    "cost_present",
    "cross_entropy",
    "entropy",
    "entropy_on_unknown",
    "expected_positive_regularization",
    "focal",
    "generalized_robust",
    "hill",
    "hinge_sums",
    "ignore_unknown",
    "large_loss_correction",
    "large_loss_rejection",
    "online_label_estimation",
    "pairwise_ranking",
    "partial_cross_entropy",
    "partial_focal",
    "positives_and_negatives",
    "ramp",
    "reduce",
    "relative_large_losses",
    "selective_mask",
    "self_paced_correction",
    "smoothed_unknown",
    "softmax_cross_entropy",
    "sort_negatives",
    "states",
    "weak_assume_negative",
]
