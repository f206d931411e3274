"""The events of a review: decisions, undos, and what the store answers.

The decisions on disk: ``review.sqlite``, an append-only list of events.

Every decision is on disk (WAL, ``synchronous = FULL``) before the page gets its answer. No event is ever changed or
deleted; an undo is an event as well. The decision in force for a label is the newest one that was accepted and not
undone.

Reviewers never overwrite each other unknowingly. A decision names the newest event that its reviewer had seen. If
somebody else has decided otherwise since, the decision is stored but not accepted, and its reviewer is told; sent
again with that knowledge, it is accepted. A second opinion, which is asked for to measure agreement, is stored beside
the first and never in force.

A decision on an image that has copies is stored for each of them, and withdrawn for all of them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from labelgap.core.errors import RunError
from labelgap.labels import Revision, Revisions
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review.database import (
    FILE,
    MAX_BYTES,
    MAX_CLASSES,
    DamagedStoreError,
    create_memory_database,
    database_errors,
    open_snapshot,
    open_writable,
    store_id,
)

ANSWER_TEXT: Final = {PRESENT: "yes", ABSENT: "no", UNKNOWN: "can't tell"}
SECOND: Final = "second"
"""The kind of a second opinion."""
PAGE_PLACES: Final = 10_000
"""A page has fewer candidates than this."""
ASKED: Final = ("missing", "classifier", "random", "wrong", "other", SECOND)
"""The kinds: as what a label was asked for."""
_COPY_MARK: Final = "-copy"
_COPY: Final = re.compile(rf"{_COPY_MARK}[0-9]+\Z")


class LabelKey(NamedTuple):
    """The label that a decision is about: one class of one image."""

    split: str
    image: str
    class_name: str


@dataclass(frozen=True)
class Decision:
    """What a reviewer answers about a label.

    Attributes:
        key: the label.
        value: PRESENT, ABSENT, or UNKNOWN for "can't tell".
        request_id: unique, so that a decision that is sent twice is stored once.
        base_version: id of the event that was in force when the reviewer decided, as far as the page knew; 0 for none.
        kind: as what the label was asked for: "missing", "classifier" (to make the classifier better), "random" or
            "wrong"; "second", a second opinion, which is stored and never in force; "other" when it was not asked for.
        score: the model's probability at that time.
        copies: the same label of copies of the image, which get the same answer.
        ranking: number of the ranking that showed it; 0 where none did, or before rankings were stored.
        place: a number that rises with the order in which candidates are shown, see ``place_on_page``; 0 for none.
            People often answer all that they say yes to first, so the order of answers depends on the answers.
    """

    key: LabelKey
    value: int
    request_id: str
    base_version: int = 0
    kind: str = "other"
    score: float | None = None
    copies: tuple[LabelKey, ...] = ()
    ranking: int = 0
    place: int = 0


@dataclass(frozen=True)
class Undo:
    """The withdrawal of a decision, given by the id of its event or by its request id; for all copies of the image."""

    target: int | str
    request_id: str


@dataclass(frozen=True)
class DecisionEvent:
    """A stored decision or undo; see ``Decision``.

    An undo has no value. ``accepted`` is False for a decision that lost a conflict.
    """

    id: int
    time: datetime
    reviewer: str
    key: LabelKey
    value: int | None
    kind: str
    score: float | None
    undoes: int | None
    accepted: bool
    client: str
    request_id: str
    ranking: int
    place: int

    @property
    def shown(self) -> int:
        """When it was shown: its place, or just before a page that was made after this event."""
        return self.place or self.id * PAGE_PLACES

    @property
    def is_answer(self) -> bool:
        """Whether somebody looked at an image and answered: no undo, and not the copy of an answer."""
        return self.undoes is None and not self.for_copy

    @property
    def for_copy(self) -> bool:
        """Whether it is about a copy of the image that was shown."""
        return own_request(self.request_id) != self.request_id


def place_on_page(last_event: int, index: int) -> int:
    """Return the place of the candidate with an index on a page that was made after an event; as in ``entries.js``."""
    return last_event * PAGE_PLACES + index + 1


def copy_request(request_id: str, number: int) -> str:
    """Return the request id under which a decision, or its undo, is stored for the n-th copy of the image."""
    return f"{request_id}{_COPY_MARK}{number}"


def own_request(request_id: str) -> str:
    """Return the request id of the decision that a stored one belongs to.

    Example:
        >>> own_request(copy_request("3f2a", 2)), own_request("3f2a")
        ('3f2a', '3f2a')
    """
    return _COPY.sub("", request_id)


@dataclass(frozen=True)
class StoredRanking:
    """A ranking of the open candidates.

    Attributes:
        number: from 1 on.
        time: when it was made.
        aim: of its order; see ``audit.live``.
        model: digest of the heads.
        decisions: how many they have learned from.
        last_event: id of the last event that was taken into account.
    """

    number: int
    time: datetime
    aim: str
    model: str
    decisions: int
    last_event: int


@dataclass(frozen=True)
class AddedClass:
    """A class that a person added during a review."""

    name: str
    time: datetime
    reviewer: str


@dataclass(frozen=True)
class DecisionOutcome:
    """What the store did with a decision or an undo.

    Attributes:
        request_id: of the decision or undo.
        status: "accepted"; "conflict": stored but not in force, another reviewer decided otherwise in the meantime;
            "nothing_to_undo".
        key: the label, when there is one.
        current: the event that is now in force for the label.
    """

    request_id: str
    status: Literal["accepted", "conflict", "nothing_to_undo"]
    key: LabelKey | None
    current: DecisionEvent | None


SOURCE: Final = "review"
_FIELDS: Final = (
    "id, time, reviewer, split, image, class, value, kind, score, undoes, accepted, client, request_id, ranking, place"
)
_ACCEPTED: Final = "undoes IS NULL AND accepted AND NOT EXISTS (SELECT 1 FROM events AS u WHERE u.undoes = d.id)"
_CURRENT: Final = f"""
SELECT {_FIELDS} FROM events WHERE id IN
(SELECT max(id) FROM events AS d WHERE {_ACCEPTED} GROUP BY split, image, class) ORDER BY id
"""


class DecisionStore:
    """The events of one review. Threads may share a store, and several processes may open the same file.

    Args:
        path: the file; created when it does not exist.
        read_only: read the file as it is now and never write, also on a disk that cannot be written to; a file that
            does not exist has no events.

    Raises:
        RunError: the file is damaged or not ours; it was not changed.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._lock = threading.Lock()
        self._damage = ""
        with ExitStack() as resources:
            if not read_only:
                self._connection = open_writable(path, resources)
            elif path.exists():
                self._connection = open_snapshot(path, resources)
            else:
                self._connection = resources.enter_context(closing(create_memory_database()))
            with database_errors(path):
                self.id = store_id(self._connection) or ""
            self._files = self._identify_files()
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._resources.close()

    def append(self, actions: Iterable[Decision | Undo], *, reviewer: str, client: str) -> list[DecisionOutcome]:
        """Store decisions and undos, all of them or none, and return the outcome of each.

        Args:
            actions: in the order in which they were made; one that is stored already is not stored again.
            reviewer: who made them.
            client: the browser window; decisions of one window never conflict with each other.
        """
        with self._writing():
            return [
                self._decide(action, reviewer, client)
                if isinstance(action, Decision)
                else self._undo(action, reviewer, client)
                for action in actions
            ]

    def events(self, since: int = 0) -> list[DecisionEvent]:
        """Return the events after id ``since``, in order."""
        return self._rows(f"SELECT {_FIELDS} FROM events WHERE id > ? ORDER BY id", (since,))

    def recent(self, limit: int) -> list[DecisionEvent]:
        """Return the last events, in order."""
        return self._rows(f"SELECT {_FIELDS} FROM events ORDER BY id DESC LIMIT ?", (limit,))[::-1]

    def last_id(self) -> int:
        """Return the id of the last event; 0 when there is none."""
        with self._using():
            (last,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        return int(last)

    def current(self) -> list[DecisionEvent]:
        """Return the decision in force for each label, in the order in which they were made."""
        return self._rows(_CURRENT, ())

    def current_for(self, key: LabelKey) -> DecisionEvent | None:
        """Return the decision in force for one label."""
        with self._using():
            return self._current_for(key)

    def accepted(self) -> list[DecisionEvent]:
        """Return all accepted decisions that were not undone; undoing the newest puts the one before back in force."""
        return self._rows(f"SELECT {_FIELDS} FROM events AS d WHERE {_ACCEPTED} ORDER BY id", ())

    def last_events(self) -> list[tuple[LabelKey, int]]:
        """Return the id of the last event about each label, undos included."""
        query = "SELECT split, image, class, max(id) FROM events GROUP BY split, image, class"
        with self._using():
            return [(LabelKey(*row[:3]), int(row[3])) for row in self._connection.execute(query)]

    def history(self, key: LabelKey) -> list[DecisionEvent]:
        """Return all events about one label, in order."""
        query = f"SELECT {_FIELDS} FROM events WHERE split = ? AND image = ? AND class = ? ORDER BY id"
        return self._rows(query, key)

    def second_keys(self) -> set[LabelKey]:
        """Return the labels that a second opinion was given on, also those where it was undone."""
        with self._using():
            rows = self._connection.execute("SELECT split, image, class FROM events WHERE kind = ?", (SECOND,))
            return {LabelKey(*row) for row in rows}

    def add_ranking(self, aim: str, model: str, decisions: int, last_event: int) -> int:
        """Store what a ranking is made of, and return its number: one of the same aim and model keeps its number."""
        query = "SELECT min(number) FROM rankings WHERE aim = ? AND model = ?"
        with self._writing():
            (stored,) = self._connection.execute(query, (aim, model)).fetchone()
            if stored is not None:
                return int(stored)
            fields = "INSERT INTO rankings (time, aim, model, decisions, last_event) VALUES (?, ?, ?, ?, ?)"
            return self._connection.execute(fields, (_now(), aim, model, decisions, last_event)).lastrowid or 0

    def rankings(self) -> list[StoredRanking]:
        """Return the rankings in order."""
        query = "SELECT number, time, aim, model, decisions, last_event FROM rankings ORDER BY number"
        with self._using():
            rows = self._connection.execute(query).fetchall()
        return [StoredRanking(number, datetime.fromisoformat(time), *rest) for number, time, *rest in rows]

    def add_class(self, name: str, reviewer: str) -> None:
        """Add a class; nothing happens where it was added already. Names are checked by ``review.new_classes``."""
        with self._writing():
            (count,) = self._connection.execute("SELECT count(*) FROM classes WHERE name <> ?", (name,)).fetchone()
            if count >= MAX_CLASSES:
                raise RunError(f"{self.path} has {count} added classes, which is the most.")
            for field, text in (("class", name), ("reviewer", reviewer)):
                if not 1 <= len(text.encode()) <= MAX_BYTES[field]:
                    raise RunError(f"a class cannot be added: its {field} is empty or too long.")
            self._connection.execute("INSERT OR IGNORE INTO classes VALUES (?, ?, ?)", (name, _now(), reviewer))

    def classes(self) -> list[AddedClass]:
        """Return the classes that people added, in order."""
        with self._using():
            rows = self._connection.execute("SELECT name, time, reviewer FROM classes ORDER BY rowid").fetchall()
        return [AddedClass(name, datetime.fromisoformat(time), reviewer) for name, time, reviewer in rows]

    def _decide(self, decision: Decision, reviewer: str, client: str) -> DecisionOutcome:
        key, request_id = decision.key, decision.request_id
        current = self._current_for(key)
        stored = self._one(f"SELECT {_FIELDS} FROM events WHERE request_id = ?", (request_id,))
        second = decision.kind == SECOND
        if stored is not None:  # sent again because the first answer did not arrive
            lost = not stored.accepted and stored.kind != SECOND
            conflict = lost and current is not None and current.value != stored.value
        else:
            conflict = (
                not second
                and current is not None
                and current.id > decision.base_version
                and current.client != client
                and current.value != decision.value
            )
            accepted, shown = int(not conflict and not second), (decision.ranking, decision.place)
            values = (decision.value, decision.kind, decision.score, None, accepted, decision.base_version)
            self._insert(key, reviewer, shown, *values, client, request_id)
            for number, copy in enumerate(decision.copies, 1):
                self._insert(copy, reviewer, shown, *values, client, copy_request(request_id, number))
        return DecisionOutcome(request_id, "conflict" if conflict else "accepted", key, self._current_for(key))

    def _undo(self, undo: Undo, reviewer: str, client: str) -> DecisionOutcome:
        column = "request_id" if isinstance(undo.target, str) else "id"
        event = self._one(f"SELECT {_FIELDS} FROM events WHERE {column} = ?", (undo.target,))
        if event is None or event.undoes is not None:
            return DecisionOutcome(undo.request_id, "nothing_to_undo", None, None)
        own = own_request(event.request_id)
        query = f"SELECT {_FIELDS} FROM events WHERE undoes IS NULL AND (request_id = ? OR request_id BETWEEN ? AND ?)"
        found = self._connection.execute(query, (own, copy_request(own, 0), copy_request(own, 10**9 - 1)))
        together = [each for each in map(_event, found) if own_request(each.request_id) == own]
        for number, each in enumerate(sorted(together, key=lambda other: other.id != event.id)):
            if self._connection.execute("SELECT 1 FROM events WHERE undoes = ?", (each.id,)).fetchone() is None:
                request_id = copy_request(undo.request_id, number) if number else undo.request_id
                values = (None, each.kind, each.score, each.id, 1, 0)
                self._insert(each.key, reviewer, (each.ranking, each.place), *values, client, request_id)
        return DecisionOutcome(undo.request_id, "accepted", event.key, self._current_for(event.key))

    def _insert(self, key: LabelKey, reviewer: str, shown: tuple[int, int], *values: Any) -> None:
        """Append a row; ``shown`` is ranking and place, ``values`` are the columns from ``value`` to ``request_id``."""
        texts = (*key, reviewer, *values[-2:])
        for (name, most), text in zip(MAX_BYTES.items(), texts, strict=True):
            if not 1 <= len(text.encode()) <= most:
                raise RunError(f"a decision cannot be stored: its {name} is empty, or has more than {most:,} bytes.")
        self._connection.execute(
            "INSERT INTO events (split, image, class, time, reviewer, value, kind, score, undoes, accepted, "
            "base_version, client, request_id, ranking, place) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, _now(), reviewer, *values, *shown),
        )

    def _current_for(self, key: LabelKey) -> DecisionEvent | None:
        query = f"SELECT {_FIELDS} FROM events AS d WHERE split = ? AND image = ? AND class = ? AND {_ACCEPTED}"
        return self._one(f"{query} ORDER BY id DESC LIMIT 1", key)

    def _one(self, query: str, values: Sequence[Any]) -> DecisionEvent | None:
        row = self._connection.execute(query, tuple(values)).fetchone()
        return None if row is None else _event(row)

    def _rows(self, query: str, values: Sequence[Any]) -> list[DecisionEvent]:
        with self._using():
            return [_event(row) for row in self._connection.execute(query, tuple(values))]

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            with self._lock, database_errors(self.path):
                yield
        except DamagedStoreError as error:
            self._damage = str(error)
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction. What was seen to be damaged, removed or replaced is not written to."""
        if self.read_only:
            raise RunError(f"{self.path} was opened to be read only.")
        with self._using():
            if not self._damage and self._identify_files() != self._files:
                self._damage = (
                    f"{self.path} was removed or replaced while it was in use: decisions are no longer saved. Put it "
                    "back, and start the command again."
                )
            if self._damage:
                raise DamagedStoreError(self._damage)
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _identify_files(self) -> list[tuple[int, int] | None]:
        """Return which files the two names of the store lead to."""
        found: list[tuple[int, int] | None] = []
        for name in (self.path.name, f"{self.path.name}-wal"):
            try:
                state = self.path.with_name(name).stat()
            except OSError:
                found.append(None)
            else:
                found.append((state.st_dev, state.st_ino))
        return found


def read_decisions(path: str | Path) -> list[tuple[str, Revision]]:
    """Return the decisions in force, all as of one moment: the split of each, and a revision with the source "review".

    They are in the order in which they were made. Undone decisions and decisions that lost a conflict are left out.
    "Can't tell" is a decision with the value UNKNOWN.

    Args:
        path: the folder of a run or a review, or the file itself; without a file there are no decisions.
    """
    with closing(DecisionStore(_file(path), read_only=True)) as store:
        return [
            (event.key.split, _revision(event, event.value)) for event in store.current() if event.value is not None
        ]


def read_classes(path: str | Path) -> list[AddedClass]:
    """Return the classes that people added; the path is that of ``read_decisions``."""
    with closing(DecisionStore(_file(path), read_only=True)) as store:
        return store.classes()


def _file(path: str | Path) -> Path:
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


def decisions(path: str | Path, split: str | None = None) -> Revisions:
    """Return the decisions of ``read_decisions``, of one split or of all."""
    return Revisions(revision for name, revision in read_decisions(path) if split is None or name == split)


def _revision(event: DecisionEvent, value: int) -> Revision:
    key = event.key
    return Revision(key.image, key.class_name, value, SOURCE, time=event.time, author=event.reviewer)


def _event(row: Sequence[Any]) -> DecisionEvent:
    number, time, reviewer, split, image, name, value, kind, score, undoes, accepted, *rest = row
    made, key = datetime.fromisoformat(time), LabelKey(split, image, name)
    return DecisionEvent(number, made, reviewer, key, value, kind, score, undoes, bool(accepted), *rest)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
