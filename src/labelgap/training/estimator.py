"""``LabelGapClassifier``: the linear engine as a scikit-learn estimator, for any feature vectors; and its scorers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from labelgap.core.errors import InputError
from labelgap.core.special import expit
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FEATURES, FeatureVectors
from labelgap.labels import LabelTable, paper_split
from labelgap.metrics import average_precision, choose_thresholds
from labelgap.training.auto import FOLDS
from labelgap.training.devices import choose_device
from labelgap.training.folds import equal_row_groups, train_configs
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.progress import Reporter
from labelgap.training.search import Search, search_settings


class LabelGapClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear multi-label classifier for labels of which some, or most, are unknown, behind scikit-learn's contract.

    X are feature vectors; the numbers are those of a run of the ``linear`` protocol. Y is one of

    - a matrix of 1 (present), 0 (absent) and −1 or NaN (unknown);
    - a pandas ``DataFrame`` of these: its columns name the classes;
    - a scipy sparse matrix: a stored 1 is present, a stored 0 absent, and what is not stored is unknown;
    - a ``LabelTable``.

    scikit-learn's ``cross_val_predict`` passes Y on as it is with ``method="predict"`` alone. For scores it numbers the
    values of each column from 0, so that unknown labels become known: fit the folds of a ``KFold`` yourself.

    Args:
        method: one of ``labelgap.methods()``, or "auto", which chooses by the states of the labels.
        options: the options of the method; its defaults where left out.
        lr: learning rate; None, like all that is left open, leaves it to ``labelgap.fit``'s choice.
        batch_size: rows per step.
        epochs: how many.
        weight_decay: times the weights, added to their gradient; not for the biases under "newton". "auto" compares
            several, and methods and rates where they are open, on val or, without one, by cross-validation over all
            rows on what is known.
        standardize: whether the head is trained on standardized features; ``coef_`` is on X all the same. None: where
            something is compared.
        optimizer: "adam", "sgd", or "newton", which steps on all rows at once, ten times in an epoch, with a rate of
            its own. None: "newton" where something is compared, the method allows it, and neither a rate nor a batch
            size is given; else "adam".
        validation_fraction: share of the rows held out as val, where ``fit`` gets none.
        select: "auto", "clean", "known", "observed" or "last": how the epoch is selected; see ``training.selection``.
        stop_below: stop when the score of an epoch is so far below the best, from 0 to 1; None never stops.
        threshold: the probability from which ``predict`` returns 1; "auto" chooses one per class on val, or on the
            out-of-fold scores of cross-validated rows where labels are unknown; else it is 0.5.
        random_state: seed of the first weights, the order of the rows and the rows held out; None is 0.
        device: "auto", "cpu", "cuda" or "mps".

    Attributes:
        classes_: ``(K,)`` names of the classes; numbers from 0 where Y has no names.
        coef_, intercept_: ``(K, D)`` and ``(K,)``.
        method_, options_, weight_decay_: those that were used.
        why_: the reason why "auto" chose the method or the weight decay; None where they were given.
        cv_results_: a line for each setting that was compared: its method, options, weight decay, learning rate and
            score. None where nothing was.
        select_: the rule that selected the epoch.
        best_epoch_: the selected epoch; ``n_iter_`` were trained, and ``history_`` has an entry for each.
        best_score_: its score on val, or that of the chosen setting out of fold; None where the last epoch was kept.
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
        lr: float | None = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        weight_decay: float | str = "auto",
        standardize: bool | None = None,
        optimizer: str | None = None,
        validation_fraction: float = 0.0,
        select: str = "auto",
        stop_below: float | None = None,
        threshold: str | float = "auto",
        random_state: int | None = 0,
        device: str = "cpu",
    ) -> None:
        self.method, self.options, self.lr, self.batch_size, self.epochs = method, options, lr, batch_size, epochs
        self.weight_decay, self.standardize, self.optimizer = weight_decay, standardize, optimizer
        self.validation_fraction, self.select, self.stop_below = validation_fraction, select, stop_below
        self.threshold, self.random_state, self.device = threshold, random_state, device

    def fit(self, X: ArrayLike, Y: Any, X_val: ArrayLike | None = None, Y_val: Any = None) -> Self:  # noqa: N803
        """Train on rows X ``(N, D)`` and the known part of their labels Y ``(N, K)``, see above.

        Rows ``X_val`` with labels ``Y_val`` select the epoch and the thresholds. A pipeline does not transform them:
        use ``validation_fraction`` there.
        """
        train, val = self._split("train", X, Y, "Y", reset=True), None
        if (X_val is None) != (Y_val is None):
            raise InputError("val needs both: X_val and Y_val.")
        if X_val is not None:
            val = self._split("val", X_val, Y_val, "Y_val")
            if val.labels.classes != train.labels.classes:
                counts = f"{len(val.labels.classes)} and {len(train.labels.classes)} of them"
                raise InputError(f"the classes of Y_val are not those of Y, in the same order: {counts}.")
        elif self.validation_fraction:
            rows, held_out = paper_split(len(train), self.validation_fraction, self._seed())
            if not len(rows) or not len(held_out):
                raise InputError(
                    f"validation_fraction={self.validation_fraction}: of {len(train)} rows it leaves none to train "
                    "on, or none to select on."
                )
            train, val = train.select(rows), train.select(held_out, "val")
        self._train(Dataset("X", train, val, backbone=FEATURES))
        self.classes_ = class_names(Y, len(train.labels.classes))
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
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        return tags

    def _seed(self) -> int:
        """Return the seed; with a generator two fits of one estimator would differ silently."""
        seed = 0 if self.random_state is None else self.random_state
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise InputError(f"random_state={seed!r}: it must be an integer.")
        return int(seed)

    def _features(self, X: ArrayLike, *, reset: bool) -> NDArray[np.float32]:  # noqa: N803
        try:
            checked: NDArray[np.float32] = validate_data(self, X, dtype=np.float32, reset=reset)
        except ValueError as error:
            raise InputError(str(error)) from None
        return checked

    def _split(self, name: str, X: ArrayLike, Y: Any, what: str, *, reset: bool = False) -> Split:  # noqa: N803
        vectors = FeatureVectors(np.ascontiguousarray(self._features(X, reset=reset)))
        return Split(name, vectors, as_label_table(Y, len(vectors), what))

    why_: str | None
    cv_results_: list[dict[str, Any]] | None

    def _train(self, data: Dataset) -> None:
        vectors = {
            split.name: torch.from_numpy(split.images.vectors)
            for split in data.splits
            if isinstance(split.images, FeatureVectors)
        }
        plan = plan_training(data, self._request(vectors), choose_device(self.device))
        config, selection = plan.config, plan.selection
        found: Search | None = None
        if plan.search is not None:
            found = search_settings(plan, vectors, Reporter(quiet=True))
            config = config.model_copy(update={**found.settings, "why": found.reason})
        self.method_, self.options_, self.why_ = config.method, dict(config.options), config.why
        self.weight_decay_, self.select_ = config.weight_decay, selection.rule
        self.cv_results_ = None if found is None else [dict(line) for line in found.compared]
        labels, val = data.train.labels, data.val
        config = config.model_copy(update={"stop_below": self.stop_below})
        (result,) = train_configs(vectors, labels, [config], selection, order_seed=config.seed, device=plan.device)
        if result.failed is not None:
            raise InputError(f"{result.plan}: {result.failed}, or a StandardScaler before it.")
        self.coef_ = np.array(result.weight, dtype=np.float32)
        self.intercept_ = np.array(result.bias, dtype=np.float32)
        self.best_epoch_, self.best_score_ = result.best_epoch, result.best_score
        self.n_iter_, self.history_ = len(result.history), list(result.history)
        unseen: NDArray[np.floating[Any]] | None = None
        if found is not None and found.logits is not None:
            self.best_score_, unseen = found.best_score, None if labels.complete else found.logits
        elif val is not None:
            unseen, labels = self._logits(vectors["val"].numpy()), val.labels
        self.thresholds_ = np.full(len(self.intercept_), 0.5 if self.threshold == "auto" else float(self.threshold))
        if self.threshold == "auto" and unseen is not None:
            self.thresholds_ = np.array(choose_thresholds(expit(unseen), labels.to_dense()).values)

    def _request(self, vectors: Mapping[str, torch.Tensor]) -> TrainingRequest:
        if self.weight_decay != "auto" and (isinstance(self.weight_decay, str) or not self.weight_decay >= 0):
            raise InputError(f"weight_decay={self.weight_decay!r}: it must be a number from 0, or 'auto'.")
        names = ("lr", "batch_size", "epochs", "standardize", "optimizer")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.weight_decay != "auto":
            given["weight_decay"] = self.weight_decay
        elif "val" not in vectors:
            given["folds"] = FOLDS if len(np.unique(equal_row_groups(vectors["train"].numpy()))) >= 2 * FOLDS else 0
        given.setdefault("folds", 0)
        own = {"method": self.method, "options": dict(self.options or {}), "seed": self._seed(), "select": self.select}
        return TrainingRequest.of({**own, "protocol": "linear", **given})

    def _logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        logits: NDArray[np.float64] = features.astype(np.float64) @ self.coef_.T.astype(np.float64) + self.intercept_
        return logits


def average_precision_scorer(estimator: Any, X: Any, Y: Any) -> float:  # noqa: N803
    """Return the mean average precision over the known labels, 0 to 1; an error where none can be measured."""
    none = "has both a known present and a known absent label: there is no accuracy to measure. To order settings, use "
    none += "scoring=labelgap.observed_scorer; for an accuracy, have some rows fully labeled."
    return _score(estimator, X, Y, "ignore", none)


def observed_scorer(estimator: Any, X: Any, Y: Any) -> float:  # noqa: N803
    """Return how high the known presents rank, unknown labels taken as absent: an order of settings, no accuracy."""
    return _score(estimator, X, Y, "absent", "is present in one row and not in another: there is nothing to order.")


def _score(estimator: Any, X: Any, Y: Any, unknown: Literal["ignore", "absent"], none: str) -> float:  # noqa: N803
    method = "decision_function" if hasattr(estimator, "decision_function") else "predict_proba"
    scores = np.asarray(getattr(estimator, method)(X))
    if scores.ndim != 2:
        raise InputError(
            f"{method} of {type(estimator).__name__} gives {scores.shape}: one column per class is needed."
        )
    value, counted = average_precision(scores, as_label_table(Y).to_dense(), unknown=unknown, return_counted=True)
    if not counted:
        raise InputError(f"no class of Y {none}")
    return float(value)


def as_label_table(labels: Any, rows: int | None = None, what: str = "Y") -> LabelTable:
    """Return a matrix, ``DataFrame`` or sparse matrix of labels as a table, of so many rows; ``what`` names it."""
    if labels is None:
        raise InputError(f"learning from labels requires y to be passed, but the target y is None: give {what}.")
    try:
        table = labels if isinstance(labels, LabelTable) else _read_labels(labels)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    if rows is not None and len(table) != rows:
        raise InputError(f"{what} has {len(table):,} rows of labels for {rows:,} rows of features.")
    return table


def _read_labels(labels: Any) -> LabelTable:
    stored = labels.tocoo() if sparse.issparse(labels) else None
    values = np.asarray(labels) if stored is None else stored
    if values.dtype == object:
        try:
            values = np.asarray([[np.nan if _missing(cell) else float(cell) for cell in row] for row in values])
        except (TypeError, ValueError):
            raise InputError("a label is 1 (present), 0 (absent), −1 or NaN (unknown).") from None
    if values.ndim != 2:
        raise InputError(
            f"a matrix is needed, a row for each row of X and a column per class, and its shape is {values.shape}; "
            "for a single class use Y.reshape(-1, 1)."
        )
    if stored is not None:
        names = [str(number) for number in range(stored.shape[1])]
        return LabelTable.from_entries(stored.row, stored.col, stored.data, names, stored.shape[0])
    try:
        return LabelTable.from_dense(values, [str(name) for name in getattr(labels, "columns", ())] or None)
    except InputError as error:
        if values.dtype.kind != "f":
            raise
        raise InputError(f"{str(error).removesuffix('.')}; continuous values are no labels.") from None


def _missing(cell: Any) -> bool:
    """Whether a cell is None, NaN or pandas' NA, which is equal to nothing."""
    return cell is None or type(cell).__name__ == "NAType" or bool(cell != cell)


def class_names(labels: Any, classes: int) -> NDArray[Any]:
    """Return the class names of a table or the columns of a ``DataFrame``; else numbers."""
    names = labels.classes if isinstance(labels, LabelTable) else getattr(labels, "columns", None)
    return np.arange(classes) if names is None else np.array(list(names), dtype=object)
