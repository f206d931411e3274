"""Decisions on disk: ``review.sqlite``, a list of events that only grows.

Every decision is written, and on the disk (WAL, ``synchronous = FULL``), before the page hears of it. Nothing is ever
changed or deleted: taking something back is an event as well. What stands for a label is the newest decision that
counts and was not undone.

Two people never overwrite each other. A decision names the newest one that its maker had seen; where somebody else has
decided otherwise since, it is kept as an event that does not count, and its maker is told: said again, it counts.
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

import pyarrow as pa

from labelgap.core.errors import RunError
from labelgap.labels import Revisions
from labelgap.labels.codes import UNKNOWN
from labelgap.review.events import Decision, DecisionEvent, DecisionOutcome, Undo
from labelgap.review.label_key import LabelKey

__all__ = ["DecisionStore", "FILE", "SOURCE", "decisions"]

FILE: Final = "review.sqlite"
SOURCE: Final = "review"
_FORMAT: Final = 1
_PATIENCE: Final = 15.0
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
    counts INTEGER NOT NULL CHECK (counts IN (0, 1)),
    saw INTEGER NOT NULL,
    client TEXT NOT NULL,
    request TEXT NOT NULL UNIQUE,
    CHECK ((value IS NULL) = (undoes IS NOT NULL))
);
CREATE INDEX events_by_label ON events (image, class, split);
CREATE INDEX events_by_undone ON events (undoes);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE (ABORT, 'events are never changed'); END;
CREATE TRIGGER events_remain BEFORE DELETE ON events BEGIN SELECT RAISE (ABORT, 'events are never deleted'); END;
PRAGMA user_version = {_FORMAT};
"""
_FIELDS: Final = "id, time, reviewer, split, image, class, value, kind, score, undoes, counts, client, request"
_COUNTING: Final = "undoes IS NULL AND counts AND NOT EXISTS (SELECT 1 FROM events AS u WHERE u.undoes = d.id)"
_STANDING: Final = f"""
SELECT {_FIELDS} FROM events WHERE id IN
(SELECT max(id) FROM events AS d WHERE {_COUNTING} GROUP BY split, image, class) ORDER BY id
"""


