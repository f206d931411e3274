"""Scores of training labels, on traces whose numbers are known by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.sections.label_scores import label_scores
from labelgap.reporting.sections.separability import BINS, probability_shares

Trace = dict[str, NDArray[Any]]
NAN = math.nan


@pytest.fixture
def trace() -> Trace:
    """Two observed positives, three unknown positives, two unknown negatives, and an observed absent label."""
    return {
        "observed": np.array([PRESENT] * 2 + [UNKNOWN] * 5 + [ABSENT], dtype=np.int8),
        "truth": np.array([PRESENT] * 5 + [ABSENT] * 3, dtype=np.int8),
        "loss": np.array([[1.0, 3.0, 0, 0, 0, 0, 0, 9], [0.5, NAN, 0, 0, 0, 0, 0, 9]], dtype=np.float32),
        "logit": np.array([[2, -2, -1, 2, -3, -4, 6, 9], [0, NAN, -1, NAN, 3, NAN, NAN, 9]], dtype=np.float32),
    }


def test_each_kind_has_its_loss_and_the_quartiles_of_its_absolute_logit_per_epoch(trace: Trace) -> None:
    found = label_scores(trace)
    assert list(found) == ["observed", "unknown_present", "unknown_absent"]
    assert [scores.count for scores in found.values()] == [2, 3, 2]
    assert found["observed"].loss.tolist() == [2.0, 0.5]  # the label that epoch 2 did not see is left out of its mean
    assert found["unknown_present"].magnitude.tolist() == [[1.5, 2.0, 2.5], [1.5, 2.0, 2.5]]
    assert found["unknown_absent"].magnitude[0].tolist() == [4.5, 5.0, 5.5]
    assert np.isnan(found["unknown_absent"].magnitude[1]).all() and np.isnan(found["unknown_absent"].loss[1])


@pytest.mark.parametrize(("epoch", "shown"), [(None, 2), (1, 1), (0, 1), (7, 2)])
def test_probabilities_are_of_one_epoch_that_was_recorded(trace: Trace, epoch: int | None, shown: int) -> None:
    found = label_scores(trace, epoch)["observed"]
    assert found.epoch == shown and found.mean_probability == pytest.approx(0.5)
    expected = {2: {10: 1.0}, 1: {2: 0.5, 17: 0.5}}[shown]  # σ(0) = 0.5; σ(−2) = 0.119, σ(2) = 0.881
    assert {place: share for place, share in enumerate(found.shares.tolist()) if share} == expected


def test_without_truth_all_unknown_labels_are_one_kind(trace: Trace) -> None:
    found = label_scores(trace | {"truth": np.full(8, UNKNOWN, dtype=np.int8)})
    assert {kind: scores.count for kind, scores in found.items()} == {"observed": 2, "unknown": 5}
    assert found["unknown"].magnitude[0, 1] == 3
    complete = label_scores(trace | {"observed": trace["truth"]})
    assert list(complete) == ["observed"]
    assert label_scores({}) == {}


def test_probabilities_of_the_ends_of_an_interval_belong_to_the_upper_one_and_1_to_the_last() -> None:
    shares = probability_shares(np.array([0.0, 0.049, 0.25, 1.0]))
    assert {place: share for place, share in enumerate(shares.tolist()) if share} == {0: 0.5, 5: 0.25, BINS - 1: 0.25}
    assert np.isnan(probability_shares(np.empty(0))).all()
