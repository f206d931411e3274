"""The current decision on every candidate, as arrays that follow the store, and counts of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.review.candidates import WRONG, Candidates
from labelgap.review.store import ASKED, DecisionEvent, DecisionStore, LabelKey
from labelgap.review.team import answers_per_minute

_RECENT_EVENTS: Final = 2000
_MAX_INCREMENT: Final = 2000  # with more new events than this, reading everything again is faster
_SPEED_WINDOW: Final = timedelta(minutes=5)


class CurrentDecisions:
    """The decision in force for every candidate; random answers count from ``first_ranking`` on, those of this draw."""

    def __init__(self, candidates: Candidates, store: DecisionStore, first_ranking: int = 0) -> None:
        self.candidates, self.store, self.first_ranking = candidates, store, first_ranking
        self.lock = threading.RLock()
        self.reload_before = 0  # a page from before this event must be reloaded: changes are not known one by one
        self._load()

    def _load(self) -> None:
        count = len(self.candidates)
        self.decided = np.zeros(count, dtype=np.bool_)
        self.value = np.full(count, UNKNOWN, dtype=np.int8)  # UNKNOWN for "can't tell", and without a decision
        self.version = np.zeros(count, dtype=np.int64)  # id of the event in force; 0 for none
        self.last_event = np.zeros(count, dtype=np.int64)  # id of the last event about the candidate
        # when who decided it first saw it, a number that rises; 0 for none
        self.shown = np.zeros(count, dtype=np.int64)
        self.asked = np.zeros(count, dtype=np.int8)  # as what it was asked when it was decided, an index into ASKED
        self.ranking = np.zeros(count, dtype=np.int64)  # number of the ranking that showed it; 0 where it is not known
        self.reviewer = np.zeros(count, dtype=np.int32)  # index into reviewers
        self.reviewers: list[str] = []
        self.last_id = self.store.last_id()
        recent = self.store.recent(_RECENT_EVENTS)
        self.recent = deque((event for event in recent if event.is_answer), _RECENT_EVENTS)
        self.others: dict[LabelKey, int] = {}  # value of each label that is decided and no candidate, e.g. of a copy
        for event in self.store.accepted():
            self._set(event.key, event)
        for key, event_id in self.store.last_events():
            if (number := self.candidates.number_of(key)) is not None:
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
            if event.is_answer:
                self.recent.append(event)
            if event.undoes is not None:
                self._set(event.key, self.store.current_for(event.key))
            elif event.accepted:
                self._set(event.key, event)
            if (number := self.candidates.number_of(event.key)) is not None:
                self.last_event[number] = event.id

    def _set(self, key: LabelKey, event: DecisionEvent | None) -> None:
        number = self.candidates.number_of(key)
        value = UNKNOWN if event is None or event.value is None else event.value
        if number is None:
            self.others.pop(key, None)
            if event is not None:
                self.others[key] = value
            return
        self.value[number] = value
        self.version[number] = 0 if event is None else event.id
        if event is None:
            self.shown[number] = 0
        else:
            self.shown[number] = self.shown[number] or event.shown
            self.asked[number] = ASKED.index("other" if event.for_copy else event.kind)
            self.ranking[number] = event.ranking
            if event.reviewer not in self.reviewers:
                self.reviewers.append(event.reviewer)
            self.reviewer[number] = self.reviewers.index(event.reviewer)
        self.decided[number] = event is not None  # last: pages read without the lock

    def decided_by(self, number: int) -> str | None:
        """Return who made the decision in force on a candidate; None where there is none."""
        with self.lock:
            return self.reviewers[self.reviewer[number]] if self.decided[number] else None

    def found(self) -> NDArray[np.bool_]:
        """Return ``(C,)``: whether a candidate was right, i.e. missing and present, or wrong and corrected."""
        columns = self.candidates.columns
        corrected = (self.value != UNKNOWN) & (self.value != columns.observed)
        return np.asarray(self.decided & np.where(columns.kind == WRONG, corrected, self.value == PRESENT))

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
        since = (now or datetime.now(UTC)) - _SPEED_WINDOW
        events = [event for event in list(self.recent) if event.reviewer == reviewer]
        return answers_per_minute([event.time for event in events if event.time >= since])


@dataclass(frozen=True)
class ReviewProgress:
    """How far a review is."""

    total: int  # candidates that may be missing, the random ones included
    decided: int  # of these, decided ones
    found: int  # of these, missing labels that are present
    unsure: int  # of these, where the reviewer could not tell
    wrong: int  # candidates that look wrong
    wrong_decided: int  # of these, decided ones
    corrected: int  # of these, labels that were wrong


@dataclass(frozen=True)
class ClassProgress(ReviewProgress):
    """How far the review of one class is."""

    number: int
    name: str


def count_progress(current: CurrentDecisions) -> ReviewProgress:
    """Count the decisions."""
    return ReviewProgress(*(sum(counts) for counts in _count_by_class(current)))


def count_classes(current: CurrentDecisions) -> list[ClassProgress]:
    """Count the decisions by class; classes without candidates are left out."""
    classes = current.candidates.classes
    rows = zip(*_count_by_class(current), range(len(classes)), classes, strict=True)
    return [row for row in (ClassProgress(*each) for each in rows) if row.total or row.wrong]


def _count_by_class(current: CurrentDecisions) -> list[list[int]]:
    columns, classes = current.candidates.columns, current.candidates.classes
    with current.lock:
        current.refresh()
        decided, found, unsure = current.decided.copy(), current.found(), current.value == UNKNOWN
    wrong = columns.kind == WRONG
    missing = (~wrong, decided & ~wrong, found & ~wrong, decided & ~wrong & unsure)
    values = [*missing, wrong, decided & wrong, found & wrong]
    return [np.bincount(columns.class_number[mask], minlength=len(classes)).tolist() for mask in values]


class OrderedDecisions(NamedTuple):
    """Which of C candidates are decided, the answers, which count as random ones, and the order of the decisions."""

    decided: NDArray[np.bool_]
    value: NDArray[np.int8]
    random: NDArray[np.bool_]
    order: NDArray[np.int64]


def order_decisions(current: CurrentDecisions, shown: NDArray[np.bool_]) -> OrderedDecisions:
    """Return the decisions in force, which count as random ones, and the order in which they were made.

    A random answer counts once all earlier labels of the draw are decided, in whatever way: so the sample does not
    depend on which labels of a page a reviewer leaves out. Decisions of versions that stored no ranking do not count.
    """
    columns = current.candidates.columns
    with current.lock:
        decided, value, order = current.decided.copy(), current.value.copy(), current.shown.copy()
        random = (current.asked == ASKED.index("random")) & (current.ranking >= max(current.first_ranking, 1))
    waiting = shown & ~decided & (columns.kind != WRONG) & (columns.random_rank > 0)
    first = np.full(len(current.candidates.classes), np.iinfo(np.int32).max)
    np.minimum.at(first, columns.class_number[waiting], columns.random_rank[waiting])
    random &= decided & (columns.random_rank < first[columns.class_number])
    return OrderedDecisions(decided, value, random, order)
