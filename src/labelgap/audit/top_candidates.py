"""The best candidates of each class and of all, kept while images pass by: memory grows with what is kept alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError

__all__ = ["RankedCandidates", "TopCandidates", "class_ranks"]


class RankedCandidates(NamedTuple):
    """Entries, the best first; each ``(C,)``."""

    keys: NDArray[np.float32]
    rows: NDArray[np.int64]
    columns: NDArray[np.int32]


class TopCandidates:
    """Keeps the first ``per_class`` entries of every class, and of all those the first ``limit``.

    Half of the limit is shared out evenly: the first ``limit // (2 K)`` of every class are kept however low they are,
    so that a rare class can be reviewed too. Equal keys are in the order of rows, then classes, so what is kept does
    not depend on how the images were cut into pieces, as long as their rows come in ascending order.

    Args:
        classes: K.
        per_class: how many of a class at most.
        limit: how many at most.

    Example:
        >>> best = TopCandidates(classes=2, per_class=2, limit=4)
        >>> best.take(np.array([[0.9, 0.1], [0.8, -np.inf], [0.7, 0.2]], np.float32))
        >>> ranked = best.ranked()
        >>> ranked.rows.tolist(), ranked.columns.tolist()
        ([0, 1, 2, 0], [0, 0, 1, 1])
    """

    def __init__(self, classes: int, per_class: int, limit: int) -> None:
        if per_class < 1 or limit < 1:
            raise InputError(f"{per_class} candidates per class, {limit} in all: at least one of each.")
        self.classes, self.per_class, self.limit = classes, per_class, limit
        self.floor = min(limit // (2 * max(classes, 1)), per_class)
        self._pieces: list[RankedCandidates] = []
        self._held = 0
        self._last_of_class = np.full(classes, -np.inf, dtype=np.float32)
        self._last_of_floor = np.full(classes, -np.inf if self.floor else np.inf, dtype=np.float32)
        self._last = np.float32(-np.inf)

    def take(self, keys: NDArray[np.float32], first_row: int = 0) -> None:
        """Look at all classes of some images.

        Args:
            keys: ``(B, K)``; −inf for what is no candidate.
            first_row: number of the first of these images.
        """
        step = max(1, 2 * self.limit // max(self.classes, 1))
        for start in range(0, len(keys), step):
            some = keys[start : start + step]
            rows, columns = np.nonzero(some > self._needed())
            self._add(RankedCandidates(some[rows, columns], rows + first_row + start, columns.astype(np.int32)))

    def add(self, keys: NDArray[np.float32], rows: NDArray[np.int64], columns: NDArray[np.int32]) -> None:
        """Look at single entries; each array is ``(C,)``."""
        chosen = keys > self._needed()[columns]
        self._add(RankedCandidates(keys[chosen], rows[chosen], columns[chosen]))

    def ranked(self) -> RankedCandidates:
        """Return what is kept, the best first."""
        self._compact()
        (kept,) = self._pieces
        order = np.lexsort((kept.columns, kept.rows, -kept.keys))
        return _chosen(kept, order)

    def _needed(self) -> NDArray[np.float32]:
        """Return what an entry of each class must exceed to be kept."""
        return np.maximum(self._last_of_class, np.minimum(self._last_of_floor, self._last))

    def _add(self, piece: RankedCandidates) -> None:
        self._pieces.append(piece)
        self._held += len(piece.keys)
        if self._held > 2 * self.limit:
            self._compact()

    def _compact(self) -> None:
        """Let go of what can no longer be among the best, and remember what a newcomer must exceed."""
        empty = RankedCandidates(np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int32))
        held = RankedCandidates(*(np.concatenate(parts) for parts in zip(*(self._pieces or [empty]), strict=True)))
        held = _chosen(held, np.lexsort((held.rows, -held.keys, held.columns)))
        rank = class_ranks(held.columns)
        for last, place in ((self._last_of_class, self.per_class), (self._last_of_floor, self.floor)):
            at = np.flatnonzero(rank == place)
            last[held.columns[at]] = held.keys[at]
        others = np.flatnonzero((rank > self.floor) & (rank <= self.per_class))
        room = self.limit - int((rank <= self.floor).sum())
        if len(others) > room:
            order = np.lexsort((held.columns[others], held.rows[others], -held.keys[others]))
            others = others[order[:room]]
            self._last = held.keys[others[-1]] if room > 0 else np.float32(np.inf)
        kept = _chosen(held, np.concatenate([np.flatnonzero(rank <= self.floor), others]))
        self._pieces, self._held = [kept], len(kept.keys)


def class_ranks(columns: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the place of every entry within its class, from 1, where classes lie behind one another.

    Example:
        >>> class_ranks(np.array([0, 0, 2, 2, 2], np.int32))
        array([1, 2, 1, 2, 3])
    """
    starts = np.flatnonzero(np.diff(columns, prepend=np.int32(-2)))
    lengths = np.diff(starts, append=len(columns))
    return np.arange(len(columns)) - np.repeat(starts, lengths) + 1


def _chosen(ranked: RankedCandidates, order: NDArray[np.int64]) -> RankedCandidates:
    return RankedCandidates(ranked.keys[order], ranked.rows[order], ranked.columns[order])
