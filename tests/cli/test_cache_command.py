from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call

import labelgap as lg
from labelgap.core import cache as cache_module
from labelgap.core.cache import KEY_BYTES, RowStore, list_rows
from labelgap.models import Backbone, InputSpec, WeightsInfo
from labelgap.models.registry import BACKBONES
from labelgap.training import features


def put(cache: Path, name: str, days: float, rows: int = 1000) -> None:
    """The features of a network that was last used some days ago."""
    keys = np.random.default_rng(0).integers(0, 256, (rows, KEY_BYTES), dtype=np.uint8)
    RowStore(name, 400, {"backbone": f"Net-{name}", "size": 224}).append(keys, np.zeros((rows, 400), dtype=np.uint8))
    with closing(sqlite3.connect(cache / "features" / "rows.sqlite")) as connection, connection:
        moment = time.time() - days * 86_400
        connection.execute("UPDATE entry SET used = ? WHERE network = (SELECT max(id) FROM network)", (moment,))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(cache_module, "_STARTED", time.time() + 100)
    put(tmp_path / "cache", "old", 40)
    put(tmp_path / "cache", "recent", 0)
    (tmp_path / "cache" / "scans").mkdir()
    (tmp_path / "cache" / "scans" / "a.npz").write_bytes(bytes(500))
    return tmp_path / "cache"


def names(cache: Path) -> set[str]:
    return {entry.name for entry in list_rows()} | {path.name for path in cache.rglob("*.npz")}


def test_the_list_says_what_how_many_and_when(cache: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("cache") == snapshot
    found = screen.json("cache")
    assert found["folder"] == str(cache) and found["others"] == {"scans": {"files": 1, "bytes": 500}}
    sizes = [(each["backbone"], each["images"], each["bytes"], each["size"]) for each in found["features"]]
    assert sizes == [("Net-recent", 1000, 464_000, 224), ("Net-old", 1000, 464_000, 224)]
    assert found["bytes"] == found["features_bytes"] + 500 < found["limit"] and found["limit_from"] == "default"


def test_a_limit_is_kept_and_what_is_too_much_goes(cache: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("cache", "--limit", "1MB") == snapshot(name="limit")
    assert names(cache) == {"recent", "a.npz"}
    assert "(default)" in screen("cache", "--limit", "default")
    assert "--limit=lots" in screen("cache", "--limit", "lots", code=2)


def test_clear_removes_features_and_says_so(cache: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("cache", "clear", "--older-than", "30d") == snapshot(name="removed")
    assert screen("cache", "clear", "--older-than", "30d") == snapshot(name="nothing left")
    assert "30d" in screen("cache", "clear", "--older-than", "a while", code=2)
    assert call("cache", "clear") == 0
    assert names(cache) == {"a.npz"}
    put(cache, "recent", 0)
    assert call("cache", "clear", "--all", "--older-than", "1h") == 0 and "a.npz" in names(cache)
    assert screen("cache", "clear", "--all", "--older-than", "0m") == snapshot(name="scans") and not names(cache)
    (cache / "scans" / "a.npz").write_bytes(b"")
    assert screen.json("cache", "clear", "--all")["others_removed"] == {"scans": 1}
    shutil.rmtree(cache)
    assert call("cache") == 0 and call("cache", "clear", "--all") == 0 and not cache.exists()


class Colors(Backbone):
    """The mean of every color; counts the images of all its objects."""

    computed = 0

    def __init__(self) -> None:
        weights = WeightsInfo("arithmetic", "none needed")
        spec = InputSpec(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
        super().__init__(num_features=3, input_spec=spec, weights=weights, name="colors")

    def feature_maps(self, images: torch.Tensor) -> torch.Tensor:
        type(self).computed += len(images)
        return images


@pytest.fixture
def album(photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve photos whose states are trusted at once, and the backbone "colors"."""
    monkeypatch.setattr(features, "_SETTLED", -1_000_000_000)
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES._entries))
    lg.register_backbone("colors", Colors, weights=WeightsInfo("arithmetic", "none needed"))
    return photos


def computed(*arguments: str) -> int:
    """Run a command, and return how many photos its network computed."""
    Colors.computed = 0
    assert call(*arguments) == 0
    return Colors.computed


def test_a_photo_is_computed_once_for_all_commands(album: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "train tags.csv --images photos --backbone colors --protocol linear --epochs 2"
    train = (*words.split(), "--no-images")  # the report computes maps of the images that it shows
    data = ("tags.csv", "--images", "photos")
    assert computed(*train, "--out", "runs/a") >= 12, "and a few to measure the cost"
    assert computed("evaluate", "runs/a", *data, "--split", "all", "--resamples", "0") == 0
    assert "4 from the cache" in capsys.readouterr().err
    assert computed("compare", *data, "--backbone", "colors", "--methods", "an", "--epochs", "1", "--out", "c") == 0
    assert computed("linear-eval", *data, "--backbone", "colors", "--out", "l") == 0
    assert computed("audit", "runs/a", "--folds", "2") == 0
    assert computed("predict", "runs/a", "photos", "--out", "first.csv") == 0
    assert "12 of 12 images" in capsys.readouterr().err
    Path("photos/0.jpg").rename("photos/zero.jpg")
    assert computed("predict", "runs/a", "photos", "--out", "second.csv") == 1, "nothing is hashed, nothing stored"
