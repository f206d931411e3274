"""Rows by key on disk: several writers, torn files, damaged rows, merged segments."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.core.cache import row_store
from labelgap.core.cache.row_store import KEY_BYTES, RowStore
from labelgap.core.cache.segments import list_segments

WIDTH = 12


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path))
    monkeypatch.setattr("labelgap.core.cache.segments._PINNED", set())
    return tmp_path / "features" / "net"


def random_bytes(rows: int, width: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (rows, width), dtype=np.uint8)


KEYS, ROWS = random_bytes(60, KEY_BYTES, 0), random_bytes(60, WIDTH, 1)


def open_store(folder: Path) -> RowStore:
    return RowStore(folder, WIDTH, {"content": "numbers"})


def read(store: RowStore, keys: NDArray[np.uint8]) -> tuple[list[bool], NDArray[np.uint8]]:
    """Return which keys are found, and rows in reverse order of the keys."""
    out = np.zeros((len(keys), WIDTH), dtype=np.uint8)
    return store.read(keys, out, np.arange(len(keys))[::-1]).tolist(), out


def test_rows_are_found_by_key_in_any_order_by_any_process(folder: Path) -> None:
    writer, other, reader = open_store(folder), open_store(folder), open_store(folder)
    assert read(reader, KEYS)[0] == [False] * 60 and not folder.exists()
    writer.append(KEYS[:20], ROWS[:20])
    assert not writer.shared and other.shared
    other.append(KEYS[30:], ROWS[30:])
    writer.append(KEYS[20:25], ROWS[20:25])
    found, rows = read(reader, KEYS)
    assert found == [True] * 25 + [False] * 5 + [True] * 30
    assert np.array_equal(rows[::-1][found], ROWS[found]) and not rows[::-1][25:30].any()
    order = np.random.default_rng(2).permutation(25)
    assert np.array_equal(read(open_store(folder), KEYS[order])[1][::-1], ROWS[order])
    for few in ([59, 30], [5, 33, 4, 31, 40, 57]):
        assert np.array_equal(read(open_store(folder), KEYS[few])[1][::-1], ROWS[few])
    assert len(list_segments(folder)) == 2 and (reader.find(KEYS) < 0).tolist() == [not each for each in found]


def test_equal_beginnings_of_keys_are_told_apart(folder: Path) -> None:
    keys = np.zeros((2, KEY_BYTES), dtype=np.uint8)
    keys[1, -1] = 1
    store = open_store(folder)
    store.append(keys[:1], ROWS[:1])
    assert read(store, keys)[0] == [True, False]


def test_what_a_killed_process_left_half_written_is_not_read(folder: Path) -> None:
    open_store(folder).append(KEYS[:20], ROWS[:20])
    (segment,) = list_segments(folder)
    for path, torn in ((segment.rows, bytes(WIDTH + 5)), (segment.keys, bytes(7))):
        path.write_bytes(path.read_bytes() + torn)
    assert read(open_store(folder), KEYS[:21])[0] == [True] * 20 + [False]
    segment.keys.write_bytes(segment.keys.read_bytes()[:-7] + bytes(40))
    assert read(open_store(folder), np.zeros((1, KEY_BYTES), dtype=np.uint8))[0] == [False], "its checksum is wrong"


def test_a_segment_that_was_evicted_is_not_continued(folder: Path) -> None:
    store = open_store(folder)
    store.append(KEYS[:20], ROWS[:20])
    list_segments(folder)[0].rows.unlink()
    store.append(KEYS[20:], ROWS[20:])
    assert read(open_store(folder), KEYS)[0] == [False] * 20 + [True] * 40


def test_segments_have_a_size_limit_and_small_old_ones_are_merged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_store, "SEGMENT_BYTES", 200)
    store = open_store(folder)
    for start in range(0, 40, 5):
        store.append(KEYS[start : start + 5], ROWS[start : start + 5])
    assert [segment.rows_size for segment in list_segments(folder)] == [120] * 4
    for start in range(40, 48):
        open_store(folder).append(KEYS[start : start + 1], ROWS[start : start + 1])
    assert len(list_segments(folder)) == 12, "others may still write to them"
    for suffix in (".rows", ".keys"):
        (folder / f"torn{suffix}").write_bytes(b"?")
    damaged = list_segments(folder)[0].rows
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    for segment in list_segments(folder):
        os.utime(segment.rows, (1e9, 1e9))
    last = open_store(folder)
    assert read(last, KEYS[:48])[0] == [False] + [True] * 47
    last.append(KEYS[48:], ROWS[48:])
    assert len(list_segments(folder)) == 1
    found, rows = read(open_store(folder), KEYS)
    assert found == [False] + [True] * 59 and np.array_equal(rows[::-1][1:], ROWS[1:])
