"""Features in parts: what ``features`` writes for an engine, read without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.cli.conftest import call

import labelgap as lg
from labelgap.core.errors import RunError
from labelgap.data import FeatureVectors
from labelgap.training.heads import solver
from labelgap.training.heads.solver import FeatureBasis


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three Parquet files of small photos whose colors are their labels, one image of which cannot be read."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "source").mkdir()
    random, names = np.random.default_rng(0), np.array(["red", "green", "blue"])
    for number in range(3):
        rows: list[dict[str, Any]] = []
        for row in range(16):
            present = random.random(3) < 0.4
            pixels = (np.where(present, 200, 40) + random.integers(0, 50, (24, 24, 3))).astype(np.uint8)
            path = tmp_path / f"{number}-{row}.png"
            Image.fromarray(pixels).save(path)
            content = b"bad" if (number, row) == (1, 3) else path.read_bytes()
            lists = {"present": names[present].tolist(), "absent": names[~present].tolist()}
            rows.append({"image": path.name, "bytes": content, "split": "val" if row % 4 == 0 else "train", **lists})
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "source" / f"{number}.parquet")
    return tmp_path / "source"


def test_features_in_parts_train_and_compare_as_their_arrays_do(source: Path, tmp_path: Path) -> None:
    parts, size = tmp_path / "parts", ("--backbone", "efficientnet-lite0", "--size", "32", "--device", "cpu")
    assert call("features", str(source), *size, "--shards", "0/1", "--out", str(parts)) == 0
    data = lg.load(parts)
    assert data.classes == ("blue", "green", "red") and data.val is not None
    assert (len(data.train), len(data.val)) == (35, 12)
    vectors = data.train.images
    assert isinstance(vectors, FeatureVectors) and isinstance(vectors.vectors.base, np.memmap)
    assert data.train.labels.counts().total[2] == 0
    table = pa.concat_tables(pq.read_table(path) for path in sorted(parts.glob("part-*")))
    written = {row["image"]: row["feature"] for row in table.to_pylist()}
    np.testing.assert_array_equal(vectors.vectors, [written[name] for name in vectors.names])
    assert np.ptp(vectors.vectors) > 0.1
    arrays: dict[str, Any] = {"classes": np.array(data.classes)}
    for split in data.splits:
        assert isinstance(split.images, FeatureVectors)
        arrays |= {f"{split.name}_features": np.array(split.images.vectors), f"{split.name}_ids": split.images.names}
        arrays |= {f"{split.name}_labels": split.labels.to_dense()}
    np.savez(tmp_path / "x.npz", **arrays)
    how: dict[str, Any] = {"epochs": 3, "device": "cpu", "quiet": True, "trace": "off"}
    runs = [
        lg.fit(each, "an", out=tmp_path / str(number), **how)
        for number, each in enumerate((data, lg.load(tmp_path / "x.npz")))
    ]
    assert runs[0].history[-1]["loss"] == pytest.approx(runs[1].history[-1]["loss"], rel=1e-6)
    again = lg.load(parts)
    assert np.array_equal(again.train.images.vectors, vectors.vectors)  # type: ignore[attr-defined]
    (parts / "part-000001.parquet").unlink()
    with pytest.raises(RunError, match="part-000001"):
        lg.load(parts)


@pytest.mark.parametrize(
    ("standardize", "center", "rotate"), [(True, False, True), (True, False, False), (False, True, True)]
)
def test_large_features_get_the_coordinates_of_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standardize: bool, center: bool, rotate: bool
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path))
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(500, 6, generator=generator) * torch.arange(1.0, 7.0) + 3
    how = {"standardize": standardize, "center": center, "rotate": rotate}
    whole = FeatureBasis.fit(features, **how)
    monkeypatch.setattr(solver, "LARGE_VALUES", 100)
    monkeypatch.setattr(solver, "BLOCK_VALUES", 60)
    blocks = FeatureBasis.fit(features, **how)
    torch.testing.assert_close(blocks.variances, whole.variances, rtol=1e-4, atol=1e-5)
    signs = torch.sign((blocks.apply(features) * whole.apply(features)).sum(dim=0))
    torch.testing.assert_close(blocks.apply(features) * signs, whole._apply(features), rtol=1e-3, atol=1e-3)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tmp")]
