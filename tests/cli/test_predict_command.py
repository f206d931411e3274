from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Printed, Screen, call
from tests.training.untrained_run import CALIBRATION, make_run

from labelgap.inference import export as export_module


@pytest.fixture
def pets(photos: Path) -> Path:
    """Twelve photos, and runs on photos and on features."""
    make_run(Path("runs/a"), calibration=CALIBRATION)
    make_run(Path("runs/features"), backbone="features", width=5)
    return photos


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_folder_goes_into_a_csv(pets: Path, screen: Screen, snapshot: SnapshotAssertion, printed: Printed) -> None:
    assert screen("predict", "runs/a", "photos", "--device", "cpu") == snapshot
    rows = rows_of("predictions.csv")
    assert len(rows) == 12 and rows[0]["image"] == "photos/0.jpg" and "owl" in rows[0]["unsure"].split(";")
    assert "12 photos, 2 tags" in printed("inspect", "predictions.csv", "--images", ".", "--duplicates", "off")
    assert "--force" in printed("predict", "runs/a", "photos", "--device", "cpu", code=2)


def test_data_are_predicted_split_by_split(pets: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    common = ("--images", "photos", "--duplicates", "off", "--device", "cpu")
    assert screen("predict", "runs/a", "tags.csv", *common, "--out", "a.parquet") == snapshot
    assert pq.read_table("a.parquet")["image"].to_pylist()[:2] == ["0.jpg", "1.jpg"]
    assert call("predict", "runs/a", "tags.csv", *common, "--out", "b.parquet", "--split", "test") == 0
    assert pq.read_table("b.parquet").num_rows == 4


def test_features_are_predicted_by_runs_on_features(pets: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    random = np.random.default_rng(0)
    arrays = {f"{split}_features": random.normal(size=(6, 5)).astype(np.float32) for split in ("train", "test")}
    labels = {f"{split}_labels": np.ones((6, 2), dtype=np.int8) for split in ("train", "test")}
    np.savez("x.npz", **arrays, **labels)  # type: ignore[arg-type]
    assert screen("predict", "runs/features", "x.npz", "--device", "cpu", "--out", "a.csv") == snapshot
    assert len(rows_of("a.csv")) == 12
    assert "images" in screen.errors("predict runs/features", "photos --out b.csv")["photos --out b.csv"]


def test_unreadable_images_are_told(pets: Path, printed: Printed, screen: Screen, snapshot: SnapshotAssertion) -> None:
    Path("photos/3.jpg").write_text("no picture")
    assert "predictions-unreadable.csv" in printed("predict", "runs/a", "photos", "--layout", "wide", "--device", "cpu")
    blank = {row["image"]: row["score.cat"] for row in rows_of("predictions.csv")}
    assert blank["photos/3.jpg"] == "" and blank["photos/4.jpg"]
    strict = ("predict", "runs/a", "photos", "--device", "cpu", "--on-bad-image", "error", "--out", "b.csv")
    assert screen(*strict, code=2) == snapshot and not Path("b.csv").exists()


def test_what_cannot_be_done_is_said(pets: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    wrong = ["nowhere.jpg", "nowhere", "photos tags.csv", "photos --zeros unknown", "photos --out a.txt"]
    Path("notes.md").touch()
    wrong += ["notes.md", "'photos/*.tif'", "photos/deep/er/none", "https://a.org/b.jpg"]
    assert screen.errors("predict runs/a", *wrong, "photos --layout tall", "photos --on-bad-image never") == snapshot


def test_what_is_exported_is_checked(
    monkeypatch: pytest.MonkeyPatch, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    make_run(Path("runs/a"), backbone="features", width=5)
    make_run(Path("runs/open"), backbone="features", finished=False)
    assert screen("export", "runs/a", "--onnx", "model.onnx") == snapshot(name="checked")
    Path("kept").mkdir()
    Path("kept/preprocess.json").write_text("kept")
    wrong = ["runs/a --onnx model.onnx", "nowhere --onnx a.onnx", "runs/open --onnx a.onnx", "runs/a --onnx a.bin"]
    assert screen.errors("export", *wrong, "runs/a --onnx kept/model.onnx") == snapshot(name="errors")
    monkeypatch.setattr(export_module, "_convert", lambda *arguments: b"again")
    monkeypatch.setattr(export_module, "_verify", lambda graph, content: None)
    assert screen("export", "runs/a", "--onnx", "model.onnx", "--force") == snapshot(name="unchecked")
    assert Path("model.onnx").read_bytes() == b"again"
