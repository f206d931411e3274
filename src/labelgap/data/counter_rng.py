"""Random numbers per image: a function of (seed, epoch, row), independent of process and order.

A counter-based hash replaces a generator with state, so the number of worker processes, the order of the images and
earlier draws change nothing. The hash is the finalizer of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def hash_rows(seed: int, epoch: int, rows: ArrayLike) -> NDArray[np.uint64]:
    """Return 64 bits for every row of an epoch: three rounds of mixing, over seed, epoch and row.

    Example:
        >>> bool((hash_rows(0, 1, [7, 8]) == [hash_rows(0, 1, [7])[0], hash_rows(0, 1, [8])[0]]).all())
        True
    """
    state = np.full(1, seed & _MASK, dtype=np.uint64)
    for word in (np.array([epoch & _MASK], dtype=np.uint64), np.asarray(rows).astype(np.uint64)):
        state = _mix(_mix(state) ^ word)
    return _mix(state)


def flip_mask(seed: int, epoch: int, rows: ArrayLike) -> NDArray[np.bool_]:
    """Return which images are mirrored in an epoch: each with probability 1/2, drawn from (seed, epoch, row).

    The draw is the top bit of ``hash_rows``.

    Example:
        >>> flip_mask(0, 1, [7, 8, 9]).tolist() == [bool(flip_mask(0, 1, [row])[0]) for row in (7, 8, 9)]
        True
    """
    return (hash_rows(seed, epoch, rows) >> np.uint64(63)).astype(bool)


def uniform_rows(seed: int, epoch: int, rows: ArrayLike, count: int) -> NDArray[np.float64]:
    """Return ``count`` numbers from 0 to 1 for every row, those that its ``CounterRNG`` gives first: ``(B, count)``.

    Example:
        >>> rng = CounterRNG(0, 1, 8)
        >>> uniform_rows(0, 1, [7, 8], 2)[1].tolist() == [rng.uniform(), rng.uniform()]
        True
    """
    steps = np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)
    bits = _mix(hash_rows(seed, epoch, rows)[:, None] + steps)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


class CounterRNG:
    """A stream of random numbers for one image in one epoch: SplitMix64, started at ``hash_rows``.

    Example:
        >>> one, again = CounterRNG(0, 1, 7), CounterRNG(0, 1, 7)
        >>> [one.uniform(), one.integer(10)] == [again.uniform(), again.integer(10)]
        True
    """

    def __init__(self, seed: int, epoch: int, row: int) -> None:
        self._state = int(hash_rows(seed, epoch, [row])[0])

    def _bits(self) -> int:
        self._state = (self._state + _GOLDEN) & _MASK
        value = self._state
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number from ``low`` to ``high``, which is left out, of 53 bits."""
        return low + (high - low) * ((self._bits() >> 11) * 2.0**-53)

    def normal(self, deviation: float = 1.0) -> float:
        """Return a number around 0, by Box and Muller's transform."""
        length = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return deviation * length * math.cos(2.0 * math.pi * self.uniform())

    def integer(self, count: int) -> int:
        """Return a whole number from 0 to ``count`` - 1."""
        return min(int(self.uniform() * count), count - 1)

    def permutation(self, count: int) -> list[int]:
        """Return 0 … ``count`` - 1 in random order (Fisher and Yates)."""
        numbers = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.integer(last + 1)
            numbers[last], numbers[other] = numbers[other], numbers[last]
        return numbers


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: add the golden ratio, then shift and multiply; arithmetic modulo 2⁶⁴."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
