"""The recorder of single training labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.training.loop.trace import AUTO_LIMIT, Trace, parse_trace, read_trace

TRUTH = LabelTable.from_dense(np.random.default_rng(0).integers(0, 2, (50, 6)))
TABLE = TRUTH.observe(1, 0)


def test_all_entries_are_recorded_where_they_belong(tmp_path: Path) -> None:
    trace = Trace(TABLE, TRUTH, "all", 0)
    logits = torch.randn(50, 6)
    trace.start_epoch()
    for rows in np.array_split(np.random.default_rng(1).permutation(50), 7):
        index = torch.from_numpy(rows)
        trace.record(index, logits[index], TABLE.batch(index), logits[index] > 1)
    trace.write(tmp_path)
    stored = read_trace(tmp_path)
    assert np.array_equal(stored["logit"].reshape(50, 6), logits.numpy())
    assert np.array_equal(stored["modified"].reshape(50, 6), logits.numpy() > 1)
    assert np.array_equal(stored["observed"].reshape(50, 6), TABLE.to_dense())
    assert np.array_equal(stored["truth"].reshape(50, 6), TRUTH.to_dense())
    chance = 1 / (1 + np.exp(-logits.numpy().astype(np.float64)))
    expected = -np.log(np.where(TABLE.to_dense() == 1, chance, 1 - chance))
    assert stored["loss"].reshape(50, 6) == pytest.approx(expected, rel=1e-5)


def test_a_sample_has_its_size_and_an_equal_share_of_the_rare_kinds() -> None:
    trace = Trace(TABLE, TRUTH, 60, 0)
    assert len(trace.entries) == 60 == len(np.unique(trace.entries))
    kinds = np.unique(trace.observed * 8 + trace.truth, return_counts=True)[1]
    assert kinds.min() >= 15
    assert np.array_equal(trace.entries, Trace(TABLE, TRUTH, 60, 0).entries)
    assert not np.array_equal(trace.entries, Trace(TABLE, TRUTH, 60, 1).entries)


def test_a_sampled_trace_records_its_own_entries(tmp_path: Path) -> None:
    trace = Trace(TABLE, None, 25, 3)
    logits = torch.arange(300.0).reshape(50, 6)
    trace.start_epoch()
    trace.record(torch.arange(50), logits, TABLE.batch(range(50)), logits > 1e9)
    trace.write(tmp_path)
    assert np.array_equal(read_trace(tmp_path)["logit"][0], trace.entries.astype(np.float32))


def test_off_records_and_writes_nothing(tmp_path: Path) -> None:
    trace = Trace(TABLE, TRUTH, "off", 0)
    trace.start_epoch()
    trace.write(tmp_path)
    assert not trace.active and read_trace(tmp_path) == {} and not list(tmp_path.iterdir())


def test_the_amount_is_automatic_up_to_a_limit() -> None:
    assert parse_trace("auto", 40_000) == "all"
    assert parse_trace("auto", AUTO_LIMIT + 1) == AUTO_LIMIT // 10
    assert parse_trace("500", 40_000) == 500
    assert parse_trace(500, 300) == "all"
    with pytest.raises(InputError, match="trace"):
        parse_trace("some", 10)
    with pytest.raises(InputError, match="trace"):
        parse_trace("-3", 10)
