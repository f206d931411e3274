"""What a batch's logits and labels cost, and how labels are revised: one file per paper."""

from labelgap.objectives.base import ElementWise, Objective, Scores
from labelgap.objectives.published import defaults, published
from labelgap.objectives.registry import describe, method, methods, objective, option_names

__all__ = [
    "ElementWise",
    "Objective",
    "Scores",
    "defaults",
    "describe",
    "method",
    "methods",
    "objective",
    "option_names",
    "published",
]
