"""The tables of ``review.sqlite``, and the check that a database has nothing else and is intact."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from functools import cache
from typing import Final

from labelgap.labels.codes import UNKNOWN

FORMAT: Final = 2
MAX_CLASSES: Final = 100
"""How many classes people can add."""
MAX_BYTES: Final = {
    "split": 1000,
    "image": 32_000,
    "class": 32_000,
    "reviewer": 400,
    "client": 200,
    "request_id": 200,
}
"""Length of every text, in bytes of UTF-8."""

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
PRAGMA user_version = 1;
"""
_UPGRADE: Final = """
ALTER TABLE events ADD COLUMN ranking INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
CREATE TABLE rankings (
    number INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    aim TEXT NOT NULL,
    model TEXT NOT NULL,
    decisions INTEGER NOT NULL,
    last_event INTEGER NOT NULL
);
CREATE TABLE classes (
    name TEXT PRIMARY KEY,
    time TEXT NOT NULL,
    reviewer TEXT NOT NULL
);
CREATE TRIGGER no_ranking_update BEFORE UPDATE ON rankings BEGIN SELECT RAISE (ABORT, 'never changed'); END;
CREATE TRIGGER no_ranking_delete BEFORE DELETE ON rankings BEGIN SELECT RAISE (ABORT, 'never deleted'); END;
CREATE TRIGGER no_class_update BEFORE UPDATE ON classes BEGIN SELECT RAISE (ABORT, 'never changed'); END;
CREATE TRIGGER no_class_delete BEFORE DELETE ON classes BEGIN SELECT RAISE (ABORT, 'never deleted'); END;
PRAGMA user_version = 2;
"""
"""From format 1 to format 2. New files are made in the same two steps, so that their definitions are the same text."""
_DIGITS: Final = "[0-9]"
_TEXTS: Final = " AND ".join(
    f"typeof({name}) = 'text' AND length(CAST({name} AS BLOB)) BETWEEN 1 AND {most}" for name, most in MAX_BYTES.items()
)
_TIME: Final = f"""
    typeof(time) = 'text' AND length(CAST(time AS BLOB)) = 32 AND time GLOB '*.{_DIGITS * 6}+00:00'
    AND strftime('%Y-%m-%dT%H:%M:%S', substr(time, 1, 19), '+0 days') = substr(time, 1, 19) AND time > '0001'
"""
_NUMBER: Final = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {2**53}"
_INVALID_ROW: Final = f"""
SELECT id FROM events AS e WHERE id >= ? AND (
    id BETWEEN 1 AND {2**53} AND {_TEXTS} AND {_TIME}
    AND (value IS NULL OR typeof(value) = 'integer' AND value IN (1, 0, {UNKNOWN}))
    AND kind IN ('missing', 'wrong', 'random', 'other', 'classifier', 'second')
    AND (score IS NULL OR score BETWEEN 0.0 AND 1.0)
    AND typeof(accepted) = 'integer' AND accepted IN (0, 1)
    AND (kind <> 'second' OR undoes IS NOT NULL OR accepted = 0)
    AND {_NUMBER.format("base_version")} AND {{shown}}
    AND (value IS NULL) = (undoes IS NOT NULL)
    AND (undoes IS NULL OR EXISTS (
        SELECT 1 FROM events AS d WHERE d.id = e.undoes AND d.undoes IS NULL AND d.id < e.id
        AND d.split = e.split AND d.image = e.image AND d.class = e.class))
) IS NOT TRUE LIMIT 1
"""
_INVALID_RANKING: Final = f"""
SELECT number FROM rankings WHERE (
    number BETWEEN 1 AND {2**53} AND {_TIME} AND aim IN ('missing', 'classifier', 'random')
    AND typeof(model) = 'text' AND length(CAST(model AS BLOB)) <= 64
    AND {_NUMBER.format("decisions")} AND {_NUMBER.format("last_event")}
) IS NOT TRUE LIMIT 1
"""
_INVALID_CLASS: Final = f"""
SELECT 1 FROM classes WHERE (
    typeof(name) = 'text' AND length(CAST(name AS BLOB)) BETWEEN 1 AND {MAX_BYTES["class"]} AND {_TIME}
    AND typeof(reviewer) = 'text' AND length(CAST(reviewer AS BLOB)) BETWEEN 1 AND {MAX_BYTES["reviewer"]}
) IS NOT TRUE OR (SELECT count(*) FROM classes) > {MAX_CLASSES} LIMIT 1
"""


