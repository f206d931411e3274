"""What the losses of a trace are summed up to, against loops written from the words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.sections.memorization import SINGLE_LABELS, label_losses

Trace = dict[str, NDArray[Any]]
KINDS = {"TP": (PRESENT, PRESENT), "TN": (UNKNOWN, ABSENT), "FN": (UNKNOWN, PRESENT)}


@pytest.fixture
def trace() -> Trace:
    random = np.random.default_rng(4)
    entries, epochs = 200, 5
    loss = random.random((epochs, entries)).astype(np.float32)
    loss[random.random(loss.shape) < 0.1] = np.nan
    loss[:, :10] = np.nan  # never visited
    rows, columns = np.divmod(np.arange(entries), 7)
    observed, truth = random.choice([PRESENT, ABSENT, UNKNOWN], (2, entries)).astype(np.int8)
    return {"row": rows, "column": columns, "observed": observed, "truth": truth, "loss": loss}


def members(trace: Trace, kind: str) -> list[int]:
    pairs = zip(trace["observed"].tolist(), trace["truth"].tolist(), strict=True)
    return [number for number, pair in enumerate(pairs) if pair == KINDS[kind]]


@pytest.mark.parametrize("kind", KINDS)
def test_mean_and_share_are_over_the_labels_of_a_kind_that_were_seen_and_single_ones_are_among_them(
    trace: Trace, kind: str
) -> None:
    found, losses = label_losses(trace)[kind], trace["loss"].tolist()
    assert found.count == len(members(trace, kind))
    for epoch in range(5):
        seen = [losses[epoch][n] for n in members(trace, kind) if not math.isnan(losses[epoch][n])]
        assert found.mean[epoch] == pytest.approx(sum(seen) / len(seen))
    highest_first = visited = 0
    for n in members(trace, kind):
        values = [(losses[epoch][n], -epoch) for epoch in range(5) if not math.isnan(losses[epoch][n])]
        visited += bool(values)
        highest_first += bool(values) and max(values)[1] == 0
    assert found.first_epoch == pytest.approx(highest_first / visited)

    numbers = (found.row * 7 + found.column).tolist()
    assert len(set(numbers)) == SINGLE_LABELS and set(numbers) <= set(members(trace, kind))
    np.testing.assert_array_equal(found.single, trace["loss"][:, numbers])
    np.testing.assert_array_equal(label_losses(trace)[kind].row, found.row)


def test_without_truth_the_kinds_are_those_observed_and_nothing_is_called_memorized(trace: Trace) -> None:
    found = label_losses(trace | {"truth": np.full(200, UNKNOWN, dtype=np.int8)})
    expected = {
        name: int((trace["observed"] == state).sum())
        for name, state in zip(("present", "absent", "unknown"), (PRESENT, ABSENT, UNKNOWN), strict=True)
    }
    assert {name: losses.count for name, losses in found.items()} == expected
    assert label_losses({}) == {}


def test_one_epoch_has_no_share_and_an_epoch_that_saw_nothing_no_mean() -> None:
    blank: Trace = {
        "row": np.arange(2),
        "column": np.zeros(2, dtype=np.int64),
        "observed": np.full(2, UNKNOWN, dtype=np.int8),
        "truth": np.array([PRESENT, ABSENT], dtype=np.int8),
        "loss": np.full((1, 2), np.nan, dtype=np.float32),
    }
    found = label_losses(blank)
    assert found.keys() == {"TN", "FN"} and len(found["TN"].mean) == 1
    assert math.isnan(found["FN"].mean[0]) and found["FN"].first_epoch is None
    twice = label_losses(blank | {"loss": np.full((2, 2), np.nan, dtype=np.float32)})
    assert twice["FN"].first_epoch is None
