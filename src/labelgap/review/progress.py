"""The current decision on every candidate, as arrays that follow the store, and counts of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.review.candidates import WRONG, Candidates
from labelgap.review.store import DecisionStore
from labelgap.review.store.events import DecisionEvent

__all__ = ["ClassProgress", "CurrentDecisions", "ReviewProgress", "count_classes", "count_progress"]

_RECENT_EVENTS: Final = 1000
_MAX_INCREMENT: Final = 2000
"""With more new events than this, reading everything again is faster."""
_PAUSE: Final = timedelta(seconds=60)
_SPEED_WINDOW: Final = timedelta(minutes=5)
_MIN_SPEED_SECONDS: Final = 10.0
"""Seconds of work after which a speed is meaningful."""


class CurrentDecisions:
    """The decision in force for every candidate: whether there is one, its value, its reviewer, its event.

    Args:
        candidates: C of them.
        store: the decisions.

    Attributes:
        decided: ``(C,)``
        value: ``(C,)`` codes; UNKNOWN for "can't tell", and without a decision.
        version: ``(C,)`` id of the event in force; 0 for none.
        last_event: ``(C,)`` id of the last event about the candidate.
        reviewer: ``(C,)`` index into ``reviewers``.
        last_id: id of the last event that is taken into account.
        reload_before: changes before this event are not known one by one; a page from before it must be reloaded.
    """

    def __init__(self, candidates: Candidates, store: DecisionStore) -> None:
        self.candidates, self.store = candidates, store
        self.lock = threading.RLock()
        self.reload_before = 0
        self._load()

    def _load(self) -> None:
        count = len(self.candidates)
        self.decided = np.zeros(count, dtype=np.bool_)
        self.value = np.full(count, UNKNOWN, dtype=np.int8)
        self.version = np.zeros(count, dtype=np.int64)
        self.last_event = np.zeros(count, dtype=np.int64)
        self.reviewer = np.zeros(count, dtype=np.int32)
        self.reviewers: list[str] = []
        self.last_id = self.store.last_id()
        recent = self.store.recent(_RECENT_EVENTS)
        self._recent = deque((event for event in recent if event.undoes is None), _RECENT_EVENTS)
        for event in self.store.current():
            number = self.candidates.number_of(event.key)
            if number is not None:
                self._set(number, event)
        for key, event_id in self.store.last_events():
            number = self.candidates.number_of(key)
            if number is not None:
                self.last_event[number] = event_id

    def refresh(self) -> None:
        """Take new events into account, of this process or another."""
        with self.lock:
            last_id = self.store.last_id()
            if last_id - self.last_id > _MAX_INCREMENT:
                self._load()
                self.reload_before = self.last_id
            elif last_id != self.last_id:
                self._apply(self.store.events(self.last_id))

    def _apply(self, events: Iterable[DecisionEvent]) -> None:
        for event in events:
            self.last_id = event.id
            if event.undoes is None:
                self._recent.append(event)
            number = self.candidates.number_of(event.key)
            if number is None:
                continue
            if event.undoes is not None:
                self._set(number, self.store.current_for(event.key))
            elif event.accepted:
                self._set(number, event)
            self.last_event[number] = event.id

    def _set(self, number: int, event: DecisionEvent | None) -> None:
        self.decided[number] = event is not None
        self.value[number] = UNKNOWN if event is None or event.value is None else event.value
        self.version[number] = 0 if event is None else event.id
        if event is not None:
            if event.reviewer not in self.reviewers:
                self.reviewers.append(event.reviewer)
            self.reviewer[number] = self.reviewers.index(event.reviewer)

    def found(self) -> NDArray[np.bool_]:
        """Return ``(C,)``: whether a candidate was right, i.e. missing and present, or wrong and corrected."""
        columns = self.candidates.columns
        corrected = (self.value != UNKNOWN) & (self.value != columns.observed)
        right: NDArray[np.bool_] = np.where(columns.kind == WRONG, corrected, self.value == PRESENT)
        return self.decided & right

    def found_curve(self) -> NDArray[np.int64]:
        """Return how many missing labels were found among the first 1, 2, … decided candidates of that kind."""
        with self.lock:
            rows = np.flatnonzero(self.decided & (self.candidates.columns.kind != WRONG))
            rows = rows[np.argsort(self.version[rows])]
            return np.cumsum(self.value[rows] == PRESENT)

    def count_by_reviewer(self) -> list[tuple[str, int]]:
        """Return how many current decisions each reviewer made, most first."""
        with self.lock:
            counts = np.bincount(self.reviewer[self.decided], minlength=len(self.reviewers)).tolist()
            pairs = zip(self.reviewers, counts, strict=True)
            return sorted(((name, count) for name, count in pairs if count), key=lambda pair: -pair[1])

    def per_minute(self, reviewer: str, now: datetime | None = None) -> float | None:
        """Return a reviewer's decisions per minute over the last five, without pauses; None after too little work."""
        now = now or datetime.now(UTC)
        times = [event.time for event in list(self._recent) if event.reviewer == reviewer]
        times = [time for time in times if now - time <= _SPEED_WINDOW]
        steps = [later - earlier for earlier, later in pairwise(times)]
        active = [step.total_seconds() for step in steps if step <= _PAUSE]
        return 60 * len(active) / sum(active) if sum(active) >= _MIN_SPEED_SECONDS else None


@dataclass(frozen=True)
class ReviewProgress:
    """How far a review is.

    Attributes:
        total: candidates that may be missing, the random ones included.
        decided: of these.
        found: of these, missing labels that are present.
        unsure: of these, where the reviewer could not tell.
        wrong: candidates that look wrong.
        wrong_decided: of these.
        corrected: of these, labels that were wrong.
    """

    total: int
    decided: int
    found: int
    unsure: int
    wrong: int
    wrong_decided: int
    corrected: int


@dataclass(frozen=True)
class ClassProgress(ReviewProgress):
    """How far the review of one class is.

    Attributes:
        number: of the class.
        name: of the class.
        expected: the model's expected number of present labels among the undecided; 0 without a model.
    """

    number: int
    name: str
    expected: float


def count_progress(current: CurrentDecisions) -> ReviewProgress:
    """Count the decisions."""
    rows = count_classes(current)
    return ReviewProgress(*(sum(getattr(row, field.name) for row in rows) for field in fields(ReviewProgress)))


def count_classes(current: CurrentDecisions) -> list[ClassProgress]:
    """Count the decisions by class; classes without candidates are left out."""
    columns, classes = current.candidates.columns, current.candidates.classes
    with current.lock:
        current.refresh()
        decided, found, unsure = current.decided.copy(), current.found(), current.value == UNKNOWN
    wrong = columns.kind == WRONG
    expected = np.where(decided | wrong, 0.0, np.nan_to_num(columns.score.astype(np.float64)))
    missing = (~wrong, decided & ~wrong, found & ~wrong, decided & ~wrong & unsure)
    values = [*missing, wrong, decided & wrong, found & wrong]
    counts = [np.bincount(columns.class_number[mask], minlength=len(classes)).tolist() for mask in values]
    sums = np.bincount(columns.class_number, weights=expected, minlength=len(classes)).tolist()
    rows = zip(*counts, range(len(classes)), classes, sums, strict=True)
    return [row for row in (ClassProgress(*each) for each in rows) if row.total or row.wrong]
