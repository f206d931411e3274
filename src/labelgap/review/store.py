"""The decisions on disk: ``review.sqlite``, an append-only list of events.

Every decision is on disk (WAL, ``synchronous = FULL``) before the page gets its answer. No event is ever changed or
deleted; an undo is an event as well. The decision in force for a label is the newest one that was accepted and not
undone.

Reviewers never overwrite each other unknowingly. A decision names the newest event that its reviewer had seen. If
somebody else has decided otherwise since, the decision is stored but not accepted, and its reviewer is told; sent
again with that knowledge, it is accepted.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import RunError
from labelgap.labels import Revision, Revisions
from labelgap.labels.codes import UNKNOWN
from labelgap.review.events import Decision, DecisionEvent, DecisionOutcome, LabelKey, Undo

__all__ = ["DecisionStore", "FILE", "SOURCE", "decisions"]

FILE: Final = "review.sqlite"
SOURCE: Final = "review"
_FORMAT: Final = 1
_TIMEOUT: Final = 15.0
"""Seconds to wait for another process that writes."""

_SCHEMA: Final = f"""
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time TEXT NOT NULL,
    reviewer TEXT NOT NULL,
    image TEXT NOT NULL,
    split TEXT NOT NULL,
    class TEXT NOT NULL,
    value INTEGER CHECK (value IN (1, 0, {UNKNOWN})),
    kind TEXT NOT NULL,
    score REAL,
    undoes INTEGER REFERENCES events (id),
    accepted INTEGER NOT NULL CHECK (accepted IN (0, 1)),
    base_version INTEGER NOT NULL,
    client TEXT NOT NULL,
    request_id TEXT NOT NULL UNIQUE,
    CHECK ((value IS NULL) = (undoes IS NOT NULL))
);
CREATE INDEX events_by_label ON events (image, class, split);
CREATE INDEX events_by_undoes ON events (undoes);
CREATE TRIGGER no_update BEFORE UPDATE ON events BEGIN SELECT RAISE (ABORT, 'events are never changed'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events BEGIN SELECT RAISE (ABORT, 'events are never deleted'); END;
PRAGMA user_version = {_FORMAT};
"""
_FIELDS: Final = "id, time, reviewer, split, image, class, value, kind, score, undoes, accepted, client, request_id"
_ACCEPTED: Final = "undoes IS NULL AND accepted AND NOT EXISTS (SELECT 1 FROM events AS u WHERE u.undoes = d.id)"
_CURRENT: Final = f"""
SELECT {_FIELDS} FROM events WHERE id IN
(SELECT max(id) FROM events AS d WHERE {_ACCEPTED} GROUP BY split, image, class) ORDER BY id
"""


class DecisionStore:
    """The events of one review. Threads may share a store, and several processes may open the same file.

    Args:
        path: the file; created when it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        with _sqlite_errors(path):
            self._connection = sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA synchronous = FULL")
        if self._version() == 0:
            self._connection.execute("PRAGMA journal_mode = WAL")
            with self._writing():
                if self._version() == 0:  # unless another process has just created it
                    for statement in _statements(_SCHEMA):
                        self._connection.execute(statement)
                    self._connection.execute("INSERT INTO about VALUES ('id', ?)", (uuid.uuid4().hex,))
        if self._version() != _FORMAT:
            raise _other_format(self.path, self._version())
        (self.id,) = self._connection.execute("SELECT value FROM about WHERE key = 'id'").fetchone()

    def _version(self) -> int:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

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
        with self._lock, _sqlite_errors(self.path):
            (last,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        return int(last)

    def current(self) -> list[DecisionEvent]:
        """Return the decision in force for each label, in the order in which they were made."""
        return self._rows(_CURRENT, ())

    def current_for(self, key: LabelKey) -> DecisionEvent | None:
        """Return the decision in force for one label."""
        with self._lock, _sqlite_errors(self.path):
            return self._current_for(key)

    def accepted(self) -> list[DecisionEvent]:
        """Return all accepted decisions that were not undone; undoing the newest puts the one before back in force."""
        return self._rows(f"SELECT {_FIELDS} FROM events AS d WHERE {_ACCEPTED} ORDER BY id", ())

    def last_events(self) -> list[tuple[LabelKey, int]]:
        """Return the id of the last event about each label, undos included."""
        query = "SELECT split, image, class, max(id) FROM events GROUP BY split, image, class"
        with self._lock, _sqlite_errors(self.path):
            return [(LabelKey(*row[:3]), int(row[3])) for row in self._connection.execute(query)]

    def _decide(self, decision: Decision, reviewer: str, client: str) -> DecisionOutcome:
        key, request_id = decision.key, decision.request_id
        current = self._current_for(key)
        stored = self._one(f"SELECT {_FIELDS} FROM events WHERE request_id = ?", (request_id,))
        if stored is not None:  # sent again because the first answer did not arrive
            conflict = not stored.accepted and current is not None and current.value != stored.value
        else:
            conflict = (
                current is not None
                and current.id > decision.base_version
                and current.client != client
                and current.value != decision.value
            )
            values = (decision.value, decision.kind, decision.score, None, int(not conflict), decision.base_version)
            self._insert(key, reviewer, *values, client, request_id)
        return DecisionOutcome(request_id, "conflict" if conflict else "accepted", key, self._current_for(key))

    def _undo(self, undo: Undo, reviewer: str, client: str) -> DecisionOutcome:
        column = "request_id" if isinstance(undo.target, str) else "id"
        event = self._one(f"SELECT {_FIELDS} FROM events WHERE {column} = ?", (undo.target,))
        if event is None or event.undoes is not None:
            return DecisionOutcome(undo.request_id, "nothing_to_undo", None, None)
        undone = self._connection.execute("SELECT 1 FROM events WHERE undoes = ?", (event.id,)).fetchone()
        if undone is None:
            self._insert(event.key, reviewer, None, event.kind, event.score, event.id, 1, 0, client, undo.request_id)
        return DecisionOutcome(undo.request_id, "accepted", event.key, self._current_for(event.key))

    def _insert(self, key: LabelKey, reviewer: str, *values: Any) -> None:
        """Append a row; ``values`` are the columns from ``value`` on."""
        self._connection.execute(
            "INSERT INTO events (split, image, class, time, reviewer, value, kind, score, undoes, accepted, "
            "base_version, client, request_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, datetime.now(UTC).isoformat(timespec="microseconds"), reviewer, *values),
        )

    def _current_for(self, key: LabelKey) -> DecisionEvent | None:
        query = f"SELECT {_FIELDS} FROM events AS d WHERE split = ? AND image = ? AND class = ? AND {_ACCEPTED}"
        return self._one(f"{query} ORDER BY id DESC LIMIT 1", key)

    def _one(self, query: str, values: Sequence[Any]) -> DecisionEvent | None:
        row = self._connection.execute(query, tuple(values)).fetchone()
        return None if row is None else _event(row)

    def _rows(self, query: str, values: Sequence[Any]) -> list[DecisionEvent]:
        with self._lock, _sqlite_errors(self.path):
            return [_event(row) for row in self._connection.execute(query, tuple(values))]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, _sqlite_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise


def decisions(path: str | Path, split: str | None = None) -> Revisions:
    """Return the decisions in force as revisions with the source "review", in the order in which they were made.

    Undone decisions and decisions that lost a conflict are left out. "Can't tell" is a decision with the value UNKNOWN.

    Args:
        path: the folder of a run or a review, or the file itself; without a file there are no decisions.
        split: leave out the images of other splits.
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.exists():
        return Revisions()
    with _sqlite_errors(file), closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _FORMAT):
            raise _other_format(file, version)
        events = [_event(row) for row in connection.execute(_CURRENT)] if version else []
    return Revisions(
        Revision(event.key.image, event.key.class_name, event.value, SOURCE, time=event.time, author=event.reviewer)
        for event in events
        if event.value is not None and (split is None or event.key.split == split)
    )


def _event(row: Sequence[Any]) -> DecisionEvent:
    number, time, reviewer, split, image, name, value, kind, score, undoes, accepted, client, request_id = row
    made, key = datetime.fromisoformat(time), LabelKey(split, image, name)
    return DecisionEvent(number, made, reviewer, key, value, kind, score, undoes, bool(accepted), client, request_id)


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements (``executescript`` would end the transaction)."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""


def _other_format(path: Path, version: int) -> RunError:
    return RunError(f"{path} has format {version}; this version of labelgap reads format {_FORMAT}.")


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into one that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise RunError(f"{path} cannot be used as a store of decisions: {error}.") from error
