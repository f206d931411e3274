"""``labelgap shard``: what is trained and predicted from shards is what is trained and predicted from the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call

import labelgap as lg

SETTINGS = ("--backbone", "small-cnn", "--protocol", "end-to-end", "--epochs", "2", "--batch-size", "3", "--no-images")


def epochs(run: str) -> list[object]:
    lines = map(json.loads, Path(run, "metrics.jsonl").read_text().splitlines())
    return [{**line, "seconds": 0} for line in lines if "epoch" in line]


def test_a_run_on_shards_is_the_run_on_their_files(photos: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    shard = ("shard", "tags.csv", "--images", "photos", "--out", "shards", "--images-per-shard", "3")
    assert screen(*shard) == snapshot(name="wrote")
    assert screen(*shard) == snapshot(name="found")
    wrong = ("--out shards", "--out b --images-per-shard 3 --bytes-per-shard 1MB")
    assert screen.errors("shard tags.csv --images photos", *wrong) == snapshot(name="errors")

    data = lg.load("csv", "tags.csv", images="photos")
    files = lg.fit(data, "ll-r", {}, "small-cnn", "end-to-end", "runs/files", epochs=2, batch_size=3, quiet=True)
    assert call("train", "shards", "--method", "ll-r", *SETTINGS, "--out", "runs/shards", "--workers", "1") == 0
    assert epochs("runs/shards") == epochs("runs/files")
    weights = [load_file(f"runs/{name}/best.safetensors") for name in ("files", "shards")]
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])

    assert call("predict", "runs/shards", "shards", "--out", "a.parquet", "--layout", "long") == 0
    table = pq.read_table("a.parquet").to_pydict()
    assert {*table["image"]} == {f"{number}.jpg" for number in range(12)}
    assert np.array_equal(
        np.float32(table["score"]), np.concatenate([files.predict(split) for split in data.splits]).ravel()
    )
    assert call("audit", "runs/shards", "--folds", "2") == 0 and Path("runs/shards/candidates.parquet").exists()

    assert screen.json("inspect", "shards")["image_check"] == "no"
    Path("shards/test-000001.tar").unlink()
    for words in (("predict", "runs/shards", "shards", "--out", "b.csv"), ("evaluate", "runs/shards", "shards")):
        assert call(*words) == 2
        assert "test-000001.tar" in screen(*words, "--on-bad-image", "skip")
