"""The cache's folder, its limit, and its entries."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from labelgap.core import cache as cache_module
from labelgap.core.cache import (
    cache_folder,
    cache_limit,
    clear_cache,
    entry_lock,
    evict,
    folder_size,
    list_entries,
    mark_used,
    pin,
    read_metadata,
    remove_orphans,
    set_cache_limit,
    write_metadata,
)
from labelgap.core.errors import InputError
from labelgap.core.system import free_disk_space, parse_bytes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    monkeypatch.setattr("labelgap.core.cache._PINNED", set())
    return tmp_path / "cache"


def put(folder: Path, name: str, size: int = 1000, used: str = "2024-01-01T00:00:00+00:00") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.npy"
    path.write_bytes(bytes(size))
    write_metadata(path, {"data": name, "used": used})
    return path


def stems(folder: Path) -> list[str]:
    return [entry.path.stem for entry in list_entries(folder)]


def test_the_folder_is_the_one_given_or_the_users(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("LABELGAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert cache_folder() == cache / "labelgap"


def test_the_limit_is_a_tenth_of_the_free_disk_and_20_gb_at_most(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "free_disk_space", lambda path: 50_000_000_000)
    assert cache_limit() == (5_000_000_000, "default")
    put(cache, "a", size=1_000_000)
    assert cache_limit().bytes == 5_000_000_000 + round(0.1 * folder_size(cache)), "what it takes is free without it"
    monkeypatch.setattr(cache_module, "free_disk_space", lambda path: 10**15)
    assert cache_limit().bytes == 20_000_000_000
    monkeypatch.setattr(cache_module, "free_disk_space", lambda path: None)
    assert cache_limit().bytes == 20_000_000_000


def test_the_limit_is_what_the_environment_says_or_what_was_set(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_cache_limit("5GB") == (5_000_000_000, "labelgap cache --limit")
    assert cache_limit().bytes == 5_000_000_000
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "300 MB")
    assert cache_limit() == (300_000_000, "LABELGAP_CACHE_LIMIT")
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "none")
    assert cache_limit().bytes is None
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT")
    assert set_cache_limit("none").bytes is None
    assert set_cache_limit("default").source == "default"
    (cache / "settings.json").write_text("not json")
    assert cache_limit().source == "default"


def test_a_limit_that_is_no_amount_is_refused_with_the_way_to_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "lots")
    with pytest.raises(InputError, match=r"LABELGAP_CACHE_LIMIT=lots: .*20GB or 500MB.*'none'"):
        cache_limit()
    with pytest.raises(InputError, match="--limit=5 apples"):
        set_cache_limit("5 apples")


@pytest.mark.parametrize("text", ["", "GB", "-5GB", "5 G B", "5iB", "1e9", "5PB"])
def test_what_is_no_amount_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no amount of memory"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1.5GB", 1_500_000_000), ("2 gib", 2 << 30), ("7", 7), (".5 kB", 500), ("3 bytes", 3), ("0", 0)],
)
def test_amounts_of_bytes_are_read_as_people_write_them(text: str, bytes_: int) -> None:
    assert parse_bytes(text) == bytes_


def test_the_room_of_a_folder_that_is_not_there_is_that_of_its_disk(tmp_path: Path) -> None:
    assert free_disk_space(tmp_path / "a" / "b") is not None


def test_entries_are_listed_by_when_they_were_last_used(cache: Path) -> None:
    put(cache, "new", used="2025-01-01T00:00:00+00:00")
    old = put(cache, "old")
    put(cache, "lost").with_suffix(".json").write_text("{")
    (cache / "made.partial").write_bytes(b"half")
    (cache / "made.json").write_text(json.dumps({"used": "2024-06-01T00:00:00+00:00"}))
    os.utime(cache / "lost.npy", (1e9, 1e9))
    assert stems(cache) == ["lost", "old", "made", "new"]
    assert [entry.complete for entry in list_entries(cache)] == [True, True, False, True]
    mark_used(old, read_metadata(old) or {})
    assert stems(cache)[-1] == "old" and list_entries(cache / "nowhere") == []


def test_room_is_made_by_what_was_not_used_for_longest(cache: Path) -> None:
    for year in (2021, 2022, 2023):
        put(cache, f"of{year}", used=f"{year}-01-01T00:00:00+00:00")
    size = folder_size(cache)
    assert evict(cache, 100, size + 100) == []
    assert evict(cache, 100, None) == []
    pin(cache / "of2021.npy")
    assert [entry.path.stem for entry in evict(cache, 200, size)] == ["of2022"]
    assert stems(cache) == ["of2021", "of2023"] and not (cache / "of2022.json").exists()
    evict(cache, 10**9, size)
    assert stems(cache) == ["of2021"], "this process uses it"


def test_what_is_being_made_stays(cache: Path) -> None:
    put(cache, "whole")
    making = cache / "made.partial"
    making.write_bytes(b"half")
    (cache / "other.partial").write_bytes(b"half, and nobody has described it")
    write_metadata(making, {})
    with entry_lock(making):
        removed, in_use = clear_cache(cache)
        assert [entry.path.name for entry in removed] == ["whole.npy"]
        assert [entry.path.name for entry in in_use] == ["made.partial"]
    assert [path.name for path in sorted(cache.iterdir())] == ["made.json", "made.lock", "made.partial"]
    clear_cache(cache)
    assert not list(cache.iterdir())


def test_only_old_entries_are_cleared_where_an_age_is_given(cache: Path) -> None:
    put(cache, "old")
    new = put(cache, "new")
    mark_used(new, read_metadata(new) or {})
    removed, _ = clear_cache(cache, older_than=3600)
    assert [entry.path.stem for entry in removed] == ["old"] and stems(cache) == ["new"]


def test_a_folder_that_is_not_there_is_tidy(cache: Path) -> None:
    remove_orphans(cache)
    assert clear_cache(cache) == ([], []) and folder_size(cache) == 0 and not cache.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{" * 100_000,
        b'{"rows": {"deep": 1}}',
        b'{"rows": NaN}',
        b'{"rows": -1}',
        b'{"rows": 1e400}',
        b'{"rows": true}',
        b'{"data": "\xff"}',
        b'{"data": "' + bytes(2 << 20) + b'"}',
    ],
)
def test_metadata_that_nobody_here_wrote_do_not_count(cache: Path, content: bytes) -> None:
    path = put(cache, "a")
    path.with_suffix(".json").write_bytes(content)
    (cache / "settings.json").write_bytes(content.replace(b"rows", b"limit"))
    assert read_metadata(path) is None
    assert [entry.metadata for entry in list_entries(cache)] == [{}]
    assert cache_limit().source == "default"
    assert evict(cache, 0, 0) and not path.exists()


def test_a_pipe_in_the_place_of_metadata_is_not_waited_for(cache: Path) -> None:
    path = put(cache, "a")
    path.with_suffix(".json").unlink()
    os.mkfifo(path.with_suffix(".json"))
    assert read_metadata(path) is None and len(list_entries(cache)) == 1


@pytest.mark.parametrize("used", ["9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00", "2024-01-01", "yesterday"])
def test_no_time_of_use_keeps_an_entry_for_ever(cache: Path, used: str) -> None:
    put(cache, "a", used=used)
    assert list_entries(cache)[0].used <= time.time() and len(clear_cache(cache)[0]) == 1


def test_a_symbolic_link_is_replaced_and_its_target_left_alone(cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    cache.mkdir()
    for name in ("a.json", "settings.json"):
        (cache / name).symlink_to(precious)
    write_metadata(cache / "a.npy", {"data": "a"})
    set_cache_limit("5GB")
    assert precious.read_text() == "mine" and not (cache / "a.json").is_symlink()
    assert cache_limit().bytes == 5_000_000_000
