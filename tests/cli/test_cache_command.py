"""``labelgap cache`` as a person meets it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call

from labelgap.core import cache as cache_module
from labelgap.core.cache import KEY_BYTES, RowStore, list_rows


def put(cache: Path, name: str, days: float, rows: int = 1000) -> None:
    """The features of a network that was last used some days ago."""
    keys = np.random.default_rng(0).integers(0, 256, (rows, KEY_BYTES), dtype=np.uint8)
    RowStore(name, 400, {"backbone": f"Net-{name}", "size": 224}).append(keys, np.zeros((rows, 400), dtype=np.uint8))
    with closing(sqlite3.connect(cache / "features" / "rows.sqlite")) as connection, connection:
        moment = time.time() - days * 86_400
        connection.execute("UPDATE entry SET used = ? WHERE network = (SELECT max(id) FROM network)", (moment,))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
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


def test_the_list_says_what_how_many_how_large_and_when(
    cache: Path, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    assert screen("cache") == snapshot


def test_the_list_is_there_for_machines_too(cache: Path, screen: Screen) -> None:
    found = screen.json("cache")
    assert found["folder"] == str(cache) and found["others"] == {"scans": {"files": 1, "bytes": 500}}
    assert [entry["backbone"] for entry in found["features"]] == ["Net-recent", "Net-old"]
    sizes = [(entry["images"], entry["bytes"], entry["size"]) for entry in found["features"]]
    assert sizes == [(1000, 464_000, 224)] * 2
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
    assert screen.json("cache", "clear", "--all")["others_removed"] == {"scans": 1}
    assert names(cache) == set()


def test_scans_are_cleared_by_age_too(cache: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert call("cache", "clear", "--all", "--older-than", "1h") == 0
    assert "a.npz" in names(cache)
    assert screen("cache", "clear", "--all", "--older-than", "0m") == snapshot and names(cache) == set()


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "nowhere"))
    assert call("cache") == 0 and call("cache", "clear", "--all") == 0 and not (tmp_path / "nowhere").exists()
