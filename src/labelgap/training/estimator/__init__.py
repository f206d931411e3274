"""``LabelGapClassifier``, the linear engine as a scikit-learn estimator, and scorers for scikit-learn's searches."""

from labelgap.training.estimator.classifier import LabelGapClassifier
from labelgap.training.estimator.scorers import average_precision_scorer, observed_scorer

__all__ = ["LabelGapClassifier", "average_precision_scorer", "observed_scorer"]
