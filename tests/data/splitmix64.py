"""SplitMix64 in Python's whole numbers: the reference of the random numbers of images."""

from __future__ import annotations

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """The next output of a state."""
    value = (value + STEP) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
