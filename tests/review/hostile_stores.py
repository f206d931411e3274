"""Stores of decisions that somebody else made, or that were damaged on purpose."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review.store import Decision, DecisionStore, LabelKey, Undo

TIME = "2026-01-01T00:00:00.000000+00:00"
ROW = {"time": f"'{TIME}'", "reviewer": "'eve'", "image": "'a.jpg'", "split": "'train'", "class": "'dog'", "value": "1"}
ROW |= {"kind": "'missing'", "accepted": "1", "base_version": "0", "client": "'c'", "request_id": "'r-1'"}


def make_store(path: Path, decided: int = 30) -> Path:
    """A store with decisions and an undo, closed."""
    path.write_bytes(_store(decided))
    return path


@cache
def _store(decided: int) -> bytes:
    with TemporaryDirectory() as folder:
        with closing(DecisionStore(Path(folder) / "store")) as store:
            made = []
            for number in range(decided):
                key = LabelKey("train", f"{number}.jpg", "dog" if number % 3 else "cat")
                value = PRESENT if number % 2 else ABSENT
                made.append(Decision(key, value, uuid.uuid4().hex, 0, "missing", 0.5))
            store.append(made, reviewer="anna", client="w-1")
            store.append([Undo(3, "undo-0001")], reviewer="ben", client="w-2")
        return store.path.read_bytes()


def insert(**changed: str) -> Callable[[sqlite3.Connection], None]:
    """Insert a row with some values that labelgap does not write."""
    row = {**ROW, **changed}
    return run(f"INSERT INTO events ({', '.join(row)}) VALUES ({', '.join(row.values())})")


def run(*statements: str) -> Callable[[sqlite3.Connection], None]:
    def change(connection: sqlite3.Connection) -> None:
        for statement in statements:
            connection.execute(statement)

    return change


def rewrite(name: str, old: str, new: str) -> Callable[[sqlite3.Connection], None]:
    """Change the stored text of a table's definition, and leave the table as it is."""
    return run(
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_schema SET sql = replace(sql, '{old}', '{new}') WHERE name = '{name}'",
        "PRAGMA writable_schema = OFF",
    )


HOSTILE: dict[str, Callable[[sqlite3.Connection], None]] = {
    "a trigger that runs on every decision": run(
        "CREATE TRIGGER t AFTER INSERT ON events BEGIN INSERT INTO about VALUES (NEW.id, randomblob(1000)); END"
    ),
    "a view in the place of the events": run(
        "ALTER TABLE events RENAME TO hidden", "CREATE VIEW events AS SELECT *, zeroblob(2000000000) FROM hidden"
    ),
    "a view that never ends": run(
        "CREATE VIEW v AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    ),
    "a virtual table": run("CREATE VIRTUAL TABLE words USING fts5(text)"),
    "one more table": run("CREATE TABLE more (x)"),
    "a generated column": run("ALTER TABLE events ADD COLUMN g TEXT AS (hex(image)) VIRTUAL"),
    "without its trigger": run("DROP TRIGGER no_delete"),
    "without its index": run("DROP INDEX events_by_undoes"),
    "with another check": rewrite("events", "accepted IN (0, 1)", "accepted > -9"),
    "of another format": run("PRAGMA user_version = 3"),
    "of an older format than its tables": run("PRAGMA user_version = 1"),
    "a second opinion in force": insert(kind="'second'"),
    "a negative ranking": insert(ranking="-1"),
    "a ranking for an unknown aim": run(f"INSERT INTO rankings VALUES (1, '{TIME}', 'fame', 'ab', 1, 1)"),
    "a class without a name": run(f"INSERT INTO classes VALUES ('', '{TIME}', 'eve')"),
    "without an id": run("DELETE FROM about"),
    "with an id that is a script": run("UPDATE about SET value = '<script>'"),
    "with the last number used up": run("UPDATE sqlite_sequence SET seq = 9223372036854775807"),
    "a huge image name": insert(image="replace(hex(zeroblob(400000)), '0', 'x')"),
    "an image name that is bytes": insert(image="zeroblob(2000000)"),
    "an image name that is not text": insert(image="CAST(x'ff80' AS TEXT)", value="7 - 6"),
    "an empty name of a reviewer": insert(reviewer="''"),
    "the thirtieth of February": insert(time="'2026-02-30T00:00:00.000000+00:00'"),
    "an unknown kind": insert(kind="'odd'"),
    "a negative version": insert(base_version="-5"),
    "a score of a thousand": insert(score="1000"),
    "an undo of nothing": insert(value="NULL", undoes="999"),
    "an undo of another label": insert(value="NULL", undoes="1"),
}


def make_hostile_store(path: Path, name: str) -> Path:
    """A store that was changed as ``HOSTILE`` says."""
    make_store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        HOSTILE[name](connection)
    return path
