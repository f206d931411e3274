"""Processors, memory and disk space of this machine, and amounts of bytes as text."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from labelgap.core.errors import InputError

_BYTES: Final = TypeAdapter(ByteSize)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Numbers of settings of ``mallopt``."""
_KEEPING: Final = threading.Lock(), [0]
"""How many blocks of ``freed_memory_is_kept`` there are at the moment, of all threads."""


def available_memory() -> int:
    """Return how many bytes of main memory can still be allocated."""
    import psutil

    return int(psutil.virtual_memory().available)


def cpu_count() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_disk_space(path: Path) -> int | None:
    """Return the free bytes of the disk that holds, or would hold, a path; None where the system does not say."""
    existing = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), None)
    try:
        return None if existing is None else shutil.disk_usage(existing).free
    except OSError:
        return None


def parse_bytes(text: str) -> int:
    """Parse an amount of bytes."""
    try:
        return int(_BYTES.validate_python(text))
    except ValidationError:
        raise InputError(f"'{text}' is no amount of memory: write it like 20GB or 500MB.") from None


@contextmanager
def freed_memory_is_kept() -> Iterator[None]:
    """Let the C library of Linux keep up to 2 GB of freed memory in this block, and give it back at its end.

    It returns every large array to the system, whose pages are cleared when the next one is made: for the feature maps
    of a network on a CPU that takes as long as their computation. Of several blocks at a time the last one to end gives
    it back.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    lock, blocks = _KEEPING
    with lock:
        blocks[0] += 1
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:  # the default number, and the thresholds that the library reaches by itself
        with lock:
            blocks[0] -= 1
            if not blocks[0]:
                library.mallopt(_MMAP_MAX, 1 << 16)
                library.mallopt(_MMAP_THRESHOLD, 32 << 20)
                library.mallopt(_TRIM_THRESHOLD, 64 << 20)
                library.malloc_trim(0)


def used_memory() -> int:
    """Return how many bytes of main memory this process has at the moment."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def format_bytes(count: float) -> str:
    """Format a number of bytes."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
