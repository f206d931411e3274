"""The highest-scoring candidates of a stream of image blocks, in memory that grows with what is kept alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError


class RankedCandidates(NamedTuple):
    """Candidates, the highest key first; each array is ``(C,)``."""

    keys: NDArray[np.float32]
    rows: NDArray[np.int64]
    columns: NDArray[np.int32]

    def select(self, index: NDArray[np.int64]) -> RankedCandidates:
        """Return the candidates at some positions."""
        return RankedCandidates(self.keys[index], self.rows[index], self.columns[index])


class TopCandidates:
    """Keeps the first ``per_class`` candidates of every class and, of those, the first ``limit``.

    Half of the limit is divided evenly: the first ``limit // (2 K)`` of every class are kept however low they score, so
    that rare classes can be reviewed too. Equal keys are ordered by row, then class. The result does not depend on the
    block size, as long as rows arrive in ascending order.

    Example:
        >>> top = TopCandidates(classes=2, per_class=2, limit=4)
        >>> top.update(np.array([[0.9, 0.1], [0.8, -np.inf], [0.7, 0.2]], np.float32))
        >>> ranked = top.ranked()
        >>> ranked.rows.tolist(), ranked.columns.tolist()
        ([0, 1, 2, 0], [0, 0, 1, 1])
    """

    def __init__(self, classes: int, per_class: int, limit: int) -> None:
        if per_class < 1 or limit < 1:
            raise InputError(f"{per_class} candidates per class, {limit} in all: at least one of each.")
        self.classes, self.per_class, self.limit = classes, per_class, limit
        self.guaranteed = min(limit // (2 * max(classes, 1)), per_class)
        self._chunks: list[RankedCandidates] = []
        self._size = 0
        self._threshold = np.full(classes, -np.inf, dtype=np.float32)
        """The key that an entry of each class must exceed."""

    def update(self, keys: NDArray[np.float32], first_row: int = 0) -> None:
        """Add all entries ``(B, K)`` of a block of images; −inf for an entry that is no candidate."""
        step = max(1, 2 * self.limit // max(self.classes, 1))
        for start in range(0, len(keys), step):
            part = keys[start : start + step]
            rows, columns = np.nonzero(part > self._threshold)
            self._append(RankedCandidates(part[rows, columns], rows + first_row + start, columns.astype(np.int32)))

    def update_entries(self, keys: NDArray[np.float32], rows: NDArray[np.int64], columns: NDArray[np.int32]) -> None:
        """Add single entries; each array is ``(C,)``."""
        above = np.flatnonzero(keys > self._threshold[columns])
        self._append(RankedCandidates(keys, rows, columns).select(above))

    def ranked(self) -> RankedCandidates:
        """Return the candidates that are kept, the highest key first."""
        self._compact()
        (kept,) = self._chunks
        return kept.select(np.lexsort((kept.columns, kept.rows, -kept.keys)))

    def _append(self, chunk: RankedCandidates) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk.keys)
        if self._size > 2 * self.limit:
            self._compact()

    def _compact(self) -> None:
        """Drop the entries that can no longer be kept, and raise the thresholds."""
        empty = RankedCandidates(np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int32))
        held = RankedCandidates(*(np.concatenate(parts) for parts in zip(*(self._chunks or [empty]), strict=True)))
        held = held.select(np.lexsort((held.rows, -held.keys, held.columns)))
        rank = class_ranks(held.columns)
        others = np.flatnonzero((rank > self.guaranteed) & (rank <= self.per_class))
        free = self.limit - int((rank <= self.guaranteed).sum())
        limit_key = np.float32(-np.inf)
        if len(others) > free:
            order = np.lexsort((held.columns[others], held.rows[others], -held.keys[others]))
            others = others[order[:free]]
            limit_key = held.keys[others[-1]] if free > 0 else np.float32(np.inf)
        class_key, guaranteed_key = self._key_at(held, rank, self.per_class), self._key_at(held, rank, self.guaranteed)
        self._threshold = np.maximum(class_key, np.minimum(guaranteed_key, limit_key))
        kept = held.select(np.concatenate([np.flatnonzero(rank <= self.guaranteed), others]))
        self._chunks, self._size = [kept], len(kept.keys)

    def _key_at(self, held: RankedCandidates, rank: NDArray[np.int64], place: int) -> NDArray[np.float32]:
        """Return the key of the entry at a rank of each class; −inf where a class has fewer, inf at rank 0."""
        keys = np.full(self.classes, -np.inf if place else np.inf, dtype=np.float32)
        at = np.flatnonzero(rank == place)
        keys[held.columns[at]] = held.keys[at]
        return keys


def class_ranks(columns: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rank of every entry within its class, from 1, where entries are sorted by class.

    Example:
        >>> class_ranks(np.array([0, 0, 2, 2, 2], np.int32))
        array([1, 2, 1, 2, 3])
    """
    starts = np.flatnonzero(np.diff(columns, prepend=np.int32(-2)))
    lengths = np.diff(starts, append=len(columns))
    return np.arange(len(columns)) - np.repeat(starts, lengths) + 1
