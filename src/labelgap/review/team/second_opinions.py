"""Which labels are asked of a second person, and what became of them.

The labels are a random share, chosen by a hash of the label with the id of the store. So they are the same on every
server and after every restart, nobody can influence the choice, and a larger share contains a smaller one.

The second person sees the question as any other, among others, and neither the first answer nor who gave it. The second
answer is stored and never in force, so it changes no table and no estimate.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.review.store import DecisionStore
from labelgap.review.store.events import SECOND, LabelKey
from labelgap.review.team.agreement import OpinionPair, opinion_pairs

_ALL: Final = 2.0**64


def is_doubled(ids: NDArray[np.uint64], store: str, share: float) -> NDArray[np.bool_]:
    """Return which labels are asked of two people.

    Args:
        ids: ``(C,)`` of the labels, evenly distributed hashes.
        store: id of the store.
        share: of all labels, from 0 to 1.

    Example:
        >>> ids = np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64)
        >>> round(float(is_doubled(ids, "3f2a", 0.05).mean()), 2)
        0.05
    """
    salt = int.from_bytes(hashlib.blake2b(store.encode(), digest_size=8).digest(), "big")
    with np.errstate(over="ignore"):
        value = ids ^ np.uint64(salt)
        value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        value = value ^ (value >> np.uint64(33))
    chosen: NDArray[np.bool_] = value.astype(np.float64) < share * _ALL
    return chosen | (share >= 1)


class SecondOpinions:
    """The pairs of answers to the labels that two people answered, as they come. Threads may share it.

    Args:
        store: the decisions.
    """

    def __init__(self, store: DecisionStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._last_id = 0
        self._pairs: dict[LabelKey, list[OpinionPair]] = {}

    def pairs(self) -> list[OpinionPair]:
        """Return all pairs, in the order of the second answers."""
        with self._lock:
            self._refresh()
            return sorted((pair for pairs in self._pairs.values() for pair in pairs), key=lambda pair: pair.second.id)

    def open_pairs(self) -> list[OpinionPair]:
        """Return the pairs of different answers that nobody has settled yet."""
        return [pair for pair in self.pairs() if pair.is_open]

    def answered(self) -> set[LabelKey]:
        """Return the labels that have a second opinion."""
        with self._lock:
            self._refresh()
            return {key for key, pairs in self._pairs.items() if pairs}

    def _refresh(self) -> None:
        last_id = self._store.last_id()
        if last_id == self._last_id:
            return
        for key in self._store.second_keys() if not self._last_id else self._changed():
            self._pairs[key] = opinion_pairs(self._store.history(key))
        self._last_id = last_id

    def _changed(self) -> set[LabelKey]:
        """Return the labels with a second opinion that new events are about."""
        events = self._store.events(self._last_id)
        return {event.key for event in events if event.kind == SECOND or event.key in self._pairs}
