from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.numpy import load_file
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call
from tests.data.writers.read_coco import read_coco

import labelgap as lg
from labelgap.data.writers.fiftyone import read_fiftyone
from labelgap.data.writers.label_studio import read_label_studio
from labelgap.labels import LabelTable

TAGS = """image,split,cat,dog
a.jpg,train,1,
b.jpg,train,0,1
c.jpg,val,,1
d.jpg,test,0,0
"""


@pytest.fixture
def tags(tmp_path: Path) -> Path:
    Path("photos").mkdir()
    for number, name in enumerate("abcd"):
        Image.effect_noise((40 + 9 * number, 30), 60).save(f"photos/{name}.jpg")
    Path("tags.csv").write_text(TAGS)
    return tmp_path


def test_a_csv_goes_to_every_format_and_comes_back(tags: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    expected = LabelTable.from_csv("tags.csv")
    readers = {"coco": read_coco, "fiftyone": read_fiftyone, "labelstudio": read_label_studio}
    for to in ("csv", "parquet", *readers):
        out = Path(f"out-{to}.{to if to in ('csv', 'parquet') else 'json'}")
        said = screen("convert", "tags.csv", "--images", "photos", "--to", to, "--out", str(out))
        assert said == snapshot(name=to)
        if to in readers:
            back = readers[to](out)
            assert back.table == expected and back.splits == ("train", "train", "val", "test")
    assert LabelTable.from_parquet("out-parquet.parquet") == expected
    assert Path("out-csv.csv").read_text() == TAGS
    assert call("convert", "out-csv.csv", "--images", "photos", "--to", "csv", "--out", "b.csv") == 0
    assert Path("out-csv.csv").read_bytes() == Path("b.csv").read_bytes()


def test_what_cannot_be_done_is_said(tags: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    Path("other.txt").write_text("kept")
    found = screen.errors(
        "convert tags.csv --images photos",
        *("--to cocoa --out x.json", "--to csv --out tags.csv", "--to csv --out tags.csv --force"),
        *("--to csv --out other.txt", "--to csv --out nowhere/x.csv", "--to coco --out x.json --prefix p"),
    )
    assert found == snapshot
    assert Path("tags.csv").read_text() == TAGS and Path("other.txt").read_text() == "kept"


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
    expected = np.concatenate([files.predict(split) for split in data.splits]).ravel()
    assert np.array_equal(np.float32(table["score"]), expected)
    assert call("audit", "runs/shards", "--folds", "2") == 0 and Path("runs/shards/candidates.parquet").exists()

    assert screen.json("inspect", "shards")["image_check"] == "no"
    Path("shards/test-000001.tar").unlink()
    for words in (("predict", "runs/shards", "shards", "--out", "b.csv"), ("evaluate", "runs/shards", "shards")):
        assert call(*words) == 2
        assert "test-000001.tar" in screen(*words, "--on-bad-image", "skip")
