"""Scorers for scikit-learn's searches, with labels that may be unknown.

Both are called as ``scorer(estimator, X, Y)``, so they go where scikit-learn takes ``scoring=``, with any estimator
that has a ``decision_function`` or ``predict_proba`` of one column per class, pipelines included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.metrics import average_precision
from labelgap.training.estimator.labels import as_label_table


def average_precision_scorer(estimator: Any, X: Any, Y: Any) -> float:  # noqa: N803
    """Return the mean average precision over the known labels, 0 to 1.

    A class counts where Y has a known present and a known absent label of it. Where no class does there is no accuracy,
    and that is an error; ``observed_scorer`` still orders settings.

    Args:
        estimator: fitted.
        X: ``(N, D)``
        Y: ``(N, K)`` in any form that ``LabelGapClassifier`` takes.
    """
    value, counted = average_precision(_scores(estimator, X), as_label_table(Y).to_dense(), return_counted=True)
    if not counted:
        raise InputError(
            "no class of Y has both a known present and a known absent label: there is no accuracy to measure. To "
            "order settings, use scoring=labelgap.observed_scorer; for an accuracy, have some rows fully labeled."
        )
    return float(value)


def observed_scorer(estimator: Any, X: Any, Y: Any) -> float:  # noqa: N803
    """Return how high the known presents rank, unknown labels taken as absent: an order of settings, no accuracy.

    Args:
        estimator: fitted.
        X: ``(N, D)``
        Y: ``(N, K)`` in any form that ``LabelGapClassifier`` takes.
    """
    codes = as_label_table(Y).to_dense()
    value, counted = average_precision(_scores(estimator, X), codes, unknown="absent", return_counted=True)
    if not counted:
        raise InputError("no class of Y is present in one row and not in another: there is nothing to order.")
    return float(value)


def _scores(estimator: Any, X: Any) -> NDArray[Any]:  # noqa: N803
    method = "decision_function" if hasattr(estimator, "decision_function") else "predict_proba"
    scores = np.asarray(getattr(estimator, method)(X))
    if scores.ndim != 2:
        raise InputError(
            f"{method} of {type(estimator).__name__} gives {scores.shape}: one column per class is needed."
        )
    return scores
