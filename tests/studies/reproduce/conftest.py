"""What both files of tests of a reproduction are given."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from tests.studies.compare.small_features import arrays


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """``--data`` of a feature file with the full labels of every split."""
    monkeypatch.chdir(tmp_path)
    np.savez("vectors.npz", **arrays())  # type: ignore[arg-type]
    return "voc2012=vectors.npz"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are copies of this one, so that nothing is loaded again; their work is pickled all the same."""
    start = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: start("fork"))
