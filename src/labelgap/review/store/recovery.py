"""What can still be read of a damaged ``review.sqlite``, as a new one."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path
from labelgap.review.store.database import connect_untrusted, create_database, database_errors
from labelgap.review.store.schema import find_invalid_event, find_invalid_table, has_our_tables, read_format, store_id

_COLUMNS: Final = (
    "id, time, reviewer, image, split, class, value, kind, score, undoes, accepted, base_version, client, request_id, "
    "ranking, place"
)
_MIN_ROW_BYTES: Final = 20
_MAX_OTHERS: Final = 100_000


@dataclass(frozen=True)
class RecoveryResult:
    """What a recovery saved.

    Attributes:
        kept: number of events in the new file.
        lost: number of events that cannot be read, are invalid, or undo one that is lost.
    """

    kept: int
    lost: int


def recover_events(path: Path, out: Path) -> RecoveryResult:
    """Write every event that can be read and is valid to a new file, under its number; the old file is only read."""
    if out.exists():
        raise InputError(f"{out} already exists. Delete it, or move it away, and try again.")
    with database_errors(path), closing(connect_untrusted(path, "ro")) as damaged:
        if not has_our_tables(damaged):
            raise InputError(f"nothing can be recovered from {path}: its tables are not those of a review.")
        identity = None
        with suppress(sqlite3.Error):
            identity = store_id(damaged)
        version = read_format(damaged)
        last = min(_last_number(damaged), path.stat().st_size // _MIN_ROW_BYTES)
        with database_errors(out), atomic_path(out) as temporary:
            temporary.unlink()
            create_database(temporary, identity)
            with closing(connect_untrusted(temporary, "rw")) as new:
                new.execute("BEGIN IMMEDIATE")
                kept = sum(_copy_event(damaged, new, number, version) for number in range(1, last + 1))
                if version > 1:
                    _copy_rankings_and_classes(damaged, new)
                new.execute("COMMIT")
    return RecoveryResult(kept, last - kept)


def _last_number(damaged: sqlite3.Connection) -> int:
    """Return the largest number of an event that the file mentions."""
    found = [0]
    for query in ("SELECT max(id) FROM events NOT INDEXED", "SELECT seq FROM sqlite_sequence WHERE name = 'events'"):
        with suppress(sqlite3.Error):
            found += [row[0] for row in damaged.execute(query) if isinstance(row[0], int)]
    return max(found)


def _copy_rankings_and_classes(damaged: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Copy the rankings and classes that can be read and are valid."""
    for table in ("rankings", "classes"):
        last = 0
        with suppress(sqlite3.DatabaseError):
            last = damaged.execute(f"SELECT max(rowid) FROM {table} NOT INDEXED").fetchone()[0] or 0
        for number in range(1, min(last, _MAX_OTHERS) + 1):
            new.execute("SAVEPOINT others")
            try:
                query = f"SELECT * FROM {table} NOT INDEXED WHERE rowid = ?"
                for row in damaged.execute(query, (number,)).fetchall():
                    new.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
                valid = find_invalid_table(new) is None
            except (sqlite3.DatabaseError, UnicodeDecodeError):
                valid = False
            if not valid:
                new.execute("ROLLBACK TO others")
            new.execute("RELEASE others")


def _copy_event(damaged: sqlite3.Connection, new: sqlite3.Connection, number: int, version: int) -> bool:
    """Copy an event if it can be read and is valid."""
    row, columns = None, _COLUMNS if version > 1 else _COLUMNS.replace("ranking, place", "0, 0")
    with suppress(sqlite3.DatabaseError):
        row = damaged.execute(f"SELECT {columns} FROM events NOT INDEXED WHERE id = ?", (number,)).fetchone()
    if row is None:
        return False
    new.execute("SAVEPOINT event")
    try:
        new.execute(f"INSERT INTO events ({_COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)
        valid = find_invalid_event(new, number) is None
    except sqlite3.IntegrityError:
        valid = False
    if not valid:
        new.execute("ROLLBACK TO event")
    new.execute("RELEASE event")
    return valid
