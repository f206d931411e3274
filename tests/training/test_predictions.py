"""``predictions.parquet`` is written a part at a time, and read by the names of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from labelgap.training import run_folder
from labelgap.training.run_folder import PREDICTIONS_FILE, read_predictions, write_predictions


def test_many_scores_are_written_in_parts_and_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "_SCORES_AT_ONCE", 8)
    monkeypatch.setattr("labelgap.core.stored._CELLS_AT_ONCE", 10)
    logits = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    names, classes = [f"{number}.jpg" for number in range(7)], ["cat", "dog", "owl"]
    write_predictions(tmp_path, {"val": (names, logits), "test": (names[:3], logits[4:])}, classes)
    assert pq.ParquetFile(tmp_path / PREDICTIONS_FILE).num_row_groups == 4 + 2
    found = read_predictions(tmp_path, "val", ["5.jpg", "0.jpg"], classes)
    assert found is not None
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits[[5, 0]])), rtol=1e-6)
    assert read_predictions(tmp_path, "test", ["5.jpg"], classes) is None