class DecisionStore:
    """The list of events of one review. Threads may share it, and several processes may have the same file open.

    Args:
        path: the file; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        with _told(path):
            self._connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
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
                if self._version() == 0:  # not made by another process meanwhile
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
        """Write decisions and undos, all of them or none, and say what became of each.

        Args:
            actions: in the order in which they were made; one that is there already is not written again.
            reviewer: who made them.
            client: from which window; nobody is in conflict with what the same window said.
        """
        with self._writing():
            return [
                self._decide(action, reviewer, client)
                if isinstance(action, Decision)
                else self._undo(action, reviewer, client)
                for action in actions
            ]

    def events(self, since: int = 0) -> list[DecisionEvent]:
        """Return the events after number ``since``, in order."""
        return self._rows(f"SELECT {_FIELDS} FROM events WHERE id > ? ORDER BY id", (since,))

    def recent(self, most: int) -> list[DecisionEvent]:
        """Return the last events, in order."""
        return self._rows(f"SELECT {_FIELDS} FROM events ORDER BY id DESC LIMIT ?", (most,))[::-1]

    def last(self) -> int:
        """Return the number of the last event; 0 when there is none."""
        with self._lock, _told(self.path):
            (last,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        return int(last)

    def standing(self) -> list[DecisionEvent]:
        """Return the decision that stands for each label, in the order in which they were made."""
        return self._rows(_STANDING, ())

    def standing_of(self, entry: LabelKey) -> DecisionEvent | None:
        """Return the decision that stands for one label."""
        with self._lock, _told(self.path):
            return self._stands(entry)

    def counting(self) -> list[DecisionEvent]:
        """Return all decisions that count and were not undone; an older one stands again when the newer is undone."""
        return self._rows(f"SELECT {_FIELDS} FROM events AS d WHERE {_COUNTING} ORDER BY id", ())

    def touched(self) -> list[tuple[LabelKey, int]]:
        """Return the number of the last event about each label, undos among them."""
        query = "SELECT split, image, class, max(id) FROM events GROUP BY split, image, class"
        with self._lock, _told(self.path):
            return [(LabelKey(*row[:3]), int(row[3])) for row in self._connection.execute(query)]

    def _decide(self, decision: Decision, reviewer: str, client: str) -> DecisionOutcome:
        entry, standing = decision.entry, self._stands(decision.entry)
        there = self._by_request(decision.request)
        if there is not None:  # sent again, because the first answer did not arrive
            lost = not there.counts and standing is not None and standing.value != there.value
            return DecisionOutcome(decision.request, "conflict" if lost else "kept", entry, standing)
        unaware = (
            standing is not None
            and standing.id > decision.saw
            and standing.client != client
            and standing.value != decision.value
        )
        self._insert(reviewer, client, decision.request, entry, decision, counts=not unaware, saw=decision.saw)
        return DecisionOutcome(decision.request, "conflict" if unaware else "kept", entry, self._stands(entry))

    def _undo(self, undo: Undo, reviewer: str, client: str) -> DecisionOutcome:
        event = self._by_request(undo.of) if isinstance(undo.of, str) else self._by_id(undo.of)
        if event is None or event.undoes is not None:
            return DecisionOutcome(undo.request, "nothing", None, None)
        undone = self._connection.execute("SELECT 1 FROM events WHERE undoes = ?", (event.id,)).fetchone()
        if undone is None:
            self._insert(reviewer, client, undo.request, event.entry, event, undoes=event.id)
        return DecisionOutcome(undo.request, "kept", event.entry, self._stands(event.entry))

    def _insert(
        self,
        reviewer: str,
        client: str,
        request: str,
        entry: LabelKey,
        about: Decision | DecisionEvent,
        *,
        counts: bool = True,
        saw: int = 0,
        undoes: int | None = None,
    ) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        value = about.value if undoes is None else None
        row = (now, reviewer, entry.image, entry.split, entry.class_name, value, about.kind, about.score, undoes)
        self._connection.execute(
            "INSERT INTO events (time, reviewer, image, split, class, value, kind, score, undoes, counts, saw, client, "
            "request) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, int(counts), saw, client, request),
        )

    def _stands(self, entry: LabelKey) -> DecisionEvent | None:
        query = f"SELECT {_FIELDS} FROM events AS d WHERE split = ? AND image = ? AND class = ? AND {_COUNTING}"
        return self._one(f"{query} ORDER BY id DESC LIMIT 1", entry)

    def _by_request(self, request: str) -> DecisionEvent | None:
        return self._one(f"SELECT {_FIELDS} FROM events WHERE request = ?", (request,))

    def _by_id(self, number: int) -> DecisionEvent | None:
        return self._one(f"SELECT {_FIELDS} FROM events WHERE id = ?", (number,))

    def _one(self, query: str, values: Sequence[Any]) -> DecisionEvent | None:
        row = self._connection.execute(query, tuple(values)).fetchone()
        return None if row is None else _event(row)

    def _rows(self, query: str, values: Sequence[Any]) -> list[DecisionEvent]:
        with self._lock, _told(self.path):
            return [_event(row) for row in self._connection.execute(query, tuple(values))]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, _told(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise


def decisions(path: str | Path, split: str | None = None) -> Revisions:
    """Return what people decided in a review: what stands for each label, source "review", in the order of making.

    Undone decisions are not among them, nor those that were made unaware of another one. "Can't tell" is a decision:
    its value is UNKNOWN.

    Args:
        path: the folder of a run or a review, or the file itself; nothing has been decided where there is none.
        split: leave out the images of other splits.
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.exists():
        return Revisions()
    with _told(file), closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _FORMAT):
            raise _other_format(file, version)
        rows = [_event(row) for row in connection.execute(_STANDING)] if version else []
    kept = [event for event in rows if split is None or event.entry.split == split]
    count = len(kept)
    columns = {
        "image": pa.array([event.entry.image for event in kept], pa.string()),
        "class": pa.array([event.entry.class_name for event in kept], pa.string()),
        "value": pa.array([event.value for event in kept], pa.int8()),
        "target": pa.nulls(count),
        "source": pa.array([SOURCE] * count, pa.string()),
        "epoch": pa.nulls(count),
        "time": pa.array([event.time for event in kept], pa.timestamp("us", tz="UTC")),
        "author": pa.array([event.reviewer for event in kept], pa.string()),
    }
    return Revisions.from_table(pa.table(columns))


def _event(row: Sequence[Any]) -> DecisionEvent:
    number, time, reviewer, split, image, name, value, kind, score, undoes, counts, client, request = row
    made, entry = datetime.fromisoformat(time), LabelKey(split, image, name)
    return DecisionEvent(number, made, reviewer, entry, value, kind, score, undoes, bool(counts), client, request)


def _statements(script: str) -> Iterator[str]:
    """Cut a script into statements (``executescript`` would end the transaction)."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""


def _other_format(path: Path, version: int) -> RunError:
    return RunError(f"{path} is of format {version}; this version of labelgap reads format {_FORMAT}.")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what SQLite has against a file into an error that names it."""
    try:
        yield
    except sqlite3.Error as error:
        raise RunError(f"{path} cannot be used as the decisions of a review: {error}.") from error
