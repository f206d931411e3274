"""A reproduction that is stopped or damaged: what its folder says then, and what the same command mends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import call
from tests.studies.compare.small_features import arrays

from labelgap.core.tensors import read_tensors
from labelgap.studies.compare import heads as compare_heads
from labelgap.studies.reproduce import Reproduction, reproduce
from labelgap.studies.reproduce.runner import plan_reproduction
from labelgap.verification import verify

QUICK: dict[str, Any] = {"seeds": 1, "epochs": 1, "grid": "preset", "device": "cpu"}
OPTIONS = ("--seeds", "1", "--epochs", "1", "--grid", "preset", "--device", "cpu")
FOLDER = Path("runs/reproduce")


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """``--data`` of a feature file with the full labels of every split."""
    monkeypatch.chdir(tmp_path)
    np.savez("vectors.npz", **arrays())  # type: ignore[arg-type]
    return "voc2012=vectors.npz"


def interrupt(*given: Any, **settings: Any) -> None:
    raise KeyboardInterrupt


def test_a_stop_says_what_is_stored_and_leaves_a_folder_that_verifies(
    vectors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for cell, said in (("an", "stopped before the first head was finished"), ("role", "what was finished is stored")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(compare_heads, "train_heads", interrupt)
            reproduce("cole-table2", [vectors], cells=[cell], **QUICK)
        stopped = verify(FOLDER)
        assert stopped.intact and stopped.finished, stopped.problems
        assert said in capsys.readouterr().err
        if cell == "an":
            reproduce("cole-table2", [vectors], cells=[cell], quiet=True, **QUICK)
    reproduce("cole-table2", [vectors], cells=["role"], quiet=True, **QUICK)
    assert verify(FOLDER).intact and len(list(FOLDER.glob("linear/*/heads/*"))) == 2


@pytest.mark.parametrize("lost", [False, True])
def test_a_head_that_was_damaged_or_deleted_is_named_and_trained_again(
    vectors: str, lost: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("reproduce", "cole-table2", "--data", vectors, "--cells", "an;role", *OPTIONS)
    assert call(*asked) == 0
    heads = sorted(FOLDER.glob("linear/voc2012/heads/*"))
    weights = {name: values.clone() for name, values in read_tensors(heads[0])[0].items()}
    before = Reproduction.open(FOLDER).cells
    heads[0].write_bytes(heads[0].read_bytes()[:100])
    if lost:
        heads[0].unlink()
    capsys.readouterr()
    assert call(*asked) == 0
    assert f"damaged   {heads[0]}: trained again" in capsys.readouterr().out
    again, after = read_tensors(heads[0])[0], Reproduction.open(FOLDER).cells
    for name, values in weights.items():
        torch.testing.assert_close(again[name], values)
    assert verify(FOLDER).intact and before.keys() == after.keys()
    assert all(after[name].values == pytest.approx(cell.values, abs=0.01) for name, cell in before.items())
    assert call(*asked) == 0 and "done      2 cells" in capsys.readouterr().out


def test_a_cell_with_more_seeds_is_kept_and_its_damaged_head_is_named(vectors: str) -> None:
    made = reproduce("cole-table2", [vectors], cells=["an"], quiet=True, **{**QUICK, "seeds": 2})
    head = next(FOLDER.glob("linear/voc2012/heads/*"))
    head.unlink()
    plan = plan_reproduction("cole-table2", [vectors], cells=["an"], out=FOLDER, seeds=1, epochs=1, grid="preset")
    assert plan.damaged == (head.relative_to(FOLDER).as_posix(),) and not plan.cells and plan.done == len(made.cells)
