"""Sort many rankings at once, and count entries and hits at every possible cut.

Average precision and the search for a threshold need the same counts: *if all entries that score at least as much as
this present entry are taken, how many are taken, and how many of those are present?* They are computed for all present
entries of many rankings at once, without a loop over rankings.

Instead of the scores, integers of the same order are sorted, with the label in their lowest bit: sorting values is
several times faster than ``argsort`` followed by two gathers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics.validation import Codes, Floats

__all__ = ["Cuts", "cuts_at_present", "order_keys", "slices"]

ENTRIES_AT_ONCE: Final = 1 << 18
RANKINGS_AT_ONCE: Final = 8
LARGEST: Final = np.iinfo(np.int64).max
SMALLEST: Final = np.iinfo(np.int64).min


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
    """Sort R rankings of M entries and cut each at each of its present entries.

    Unknown entries sort below every score and are never taken.

    Example:
        >>> cuts = cuts_at_present(np.array([[0.9, 0.4, 0.4, 0.7]]), np.array([[1, 1, 0, -1]], dtype=np.int8))
        >>> cuts.taken, cuts.hits
        (array([3, 1]), array([2, 1]))
    """
    rankings, entries = scores.shape
    keys = order_keys(scores)
    keys <<= 1
    keys |= codes == PRESENT
    keys[codes == UNKNOWN] = SMALLEST
    keys.sort(axis=1)
    index = np.flatnonzero(keys & 1)
    start = _first_of_equals(keys)[index].astype(np.int64)
    ranking = index // max(entries, 1)
    present_up_to = np.cumsum(np.bincount(ranking, minlength=rankings))
    hits = present_up_to[ranking] - np.searchsorted(index, start)
    return Cuts(ranking=ranking, taken=(ranking + 1) * entries - start, hits=hits)


def order_keys(scores: Floats) -> NDArray[np.int64]:
    """Return integers between -2⁶² and 2⁶², exclusive, that compare as the scores do.

    The bits of a float from 0 to 1, read as an integer, are such a key already; so are those of a float from -1 to 1
    once the sign is handled. Larger scores are divided by a power of two; where that is not exact (10⁻³⁰⁸ beside
    10³⁰⁸) the key is the rank among all distinct scores.

    Example:
        >>> np.sign(np.diff(order_keys(np.array([-3.0, -0.0, 0.0, 1e-320, 7.0])))).tolist()
        [1, 0, 1, 1]
    """
    wide = scores.astype(np.float64, order="C") + 0.0
    peak = max(wide.max(initial=0.0), -wide.min(initial=0.0))
    if peak > 1.0:
        factor = np.ldexp(1.0, -int(np.frexp(peak)[1]))
        scaled = wide * factor
        if not np.array_equal(scaled / factor, wide):
            return np.unique(wide, return_inverse=True)[1].reshape(wide.shape).astype(np.int64, copy=False)
        wide = scaled
    bits = wide.view(np.int64)
    bits ^= (bits >> 63) & LARGEST
    return bits


def slices(rankings: int, entries: int) -> Iterator[slice]:
    """Split ``range(rankings)`` into chunks of a bounded number of entries, so that memory does not grow with R.

    A chunk has at least eight rankings: they are often columns, and memory is read by the cache line.

    Example:
        >>> [(chunk.start, chunk.stop) for chunk in slices(50, 10_000)]
        [(0, 26), (26, 50)]
    """
    step = max(RANKINGS_AT_ONCE, ENTRIES_AT_ONCE // max(entries, 1))
    for start in range(0, rankings, step):
        yield slice(start, min(start + step, rankings))


def _first_of_equals(keys: NDArray[np.int64]) -> NDArray[np.signedinteger[Any]]:
    """Return, for every entry of the flattened sorted rankings, the first entry of its ranking with the same score."""
    new = np.ones(keys.shape, dtype=bool)
    score_keys = keys >> 1
    np.not_equal(score_keys[:, 1:], score_keys[:, :-1], out=new[:, 1:])
    wide = np.int64 if keys.size > np.iinfo(np.int32).max else np.int32
    first: NDArray[np.signedinteger[Any]] = np.arange(keys.size, dtype=wide)
    first *= new.ravel()
    return np.maximum.accumulate(first, out=first)
