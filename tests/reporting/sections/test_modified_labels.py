"""Share, precision and recall of modified labels, against counts by hand and loops written from the words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revision, Revisions
from labelgap.metrics import revision_quality
from labelgap.reporting.sections.modified_labels import (
    modified_labels_from_run,
    modified_labels_from_trace,
    pseudo_labels_from_revisions,
)
from labelgap.training import Run

Trace = dict[str, NDArray[Any]]


@pytest.fixture
def trace() -> Trace:
    random = np.random.default_rng(4)
    modified = random.random((5, 200)) < 0.2
    modified[0] = False
    observed, truth = random.choice([PRESENT, ABSENT, UNKNOWN], (2, 200)).astype(np.int8)
    return {"observed": observed, "truth": truth, "modified": modified}


def members(trace: Trace, truth: int) -> list[int]:
    pairs = zip(trace["observed"].tolist(), trace["truth"].tolist(), strict=True)
    return [number for number, pair in enumerate(pairs) if pair == (UNKNOWN, truth)]


def test_the_measures_of_a_whole_trace_are_plain_counts(trace: Trace) -> None:
    present, absent = members(trace, PRESENT), members(trace, ABSENT)
    found = modified_labels_from_trace(trace, (len(absent), len(present)))
    assert found is not None and not found.accumulated
    assert found.share[0] == 0 and np.isnan(found.precision[0]) and found.recall[0] == 0
    for epoch in range(1, 5):
        right = sum(bool(trace["modified"][epoch, n]) for n in present)
        wrong = sum(bool(trace["modified"][epoch, n]) for n in absent)
        assert found.share[epoch] == pytest.approx((right + wrong) / (len(present) + len(absent)))
        assert found.precision[epoch] == pytest.approx(right / (right + wrong))
        assert found.recall[epoch] == pytest.approx(right / len(present))
    assert found.base_rate == pytest.approx(len(present) / (len(present) + len(absent)))


def test_a_sample_is_weighed_by_how_many_labels_of_each_kind_there_are() -> None:
    sample: Trace = {
        "observed": np.full(4, UNKNOWN, dtype=np.int8),
        "truth": np.array([PRESENT, PRESENT, ABSENT, ABSENT], dtype=np.int8),
        "modified": np.array([[True, True, True, False]]),
    }
    found, alone = modified_labels_from_trace(sample, (1000, 10)), modified_labels_from_trace(sample)
    assert found is not None and alone is not None
    assert (found.precision[0], found.share[0]) == pytest.approx((10 / (10 + 500), 510 / 1010))
    assert found.recall[0] == alone.recall[0] == 1
    assert np.isnan(alone.precision[0]) and np.isnan(alone.share[0]), "what the sample alone does not say"


def test_without_truth_only_the_share_is_said(trace: Trace) -> None:
    found = modified_labels_from_trace(trace | {"truth": np.full(200, UNKNOWN, dtype=np.int8)}, (0, 0))
    assert found is not None
    unknown = trace["observed"] == UNKNOWN
    np.testing.assert_allclose(found.share, [row[unknown].sum() / unknown.sum() for row in trace["modified"]])
    assert np.isnan(found.precision).all() and np.isnan(found.recall).all()
    assert modified_labels_from_trace(trace | {"modified": np.zeros((5, 200), dtype=bool)}, (1, 1)) is None
    assert modified_labels_from_trace({}) is None


def test_pseudo_labels_by_hand() -> None:
    truth = LabelTable.from_dense([[1, 1, 0], [1, 0, 0], [0, 1, 1]], images=["a", "b", "c"])
    observed = LabelTable.from_dense([[1, -1, -1], [-1, 0, -1], [-1, -1, -1]], images=["a", "b", "c"])
    made = [
        Revision("a", "1", PRESENT, "m", epoch=2),  # right
        Revision("b", "2", ABSENT, "m", target=0.1, epoch=2),  # right
        Revision("c", "0", PRESENT, "m", epoch=3),  # wrong
        Revision("c", "1", ABSENT, "m", target=0.2, epoch=3),  # wrong
    ]
    found = pseudo_labels_from_revisions(Revisions(made), observed, truth, 4)
    present, absent = found[PRESENT], found[ABSENT]
    assert present.accumulated and absent.accumulated
    np.testing.assert_allclose(present.share, np.array([0, 1, 2, 2]) / 7)
    np.testing.assert_allclose(present.precision, [np.nan, 1, 0.5, 0.5])
    np.testing.assert_allclose(present.recall, np.array([0, 1, 1, 1]) / 4)  # a1, b0, c1, c2 were hidden
    np.testing.assert_allclose(absent.precision, [np.nan, 1, 0.5, 0.5])
    np.testing.assert_allclose(absent.recall, np.array([0, 1, 1, 1]) / 3)  # a2, b2, c0
    assert (present.base_rate, absent.base_rate) == pytest.approx((4 / 7, 3 / 7))
    blind = pseudo_labels_from_revisions(Revisions(made), observed, None, 4)
    np.testing.assert_allclose(blind[PRESENT].share, present.share)
    assert np.isnan(blind[PRESENT].precision).all() and np.isnan(blind[PRESENT].base_rate)
    assert pseudo_labels_from_revisions(Revisions(), observed, truth, 4) == {}


def test_a_run_is_read_by_what_its_method_does(run_of: Callable[..., Run], data: Dataset) -> None:
    truth = data.train.truth
    assert truth is not None
    sampled = run_of(trace=50)
    alone, beside = modified_labels_from_run(sampled)[PRESENT], modified_labels_from_run(sampled, data)[PRESENT]
    assert np.isnan(alone.share).all() and np.isfinite(beside.share).all() and not beside.accumulated
    assert modified_labels_from_run(run_of(method="ll-cp"), data)[PRESENT].accumulated
    assert modified_labels_from_run(run_of(method="an"), data) == {}
    run = run_of(method="em-apl")
    rows, columns = np.nonzero(data.train.labels.to_dense() == UNKNOWN)
    made = Revisions.from_arrays(truth, rows, columns, values=ABSENT, source="em-apl", epoch=2)
    made.to_parquet(run.path / "revisions.parquet")
    found = modified_labels_from_run(run, data)
    assert found.keys() == {ABSENT} and found[ABSENT].recall[-1] == 1
    assert found[ABSENT].precision[-1] == revision_quality(data.train.labels, truth, made).precision
    assert modified_labels_from_run(run) == {}, "images are named in the data set"
    assert data.test is not None
    other = Dataset("pets", replace(data.test, name="train"))
    assert modified_labels_from_run(run, other) == {}, "it has none of the images that were revised"