def create_memory_database() -> sqlite3.Connection:
    """Return an empty store that is not on disk."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    create_tables(connection)
    return connection


def create_tables(connection: sqlite3.Connection, identity: str | None = None) -> None:
    """Make a store of an empty database; its id is new unless one is given."""
    connection.executescript(f"BEGIN; {_SCHEMA} {_UPGRADE} COMMIT;")
    connection.execute("INSERT INTO about VALUES ('id', ?)", (identity or uuid.uuid4().hex,))


def upgrade(connection: sqlite3.Connection) -> None:
    """Make format 2 of a store of format 1, in one transaction; other processes may try the same."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if read_format(connection) == 1:
            for statement in _UPGRADE.split(";\n"):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def read_format(connection: sqlite3.Connection) -> int:
    """Return the format that a database says to have."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def find_damage(connection: sqlite3.Connection) -> str | None:
    """Return why a database is not an intact store; None where it is one."""
    if not has_our_tables(connection):
        return "its tables are not those of a review"
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        return " ".join(str(result).split())
    if (invalid := find_invalid_event(connection)) is not None:
        return f"event {invalid} is not one that labelgap writes"
    texts = [f"SELECT {', '.join(MAX_BYTES)} FROM events"]
    if read_format(connection) > 1:
        if (table := find_invalid_table(connection)) is not None:
            return f"its {table} are not those that labelgap writes"
        texts += ["SELECT model FROM rankings", "SELECT name, reviewer FROM classes"]
    for query in texts:
        for _ in connection.execute(query):
            pass  # text that is not UTF-8 raises an error
    if store_id(connection) is None:
        return "its id is missing"
    (last,) = connection.execute("SELECT max(id) FROM events").fetchone()
    sequence = connection.execute("SELECT name, seq FROM sqlite_sequence LIMIT 2").fetchall()
    return None if sequence == ([] if last is None else [("events", last)]) else "its events are not numbered correctly"


def has_our_tables(connection: sqlite3.Connection) -> bool:
    """Whether a database has exactly the tables, indexes and triggers of a store of its format."""
    return _objects(connection) == _our_objects(read_format(connection))


def find_invalid_event(connection: sqlite3.Connection, first: int = -(2**63)) -> int | None:
    """Return the number of an event, from ``first`` on, that no store contains; None where there is none."""
    numbers = ("ranking", "place") if read_format(connection) > 1 else ()
    shown = " AND ".join(["TRUE", *map(_NUMBER.format, numbers)])
    invalid = connection.execute(_INVALID_ROW.format(shown=shown), (first,)).fetchone()
    return None if invalid is None else int(invalid[0])


def find_invalid_table(connection: sqlite3.Connection) -> str | None:
    """Return the table, rankings or classes, with a row that no store contains; None where there is none."""
    queries = {"rankings": _INVALID_RANKING, "classes": _INVALID_CLASS}
    return next((name for name, query in queries.items() if connection.execute(query).fetchone()), None)


def store_id(connection: sqlite3.Connection) -> str | None:
    """Return the id of a store; None where it has none."""
    rows = connection.execute("SELECT key, value FROM about LIMIT 2").fetchall()
    text = rows[0][1] if [key for key, _ in rows] == ["id"] else None
    valid = isinstance(text, str) and len(text) == 32 and set(text) <= set("0123456789abcdef")
    return text if valid else None


def _objects(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name LIMIT 100"
    return connection.execute(query).fetchall()


@cache
def _our_objects(version: int) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA if version == 1 else _SCHEMA + _UPGRADE)
        return _objects(connection)
