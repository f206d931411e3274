"""Sort many rankings, and count entries and hits at every possible cut.

Average precision and the search for a threshold need the same counts: *if all entries that score at least as much as
this present entry are taken, how many are taken, and how many of those are present?* The known scores of a ranking are
sorted as values, and its few present scores are found among them by binary search: that is several times faster than
``argsort`` followed by gathers. Short rankings are sorted and searched many at a time, long ones one after the other.

numpy sorts and copies without holding the interpreter lock, so chunks of rankings are computed on threads, as many as
``torch.get_num_threads()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics.validation import Codes, Floats

ENTRIES_AT_ONCE: Final = 1 << 18
RANKINGS_AT_ONCE: Final = 8
MAX_RANKINGS_AT_ONCE: Final = 64
LONG_RANKING: Final = 4096
_COPIED_AT_ONCE: Final = 512

Value = TypeVar("Value")
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Cuts:
    """One cut for every present entry, ordered by ranking and in it by rising score; each array is ``(P,)``.

    Attributes:
        ranking: which ranking the entry belongs to.
        taken: known entries that score at least as much as it does. Ties are taken together.
        hits: those among them that are present.
    """

    ranking: NDArray[np.int64]
    taken: NDArray[np.int64]
    hits: NDArray[np.int64]


def cuts_at_present(scores: Floats, codes: Codes) -> Cuts:
    """Sort R rankings of M entries and cut each at each of its present entries; unknown entries are left out.

    Example:
        >>> cuts = cuts_at_present(np.array([[0.9, 0.4, 0.4, 0.7]]), np.array([[1, 1, 0, -1]], dtype=np.int8))
        >>> cuts.taken, cuts.hits
        (array([3, 1]), array([2, 1]))
    """
    if scores.shape[1] < LONG_RANKING:
        return _cuts_of_short(scores, codes)
    each = [_cuts_of_long(*ranking) for ranking in zip(scores, codes, strict=True)]
    ranking = np.repeat(np.arange(len(each)), [len(taken) for taken, _ in each])
    taken, hits = (np.concatenate([np.empty(0, dtype=np.int64), *parts]) for parts in zip(*each, strict=True))
    return Cuts(ranking=ranking, taken=taken, hits=hits)


def slices(rankings: int, entries: int) -> Iterator[slice]:
    """Split ``range(rankings)`` into chunks of a bounded number of entries, so that memory does not grow with R.

    A chunk has 8 to 64 rankings where they are long: they are often columns, and memory is read by the cache line.

    Example:
        >>> [(chunk.start, chunk.stop) for chunk in slices(50, 10_000)]
        [(0, 26), (26, 50)]
    """
    columns = max(RANKINGS_AT_ONCE, min(MAX_RANKINGS_AT_ONCE, rankings // 16))
    step = max(columns, ENTRIES_AT_ONCE // max(entries, 1))
    for start in range(0, rankings, step):
        yield slice(start, min(start + step, rankings))


def map_chunks(function: Callable[[slice], Value], rankings: int, entries: int) -> Iterator[tuple[slice, Value]]:
    """Yield each chunk of ``slices`` and what the function returns for it, in order, computed on threads."""
    chunks = list(slices(rankings, entries))
    threads = min(torch.get_num_threads(), len(chunks))
    if threads < 2:
        yield from ((chunk, function(chunk)) for chunk in chunks)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from zip(chunks, pool.map(function, chunks), strict=True)


def to_rows(rankings: NDArray[Number]) -> NDArray[Number]:
    """Return rankings ``(R, M)``, often columns of a larger array, with the entries of each adjacent in memory.

    Blocks are copied that fit the cache: a plain copy of columns reads a cache line, and a page, for every entry.
    """
    if rankings.flags.c_contiguous:
        return rankings
    rows = np.empty(rankings.shape, dtype=rankings.dtype)
    for start in range(0, rankings.shape[1], _COPIED_AT_ONCE):
        part = slice(start, start + _COPIED_AT_ONCE)
        rows[:, part] = rankings[:, part]
    return rows


def _cuts_of_long(scores: Floats, codes: Codes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the taken entries and the hits at the present entries of one ranking."""
    present, ranked = scores[codes == PRESENT], scores[codes != UNKNOWN]
    present.sort()
    if present.size:
        ranked.sort()
    return ranked.size - np.searchsorted(ranked, present), present.size - np.searchsorted(present, present)


def _cuts_of_short(scores: Floats, codes: Codes) -> Cuts:
    """Return the cuts of many rankings, sorted and searched at once."""
    is_present, entries = codes == PRESENT, scores.shape[1]
    ranked = np.where(codes != UNKNOWN, scores, scores.dtype.type(-np.inf))
    ranked.sort(axis=1)
    present = np.where(is_present, scores, scores.dtype.type(np.inf))
    present.sort(axis=1)
    count = np.count_nonzero(is_present, axis=1)
    values, ranking = present[np.arange(entries) < count[:, None]], np.repeat(np.arange(len(count)), count)
    new = np.ones(values.size, dtype=bool)
    new[1:] = (values[1:] != values[:-1]) | (ranking[1:] != ranking[:-1])
    first = np.maximum.accumulate(np.arange(values.size) * new)
    taken = entries - _count_lower(ranked, ranking, values)
    return Cuts(ranking=ranking, taken=taken, hits=np.cumsum(count)[ranking] - first)


def _count_lower(ranked: Floats, ranking: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many entries of the sorted ranking of each value are lower than it, ``(P,)``, by binary search."""
    entries = ranked.shape[1]
    flat, start = ranked.ravel(), ranking * entries
    lower, last = start - 1, start + entries - 1
    step = 1 << entries.bit_length()
    while step := step >> 1:
        probe = np.minimum(lower + step, last)
        lower = np.where(flat[probe] < values, probe, lower)
    counts: NDArray[np.int64] = lower + 1 - start
    return counts
