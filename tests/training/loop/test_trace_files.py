"""The files of a trace: one per epoch during training, merged at the end."""

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
from labelgap.training.loop.trace import Trace, merge_trace, read_trace, remove_trace_parts

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


def test_the_merged_file_is_what_numpy_would_have_written(tmp_path: Path) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    arrays: dict[str, NDArray[np.generic]] = read_trace(tmp_path)
    merge_trace(tmp_path)
    remove_trace_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["traces.npz"]
    np.savez(tmp_path / "numpy.npz", **arrays)  # type: ignore[arg-type]
    assert (tmp_path / "traces.npz").read_bytes() == (tmp_path / "numpy.npz").read_bytes()
    assert {name: values.shape for name, values in read_trace(tmp_path).items()} == {
        **dict.fromkeys(("row", "column", "observed", "truth"), (100,)),
        **dict.fromkeys(("loss", "logit", "modified"), (3, 100)),
    }
    merge_trace(tmp_path)


@pytest.mark.parametrize("merged", [False, True])
def test_a_resumed_trace_ends_with_the_same_bytes(tmp_path: Path, merged: bool) -> None:
    """A run that was interrupted has a merged file of its epochs already."""
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path / "whole", range(1, 6))
    merge_trace(tmp_path / "whole")
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path / "broken", range(1, 4))
    if merged:
        merge_trace(tmp_path / "broken")
    trace = resumed(tmp_path / "broken", 2)
    assert recorded(tmp_path / "broken") == [1, 2], "an epoch after the checkpoint does not count"
    record(trace, tmp_path / "broken", range(3, 6))
    assert recorded(tmp_path / "broken") == [1, 2, 3, 4, 5]
    merge_trace(tmp_path / "broken")
    assert (tmp_path / "broken" / "traces.npz").read_bytes() == (tmp_path / "whole" / "traces.npz").read_bytes()


def test_a_kill_while_the_parts_are_removed_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    merge_trace(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, **_: (path / "000002.npz").unlink())
        remove_trace_parts(tmp_path)
    assert recorded(tmp_path) == [1, 2, 3]
    remove_trace_parts(tmp_path)
    assert recorded(tmp_path) == [1, 2, 3] and not (tmp_path / "traces.parts").exists()


@pytest.mark.parametrize("length", [0, 50, 700])
def test_a_part_cut_short_is_found_before_training_goes_on(tmp_path: Path, length: int) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    os.truncate(tmp_path / "traces.parts" / "000002.npz", length)
    with pytest.raises(RunError, match=r"000002\.npz is damaged"):
        resumed(tmp_path, 3)


def test_a_part_that_is_gone_is_missed(tmp_path: Path) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    (tmp_path / "traces.parts" / "000002.npz").unlink()
    with pytest.raises(RunError, match=r"traces\.parts is missing"):
        resumed(tmp_path, 3)


def test_only_one_epoch_is_in_memory_when_the_trace_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    monkeypatch.setattr(np, "stack", None)
    merge_trace(tmp_path)
