"""A reproduction that is stopped or damaged: what its folder says then, and what the same command mends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.studies.compare.small_features import arrays

from labelgap.studies.compare import heads as compare_heads
from labelgap.studies.reproduce import reproduce
from labelgap.verification import verify

QUICK: dict[str, Any] = {"seeds": 1, "epochs": 1, "grid": "preset", "device": "cpu"}
FOLDER = Path("runs/reproduce")


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """``--data`` of a feature file with the full labels of every split."""
    monkeypatch.chdir(tmp_path)
    np.savez("vectors.npz", **arrays())  # type: ignore[arg-type]
    return "voc2012=vectors.npz"


def interrupt(*given: Any, **settings: Any) -> None:
    raise KeyboardInterrupt


def test_a_stop_while_more_heads_are_trained_leaves_a_folder_that_verifies(
    vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce("cole-table2", [vectors], cells=["an"], quiet=True, **QUICK)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(compare_heads, "train_heads", interrupt)
        reproduce("cole-table2", [vectors], cells=["role"], quiet=True, **QUICK)
    stopped = verify(FOLDER)
    assert stopped.intact and stopped.finished, stopped.problems
    reproduce("cole-table2", [vectors], cells=["role"], quiet=True, **QUICK)
    assert verify(FOLDER).intact and len(list(FOLDER.glob("linear/*/heads/*"))) == 2
