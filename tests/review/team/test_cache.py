"""A value is computed once for a version, and a caller who tolerates it gets an old one instead of waiting."""

from __future__ import annotations

import threading
import time

from labelgap.review.session import VersionedCache


def test_a_value_is_computed_once_for_each_version() -> None:
    cache, made = VersionedCache(), list[int]()

    def compute() -> int:
        made.append(0)
        return len(made)

    assert [cache.get("a", 1, compute), cache.get("a", 1, compute), cache.get("b", 1, compute)] == [1, 1, 2]
    assert cache.get("a", 2, compute) == 3 and len(made) == 3


def test_only_who_tolerates_it_gets_an_old_value() -> None:
    cache = VersionedCache()
    assert cache.get("a", 1, lambda: "old") == "old"
    with cache.tolerating(60):
        assert cache.get("a", 2, lambda: "new") == "old"
        with cache.tolerating(0):
            assert cache.get("a", 2, lambda: "new") == "new"
    with cache.tolerating(1e-9):
        time.sleep(0.001)
        assert cache.get("a", 3, lambda: "newest") == "newest", "it is too old"


def test_many_threads_compute_it_once_and_nobody_waits_who_need_not() -> None:
    cache, computing, go_on = VersionedCache(), threading.Event(), threading.Event()
    cache.get("a", 1, lambda: "old")

    def slow() -> str:
        computing.set()
        assert go_on.wait(60)
        return "new"

    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("a", 2, slow))) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert computing.wait(60)
    with cache.tolerating(1e-9):
        assert cache.get("a", 2, lambda: "never") == "old"
    computing.clear()
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == ["new"] * 5 and not computing.is_set()
