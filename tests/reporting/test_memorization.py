"""What a trace is summed up to, against loops written from the words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting import memorization as module
from labelgap.reporting.memorization import memorization_from_run, memorization_from_trace
from labelgap.training import Run


@pytest.fixture
def trace() -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(4)
    entries, epochs = 200, 5
    loss = random.random((epochs, entries)).astype(np.float32)
    loss[random.random(loss.shape) < 0.1] = np.nan
    modified = random.random(loss.shape) < 0.2
    modified[0] = False
    return {
        "observed": random.choice([PRESENT, ABSENT, UNKNOWN], entries).astype(np.int8),
        "truth": random.choice([PRESENT, ABSENT, UNKNOWN], entries).astype(np.int8),
        "loss": loss,
        "modified": modified,
    }


def members(trace: dict[str, NDArray[Any]], truth: int) -> list[int]:
    return [
        n for n, (o, t) in enumerate(zip(trace["observed"], trace["truth"], strict=True)) if (o, t) == (UNKNOWN, truth)
    ]


def reference_mean(trace: dict[str, NDArray[Any]], epoch: int, truth: int) -> float:
    seen = [float(trace["loss"][epoch, n]) for n in members(trace, truth) if not math.isnan(trace["loss"][epoch, n])]
    return sum(seen) / len(seen)


def test_the_mean_loss_is_over_unknown_labels_of_each_kind_that_the_epoch_saw(trace: dict[str, NDArray[Any]]) -> None:
    found = memorization_from_trace(trace)
    assert found is not None
    for epoch in range(5):
        assert found.false_negative[epoch] == pytest.approx(reference_mean(trace, epoch, PRESENT))
        assert found.true_negative[epoch] == pytest.approx(reference_mean(trace, epoch, ABSENT))


def test_share_and_precision_of_a_whole_trace_are_plain_counts(trace: dict[str, NDArray[Any]]) -> None:
    present, absent = members(trace, PRESENT), members(trace, ABSENT)
    found = memorization_from_trace(trace, (len(absent), len(present)))
    assert found is not None and found.modified is not None
    for epoch in range(1, 5):
        right = sum(bool(trace["modified"][epoch, n]) for n in present)
        wrong = sum(bool(trace["modified"][epoch, n]) for n in absent)
        assert found.modified.share[epoch] == pytest.approx((right + wrong) / (len(present) + len(absent)))
        assert found.modified.precision[epoch] == pytest.approx(right / (right + wrong))
    assert found.modified.base_rate == pytest.approx(len(present) / (len(present) + len(absent)))


def test_an_epoch_that_modified_nothing_has_no_precision(trace: dict[str, NDArray[Any]]) -> None:
    found = memorization_from_trace(trace, (60, 40))
    assert found is not None and found.modified is not None
    assert found.modified.share[0] == 0
    assert math.isnan(found.modified.precision[0])


def test_a_sample_is_weighed_by_how_many_labels_of_each_kind_there_are() -> None:
    sample: dict[str, NDArray[Any]] = {
        "observed": np.full(4, UNKNOWN, dtype=np.int8),
        "truth": np.array([PRESENT, PRESENT, ABSENT, ABSENT], dtype=np.int8),
        "loss": np.ones((1, 4), dtype=np.float32),
        "modified": np.array([[True, True, True, False]]),
    }
    found = memorization_from_trace(sample, (1000, 10))
    assert found is not None and found.modified is not None
    assert found.modified.precision[0] == pytest.approx(10 / (10 + 500))
    assert found.modified.share[0] == pytest.approx(510 / 1010)


def test_without_the_numbers_of_each_kind_nothing_is_said_of_what_was_modified(trace: dict[str, NDArray[Any]]) -> None:
    found = memorization_from_trace(trace)
    assert found is not None and found.modified is None


def test_a_sampled_run_says_what_was_modified_only_beside_its_data(run_of: Callable[..., Run], data: Dataset) -> None:
    run = run_of(trace=50)
    alone, beside = memorization_from_run(run), memorization_from_run(run, data)
    assert alone is not None and alone.modified is None
    assert beside is not None and beside.modified is not None


def test_a_table_is_counted_alike_whatever_the_size_of_the_blocks(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data.train.truth is not None
    observed, truth = data.train.labels.to_dense().ravel(), data.train.truth.to_dense().ravel()
    pairs = list(zip(observed.tolist(), truth.tolist(), strict=True))
    expected = (pairs.count((UNKNOWN, ABSENT)), pairs.count((UNKNOWN, PRESENT)))
    for block in (1, 20, 1 << 24):
        monkeypatch.setattr(module, "BLOCK", block)
        assert module._count_tables(data.train.labels, data.train.truth) == expected


def test_a_run_without_truth_or_trace_has_nothing_to_show(run_of: Callable[..., Run]) -> None:
    assert memorization_from_run(run_of(truth=False)) is None
    assert memorization_from_trace({}) is None


def test_an_epoch_that_saw_no_label_of_a_kind_has_no_mean() -> None:
    blank: dict[str, NDArray[Any]] = {
        "observed": np.full(2, UNKNOWN, dtype=np.int8),
        "truth": np.array([PRESENT, ABSENT], dtype=np.int8),
        "loss": np.full((1, 2), np.nan, dtype=np.float32),
        "modified": np.zeros((1, 2), dtype=bool),
    }
    found = memorization_from_trace(blank, (1, 1))
    assert found is not None and found.modified is None
    assert math.isnan(found.false_negative[0])
