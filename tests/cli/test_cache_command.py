"""``labelgap cache`` as a person meets it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import call as call_any

from labelgap.core.cache import write_metadata


def call(*arguments: str) -> int:
    return call_any("cache", *arguments)


def put(folder: Path, name: str, days: float, *, suffix: str = ".npy", rows: int = 20_132) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{suffix}"
    path.write_bytes(bytes(2_000))
    used = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    about = {"data": f"photos/{name}", "images": 20_132, "rows": rows, "backbone": "EfficientNetLite", "size": 224}
    write_metadata(path, {**about, "used": used, "precision": "float32"})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    put(tmp_path / "cache" / "features", "recent", 0)
    put(tmp_path / "cache" / "features", "old", 40)
    put(tmp_path / "cache" / "features", "half", 3, suffix=".partial", rows=10_066)
    (tmp_path / "cache" / "scans").mkdir()
    (tmp_path / "cache" / "scans" / "a.npz").write_bytes(bytes(500))
    return tmp_path / "cache"


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".json"}


def test_the_list_says_what_how_many_how_large_and_when(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ") != [] and "last used" in lines[0]
    assert [line.split()[0] for line in lines[1:4]] == ["photos/recent", "photos/half", "photos/old"]
    for word in ("20,132", "EfficientNetLite", "224 px", "2.2 kB", "just now"):
        assert word in lines[1]
    assert "(unfinished: 50 %)" in lines[2] and "3 days ago" in lines[2] and "40 days ago" in lines[3]
    assert "scans of images" in lines[4] and "500 bytes" in lines[4]
    assert lines[5].startswith("features  6.6 kB of at most") and lines[5].endswith("(default)")
    assert lines[6] == f"total     7.1 kB in {cache}"


def test_the_list_is_there_for_machines_too(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(cache) and found["others"] == {"scans": {"files": 1, "bytes": 500}}
    assert [entry["data"] for entry in found["features"]] == ["photos/recent", "photos/half", "photos/old"]
    assert [entry["complete"] for entry in found["features"]] == [True, False, True]
    assert found["bytes"] == found["features_bytes"] + 500 < found["limit"] and found["limit_from"] == "default"


def test_a_limit_is_kept_and_what_is_too_much_goes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--limit", "5kB") == 0
    said = capsys.readouterr().out
    assert "removed   photos/old, 20,132 images, 2.2 kB" in said and "photos/recent" in said
    assert "of at most 5.0 kB (labelgap cache --limit)" in said
    assert names(cache) == {"recent.npy", "half.partial", "a.npz"}
    assert call("--limit", "default") == 0
    assert "(default)" in capsys.readouterr().out
    assert call("--limit", "lots") == 2
    assert "labelgap: --limit=lots" in capsys.readouterr().err


def test_clear_removes_features_and_says_so(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("clear", "--older-than", "30d") == 0
    assert capsys.readouterr().out == "removed   photos/old, 20,132 images, 2.2 kB\n"
    assert call("clear", "--older-than", "30d") == 0
    assert capsys.readouterr().out == "nothing to remove that was not used for 30d\n"
    assert call("clear") == 0
    assert names(cache) == {"a.npz"}
    assert call("clear", "--all", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["others_removed"] == {"scans": 1}
    assert names(cache) == set()
    assert call() == 0
    assert "total     0 bytes" in capsys.readouterr().out


def test_scans_are_cleared_by_age_too(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("clear", "--all", "--older-than", "1h") == 0
    assert "a.npz" in names(cache)
    assert call("clear", "--all", "--older-than", "0m") == 0
    assert "scans of images (1 file)" in capsys.readouterr().out and names(cache) == set()


def test_an_age_that_is_none_is_refused(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("clear", "--older-than", "a while") == 2
    assert "write a duration as 30d" in capsys.readouterr().err


def test_a_cache_that_is_not_there_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "nowhere"))
    assert call() == 0 and call("clear", "--all") == 0
    assert "nothing to remove" in capsys.readouterr().out and not (tmp_path / "nowhere").exists()
