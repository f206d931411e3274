"""Processors, memory and disk space of this machine, and amounts of bytes as text."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from labelgap.core.errors import InputError

_BYTES: Final = TypeAdapter(ByteSize)


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
