"""``labelgap cache`` as a person meets it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.cli.conftest import call as call_any


def call(*arguments: str) -> int:
    return call_any("cache", *arguments)


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


def test_the_list_says_what_how_many_how_large_and_when(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ") != [] and "last used" in lines[0]
    assert lines[1].split() == ["Net-recent", "224", "px", "100", "2.4", "kB", "just", "now"]
    assert lines[2].split()[:1] == ["Net-old"] and "40 days ago" in lines[2]
    assert "scans of images" in lines[3] and "500 bytes" in lines[3]
    assert lines[4].startswith("features  4.9 kB of at most") and lines[4].endswith("(default)")
    assert lines[5] == f"total     5.4 kB in {cache}"


def test_the_list_is_there_for_machines_too(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(cache) and found["others"] == {"scans": {"files": 1, "bytes": 500}}
    assert [entry["backbone"] for entry in found["features"]] == ["Net-recent", "Net-old"]
    assert [(entry["images"], entry["bytes"], entry["size"]) for entry in found["features"]] == [(100, 2400, 224)] * 2
    assert found["bytes"] == found["features_bytes"] + 500 < found["limit"] and found["limit_from"] == "default"


def test_a_limit_is_kept_and_what_is_too_much_goes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--limit", "3kB") == 0
    said = capsys.readouterr().out
    assert "removed   Net-old, 100 images, 2.4 kB" in said and "Net-recent" in said
    assert "of at most 3.0 kB (labelgap cache --limit)" in said
    assert names(cache) == {"features/recent/0.rows", "scans/a.npz"}
    assert call("--limit", "default") == 0
    assert "(default)" in capsys.readouterr().out
    assert call("--limit", "lots") == 2
    assert "labelgap: --limit=lots" in capsys.readouterr().err


def test_clear_removes_features_and_says_so(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("clear", "--older-than", "30d") == 0
    assert capsys.readouterr().out == "removed   Net-old, 100 images, 2.4 kB\n"
    assert call("clear", "--older-than", "30d") == 0
    assert capsys.readouterr().out == "nothing to remove that was not used for 30d\n"
    assert call("clear") == 0
    assert names(cache) == {"scans/a.npz"}
    assert call("clear", "--all", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["others_removed"] == {"scans": 1}
    assert names(cache) == set()
    assert call() == 0
    assert "total     0 bytes" in capsys.readouterr().out


def test_scans_are_cleared_by_age_too(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("clear", "--all", "--older-than", "1h") == 0
    assert "scans/a.npz" in names(cache)
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
