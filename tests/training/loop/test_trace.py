"""The trace of single training labels: what is recorded, and its files, one per epoch until the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labelgap.core.errors import InputError, RunError
from labelgap.labels import LabelTable
from labelgap.training.loop.trace import AUTO_LIMIT, Trace, merge_trace, parse_trace, read_trace, remove_trace_parts

TRUTH = LabelTable.from_dense(np.random.default_rng(0).integers(0, 2, (50, 6)))
TABLE = TRUTH.observe(1, 0)


@pytest.mark.parametrize("amount", ["all", 25, "off"])
def test_entries_are_recorded_where_they_belong(tmp_path: Path, amount: Any) -> None:
    trace, logits = Trace(TABLE, TRUTH, amount, 0), torch.randn(50, 6)
    trace.start_epoch()
    for rows in np.array_split(np.random.default_rng(1).permutation(50), 7):
        index = torch.from_numpy(rows)
        trace.record(index, logits[index], TABLE.batch(index), logits[index] > 1)
    trace.write(tmp_path)
    stored = read_trace(tmp_path)
    if amount == "off":
        assert not trace.active and stored == {} and not list(tmp_path.iterdir())
        return
    chance = 1 / (1 + np.exp(-logits.numpy().astype(np.float64)))
    arrays = {"logit": logits.numpy(), "modified": logits.numpy() > 1, "observed": TABLE.to_dense()}
    arrays |= {"truth": TRUTH.to_dense(), "loss": -np.log(np.where(TABLE.to_dense() == 1, chance, 1 - chance))}
    assert len(trace.entries) == (300 if amount == "all" else 25)
    for name, values in arrays.items():
        assert stored[name].ravel() == pytest.approx(values.ravel()[trace.entries], rel=1e-5)


def test_a_sample_has_its_size_and_an_equal_share_of_the_rare_kinds() -> None:
    trace = Trace(TABLE, TRUTH, 60, 0)
    assert len(trace.entries) == 60 == len(np.unique(trace.entries))
    kinds = np.unique(trace.observed * 8 + trace.truth, return_counts=True)[1]
    assert kinds.min() >= 15
    assert np.array_equal(trace.entries, Trace(TABLE, TRUTH, 60, 0).entries)
    assert not np.array_equal(trace.entries, Trace(TABLE, TRUTH, 60, 1).entries)


def test_the_amount_is_automatic_up_to_a_limit() -> None:
    assert parse_trace("auto", 40_000) == "all"
    assert parse_trace("auto", AUTO_LIMIT + 1) == AUTO_LIMIT // 10
    assert parse_trace("500", 40_000) == 500
    assert parse_trace(500, 300) == "all"
    for wrong in ("some", "-3"):
        with pytest.raises(InputError, match="trace"):
            parse_trace(wrong, 10)


def record(trace: Trace, folder: Path, epochs: range) -> None:
    for epoch in epochs:
        logits = torch.full((50, 6), float(epoch))
        trace.start_epoch()
        trace.record(torch.arange(50), logits, TABLE.batch(range(50)), logits > 2)
        trace.write(folder)


def test_the_merged_file_is_what_numpy_would_have_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    arrays = read_trace(tmp_path)
    with pytest.raises(RunError, match=r"traces\.parts"):
        Trace(TABLE, TRUTH, "all", 0).restore(tmp_path, 4)
    with monkeypatch.context() as patch:
        patch.setattr(np, "stack", None)  # only one epoch is in memory
        merge_trace(tmp_path)
    remove_trace_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["traces.npz"]
    np.savez(tmp_path / "numpy.npz", **arrays)  # type: ignore[arg-type]
    assert (tmp_path / "traces.npz").read_bytes() == (tmp_path / "numpy.npz").read_bytes()
    assert {name: values.shape for name, values in read_trace(tmp_path).items()} == {
        **dict.fromkeys(("row", "column", "observed", "truth"), (300,)),
        **dict.fromkeys(("loss", "logit", "modified"), (3, 300)),
    }
    merge_trace(tmp_path)
