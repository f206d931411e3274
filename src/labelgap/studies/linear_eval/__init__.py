"""Linear evaluation: how well fixed features separate classes, by logistic regression with many penalties."""

from __future__ import annotations

from labelgap.studies.linear_eval.evaluate import linear_eval
from labelgap.studies.linear_eval.results import LinearEvaluation, PenaltyResult

__all__ = ["LinearEvaluation", "PenaltyResult", "linear_eval"]
