"""The decisions of a review: ``review.sqlite``, an append-only list of events; an undo is an event as well.

Every decision is on disk (WAL, ``synchronous = FULL``) before the page gets its answer. In force for a label is the
newest decision that was accepted and not undone. It names the newest event that its reviewer had seen: if somebody else
has decided otherwise since, it is stored but not accepted, and sent again with that knowledge, it is. A second opinion
is never in force. A decision on an image that has copies is stored, and withdrawn, for each of them.
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
    database_errors,
    file_state,
    open_snapshot,
    open_writable,
    store_id,
)

ANSWER_TEXT: Final = {PRESENT: "yes", ABSENT: "no", UNKNOWN: "can't tell"}
SECOND: Final = "second"  # the kind of a second opinion
PAGE_PLACES: Final = 10_000  # a page has fewer candidates than this
ASKED: Final = ("missing", "classifier", "random", "wrong", "other", SECOND)  # the kinds: as what a label was asked for
SOURCE: Final = "review"
_COPY: Final = re.compile(r"-copy[0-9]+\Z")
_FIELDS: Final = (
    "id, time, reviewer, split, image, class, value, kind, score, undoes, accepted, client, request_id, ranking, place"
)
_KEPT: Final = ("kind", "score", "ranking", "place")  # what an undo has of its decision
_LABEL: Final = "split = ? AND image = ? AND class = ?"
_ACCEPTED: Final = "undoes IS NULL AND accepted AND NOT EXISTS (SELECT 1 FROM events AS u WHERE u.undoes = d.id)"


class LabelKey(NamedTuple):
    """The label that a decision is about: one class of one image."""

    split: str
    image: str
    class_name: str


@dataclass(frozen=True)
class Decision:
    """What a reviewer answers about a label."""

    key: LabelKey  # the label
    value: int  # PRESENT, ABSENT, or UNKNOWN for "can't tell"
    request_id: str  # unique, so that a decision that is sent twice is stored once
    # id of the event that was in force when the reviewer decided, as far as the page knew; 0 for none
    base_version: int = 0
    # as what the label was asked for: "missing", "classifier" (to make the classifier better), "random" or "wrong";
    # "second", a second opinion, which is stored and never in force; "other" when it was not asked for
    kind: str = "other"
    score: float | None = None  # the model's probability at that time
    copies: tuple[LabelKey, ...] = ()  # the same label of copies of the image, which get the same answer
    ranking: int = 0  # number of the ranking that showed it; 0 where none did, or before rankings were stored
    # a number that rises with the order in which candidates are shown: PAGE_PLACES times the last event when the page
    # was made, plus the place on it from 1, as in entries.js; 0 for none. People often answer all that they say yes to
    # first, so the order of answers depends on the answers
    place: int = 0


@dataclass(frozen=True)
class Undo:
    """The withdrawal of a decision, given by the id of its event or by its request id; for all copies of the image."""

    target: int | str
    request_id: str


@dataclass(frozen=True)
class DecisionEvent:
    """A stored decision or undo, which has no value; ``accepted`` is False for a decision that lost a conflict."""

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
    def answer(self) -> str:
        """The answer in words; empty for an undo."""
        return "" if self.value is None else ANSWER_TEXT[self.value]

    @property
    def is_answer(self) -> bool:
        """Whether somebody looked at an image and answered: no undo, and not the copy of an answer."""
        return self.undoes is None and not self.for_copy

    @property
    def for_copy(self) -> bool:
        """Whether it is about a copy of the image that was shown."""
        return own_request(self.request_id) != self.request_id


def copy_request(request_id: str, number: int) -> str:
    """Return the request id under which a decision, or its undo, is stored for the n-th copy; 0 is the image itself."""
    return f"{request_id}-copy{number}" if number else request_id


def own_request(request_id: str) -> str:
    """Return the request id of the decision that a stored one belongs to."""
    return _COPY.sub("", request_id)


@dataclass(frozen=True)
class DecisionOutcome:
    """What the store did with a decision or an undo."""

    request_id: str  # that of the decision or undo
    # a conflict is stored and not in force: another reviewer decided otherwise in the meantime
    status: Literal["accepted", "conflict", "nothing_to_undo"]
    key: LabelKey | None  # the label, when there is one
    current: DecisionEvent | None  # the event that is now in force for the label


class DecisionStore:
    """The events of one review, shared by threads and processes; created where there is none, unless ``read_only``."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._lock = threading.RLock()
        self._damage = ""
        with ExitStack() as resources:
            self._connection = (open_snapshot if read_only else open_writable)(path, resources)
            with database_errors(path):
                self.id = store_id(self._connection) or ""
            self._files = self._identify_files()
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._resources.close()

    def append(self, actions: Iterable[Decision | Undo], *, reviewer: str, client: str) -> list[DecisionOutcome]:
        """Store decisions and undos, all or none, each once; those of one ``client``, a window, never conflict."""
        with self._writing():
            return [
                self._decide(action, reviewer, client)
                if isinstance(action, Decision)
                else self._undo(action, reviewer, client)
                for action in actions
            ]

    def events(self, since: int = 0) -> list[DecisionEvent]:
        """Return the events after id ``since``, in order."""
        return self._select("WHERE id > ? ORDER BY id", since)

    def recent(self, limit: int) -> list[DecisionEvent]:
        """Return the last events, in order."""
        return self._select("ORDER BY id DESC LIMIT ?", limit)[::-1]

    def last_id(self) -> int:
        """Return the id of the last event; 0 when there is none."""
        return int(self._execute("SELECT coalesce(max(id), 0) FROM events")[0][0])

    def current(self) -> list[DecisionEvent]:
        """Return the decision in force for each label, in the order in which they were made."""
        newest = f"SELECT max(id) FROM events AS d WHERE {_ACCEPTED} GROUP BY split, image, class"
        return self._select(f"WHERE id IN ({newest}) ORDER BY id")

    def current_for(self, key: LabelKey) -> DecisionEvent | None:
        """Return the decision in force for one label."""
        return self._first(f"WHERE {_LABEL} AND {_ACCEPTED} ORDER BY id DESC LIMIT 1", *key)

    def accepted(self) -> list[DecisionEvent]:
        """Return all accepted decisions that were not undone; undoing the newest puts the one before back in force."""
        return self._select(f"WHERE {_ACCEPTED} ORDER BY id")

    def last_events(self) -> list[tuple[LabelKey, int]]:
        """Return the id of the last event about each label, undos included."""
        rows = self._execute("SELECT split, image, class, max(id) FROM events GROUP BY split, image, class")
        return [(LabelKey(*row[:3]), int(row[3])) for row in rows]

    def history(self, key: LabelKey) -> list[DecisionEvent]:
        """Return all events about one label, in order."""
        return self._select(f"WHERE {_LABEL} ORDER BY id", *key)

    def add_ranking(self, aim: str, model: str, decisions: int, last_event: int) -> int:
        """Store what a ranking is made of, and return its number: one of the same aim and model keeps its number."""
        query = "SELECT min(number) FROM rankings WHERE aim = ? AND model = ?"
        with self._writing():
            (stored,) = self._connection.execute(query, (aim, model)).fetchone()
            if stored is not None:
                return int(stored)
            fields = "INSERT INTO rankings (time, aim, model, decisions, last_event) VALUES (?, ?, ?, ?, ?)"
            return self._connection.execute(fields, (_now(), aim, model, decisions, last_event)).lastrowid or 0

    def rankings(self) -> list[tuple[int, str, str, int, int]]:
        """Return number, aim, model, decisions and last event of each ranking, in order."""
        return self._execute("SELECT number, aim, model, decisions, last_event FROM rankings ORDER BY number")

    def add_class(self, name: str, reviewer: str) -> None:
        """Add a class; nothing happens where it was added already. Names are checked by ``review.additions``."""
        with self._writing():
            (count,) = self._connection.execute("SELECT count(*) FROM classes WHERE name <> ?", (name,)).fetchone()
            if count >= MAX_CLASSES:
                raise RunError(f"{self.path} has {count} added classes, which is the most.")
            for field, text in (("class", name), ("reviewer", reviewer)):
                if not 1 <= len(text.encode()) <= MAX_BYTES[field]:
                    raise RunError(f"a class cannot be added: its {field} is empty or too long.")
            self._connection.execute("INSERT OR IGNORE INTO classes VALUES (?, ?, ?)", (name, _now(), reviewer))

    def classes(self) -> list[str]:
        """Return the names of the classes that people added, in order."""
        return [name for (name,) in self._execute("SELECT name FROM classes ORDER BY rowid")]

    def _decide(self, decision: Decision, reviewer: str, client: str) -> DecisionOutcome:
        key, request_id = decision.key, decision.request_id
        current = self.current_for(key)
        stored, second = self._first("WHERE request_id = ?", request_id), decision.kind == SECOND
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
            row = {name: getattr(decision, name) for name in ("value", "base_version", *_KEPT)}
            row["accepted"] = int(not conflict and not second)
            for number, label in enumerate((key, *decision.copies)):
                self._insert(label, reviewer, client, copy_request(request_id, number), row)
        return DecisionOutcome(request_id, "conflict" if conflict else "accepted", key, self.current_for(key))

    def _undo(self, undo: Undo, reviewer: str, client: str) -> DecisionOutcome:
        column = "request_id" if isinstance(undo.target, str) else "id"
        event = self._first(f"WHERE {column} = ? AND undoes IS NULL", undo.target)
        if event is None:
            return DecisionOutcome(undo.request_id, "nothing_to_undo", None, None)
        own = own_request(event.request_id)
        of_copies = "undoes IS NULL AND (request_id = ? OR request_id BETWEEN ? AND ?)"
        found = self._select(f"WHERE {of_copies}", own, f"{own}-copy", f"{own}-copy:")  # ":" comes after "9"
        together = [each for each in found if own_request(each.request_id) == own]
        for number, each in enumerate(sorted(together, key=lambda other: other.id != event.id)):
            if not self._execute("SELECT 1 FROM events WHERE undoes = ?", each.id):
                row = {name: getattr(each, name) for name in _KEPT}
                row |= {"undoes": each.id, "accepted": 1, "base_version": 0}
                self._insert(each.key, reviewer, client, copy_request(undo.request_id, number), row)
        return DecisionOutcome(undo.request_id, "accepted", event.key, self.current_for(event.key))

    def _insert(self, key: LabelKey, reviewer: str, client: str, request_id: str, row: dict[str, Any]) -> None:
        """Append an event; ``row`` has the other columns."""
        texts = dict(zip(MAX_BYTES, (*key, reviewer, client, request_id), strict=True))
        for name, text in texts.items():
            if not 1 <= len(text.encode()) <= MAX_BYTES[name]:
                most = f"{MAX_BYTES[name]:,}"
                raise RunError(f"a decision cannot be stored: its {name} is empty, or has more than {most} bytes.")
        row = {"time": _now(), **texts, **row}
        marks = ", ".join("?" * len(row))
        self._execute(f"INSERT INTO events ({', '.join(row)}) VALUES ({marks})", *row.values())

    def _execute(self, query: str, *values: Any) -> list[Any]:
        with self._using():
            return self._connection.execute(query, values).fetchall()

    def _select(self, rest: str, *values: Any) -> list[DecisionEvent]:
        return [_event(row) for row in self._execute(f"SELECT {_FIELDS} FROM events AS d {rest}", *values)]

    def _first(self, rest: str, *values: Any) -> DecisionEvent | None:
        return next(iter(self._select(rest, *values)), None)

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
            with self._connection:  # commits, or rolls back after an error
                yield

    def _identify_files(self) -> list[tuple[int, ...]]:
        states = (file_state(self.path.with_name(self.path.name + suffix)) for suffix in ("", "-wal"))
        return [(state or ())[:2] for state in states]


