"""``LabelGapClassifier``: the linear engine as a scikit-learn estimator, for any feature vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable, paper_split
from labelgap.losses import loss
from labelgap.metrics import choose_thresholds
from labelgap.training.config.auto_method import choose_method
from labelgap.training.devices import choose_device
from labelgap.training.estimator.labels import as_label_table, class_names
from labelgap.training.estimator.scorers import average_precision_scorer
from labelgap.training.heads import HeadPlan, train_heads
from labelgap.training.selection import choose_selection

__all__ = ["LabelGapClassifier"]

_Val = tuple[NDArray[np.float32], LabelTable]


class LabelGapClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear multi-label classifier for labels of which some, or most, are unknown.

    Every method of ``labelgap.methods()`` behind scikit-learn's contract: ``clone``, ``get_params``, pipelines, grid
    search, ``pickle``. X are feature vectors; the numbers are those of a run of the ``linear`` protocol.

    Y is one of

    - a matrix of 1 (present), 0 (absent) and −1 or NaN (unknown);
    - a pandas ``DataFrame`` of these: its columns name the classes;
    - a scipy sparse matrix: a stored 1 is present, a stored 0 absent, and what is not stored is unknown;
    - a ``LabelTable``.

    Args:
        method: one of ``labelgap.methods()``, or "auto", which chooses by the states of the labels.
        options: of the method; its defaults where left out.
        lr: learning rate.
        batch_size: rows per step.
        epochs: how many.
        validation_fraction: share of the rows held out to select the epoch, where ``fit`` gets no val.
        select: "auto", "clean", "known", "observed" or "last": how the epoch is selected; see ``training.selection``.
        stop_below: stop when the score of an epoch is so far below the best, from 0 to 1; None never stops.
        threshold: the probability from which ``predict`` returns 1; "auto" chooses one per class on val, and 0.5
            without val.
        random_state: seed of the first weights, the order of the rows and the rows held out; None is 0.
        device: "auto", "cpu", "cuda" or "mps".

    Attributes:
        classes_: ``(K,)`` names of the classes; numbers from 0 where Y has no names.
        coef_: ``(K, D)``
        intercept_: ``(K,)``
        method_: the method that was used, and ``options_`` its options.
        why_: the reason why "auto" chose the method; None where it was named.
        select_: the rule that selected the epoch.
        best_epoch_: the selected epoch; ``n_iter_`` were trained, and ``history_`` has an entry for each.
        best_score_: its score on val; None where the last epoch was kept.
        thresholds_: ``(K,)`` from which ``predict`` returns 1.
        n_features_in_: D; ``feature_names_in_`` where X has names.

    Example:
        >>> X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 20, axis=0)
        >>> Y = np.repeat([[1, -1], [-1, 1]], 20, axis=0)
        >>> LabelGapClassifier(method="an", lr=0.1, epochs=5).fit(X, Y).predict([[0.9, 0.1]])
        array([[1, 0]])
    """

    def __init__(
        self,
        method: str = "auto",
        options: Mapping[str, Any] | None = None,
        *,
        lr: float = 1e-3,
        batch_size: int = 16,
        epochs: int = 25,
        validation_fraction: float = 0.0,
        select: str = "auto",
        stop_below: float | None = None,
        threshold: str | float = "auto",
        random_state: int | None = 0,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.options = options
        self.lr = lr
        self.batch_size = batch_size
        self.epochs = epochs
        self.validation_fraction = validation_fraction
        self.select = select
        self.stop_below = stop_below
        self.threshold = threshold
        self.random_state = random_state
        self.device = device

    def fit(self, X: ArrayLike, Y: Any, X_val: ArrayLike | None = None, Y_val: Any = None) -> Self:  # noqa: N803
        """Train on rows X and the known part of their labels Y.

        Args:
            X: ``(N, D)``
            Y: ``(N, K)``, see above.
            X_val: ``(M, D)`` rows that select the epoch and the thresholds. A pipeline does not transform them: use
                ``validation_fraction`` there.
            Y_val: their labels.
        """
        features = self._features(X, reset=True)
        table = as_label_table(Y, len(features), "Y")
        val = self._val(X_val, Y_val, table)
        if val is None and self.validation_fraction:
            rows, held_out = paper_split(len(features), self.validation_fraction, self._seed())
            if not len(rows) or not len(held_out):
                raise InputError(
                    f"validation_fraction={self.validation_fraction}: of {len(features)} rows it leaves none to train "
                    "on, or none to select on."
                )
            val = features[held_out], table.select(held_out)
            features, table = features[rows], table.select(rows)
        self._train(features, table, val)
        self.classes_ = class_names(Y, len(table.classes))
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Return the (N, K) logits; those of a row do not depend on the other rows."""
        check_is_fitted(self)
        return self._logits(self._features(X, reset=False))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Return the (N, K) probabilities that each class is present."""
        probabilities: NDArray[np.float64] = expit(self.decision_function(X))
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:  # noqa: N803
        """Return (N, K) of 1 where a class is predicted present, else 0."""
        return (self.predict_proba(X) >= self.thresholds_).astype(np.int64)

    def score(self, X: ArrayLike, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the mean average precision over the known labels of y; see ``average_precision_scorer``."""
        if sample_weight is not None:
            raise InputError("rows have no weights here: leave sample_weight out.")
        return average_precision_scorer(self, X, y)

    def __sklearn_tags__(self) -> Tags:
        """Declare that Y is a multi-label matrix, and that X must be dense and finite."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        return tags

    def _seed(self) -> int:
        """Return the seed; with a generator two fits of one estimator would differ silently."""
        if self.random_state is None:
            return 0
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int | np.integer):
            raise InputError(f"random_state={self.random_state!r}: it must be an integer.")
        return int(self.random_state)

    def _features(self, X: ArrayLike, *, reset: bool) -> NDArray[np.float32]:  # noqa: N803
        try:
            checked: NDArray[np.float32] = validate_data(self, X, dtype=np.float32, reset=reset)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(str(error)) from None
        return checked

    def _val(self, X: ArrayLike | None, Y: Any, table: LabelTable) -> _Val | None:  # noqa: N803
        if (X is None) != (Y is None):
            raise InputError("val needs both: X_val and Y_val.")
        if X is None:
            return None
        features = self._features(X, reset=False)
        labels = as_label_table(Y, len(features), "Y_val")
        if len(labels.classes) != len(table.classes):
            raise InputError(f"Y_val has {len(labels.classes)} classes, and Y {len(table.classes)}.")
        if labels.classes != table.classes:
            raise InputError("the classes of Y_val are not those of Y, in the same order.")
        return features, labels

    def _train(self, features: NDArray[np.float32], table: LabelTable, val: _Val | None) -> None:
        val_features, val_labels = (None, None) if val is None else val
        self._choose_method(table, val_labels)
        self.select_ = choose_selection(val_labels, None, self.select).rule
        plan = HeadPlan(self.method_, self.options_, self.lr, table, seed=self._seed())
        (result,) = train_heads(
            torch.from_numpy(np.ascontiguousarray(features)),
            [plan],
            epochs=self.epochs,
            batch_size=self.batch_size,
            order_seed=self._seed(),
            val_features=None if val_features is None else torch.from_numpy(np.ascontiguousarray(val_features)),
            val_labels=val_labels,
            select=self.select_,
            stop_below=self.stop_below,
            device=choose_device(self.device),
        )
        if result.failed is not None:
            raise InputError(f"{plan}: {result.failed}, or a StandardScaler before it.")
        self.coef_ = np.array(result.weight, dtype=np.float32)
        self.intercept_ = np.array(result.bias, dtype=np.float32)
        self.best_epoch_, self.best_score_ = result.best_epoch, result.best_score
        self.n_iter_, self.history_ = len(result.history), list(result.history)
        self.thresholds_ = np.full(len(self.intercept_), 0.5 if self.threshold == "auto" else float(self.threshold))
        if self.threshold == "auto" and val is not None:
            self.thresholds_ = np.array(choose_thresholds(expit(self._logits(val[0])), val[1].to_dense()).values)

    def _choose_method(self, table: LabelTable, val: LabelTable | None) -> None:
        options = dict(self.options or {})
        self.why_: str | None
        if self.method == "auto":
            if options:
                raise InputError("options belong to a method: name it, or leave the options out.")
            self.method_, self.why_ = choose_method(table, "linear")
        else:
            self.method_, self.why_ = self.method, None
        self.options_ = {**options, **loss(self.method_, **options).initialize_from(table, val)}

    def _logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        logits: NDArray[np.float64] = features.astype(np.float64) @ self.coef_.T.astype(np.float64) + self.intercept_
        return logits
