"""The pure functions behind the methods, for people with a training loop of their own.

Most take logits and labels of three states and return the cost of every entry, ``(…, B, K)``, not reduced; ``reduce``
brings it to a number over the global batch. Those that look at whole images or classes (``contrast``, ``softmax_cost``)
take masks from ``positives_and_negatives`` and return a cost per image or class; ``relative_large_losses``,
``absolute_large_losses`` and ``selected_out`` return masks. Each says so in its docstring.

>>> import torch
>>> logits, labels = torch.zeros(2, 3, requires_grad=True), torch.tensor([[1, -1, 0], [-1, 1, -1]])
>>> reduce(assume_negative(logits, labels), "mean")
tensor(0.6931, grad_fn=<DivBackward0>)
"""

from __future__ import annotations

from labelgap.objectives.benbaruch2022 import partial_focal, selected_out
from labelgap.objectives.chen2024 import generalised_robust
from labelgap.objectives.cole2021 import assume_negative, ignore_unknown, pairwise_ranking, weak_assume_negative
from labelgap.objectives.cole2021_expected import expected_positive_regularisation
from labelgap.objectives.cole2021_role import label_estimation
from labelgap.objectives.durand2019 import partial_cross_entropy
from labelgap.objectives.kim2022 import absolute_large_losses, correct, reject, relative_large_losses
from labelgap.objectives.kobayashi2023 import contrast, positives_and_negatives, softmax_cost
from labelgap.objectives.options import exact_percents
from labelgap.objectives.ranking import hinge_sums, ramp, sort_negatives
from labelgap.objectives.ridnik2021 import asymmetric
from labelgap.objectives.terms import cost_absent, cost_present, cross_entropy, reduce, states
from labelgap.objectives.zhang2021 import hill, self_paced_correction
from labelgap.objectives.zhou2022 import entropy, entropy_on_unknown
from labelgap.objectives.zhou2022_baselines import focal, smoothed_unknown

__all__ = [
    "absolute_large_losses",
    "assume_negative",
    "asymmetric",
    "contrast",
    "correct",
    "cost_absent",
    "cost_present",
    "cross_entropy",
    "entropy",
    "entropy_on_unknown",
    "exact_percents",
    "expected_positive_regularisation",
    "focal",
    "generalised_robust",
    "hill",
    "hinge_sums",
    "ignore_unknown",
    "label_estimation",
    "pairwise_ranking",
    "partial_cross_entropy",
    "partial_focal",
    "positives_and_negatives",
    "ramp",
    "reduce",
    "reject",
    "relative_large_losses",
    "selected_out",
    "self_paced_correction",
    "smoothed_unknown",
    "softmax_cost",
    "sort_negatives",
    "states",
    "weak_assume_negative",
]
