"""The scikit-learn estimator: its contract, what it takes as labels, and that it is the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FeatureVectors
from labelgap.labels import LabelTable
from labelgap.training.estimator import LabelGapClassifier

pd = pytest.importorskip("pandas")


NUMBERED, ONE_COLUMN = "its labels are 0, 1, 2 …, one class a row", "its labels are a vector, one class a row"
EXPECTED = {
    "check_classifier_data_not_an_array": NUMBERED,
    "check_classifier_not_supporting_multiclass": f"{NUMBERED}; it wants the words of scikit-learn's own refusal",
    "check_classifiers_classes": ONE_COLUMN,
    "check_classifiers_regression_target": f"{ONE_COLUMN}; it wants the word continuous in the refusal",
    "check_classifiers_train": "it wants a vector of predictions; here they have a column per class",
    "check_decision_proba_consistency": ONE_COLUMN,
    "check_estimators_dtypes": NUMBERED,
    "check_fit2d_1feature": NUMBERED,
}
"""What of scikit-learn's own checks is about classifiers of one class a row, and why it cannot pass."""


def data(rows: int = 120, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.int8]]:
    """Vectors, full labels, and one known positive of each row that has any."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 5))
    full = (X @ random.normal(size=(5, 3)) + 0.5 * random.normal(size=(rows, 3)) > 0.3).astype(np.int8)
    full[np.arange(rows), np.arange(rows) % 3] |= (full.sum(axis=1) == 0).astype(np.int8)
    return X, full, LabelTable.from_dense(full).observe(positives=1, negatives=0).to_dense()


def quick(method: str = "an", **settings: Any) -> LabelGapClassifier:
    return LabelGapClassifier(method, **{"epochs": 3, "lr": 0.05, "weight_decay": 0.0, **settings})


@parametrize_with_checks([LabelGapClassifier(epochs=2)], expected_failed_checks=lambda _: EXPECTED)  # type: ignore[untyped-decorator]
def test_scikit_learn_checks_pass_but_those_of_one_class_a_row(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("with_val", [False, True], ids=["without val", "val"])
@pytest.mark.parametrize(
    ("method", "given"),
    [("auto", {}), ("an", {"lr": 0.05, "batch_size": 16}), ("role", {"lr": 0.05})],
    ids=["auto", "adam", "role"],
)
def test_its_numbers_are_a_linear_runs(tmp_path: Any, method: str, given: dict[str, Any], with_val: bool) -> None:
    X, full, Y = data()
    vectors, options = X.astype(np.float32), {"expected_positives": 1.5} if method == "role" else {}
    train = Split("train", FeatureVectors(vectors), LabelTable.from_dense(Y))
    val = Split("val", FeatureVectors(vectors[:40]), LabelTable.from_dense(full[:40])) if with_val else None
    made = Dataset("x", train, val, backbone="features", flip=False)
    given = {"epochs": 3, **given}
    run = lg.fit(made, method, options, out=tmp_path / "a", device="cpu", quiet=True, **given)
    model = LabelGapClassifier(method, options, **given).fit(X, Y, *((X[:40], full[:40]) if with_val else ()))
    assert (model.method_, model.weight_decay_) == (run.config.method, run.config.weight_decay)
    assert model.predict_proba(X) == pytest.approx(run.predict(vectors, device="cpu"), abs=1e-4)
    assert model.thresholds_ == pytest.approx(run.thresholds.values, abs=1e-4)
    searched = run.metrics["search" if with_val else "cross_validation"]
    assert model.cv_results_ == searched["compared"] and "weight decay" in str(model.why_)
    own = [line["score"] for line in model.cv_results_ or () if line["method"] == model.method_]
    assert model.best_score_ == pytest.approx(max(own), abs=1e-6)


def test_every_form_of_labels_is_the_same_labels() -> None:
    X, full, Y = data()
    Y[:30] = np.where(np.arange(3) == np.arange(30)[:, None] % 3, full[:30], -1)
    plain = quick().fit(X, Y)
    entries = np.nonzero(Y != -1)
    stored = sparse.csr_array((Y[entries], entries), shape=Y.shape)
    assert stored.nnz == len(entries[0]), "a known absent is a stored zero"
    with_gaps = np.where(Y == -1, np.nan, Y)
    frame = pd.DataFrame(with_gaps, columns=["cat", "dog", "owl"])
    forms: list[Any] = [with_gaps, with_gaps.tolist(), frame, frame.astype("Int8"), stored, stored.tocsc()]
    forms.append(LabelTable.from_dense(Y))
    for form in forms:
        assert np.array_equal(quick().fit(X, form).coef_, plain.coef_)
    assert quick().fit(X, frame).classes_.tolist() == ["cat", "dog", "owl"]
    assert plain.classes_.tolist() == [0, 1, 2]
    assert quick("auto").fit(X, full).method_ == "bce-ls"


def test_the_best_epoch_on_val_is_kept_and_the_last_without_one() -> None:
    X, full, Y = data()
    held = quick(epochs=6, validation_fraction=0.3, random_state=1).fit(X, full)
    scores = [each["score"] for each in held.history_]
    assert held.select_ == "clean" and held.best_score_ == max(scores) and held.n_iter_ == 6
    assert held.best_epoch_ == 1 + scores.index(max(scores))
    blind = quick(epochs=6).fit(X, Y)
    assert blind.select_ == "last" and blind.best_epoch_ == 6 and blind.best_score_ is None
    assert blind.thresholds_.tolist() == [0.5] * 3
    assert quick(threshold=0.2).fit(X, Y).thresholds_.tolist() == [0.2] * 3


def test_it_works_in_a_pipeline_and_a_grid_search_with_unknown_labels() -> None:
    X, full, Y = data()
    Y[::2] = full[::2]
    pipeline = make_pipeline(StandardScaler(), quick(validation_fraction=0.2))
    search = GridSearchCV(
        pipeline, {"labelgapclassifier__lr": [1e-6, 0.05], "labelgapclassifier__method": ["an", "wan"]}, cv=3
    ).fit(X, Y)
    assert search.best_params_["labelgapclassifier__lr"] == 0.05
    assert search.best_score_ > 0.6 and search.predict(X).shape == (120, 3)
    frame = pd.DataFrame(np.where(Y == -1, np.nan, Y))
    values = cross_val_score(quick(), X, frame, cv=KFold(3), scoring=lg.average_precision_scorer)
    assert np.isfinite(values).all()


def test_skops_saves_and_loads_it_without_pickle() -> None:
    skops = pytest.importorskip("skops.io")
    X, full, Y = data()
    model = make_pipeline(StandardScaler(), quick("role", options={"expected_positives": 1.5})).fit(X, Y)
    saved = skops.dumps(model)
    named = ["labelgap.training.estimator.LabelGapClassifier"]
    assert skops.get_untrusted_types(data=saved) == named, "nothing else has to be trusted"
    back = skops.loads(saved, trusted=named)
    assert np.array_equal(back.predict_proba(X), model.predict_proba(X)) and back.score(X, full) == model.score(X, full)
    assert back[-1].get_params() == model[-1].get_params()


def test_score_is_the_precision_over_known_labels_and_positives_alone_have_an_order() -> None:
    X, full, Y = data()
    model, gaps = quick().fit(X, full), full.copy()
    gaps[::3, 0] = -1
    assert model.score(X, gaps) == pytest.approx(lg.average_precision(model.decision_function(X), gaps))
    assert lg.average_precision_scorer(model, X, gaps) == model.score(X, gaps)
    with pytest.raises(InputError, match="observed_scorer"):
        model.score(X, Y)
    found = GridSearchCV(quick(), {"lr": [1e-6, 0.05]}, scoring=lg.observed_scorer, cv=2).fit(X, Y)
    assert found.best_params_ == {"lr": 0.05} and 0 < lg.observed_scorer(model, X, Y) <= 1
    known = quick("epr").fit(X, Y, X, full)
    assert known.options_["expected_positives"] == pytest.approx(full.sum(axis=1).mean(), abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "labels", "named"),
    [
        ({"method": "ll-tr"}, None, "'ll-r'"),
        ({"validation_fraction": 1.5}, None, "val fraction"),
        ({"validation_fraction": 0.001}, None, "leaves none"),
        ({"random_state": "a"}, None, "an integer"),
        ({"epochs": 0}, None, "epochs"),
        ({"method": "epr"}, None, "expected_positives"),
        ({}, np.ones(120), "matrix"),
        ({}, np.full((120, 3), 0.5), "continuous"),
        ({}, np.full((120, 3), 7), "1 \\(present\\)"),
        ({}, np.ones((3, 3)), "120 rows"),
        ({}, [["yes", "no"]] * 120, "no label|must be numbers"),
        ({"method": "auto"}, np.full((120, 3), -1), "learn"),
        ({"lr": 1e38, "weight_decay": 0.0}, None, "learning rate"),
        ({"weight_decay": "lots"}, None, "'auto'"),
        ({"method": "warp", "optimizer": "newton"}, None, "element-wise"),
    ],
)
def test_wrong_arguments_are_rejected_with_a_remedy(settings: Any, labels: Any, named: str) -> None:
    X, _, Y = data()
    with pytest.raises(InputError, match=named):
        LabelGapClassifier(**{"method": "an", "epochs": 2, **settings}).fit(X, Y if labels is None else labels)


def test_val_and_new_rows_must_fit() -> None:
    X, full, Y = data()
    with pytest.raises(NotFittedError):
        quick().predict(X)
    model, frames = quick().fit(X, Y), [pd.DataFrame(Y, columns=list(names)) for names in ("abc", "acb")]
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("both", lambda: quick().fit(X, Y, X_val=X)),
        (r"2 and \d", lambda: quick().fit(X, Y, X, full[:, :2])),
        ("Y", lambda: quick().fit(X, frames[0], X, frames[1])),
        ("5 features", lambda: model.predict(X[:, :4])),
        ("weights", lambda: model.score(X, full, np.ones(120))),
        ("NaN", lambda: model.predict(np.full((2, 5), np.nan))),
    ]
    for named, call in wrong:
        with pytest.raises(InputError, match=named):
            call()
