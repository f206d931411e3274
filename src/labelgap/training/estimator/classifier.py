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
from labelgap.training.config.candidates import supports_newton
from labelgap.training.devices import choose_device
from labelgap.training.estimator.labels import as_label_table, class_names
from labelgap.training.estimator.scorers import average_precision_scorer
from labelgap.training.estimator.search import search_settings
from labelgap.training.heads import HeadPlan, train_heads
from labelgap.training.selection import choose_selection

__all__ = ["LabelGapClassifier"]

_Val = tuple[NDArray[np.float32], LabelTable]
_HEAD_SETTINGS = ("lr", "batch_size", "optimizer", "standardize")


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
        weight_decay: times the weights, added to their gradient; not for the biases under "newton". "auto" compares
            several, and methods too where ``method`` is "auto", by cross-validation over all rows on what is known, as
            ``labelgap.fit`` does without a val.
        standardize: whether the head is trained on standardized features; ``coef_`` is on X all the same. None: only
            with ``weight_decay="auto"``.
        optimizer: "adam", "sgd", or "newton", which steps on all rows at once, ten times in an epoch, with a rate of
            its own. None: "adam"; with ``weight_decay="auto"`` "newton", where the method allows it.
        validation_fraction: share of the rows held out to select the epoch, where ``fit`` gets no val.
        select: "auto", "clean", "known", "observed" or "last": how the epoch is selected; see ``training.selection``.
        stop_below: stop when the score of an epoch is so far below the best, from 0 to 1; None never stops.
        threshold: the probability from which ``predict`` returns 1; "auto" chooses one per class on val or, with
            ``weight_decay="auto"``, on the out-of-fold scores of all rows; else it is 0.5.
        random_state: seed of the first weights, the order of the rows and the rows held out; None is 0.
        device: "auto", "cpu", "cuda" or "mps".

    Attributes:
        classes_: ``(K,)`` names of the classes; numbers from 0 where Y has no names.
        coef_: ``(K, D)``
        intercept_: ``(K,)``
        method_: the method that was used, and ``options_`` its options.
        why_: the reason why "auto" chose the method or the weight decay; None where they were given.
        weight_decay_: the weight decay that was used.
        cv_results_: with ``weight_decay="auto"`` a line for each setting that was compared: its method, options, weight
            decay, learning rate and score. Else None.
        select_: the rule that selected the epoch.
        best_epoch_: the selected epoch; ``n_iter_`` were trained, and ``history_`` has an entry for each.
        best_score_: its score on val, or of the chosen setting out of fold; None where the last epoch was kept.
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
        weight_decay: float | str = 0.0,
        standardize: bool | None = None,
        optimizer: str | None = None,
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
        self.weight_decay = weight_decay
        self.standardize = standardize
        self.optimizer = optimizer
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

    why_: str | None
    cv_results_: list[dict[str, Any]] | None

    def _train(self, features: NDArray[np.float32], table: LabelTable, val: _Val | None) -> None:
        features, device = np.ascontiguousarray(features), choose_device(self.device)
        val_features, val_labels = (None, None) if val is None else val
        if self.weight_decay == "auto":
            settings, scores = self._search(features, table, val, device)
        else:
            settings, scores = self._given_settings(table, val_labels), None
        self.select_ = choose_selection(val_labels, None, self.select).rule
        plan = HeadPlan(
            self.method_, self.options_, settings.pop("lr"), table, self._seed(), weight_decay=self.weight_decay_
        )
        (result,) = train_heads(
            torch.from_numpy(features),
            [plan],
            epochs=self.epochs,
            order_seed=self._seed(),
            val_features=None if val_features is None else torch.from_numpy(np.ascontiguousarray(val_features)),
            val_labels=val_labels,
            select=self.select_,
            stop_below=self.stop_below,
            device=device,
            **settings,
        )
        if result.failed is not None:
            raise InputError(f"{plan}: {result.failed}, or a StandardScaler before it.")
        self.coef_ = np.array(result.weight, dtype=np.float32)
        self.intercept_ = np.array(result.bias, dtype=np.float32)
        self.best_epoch_ = result.best_epoch
        self.n_iter_, self.history_ = len(result.history), list(result.history)
        if scores is None:
            self.best_score_ = result.best_score
        if scores is None and val is not None:
            scores, table = self._logits(val[0]), val[1]
        self.thresholds_ = np.full(len(self.intercept_), 0.5 if self.threshold == "auto" else float(self.threshold))
        if self.threshold == "auto" and scores is not None:
            self.thresholds_ = np.array(choose_thresholds(expit(scores), table.to_dense()).values)

    def _search(
        self, features: NDArray[np.float32], table: LabelTable, val: _Val | None, device: torch.device
    ) -> tuple[dict[str, Any], NDArray[np.floating[Any]]]:
        """Cross-validate; return the settings of the head, and the out-of-fold logits of all rows."""
        if val is not None:
            raise InputError(
                "weight_decay='auto' cross-validates over all rows and needs no val: leave X_val and "
                "validation_fraction out, or give a number."
            )
        given: dict[str, Any] = {"epochs": self.epochs, "standardize": self.standardize, "optimizer": self.optimizer}
        config, found = search_settings(
            features,
            table,
            method=self.method,
            options=dict(self.options or {}),
            seed=self._seed(),
            training={name: value for name, value in given.items() if value is not None},
            minibatch={"lr": self.lr, "batch_size": self.batch_size},
            device=device,
        )
        self.method_, self.options_, self.why_ = config.method, dict(config.options), found.reason
        self.weight_decay_, self.cv_results_ = config.weight_decay, [dict(line) for line in found.compared]
        self.best_score_ = max((line["score"] for line in found.compared if line["score"] is not None), default=None)
        return {name: getattr(config, name) for name in _HEAD_SETTINGS}, found.logits

    def _given_settings(self, table: LabelTable, val: LabelTable | None) -> dict[str, Any]:
        """Return the settings of the head where nothing is searched."""
        self._choose_method(table, val)
        if isinstance(self.weight_decay, str) or not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"weight_decay={self.weight_decay!r}: it is a number from 0, or 'auto'.")
        self.weight_decay_, self.cv_results_ = float(self.weight_decay), None
        newton = self.optimizer == "newton"
        if newton and not supports_newton(loss(self.method_, **self.options_), len(table) * len(table.classes)):
            raise InputError(f"optimizer='newton' is for element-wise losses without a state, not '{self.method_}'.")
        return {
            "lr": 1.0 if newton else self.lr,
            "batch_size": self.batch_size,
            "optimizer": self.optimizer or "adam",
            "standardize": bool(self.standardize),
        }

    def _choose_method(self, table: LabelTable, val: LabelTable | None) -> None:
        options = dict(self.options or {})
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
