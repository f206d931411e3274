"""Mutations of ``review.sqlite`` by SQL: other types, tables that are gone, triggers and views of somebody else."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.fuzzing.base import Random, canary, pick

_SQL_VALUES: Final = (
    *("NULL", "''", "'x'", "x'ff00'", "-1", "0", "1e400", "9223372036854775807", "zeroblob(100)", "char(0)"),
    *("'2020-01-01T00:00:00+00:00'", "'9999-99-99'", "randomblob(5)", "char(27) || '[2J'"),
)
_SQL_COLUMNS: Final = (
    *("id", "time", "reviewer", "image", "split", "class", "value", "kind", "score", "undoes", "accepted"),
    *("base_version", "client", "request_id"),
)
_COUNTING: Final = "WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM c)"
_SQL: Final = (
    "DROP TABLE events",
    "DROP TABLE about",
    "DELETE FROM about",
    "DELETE FROM events",
    "DROP INDEX events_by_label",
    "UPDATE about SET value = x'ff'",
    "UPDATE about SET value = NULL",
    "ALTER TABLE events RENAME COLUMN value TO worth",
    "ALTER TABLE events DROP COLUMN client",
    "ALTER TABLE events ADD COLUMN extra",
    "ALTER TABLE events RENAME TO other",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 2",
    "PRAGMA user_version = -1",
    "PRAGMA application_id = 7",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA encoding = 'UTF-16'",
    "CREATE TRIGGER t BEFORE INSERT ON events BEGIN DELETE FROM about; END",
    "CREATE TRIGGER t AFTER INSERT ON events BEGIN SELECT RAISE (ABORT, 'no'); END",
    "CREATE TRIGGER t AFTER INSERT ON events BEGIN UPDATE events SET value = 1; END",
    "CREATE VIEW v AS SELECT 1",
    "DROP TABLE events; CREATE VIEW events AS SELECT 1 AS id",
    f"DROP TABLE events; CREATE VIEW events AS {_COUNTING} SELECT * FROM c",
    f"DROP TABLE events; CREATE TABLE events ({', '.join(_SQL_COLUMNS)})",
    f"CREATE TABLE filler AS {_COUNTING} SELECT id FROM c LIMIT 5000",
)


def mutate_database(random: Random, data: bytes) -> bytes:
    """Change a database by SQL, without the constraints that protect it."""
    with tempfile.TemporaryDirectory(dir=canary().parent.parent) as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(data)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for trigger in ("no_update", "no_delete"):
                connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
            if random.random() < 0.5:
                connection.execute("PRAGMA writable_schema = ON")
                connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'events'")
                connection.execute("PRAGMA writable_schema = RESET")
                column, row = pick(random, _SQL_COLUMNS), int(random.integers(1, 9))
                connection.execute(f"UPDATE events SET {column} = {pick(random, _SQL_VALUES)} WHERE id = {row}")
            else:
                connection.executescript(pick(random, _SQL))
            if random.random() < 0.5:
                connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()
        return path.read_bytes()
