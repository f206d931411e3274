"""The files of the feature cache: their list, eviction, clearing, and what killed processes left."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from labelgap.core.cache.limit import folder_size
from labelgap.core.cache.segments import clear_cache, evict, list_folders, list_segments, pin, remove_orphans

DAY = 86_400.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("labelgap.core.cache.segments._PINNED", set())
    return tmp_path / "features"


def put(cache: Path, network: str, name: str = "a", days: float = 0.0, rows: int = 50) -> Path:
    """A segment that was last used some days ago."""
    folder = cache / network
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "about.json").write_text(json.dumps({"backbone": network}))
    (folder / f"{name}.rows").write_bytes(bytes(rows * 8))
    (folder / f"{name}.keys").write_bytes(bytes(rows * 20))
    for suffix in (".rows", ".keys"):
        os.utime(folder / f"{name}{suffix}", (time.time() - days * DAY,) * 2)
    return folder / f"{name}.keys"


def names(cache: Path) -> list[str]:
    return [entry.path.name for entry in list_folders(cache)]


def test_networks_are_listed_by_when_they_were_last_used(cache: Path) -> None:
    put(cache, "old", days=9)
    put(cache, "new", days=1)
    put(cache, "old", "b", days=2, rows=10)
    put(cache, "oldest", days=20)
    (cache / "oldest" / "about.json").write_text("no JSON")
    assert names(cache) == ["new", "old", "oldest"] and list_folders(cache / "nowhere") == []
    (_, old, oldest) = list_folders(cache)
    assert (old.count, old.size, old.metadata) == (60, 60 * 28, {"backbone": "old"}) and oldest.metadata == {}
    list_segments(cache / "oldest")[0].mark_used()
    assert names(cache) == ["oldest", "new", "old"]


def test_the_least_recently_used_segments_are_evicted_first(cache: Path) -> None:
    for name, days in (("a", 5), ("b", 3), ("c", 4)):
        put(cache, "net", name, days=days)
    put(cache, "other", days=9)
    size = folder_size(cache)
    assert evict(cache, 100, size + 100) == [] and evict(cache, 100, None) == []
    removed = evict(cache, 1500, size)
    assert [(entry.path.name, entry.metadata, entry.count) for entry in removed] == [
        ("net", {"backbone": "net"}, 50),
        ("other", {"backbone": "other"}, 50),
    ]
    assert names(cache) == ["net"] and not (cache / "other").exists()
    assert [each.keys.stem for each in list_segments(cache / "net")] == ["b", "c"]
    pin(cache / "net" / "c.keys")
    evict(cache, 10**9, size)
    assert [each.keys.stem for each in list_segments(cache / "net")] == ["c"], "this process uses it"


def test_only_old_segments_are_cleared_where_an_age_is_given(cache: Path) -> None:
    put(cache, "net", "old", days=40)
    put(cache, "net", "new", days=1)
    assert [entry.count for entry in clear_cache(cache, 30 * DAY)] == [50]
    assert [each.keys.stem for each in list_segments(cache / "net")] == ["new"]
    assert len(clear_cache(cache)) == 1 and not list(cache.iterdir())


def test_no_time_of_use_keeps_a_segment_for_ever(cache: Path) -> None:
    put(cache, "net", days=-10_000)
    assert list_folders(cache)[0].used <= time.time() and len(clear_cache(cache)) == 1


def test_what_killed_processes_and_earlier_versions_left_is_removed(cache: Path) -> None:
    put(cache, "net", days=1)
    put(cache, "net", "rows", days=1).unlink()
    put(cache, "net", "keys", days=1).with_suffix(".rows").unlink()
    put(cache, "net", "begun").unlink()
    put(cache, "empty").unlink()
    (cache / "empty" / "a.rows").unlink()
    for name in ("0123.npy", "0123.json", "4567.partial", "4567.lock"):
        (cache / name).write_bytes(b"a matrix of an earlier version")
    left = cache / "net" / ".about-0123456789abcdef.partial.json"
    left.write_text("{")
    os.utime(left, (1e9, 1e9))
    remove_orphans(cache)
    assert [path.name for path in cache.iterdir()] == ["net"]
    found = sorted(path.name for path in (cache / "net").iterdir())
    assert found == ["a.keys", "a.rows", "about.json", "begun.rows"], "what is begun may be written to now"


def test_a_link_to_another_folder_is_removed_and_its_target_left_alone(cache: Path, tmp_path: Path) -> None:
    put(tmp_path, "mine", days=1).with_suffix(".rows").unlink()
    put(cache, "net")
    (cache / "link").symlink_to(tmp_path / "mine")
    assert len(evict(cache, 0, 0)) == 1 and not list(cache.iterdir())
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["a.keys", "about.json"]


def test_a_folder_that_is_not_there_is_empty(cache: Path) -> None:
    remove_orphans(cache)
    assert clear_cache(cache) == [] and folder_size(cache) == 0 and not cache.exists()
