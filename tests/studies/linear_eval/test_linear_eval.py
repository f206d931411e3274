from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.studies.compare.small_features import features

from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FeatureVectors
from labelgap.labels import LabelTable
from labelgap.studies.linear_eval import LinearEvaluation, PenaltyResult, linear_eval

QUICK: dict[str, Any] = {"penalties": [1e-3, 1.0, 1e3], "device": "cpu", "quiet": True}


def single_label() -> Dataset:
    """Three clusters that one class each belongs to."""
    random, parts = np.random.default_rng(0), {}
    for name, count in (("train", 60), ("val", 30), ("test", 30)):
        numbers = np.arange(count) % 3
        vectors = np.eye(3)[numbers] * 3 + random.normal(size=(count, 3))
        parts[name] = Split(name, FeatureVectors(vectors), LabelTable.from_dense(np.eye(3, dtype=np.int8)[numbers]))
    return Dataset("clusters", parts["train"], parts["val"], parts["test"], backbone="features")


def test_val_chooses_and_the_best_on_test_stands_beside_it(tmp_path: Path) -> None:
    found = linear_eval(single_label(), out=tmp_path / "out", **QUICK)
    assert (found.task, found.metric) == ("single-label", "accuracy") and found.chosen.val > 0.8
    assert found.chosen.val == max(each.val for each in found.results)
    assert found.best_on_test is not None and found.best_on_test.test == max(each.test or 0 for each in found.results)
    assert LinearEvaluation.open(found.path) == replace(found, head=None)
    assert (tmp_path / "out" / "linear_eval.csv").read_text().count("\n") == 4
    means = [np.mean([getattr(each, split) for each in found.class_results]) for split in ("val", "test")]
    assert means == pytest.approx([found.chosen.val, found.chosen.test]), "as many images of every class"
    assert [each.present for each in found.class_results] == [20, 20, 20]
    linear_eval(single_label(), out=tmp_path / "out", **QUICK)  # the same folder again


def test_of_equal_scores_on_val_the_largest_penalty_is_chosen() -> None:
    results = tuple(PenaltyResult(penalty, 0.5, test, 1, True) for penalty, test in ((1.0, 0.9), (2.0, 0.1)))
    found = LinearEvaluation(Path(), "", "", "multi-label", {}, 2, {}, results)
    assert found.chosen is results[1] and found.best_on_test is results[0]


def test_without_val_some_training_images_take_its_place(tmp_path: Path) -> None:
    found = linear_eval(features(observed=False, splits=()), out=tmp_path / "out", **QUICK)
    scores = [each.val for each in found.class_results if each.val is not None]
    assert np.mean(scores) == pytest.approx(found.chosen.val)
    assert found.task == "multi-label" and found.images == {"train": 72, "val": 18}
    assert found.best_on_test is None and found.chosen.test is None
    assert "18 of the training images" in found.notes[0] and "too optimistic" in found.notes[1]


@pytest.mark.parametrize(
    ("data", "task", "remedy"),
    [
        (features(), "auto", "--observe positives=all,negatives=all"),
        (features(truth=False), "auto", "--task single-label"),
        (features(observed=False), "single-label", "several classes"),
    ],
)
def test_labels_that_say_nothing_are_refused(data: Dataset, task: Any, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=remedy):
        linear_eval(data, task=task, out=tmp_path, **QUICK)


def test_a_damaged_result_is_refused(tmp_path: Path) -> None:
    found = linear_eval(single_label(), out=tmp_path, **QUICK)
    stored = json.loads((tmp_path / "linear_eval.json").read_text())
    (tmp_path / "linear_eval.json").write_text(json.dumps({**stored, "classes": 4}))
    with pytest.raises(RunError, match=r"linear_eval\.json"):
        LinearEvaluation.open(found.path)
