"""What the machine has to offer."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_memory", "in_words"]


def available_memory() -> int | None:
    """Return how many bytes of main memory can still be had; None where the system does not say.

    Example:
        >>> available_memory() is None or available_memory() > 0
        True
    """
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def in_words(count: float) -> str:
    """Write a number of bytes as a person reads it.

    Example:
        >>> in_words(1_500_000), in_words(12)
        ('1.5 MB', '12 bytes')
    """
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
