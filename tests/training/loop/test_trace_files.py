"""The trace while a run goes on: a file per epoch, put together at the end, and never two stories of one epoch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from labelgap.core.errors import RunError
from labelgap.labels import LabelTable
from labelgap.training.loop.trace import Trace, finish_trace, read_trace

TRUTH = LabelTable.from_dense(np.random.default_rng(0).integers(0, 2, (20, 5)))
TABLE = TRUTH.observe(1, 0)


def logits(epoch: int) -> torch.Tensor:
    return torch.full((20, 5), float(epoch))


def record(trace: Trace, folder: Path, epochs: range) -> None:
    for epoch in epochs:
        trace.start_epoch()
        trace.record(torch.arange(20), logits(epoch), TABLE.batch(range(20)), logits(epoch) > 2)
        trace.write(folder)


def recorded(folder: Path) -> list[float]:
    """The logit of every epoch, which is its number."""
    return [float(values.mean()) for values in read_trace(folder)["logit"]]


def resumed(folder: Path, epochs: int) -> Trace:
    trace = Trace(TABLE, TRUTH, "all", 0)
    trace.restore(folder, epochs)
    return trace


def test_an_epoch_costs_the_same_however_many_there_were(tmp_path: Path) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 6))
    parts = {path.name: path.stat().st_size for path in (tmp_path / "traces.parts").iterdir()}
    assert len({size for name, size in parts.items() if name != "entries.npz"}) == 1 and len(parts) == 6
    assert recorded(tmp_path) == [1, 2, 3, 4, 5], "it can be read before it is finished"


def test_the_finished_file_is_what_numpy_would_have_written(tmp_path: Path) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    arrays: dict[str, NDArray[np.generic]] = read_trace(tmp_path)
    finish_trace(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["traces.npz"]
    np.savez(tmp_path / "numpy.npz", **arrays)  # type: ignore[arg-type]
    assert (tmp_path / "traces.npz").read_bytes() == (tmp_path / "numpy.npz").read_bytes()
    assert {name: values.shape for name, values in read_trace(tmp_path).items()} == {
        **dict.fromkeys(("row", "column", "observed", "truth"), (100,)),
        **dict.fromkeys(("loss", "logit", "modified"), (3, 100)),
    }
    finish_trace(tmp_path, 3)


@pytest.mark.parametrize("finished_at", [None, 2, 3])
def test_a_resumed_trace_ends_with_the_same_bytes(tmp_path: Path, finished_at: int | None) -> None:
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path / "whole", range(1, 6))
    finish_trace(tmp_path / "whole", 5)
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path / "broken", range(1, (finished_at or 3) + 1))
    if finished_at is not None:
        finish_trace(tmp_path / "broken", finished_at)
    trace = resumed(tmp_path / "broken", 2)
    record(trace, tmp_path / "broken", range(3, 6))
    assert recorded(tmp_path / "broken") == [1, 2, 3, 4, 5]
    finish_trace(tmp_path / "broken", 5)
    assert (tmp_path / "broken" / "traces.npz").read_bytes() == (tmp_path / "whole" / "traces.npz").read_bytes()


def test_an_epoch_that_is_undone_is_thrown_away(tmp_path: Path) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    trace = resumed(tmp_path, 1)
    assert recorded(tmp_path) == [1]
    record(trace, tmp_path, range(7, 8))
    finish_trace(tmp_path, 2)
    assert recorded(tmp_path) == [1, 7]


def test_an_epoch_trained_again_takes_the_place_of_the_one_in_the_finished_file(tmp_path: Path) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    finish_trace(tmp_path, 3)
    record(resumed(tmp_path, 2), tmp_path, range(8, 9))
    assert recorded(tmp_path) == [1, 2, 8]
    finish_trace(tmp_path, 3)
    assert recorded(tmp_path) == [1, 2, 8]


def test_a_kill_while_the_parts_are_removed_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))

    def killed(path: Path) -> None:
        (path / "entries.npz").unlink()
        (path / "000002.npz").unlink()
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(shutil, "rmtree", killed)
        finish_trace(tmp_path, 3)
    assert recorded(tmp_path) == [1, 2, 3]
    resumed(tmp_path, 3)
    finish_trace(tmp_path, 3)
    assert recorded(tmp_path) == [1, 2, 3] and not (tmp_path / "traces.parts").exists()


@pytest.mark.parametrize("length", [0, 50, 700])
def test_a_part_cut_short_is_found_before_training_goes_on(tmp_path: Path, length: int) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    os.truncate(tmp_path / "traces.parts" / "000002.npz", length)
    with pytest.raises(RunError, match="trace is damaged"):
        resumed(tmp_path, 3)


def test_a_part_that_is_gone_is_missed(tmp_path: Path) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    (tmp_path / "traces.parts" / "000002.npz").unlink()
    with pytest.raises(RunError, match=r"traces\.npz is missing or too short"):
        resumed(tmp_path, 3)


def test_only_one_epoch_is_in_memory_when_the_trace_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    monkeypatch.setattr(np, "stack", None)
    finish_trace(tmp_path, 3)
