"""Regularized online label estimation (Cole et al., "Multi-Label Learning from Single Positive Labels", CVPR 2021).

The unknown labels are parameters, learned together with the classifier: each is the other's teacher, both must agree
with the known labels, and both must have the expected number of positives.
"""

from labelgap.losses.role.estimation import OnlineLabelEstimation, initial_label_logits, online_label_estimation

__all__ = ["OnlineLabelEstimation", "initial_label_logits", "online_label_estimation"]
