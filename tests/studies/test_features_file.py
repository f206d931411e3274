from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelgap.core.errors import InputError
from labelgap.data import load
from labelgap.studies.features import features, write_features


def test_a_file_of_features_is_the_data_set_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"classes": np.array(["cat", "dog"])}
    for split, rows in {"train": 6, "val": 3, "test": 3}.items():
        arrays |= {f"{split}_features": rng.normal(size=(rows, 4)).astype(np.float32)}
        arrays |= {f"{split}_ids": np.array([f"{split}{row}" for row in range(rows)])}
        arrays |= {f"{split}_labels": rng.integers(0, 2, (rows, 2))}
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    data = load(tmp_path / "a.npz").observe(positives=1, negatives=0, seed=3)
    found = features(data)
    np.testing.assert_array_equal(found["train"], arrays["train_features"])
    write_features(tmp_path / "b.npz", data, found)
    again = load(tmp_path / "b.npz")
    for made, other in zip(data.splits, again.splits, strict=True):
        np.testing.assert_array_equal(np.asarray(made.labels), np.asarray(other.labels))
        assert list(made.images.names) == list(other.images.names)
    assert again.train.truth is not None and np.array_equal(np.asarray(again.train.truth), arrays["train_labels"])
    with pytest.raises(InputError, match="exists"):
        write_features(tmp_path / "b.npz", data, found)
