"""What a batch's logits and labels cost, and how labels are revised: one file per paper."""

from labelgap.losses.base import ElementwiseLoss, Loss, TrainingScores
from labelgap.losses.published_settings import defaults, published_options
from labelgap.losses.registry import describe_method, loss, method, method_options, methods

__all__ = [
    "ElementwiseLoss",
    "Loss",
    "TrainingScores",
    "defaults",
    "describe_method",
    "loss",
    "method",
    "method_options",
    "methods",
    "published_options",
]
