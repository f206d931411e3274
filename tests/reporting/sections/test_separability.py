"""Separability of scores and the share of unknown positives, against loops and against answers known by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import logit
from tests.reporting.conftest import RunMaker

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.reporting.sections import separability
from labelgap.reporting.sections.separability import (
    class_separability,
    count_unknown_positives,
    separability_from_trace,
    separability_on_unseen,
    unknown_positives_from_run,
)
from labelgap.training.run_folder import read_predictions


def test_separate_equal_reversed_and_tied_scores_have_the_measures_known_by_hand() -> None:
    separate, equal, reverse, tied = [0.9, 0.8, 0.1, 0.2], [0.9, 0.1, 0.9, 0.1], [0.1, 0.1, 0.9, 0.9], [0.5] * 4
    scores = np.array([separate, equal, reverse, tied]).T
    labels = np.repeat([[PRESENT], [PRESENT], [ABSENT], [ABSENT]], 4, axis=1)
    found = class_separability(scores, labels)
    assert found.auc.tolist() == [1.0, 0.5, 0.0, 0.5]
    assert found.overlap.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert found.present.tolist() == found.absent.tolist() == [2] * 4
    assert len(found.counted) == 0 and np.isnan(found.mean()).all()  # two labels of a state are too few


def test_the_measures_are_those_of_loops_over_all_pairs_and_unknown_labels_are_left_out() -> None:
    random = np.random.default_rng(5)
    scores = random.integers(0, 20, (60, 7)) / 20 + 0.025
    labels = random.choice([PRESENT, ABSENT, UNKNOWN], (60, 7))
    labels[:, 5], labels[:, 6] = PRESENT, UNKNOWN
    found = class_separability(scores, labels, list("abcdefg"))
    for place in range(5):
        present, absent = (scores[labels[:, place] == state, place].tolist() for state in (PRESENT, ABSENT))
        wins = sum((p > a) + 0.5 * (p == a) for p in present for a in absent)
        assert found.auc[place] == pytest.approx(wins / len(present) / len(absent))
        shared = sum(min(present.count(v) / len(present), absent.count(v) / len(absent)) for v in {*present, *absent})
        assert found.overlap[place] == pytest.approx(shared)
    assert np.isnan(found.auc[5:]).all() and np.isnan(found.overlap[5:]).all()
    assert found.counted.tolist() == sorted(range(5), key=lambda place: found.auc[place])
    assert found.mean()[0] == pytest.approx(found.auc[:5].mean())


@pytest.mark.parametrize(("scores", "labels"), [([[0.5]], [[1, 0]]), ([[3.0]], [[1]]), ([[np.nan]], [[1]])])
def test_scores_that_are_no_probabilities_of_the_labels_are_refused(scores: Any, labels: Any) -> None:
    with pytest.raises(InputError):
        class_separability(scores, labels)


def test_the_unknown_labels_of_a_trace_are_measured_as_a_matrix_of_the_same_scores_is() -> None:
    random = np.random.default_rng(1)
    scores = random.random((40, 3))
    observed, truth = random.choice([PRESENT, ABSENT, UNKNOWN], (2, 40, 3)).astype(np.int8)
    rows, columns = np.divmod(np.arange(120), 3)
    trace = {"row": rows, "column": columns, "observed": observed.ravel(), "truth": truth.ravel()}
    trace["logit"] = np.stack([np.full(120, np.nan), logit(scores).ravel()])
    found = separability_from_trace(trace, ("a", "b", "c"))
    expected = class_separability(scores, np.where(observed == UNKNOWN, truth, UNKNOWN))
    assert found is not None and found.present.tolist() == expected.present.tolist()
    np.testing.assert_allclose(found.auc, expected.auc)
    np.testing.assert_allclose(found.overlap, expected.overlap)
    assert separability_from_trace(trace, ("a", "b", "c"), epoch=1) is None  # an epoch that saw nothing
    assert separability_from_trace(trace | {"truth": np.full(120, UNKNOWN)}, ("a", "b", "c")) is None
    assert separability_from_trace({}, ("a",)) is None


def test_unseen_images_are_measured_by_their_predictions(
    run_of: RunMaker, data: Dataset, positives_only: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, test = run_of(), data.split("test")
    found = separability_on_unseen(run, data)["test"]
    scores = read_predictions(run.path, "test", test.labels.images, data.classes)
    assert scores is not None and found.classes == data.classes
    np.testing.assert_array_equal(found.auc, class_separability(scores, test.evaluation_labels.to_dense()).auc)
    monkeypatch.setattr(separability, "MAX_SCORES", 4 * 10)
    some = separability_on_unseen(run, data)["test"]
    assert some.images == 10 and (some.present + some.absent).tolist() == [10] * 4
    assert separability_on_unseen(run, None) == {}
    monkeypatch.undo()
    mixed = replace(data, test=positives_only.test)
    assert separability_on_unseen(run, mixed).keys() == {"val"}, "where test has no absent label"
    assert separability_on_unseen(run_of(positives_only, val=False, truth=False), positives_only) == {}


def test_unknown_positives_are_counted_per_class_in_blocks(
    run_of: RunMaker, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = LabelTable.from_dense([[1, -1, 0], [-1, -1, 1], [-1, -1, 1]])
    truth = LabelTable.from_dense([[1, 1, 0], [1, 1, 1], [0, -1, 1]])
    monkeypatch.setattr(separability, "_BLOCK", 3)
    found = count_unknown_positives(observed, truth)
    assert found.unknown.tolist() == [2, 2, 0] and found.present.tolist() == [1, 2, 0]
    assert found.share[:2].tolist() == [0.5, 1.0] and np.isnan(found.share[2])
    with_data, from_trace = unknown_positives_from_run(run_of(), data), unknown_positives_from_run(run_of())
    assert with_data is not None and from_trace is not None
    assert with_data.present.tolist() == from_trace.present.tolist() and with_data.present.sum() > 0
    assert with_data.unknown.tolist() == from_trace.unknown.tolist()
    assert unknown_positives_from_run(run_of(truth=False)) is None
