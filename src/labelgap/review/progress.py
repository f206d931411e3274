"""What stands for every candidate now: the store's events as arrays, kept up to date with what other people do."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.review.candidates import WRONG, Candidates
from labelgap.review.events import DecisionEvent
from labelgap.review.store import DecisionStore

__all__ = ["CurrentDecisions"]

_REMEMBERED: Final = 1000
_ANEW: Final = 2000
"""After more events than that it is quicker to read everything again."""
_PAUSE: Final = timedelta(seconds=60)
_WINDOW: Final = timedelta(minutes=5)
_SOON: Final = 10.0
"""Seconds of work after which a speed means something."""


class CurrentDecisions:
    """For every candidate whether it is decided, what was said, by whom, and by which event.

    Args:
        candidates: C of them.
        store: where decisions are.

    Attributes:
        decided: ``(C,)``
        value: ``(C,)`` codes; UNKNOWN for "can't tell", and for what is not decided.
        version: ``(C,)`` number of the event that stands; 0 for none.
        touched: ``(C,)`` number of the last event about it.
        reviewer: ``(C,)`` number in ``reviewers``.
        last: number of the last event that is taken into account.
        since: what changed before this event is not known one by one: a page from before is to be loaded again.
    """

    def __init__(self, candidates: Candidates, store: DecisionStore) -> None:
        self.candidates, self.store = candidates, store
        self.lock = threading.RLock()
        self.since = 0
        self._reload()

    def _reload(self) -> None:
        count = len(self.candidates)
        self.decided = np.zeros(count, dtype=np.bool_)
        self.value = np.full(count, UNKNOWN, dtype=np.int8)
        self.version = np.zeros(count, dtype=np.int64)
        self.touched = np.zeros(count, dtype=np.int64)
        self.reviewer = np.zeros(count, dtype=np.int32)
        self.reviewers: list[str] = []
        self.last = self.store.last()
        self._recent = deque((event for event in self.store.recent(_REMEMBERED) if _is_decision(event)), _REMEMBERED)
        for event in self.store.standing():
            number = self.candidates.number_of(event.entry)
            if number is not None:
                self._set(number, event)
        for entry, last in self.store.touched():
            number = self.candidates.number_of(entry)
            if number is not None:
                self.touched[number] = last

    def refresh(self) -> None:
        """Take into account what was written since, by this process or by another."""
        with self.lock:
            last = self.store.last()
            if last == self.last:
                return
            if last - self.last > _ANEW:
                self._reload()
                self.since = self.last
                return
            self._follow(self.store.events(self.last))

    def _follow(self, events: Iterable[DecisionEvent]) -> None:
        for event in events:
            self.last = event.id
            if _is_decision(event):
                self._recent.append(event)
            number = self.candidates.number_of(event.entry)
            if number is None:
                continue
            if event.undoes is not None:
                self._set(number, self.store.standing_of(event.entry))
            elif event.counts:
                self._set(number, event)
            self.touched[number] = event.id

    def _set(self, number: int, event: DecisionEvent | None) -> None:
        self.decided[number] = event is not None
        self.value[number] = UNKNOWN if event is None or event.value is None else event.value
        self.version[number] = 0 if event is None else event.id
        if event is not None:
            if event.reviewer not in self.reviewers:
                self.reviewers.append(event.reviewer)
            self.reviewer[number] = self.reviewers.index(event.reviewer)

    def found(self) -> NDArray[np.bool_]:
        """Say of every candidate whether it turned out to be right: missing and there, or wrong and corrected."""
        columns = self.candidates.columns
        wrong = columns.kind == WRONG
        corrected = (self.value != UNKNOWN) & (self.value != columns.observed)
        right: NDArray[np.bool_] = np.where(wrong, corrected, self.value == PRESENT)
        return self.decided & right

    def curve(self) -> NDArray[np.int64]:
        """Return how many missing labels were found among the first 1, 2, … that were decided; labels that look wrong
        are left out."""
        with self.lock:
            rows = np.flatnonzero(self.decided & (self.candidates.columns.kind != WRONG))
            rows = rows[np.argsort(self.version[rows])]
            return np.cumsum(self.value[rows] == PRESENT)

    def per_minute(self, reviewer: str, now: datetime | None = None) -> float | None:
        """Return how many labels a person decides in a minute, over the last five, pauses left out; None at first."""
        now = now or datetime.now(UTC)
        times = [event.time for event in list(self._recent) if event.reviewer == reviewer]
        times = [time for time in times if now - time <= _WINDOW]
        steps = [later - earlier for earlier, later in pairwise(times)]
        active = [step.total_seconds() for step in steps if step <= _PAUSE]
        return 60 * len(active) / sum(active) if sum(active) >= _SOON else None


def _is_decision(event: DecisionEvent) -> bool:
    return event.undoes is None
