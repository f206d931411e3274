"""``labelgap cache`` as a person meets it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call


def put(folder: Path, name: str, days: float, rows: int = 100) -> None:
    """The features of a network that was last used some days ago."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    about = {"backbone": f"Net-{name}", "size": 224, "width": 1}
    (folder / name / "about.json").write_text(json.dumps(about))
    for suffix, size in ((".rows", 4), (".keys", 20)):
        (folder / name / f"0{suffix}").write_bytes(bytes(size * rows))
        os.utime(folder / name / f"0{suffix}", (time.time() - days * 86_400,) * 2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    put(tmp_path / "cache" / "features", "recent", 0)
    put(tmp_path / "cache" / "features", "old", 40)
    (tmp_path / "cache" / "scans").mkdir()
    (tmp_path / "cache" / "scans" / "a.npz").write_bytes(bytes(500))
    return tmp_path / "cache"


def names(cache: Path) -> set[str]:
    return {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.suffix in (".rows", ".npz")}


def test_the_list_says_what_how_many_how_large_and_when(
    cache: Path, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    assert screen("cache") == snapshot


def test_the_list_is_there_for_machines_too(cache: Path, screen: Screen) -> None:
    found = screen.json("cache")
    assert found["folder"] == str(cache) and found["others"] == {"scans": {"files": 1, "bytes": 500}}
    assert [entry["backbone"] for entry in found["features"]] == ["Net-recent", "Net-old"]
    assert [(entry["images"], entry["bytes"], entry["size"]) for entry in found["features"]] == [(100, 2400, 224)] * 2
    assert found["bytes"] == found["features_bytes"] + 500 < found["limit"] and found["limit_from"] == "default"


def test_a_limit_is_kept_and_what_is_too_much_goes(cache: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("cache", "--limit", "3kB") == snapshot(name="limit")
    assert names(cache) == {"features/recent/0.rows", "scans/a.npz"}
    assert "(default)" in screen("cache", "--limit", "default")
    assert "--limit=lots" in screen("cache", "--limit", "lots", code=2)


def test_clear_removes_features_and_says_so(cache: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert screen("cache", "clear", "--older-than", "30d") == snapshot(name="removed")
    assert screen("cache", "clear", "--older-than", "30d") == snapshot(name="nothing left")
    assert "30d" in screen("cache", "clear", "--older-than", "a while", code=2)
    assert call("cache", "clear") == 0
    assert names(cache) == {"scans/a.npz"}
    assert screen.json("cache", "clear", "--all")["others_removed"] == {"scans": 1}
    assert names(cache) == set()


def test_scans_are_cleared_by_age_too(cache: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    assert call("cache", "clear", "--all", "--older-than", "1h") == 0
    assert "scans/a.npz" in names(cache)
    assert screen("cache", "clear", "--all", "--older-than", "0m") == snapshot and names(cache) == set()


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "nowhere"))
    assert call("cache") == 0 and call("cache", "clear", "--all") == 0 and not (tmp_path / "nowhere").exists()
