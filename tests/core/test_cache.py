from __future__ import annotations

import json
import math
import multiprocessing
import os
import sqlite3
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.core import cache as cache_module
from labelgap.core.cache import KEY_BYTES, cache_limit, folder_size, list_rows, set_cache_limit, shrink_cache
from labelgap.core.errors import InputError
from labelgap.core.system import free_disk_space, parse_bytes

DAY = 86_400.0
WIDTH = 12


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


def test_the_limit_is_given_or_set_or_a_tenth_of_the_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "free_disk_space", lambda path: 50_000_000_000)
    assert cache_module.cache_folder() == cache and cache_limit() == (5_000_000_000, "default")
    cache.mkdir()
    (cache / "a").write_bytes(bytes(1_000_000))
    assert cache_limit().bytes == 5_000_000_000 + round(0.1 * folder_size(cache)), "what it takes is free without it"
    for free in (10**15, None):
        monkeypatch.setattr(cache_module, "free_disk_space", lambda path, free=free: free)
        assert cache_limit().bytes == 20_000_000_000
    assert set_cache_limit("5GB") == cache_limit() == (5_000_000_000, "labelgap cache --limit")
    for text, limit in (("300 MB", 300_000_000), ("none", None)):
        monkeypatch.setenv("LABELGAP_CACHE_LIMIT", text)
        assert cache_limit() == (limit, "LABELGAP_CACHE_LIMIT")
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "lots")
    with pytest.raises(InputError, match="LABELGAP_CACHE_LIMIT=lots"):
        cache_limit()
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT")
    assert set_cache_limit("none").bytes is None and set_cache_limit("default").source == "default"
    monkeypatch.delenv("LABELGAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert cache_module.cache_folder() == cache / "labelgap"


def test_amounts_of_bytes_are_read_as_people_write_them(tmp_path: Path) -> None:
    texts = ("1.5GB", "2 gib", "7", ".5 kB", "0")
    assert [parse_bytes(text) for text in texts] == [1_500_000_000, 2 << 30, 7, 500, 0]
    for text in ("", "GB", "-5GB", "5iB", "1e9"):
        with pytest.raises(InputError):
            parse_bytes(text)
    assert free_disk_space(tmp_path / "a" / "b") is not None


def test_settings_that_nobody_here_wrote_do_not_count(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    path, precious = cache / "settings.json", tmp_path / "precious.txt"
    values = ('{"deep": 1}', "NaN", "-1", "1e400", "true", '"\\ud800"', f'"{"x" * (2 << 20)}"')
    for content in ("", "[]", "not json", "{" * 100_000, *(f'{{"limit": {value}}}' for value in values)):
        path.write_text(content)
        assert cache_module.read_flat_json(path) is None and cache_limit().source == "default", content[:20]
    path.unlink()
    os.mkfifo(path)
    assert cache_limit().source == "default"
    path.unlink()
    precious.write_text("mine")
    path.symlink_to(precious)
    assert set_cache_limit("5GB").bytes == 5_000_000_000
    assert precious.read_text() == "mine" and not path.is_symlink()


def random_bytes(rows: int, width: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (rows, width), dtype=np.uint8)


KEYS, ROWS = random_bytes(60, KEY_BYTES, 0), random_bytes(60, WIDTH, 1)


def open_store(name: str = "net", messages: list[str] | None = None) -> cache_module.RowStore:
    return cache_module.RowStore(name, WIDTH, {"backbone": name}, (messages if messages is not None else []).append)


def read(store: cache_module.RowStore, keys: NDArray[np.uint8]) -> tuple[list[bool], NDArray[np.uint8]]:
    """Return which keys are found, and rows in reverse order of the keys."""
    out = np.zeros((len(keys), WIDTH), dtype=np.uint8)
    return store.read(keys, out, np.arange(len(keys))[::-1]).tolist(), out


def execute(cache: Path, sql: str) -> None:
    with closing(sqlite3.connect(cache / "features" / "rows.sqlite")) as connection, connection:
        connection.execute(sql)


def put(cache: Path, name: str, first: int, stop: int, days: float) -> None:
    """Rows that were last used some days ago."""
    open_store(name).append(KEYS[first:stop], ROWS[first:stop])
    execute(cache, f"UPDATE entry SET used = {time.time() - days * DAY} WHERE used > {time.time() - 60}")


def test_rows_are_found_by_key_in_any_order_by_any_process(cache: Path) -> None:
    writer, other, reader = open_store(), open_store(), open_store()
    assert read(reader, KEYS)[0] == [False] * 60 and not cache.exists()
    writer.append(KEYS[:20], ROWS[:20])
    assert not writer.shared and other.shared
    other.append(KEYS[30:], ROWS[30:])
    writer.append(KEYS[20:25], ROWS[20:25])
    assert writer.shared, "also when it was the last to write"
    found, rows = read(reader, KEYS)
    assert found == [True] * 25 + [False] * 5 + [True] * 30 == reader.find(KEYS).tolist()
    assert np.array_equal(rows[::-1][found], ROWS[found]) and not rows[::-1][25:30].any()
    for some in (np.random.default_rng(2).permutation(25), [59, 30, 59], [5, 33, 4, 31, 5, 57]):
        assert np.array_equal(read(open_store(), KEYS[some])[1][::-1], ROWS[some])
    assert not open_store("another").find(KEYS).any()
    assert [(rows.name, rows.metadata, rows.count) for rows in list_rows()] == [("net", {"backbone": "net"}, 55)]


def test_of_several_rows_of_a_key_the_newest_counts(cache: Path) -> None:
    store = open_store()
    store.append(KEYS[[0, 1, 1]], ROWS[[0, 1, 2]])
    store.append(KEYS[[0]], ROWS[[3]])
    assert np.array_equal(read(store, KEYS[:2])[1], ROWS[[2, 3]]) and list_rows()[0].count == 2
    with closing(sqlite3.connect(cache / "features" / "rows.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM row").fetchone() == (2,)


def store_until_killed(pipe: Connection, folder: str, number: int) -> None:
    os.environ["LABELGAP_CACHE"] = folder  # the server of forks may be older than this test, and has its environment
    keys, rows = random_bytes(400, KEY_BYTES, number), random_bytes(400, WIDTH, number + 100)
    for start in range(0, 400, 10):
        open_store().append(keys[start : start + 10], rows[start : start + 10])
        pipe.send(start + 10)


def test_processes_that_write_at_once_and_are_killed_lose_only_what_they_were_storing(cache: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    workers = []
    for number in range(2):
        pipe, theirs = context.Pipe(duplex=False)
        process = context.Process(target=store_until_killed, args=(theirs, str(cache), number), daemon=True)
        workers.append((pipe, process))
        workers[-1][1].start()
        theirs.close()
    for pipe, process in workers:
        assert pipe.poll(60) and pipe.recv() == 10
        process.kill()
    for number, (pipe, process) in enumerate(workers):
        process.join()
        stored = 10
        while pipe.poll():
            try:
                stored = pipe.recv()
            except EOFError:
                break
        found, rows = read(open_store(), random_bytes(400, KEY_BYTES, number))
        assert all(found[:stored]) and sum(found) in (stored, min(stored + 10, 400))
        assert np.array_equal(rows[::-1][found], random_bytes(400, WIDTH, number + 100)[found])
    open_store().append(KEYS, ROWS)
    assert open_store().find(KEYS).all()


@pytest.mark.parametrize(
    "damage", ["crc32 = crc32 + 1", "content = x'00'", "content = zeroblob(12)", "content = 'text'", "content = NULL"]
)
def test_a_row_that_is_damaged_counts_as_missing(cache: Path, damage: str) -> None:
    messages: list[str] = []
    store = open_store(messages=messages)
    store.append(KEYS, ROWS)
    execute(cache, f"UPDATE row SET {damage} WHERE id = 8")
    found, rows = read(store, KEYS)
    assert [number for number, each in enumerate(found) if not each] == [7] and len(messages) == 1
    assert np.array_equal(rows[::-1][found], ROWS[found])
    store.append(KEYS[7:8], ROWS[7:8])
    assert all(read(store, KEYS)[0])


@pytest.mark.parametrize("damage", ["text", "empty", "link", "pipe", "middle"])
def test_a_database_that_cannot_be_used_is_logged_once_and_left_alone(cache: Path, tmp_path: Path, damage: str) -> None:
    open_store().append(KEYS, ROWS)
    path, precious = cache / "features" / "rows.sqlite", tmp_path / "precious.txt"
    precious.write_bytes(b"")
    content = path.read_bytes()
    path.unlink()
    if damage == "link":
        path.symlink_to(precious)
    elif damage == "pipe":
        os.mkfifo(path)
    else:
        middle = content[:100] + bytes(len(content) - 100)
        path.write_bytes({"text": b"no database" * 1000, "empty": b"", "middle": middle}[damage])
    messages: list[str] = []
    store = open_store(messages=messages)
    assert not any(read(store, KEYS)[0]) and not store.find(KEYS).any() and not store.shared
    store.append(KEYS, ROWS)
    assert len(messages) == 1 and "rows.sqlite" in messages[0] and list_rows() == [] and not precious.read_bytes()
    assert cache_module.clear_cache() == [] and precious.exists()
    open_store().append(KEYS, ROWS)
    assert open_store().find(KEYS).all()


def test_a_database_with_a_trigger_is_not_used(cache: Path) -> None:
    open_store().append(KEYS, ROWS)
    with closing(sqlite3.connect(cache / "features" / "rows.sqlite")) as connection, connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON entry BEGIN DELETE FROM network; END")
    messages: list[str] = []
    store = open_store(messages=messages)
    store.append(KEYS[:1], ROWS[:1])
    assert len(messages) == 1 and not store.writable and not store.find(KEYS).any()
    assert cache_module.clear_cache() == [] and open_store().reserve(1)


def test_the_least_recently_used_rows_are_evicted_but_none_in_use(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_PAGE_BYTES", 512)
    put(cache, "other", 0, 60, 9)
    for first, days in ((0, 5), (20, 3), (40, 4)):
        put(cache, "net", first, first + 20, days)
    size = folder_size(cache)
    assert shrink_cache(None) == shrink_cache(size) == []
    removed = shrink_cache(size - 2000)
    assert [(rows.metadata["backbone"], rows.count) for rows in removed] == [("other", 60)]
    assert folder_size(cache) <= size - 2000 and [rows.name for rows in list_rows()] == ["net"]
    monkeypatch.setattr(cache_module, "_STARTED", time.time() - 3.5 * DAY)
    read(open_store("net"), KEYS[:10])  # which uses them again
    shrink_cache(0)
    assert open_store("net").find(KEYS).tolist() == [True] * 10 + [False] * 10 + [True] * 20 + [False] * 20


def test_what_earlier_versions_cached_is_cleared_and_links_are_not_followed(cache: Path, tmp_path: Path) -> None:
    assert cache_module.clear_cache() == [] and not cache.exists()
    (cache / "features" / "net").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    for path in (cache / "features" / "net" / "1.rows", cache / "features" / "0123.npy", tmp_path / "mine" / "a.txt"):
        path.write_bytes(b"content")
    (cache / "features" / "link").symlink_to(tmp_path / "mine")
    cache_module.clear_cache()
    assert not list((cache / "features").iterdir()) and (tmp_path / "mine" / "a.txt").exists()


def test_a_hostile_description_is_left_out(cache: Path) -> None:
    open_store().append(KEYS, ROWS)
    execute(cache, "UPDATE entry SET used = 'long ago'")
    assert all(read(open_store(), KEYS)[0]) and list_rows()[0].count == 60
    for about in (*map(json.dumps, ({"size": math.nan}, {"size": -1}, {"backbone": ["a"]}, [1])), "[no JSON"):
        execute(cache, f"UPDATE network SET about = '{about}'")
        assert list_rows()[0].metadata == {}
