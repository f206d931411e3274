"""The cache's folder and its limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labelgap.core.cache import limit as limit_module
from labelgap.core.cache.limit import cache_folder, cache_limit, folder_size, read_flat_json, set_cache_limit
from labelgap.core.errors import InputError
from labelgap.core.system import free_disk_space, parse_bytes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


def test_the_folder_is_the_one_given_or_the_users(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("LABELGAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert cache_folder() == cache / "labelgap"


def test_the_limit_is_a_tenth_of_the_free_disk_and_20_gb_at_most(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_module, "free_disk_space", lambda path: 50_000_000_000)
    assert cache_limit() == (5_000_000_000, "default")
    cache.mkdir()
    (cache / "a").write_bytes(bytes(1_000_000))
    assert cache_limit().bytes == 5_000_000_000 + round(0.1 * folder_size(cache)), "what it takes is free without it"
    monkeypatch.setattr(limit_module, "free_disk_space", lambda path: 10**15)
    assert cache_limit().bytes == 20_000_000_000
    monkeypatch.setattr(limit_module, "free_disk_space", lambda path: None)
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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{" * 100_000,
        b'{"limit": {"deep": 1}}',
        b'{"limit": NaN}',
        b'{"limit": -1}',
        b'{"limit": 1e400}',
        b'{"limit": true}',
        b'{"limit": "\xff"}',
        b'{"limit": "' + bytes(2 << 20) + b'"}',
    ],
)
def test_settings_that_nobody_here_wrote_do_not_count(cache: Path, content: bytes) -> None:
    cache.mkdir()
    (cache / "settings.json").write_bytes(content)
    assert read_flat_json(cache / "settings.json") is None and cache_limit().source == "default"


def test_a_pipe_in_the_place_of_settings_is_not_waited_for(cache: Path) -> None:
    cache.mkdir()
    os.mkfifo(cache / "settings.json")
    assert cache_limit().source == "default"


def test_a_symbolic_link_is_replaced_and_its_target_left_alone(cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    cache.mkdir()
    (cache / "settings.json").symlink_to(precious)
    set_cache_limit("5GB")
    assert precious.read_text() == "mine" and not (cache / "settings.json").is_symlink()
    assert cache_limit().bytes == 5_000_000_000