def read_decisions(path: str | Path) -> list[tuple[str, Revision]]:
    """Return the decisions in force as of one moment, in their order: the split of each, and a revision of "review".

    "Can't tell" is a decision with the value UNKNOWN. The path is the folder of a run or a review, or the file itself.
    """
    with closing(DecisionStore(_file(path), read_only=True)) as store:
        events = [(event, event.key, event.value) for event in store.current() if event.value is not None]
    return [
        (key.split, Revision(key.image, key.class_name, value, SOURCE, time=event.time, author=event.reviewer))
        for event, key, value in events
    ]


def read_classes(path: str | Path) -> list[str]:
    """Return the names of the classes that people added; the path is that of ``read_decisions``."""
    with closing(DecisionStore(_file(path), read_only=True)) as store:
        return store.classes()


def _file(path: str | Path) -> Path:
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


def decisions(path: str | Path, split: str | None = None) -> Revisions:
    """Return the decisions of ``read_decisions``, of one split or of all."""
    return Revisions(revision for name, revision in read_decisions(path) if split is None or name == split)


def _event(row: Sequence[Any]) -> DecisionEvent:
    number, time, reviewer, split, image, name, value, kind, score, undoes, accepted, *rest = row
    made, key = datetime.fromisoformat(time), LabelKey(split, image, name)
    return DecisionEvent(number, made, reviewer, key, value, kind, score, undoes, bool(accepted), *rest)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
