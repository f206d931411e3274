"""Values that depend on the decisions, computed once for everybody who looks at the same review."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

_SIZE: Final = 64
_WORK: Final = 5
"""A value that may be old is computed again after five times as long as that takes: at most a fifth is work."""


class _Value(NamedTuple):
    version: int
    made: float
    seconds: float
    value: Any


class VersionedCache:
    """A few values by name, each for one version of what they are computed from. Threads may share it.

    With many people deciding, the version changes many times a second. Where the caller tolerates it, a value that is a
    little old is returned, also while another thread computes the new one.
    """

    def __init__(self) -> None:
        self._values: dict[str, _Value] = {}
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._local = threading.local()

    def get(self, key: str, version: int, compute: Callable[[], Any]) -> Any:
        """Return the value of a key, computed again where it is of another version."""
        stored, tolerance = self._values.get(key), getattr(self._local, "tolerance", 0.0)
        if stored is not None and (stored.version == version or self._is_fresh(stored, tolerance)):
            return stored.value
        lock = self._locks[key]
        if not lock.acquire(blocking=stored is None or not tolerance):
            assert stored is not None
            return stored.value  # another thread computes it
        try:
            stored = self._values.get(key)
            if stored is None or stored.version < version:
                start = time.monotonic()
                value = compute()
                end = time.monotonic()
                stored = self._values[key] = _Value(version, end, end - start, value)
                while len(self._values) > _SIZE:
                    self._values.pop(next(iter(self._values)), None)
            return stored.value
        finally:
            lock.release()

    @contextmanager
    def tolerating(self, seconds: float) -> Iterator[None]:
        """In this block and thread, return values that are up to so many seconds old."""
        before = getattr(self._local, "tolerance", 0.0)
        self._local.tolerance = seconds
        try:
            yield
        finally:
            self._local.tolerance = before

    def _is_fresh(self, stored: _Value, tolerance: float) -> bool:
        return bool(tolerance) and time.monotonic() - stored.made < max(tolerance, _WORK * stored.seconds)
