"""The file ``review.sqlite``, which anybody may have made or damaged: its tables, its checks, and its recovery.

A file is first opened read-only and checked in one read transaction: SQLite's own check, a schema that is exactly ours
(nothing of somebody else is ever run), and types and bounds of every row. Then it is opened for writing.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import DiskError, atomic_path, sync_folder
from labelgap.core.sqlite import SCHEMA, TIMEOUT, connect_untrusted, find_foreign
from labelgap.core.stored import check_ordinary, reading, size_limit
from labelgap.core.text import escape_control
from labelgap.labels.codes import UNKNOWN

FILE: Final = "review.sqlite"
FORMAT: Final = 2
MAX_CLASSES: Final = 100  # how many classes people can add
_ATTEMPTS: Final = 5
_IO_ERRORS: Final = ("WRITE", "FSYNC", "DIR_FSYNC", "SHMSIZE", "TRUNCATE")
_WRITE_ERRORS: Final = {"SQLITE_FULL", *(f"SQLITE_IOERR_{name}" for name in _IO_ERRORS)}
_DENIED: Final = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")
_MIN_ROW_BYTES: Final = 20
# Length of every text, in bytes of UTF-8.
MAX_BYTES: Final = {"split": 1000, "image": 32_000, "class": 32_000, "reviewer": 400, "client": 200, "request_id": 200}

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
# from format 1 to format 2. New files are made in the same two steps, so that their definitions are the same text
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
_DIGITS: Final = "[0-9]"
_TEXTS: Final = " AND ".join(
    f"typeof({name}) = 'text' AND length(CAST({name} AS BLOB)) BETWEEN 1 AND {most}" for name, most in MAX_BYTES.items()
)
_TIME: Final = f"""
    typeof(time) = 'text' AND length(CAST(time AS BLOB)) = 32 AND time GLOB '*.{_DIGITS * 6}+00:00'
    AND strftime('%Y-%m-%dT%H:%M:%S', substr(time, 1, 19), '+0 days') = substr(time, 1, 19) AND time > '0001'
"""
_NUMBER: Final = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {2**53}"
# What holds of every row of a table; events of format 1 have no ranking and no place.
_VALID: Final = {
    "events": f"""
    id BETWEEN 1 AND {2**53} AND {_TEXTS} AND {_TIME}
    AND (value IS NULL OR typeof(value) = 'integer' AND value IN (1, 0, {UNKNOWN}))
    AND kind IN ('missing', 'wrong', 'random', 'other', 'classifier', 'second')
    AND (score IS NULL OR score BETWEEN 0.0 AND 1.0)
    AND typeof(accepted) = 'integer' AND accepted IN (0, 1)
    AND (kind <> 'second' OR undoes IS NOT NULL OR accepted = 0)
    AND {_NUMBER.format("base_version")}
    AND (value IS NULL) = (undoes IS NOT NULL)
    AND (undoes IS NULL OR EXISTS (
        SELECT 1 FROM events AS d WHERE d.id = e.undoes AND d.undoes IS NULL AND d.id < e.id
        AND d.split = e.split AND d.image = e.image AND d.class = e.class))""",
    "rankings": f"""
    number BETWEEN 1 AND {2**53} AND {_TIME} AND aim IN ('missing', 'classifier', 'random')
    AND typeof(model) = 'text' AND length(CAST(model AS BLOB)) <= 64
    AND {_NUMBER.format("decisions")} AND {_NUMBER.format("last_event")}""",
    "classes": f"""
    typeof(name) = 'text' AND length(CAST(name AS BLOB)) BETWEEN 1 AND {MAX_BYTES["class"]} AND {_TIME}
    AND typeof(reviewer) = 'text' AND length(CAST(reviewer AS BLOB)) BETWEEN 1 AND {MAX_BYTES["reviewer"]}
    AND (SELECT count(*) FROM classes) <= {MAX_CLASSES}""",
}


class DamagedStoreError(RunError):
    """A store of decisions is damaged or not ours; it was not changed."""


def create_tables(connection: sqlite3.Connection, identity: str | None = None) -> None:
    """Make a store of an empty database; its id is new unless one is given."""
    connection.executescript(f"BEGIN; {_SCHEMA} {_UPGRADE} COMMIT;")
    connection.execute("INSERT INTO about VALUES ('id', ?)", (identity or uuid.uuid4().hex,))


def upgrade(connection: sqlite3.Connection) -> None:
    """Make format 2 of a store of format 1, in one transaction; other processes may try the same."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for statement in _UPGRADE.split(";\n") if read_format(connection) == 1 else ():
            connection.execute(statement)


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
    for table in _tables(connection):
        if (invalid := find_invalid_row(connection, table)) is not None:
            return f"row {invalid} of its {table} is not one that labelgap writes"
        for _ in connection.execute(f"SELECT * FROM {table}"):
            pass  # text that is not UTF-8 raises an error
    if store_id(connection) is None:
        return "its id is missing"
    (last,) = connection.execute("SELECT max(id) FROM events").fetchone()
    sequence = connection.execute("SELECT name, seq FROM sqlite_sequence LIMIT 2").fetchall()
    return None if sequence == ([] if last is None else [("events", last)]) else "its events are not numbered correctly"


def has_our_tables(connection: sqlite3.Connection) -> bool:
    """Whether a database has exactly the tables, indexes and triggers of a store of its format."""
    return find_foreign(connection, _our_objects(read_format(connection))) is None


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [*_VALID] if read_format(connection) > 1 else ["events"]


def find_invalid_row(connection: sqlite3.Connection, table: str, first: int = -(2**63)) -> int | None:
    """Return the number of a row of a table, from ``first`` on, that no store contains; None where there is none."""
    numbers = ("ranking", "place") if table == "events" and read_format(connection) > 1 else ()
    valid = " AND ".join([_VALID[table], *map(_NUMBER.format, numbers)])
    query = f"SELECT rowid FROM {table} AS e WHERE rowid >= ? AND ({valid}) IS NOT TRUE LIMIT 1"
    invalid = connection.execute(query, (first,)).fetchone()
    return None if invalid is None else int(invalid[0])


def store_id(connection: sqlite3.Connection) -> str | None:
    """Return the id of a store; None where it has none."""
    rows = connection.execute("SELECT key, value FROM about LIMIT 2").fetchall()
    text = rows[0][1] if [key for key, _ in rows] == ["id"] else None
    valid = isinstance(text, str) and len(text) == 32 and set(text) <= set("0123456789abcdef")
    return text if valid else None


@cache
def _our_objects(version: int) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA if version == 1 else _SCHEMA + _UPGRADE)
        return connection.execute(SCHEMA).fetchall()


def open_snapshot(path: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open a file as it is now: checked, read-only, in one read transaction; ``resources`` closes it.

    A file on a disk that cannot be written to, or of an older format, is read from a copy; one that does not exist has
    no events.
    """
    empty = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    memory = resources.enter_context(closing(empty))
    if not (path.exists() or path.is_symlink()):
        create_tables(memory)
        return memory
    _check_files(path)
    with database_errors(path):
        try:
            connection = _begin(path, "ro", resources)
        except sqlite3.OperationalError as error:
            if not _name(error).startswith(_DENIED):
                raise
            connection = _begin(_copy(path, resources), "rw", resources)
        version = read_format(connection)
        if not 1 <= version <= FORMAT:
            raise RunError(f"{path} has format {version}; this version of labelgap reads formats 1 to {FORMAT}.")
        if (reason := find_damage(connection)) is not None:
            raise _damaged(path, reason)
        if version < FORMAT:
            connection.backup(memory)
            upgrade(memory)
            return memory
    return connection


def open_writable(path: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open a file for reading and writing after all checks, in the newest format; created when it does not exist."""
    if not path.exists():
        with database_errors(path):
            create_database(path)
    with ExitStack() as check:
        open_snapshot(path, check)
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise _not_writable(path)
    with database_errors(path):
        connection = resources.enter_context(closing(connect_untrusted(path, "rw")))
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_mode = WAL")
        if read_format(connection) < FORMAT:
            upgrade(connection)
    return connection


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into one that names the file and the remedy."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from error
    except UnicodeDecodeError:
        raise _damaged(path, "a text in it is not UTF-8") from None
    except UnicodeEncodeError as error:
        raise RunError(f"{path} cannot store the name {error.object!a:.200}: it is not valid text.") from None


def _translated(path: Path, error: sqlite3.Error) -> RunError:
    name = _name(error)
    if name in _WRITE_ERRORS:
        full = DiskError.of(path, str(error), full=True)
        full.args = (
            f"{full.problem}. The decision was not saved; all that were confirmed are. Free some space: it is sent "
            "again as long as its page is open.",
        )
        return full
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return RunError(f"{path}: another process has been writing for more than {TIMEOUT:.0f} seconds. Try again.")
    if name.startswith(_DENIED):
        return _not_writable(path)
    if name.startswith("SQLITE_IOERR"):
        return RunError(f"{path} cannot be read ({error}): the disk fails, or is no longer there.")
    if name.startswith(("SQLITE_CONSTRAINT", "SQLITE_MISUSE")) or isinstance(error, sqlite3.ProgrammingError):
        return RunError(f"{path} cannot be used as a store of decisions: {error}.")
    return _damaged(path, str(error))


def _name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def _damaged(path: Path, reason: str) -> DamagedStoreError:
    reason = escape_control(reason)[:200]
    return DamagedStoreError(
        f"{path} is damaged ({reason}). It was not changed. Restore it from a copy, with {path.name}-wal if the "
        f"copy has one. Without a copy, `labelgap revisions {path.parent} recover` saves what can still be read."
    )


def _not_writable(path: Path) -> DiskError:
    error = DiskError.of(path, "it cannot be written to, so that decisions could not be saved", full=False)
    error.args = (
        f"{error.problem}. Copy {path.parent} to a disk that can be written to, and review the copy. `labelgap review "
        "--summary`, `--export-to`, `labelgap revisions` and `labelgap apply` work here.",
    )
    return error


def _check_files(path: Path) -> None:
    """Refuse what SQLite would wait for, write to elsewhere, or roll back (a journal can name files to delete)."""
    with reading(path):
        state, real = path.stat(), path.resolve()
    if not stat.S_ISREG(state.st_mode):
        raise RunError(f"{path} is not an ordinary file.")
    check_ordinary(path, limit=size_limit(path))
    if not state.st_size:
        raise RunError(f"{path} is empty. Restore it from a copy; if there were no decisions yet, delete it.")
    if real.parent != path.parent.resolve():
        raise RunError(
            f"{path} is a link to {real}, where decisions would be written. Review the folder {real.parent}."
        )
    for suffix in ("-journal", "-wal", "-shm"):
        beside = real.with_name(real.name + suffix)
        with suppress(FileNotFoundError):
            state = beside.lstat()
            if suffix == "-journal" or not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
                raise RunError(f"{beside} was not made by labelgap. Delete it if you do not know where it comes from.")


def _begin(path: Path, mode: str, resources: ExitStack) -> sqlite3.Connection:
    connection = resources.enter_context(closing(connect_untrusted(path, mode)))
    connection.execute("BEGIN")
    connection.execute("PRAGMA schema_version").fetchone()  # the transaction starts with the first read
    return connection


def _copy(path: Path, resources: ExitStack) -> Path:
    """Copy a file, with the changes beside it that are not yet in it, to a folder that can be written to."""
    folder = Path(resources.enter_context(TemporaryDirectory(prefix="labelgap-")))
    files = [path, path.with_name(f"{path.name}-wal")]
    with reading(path):
        for _ in range(_ATTEMPTS):
            before = [file_state(file) for file in files]
            for file, state in zip(files, before, strict=True):
                copy = folder / file.name
                copy.unlink(missing_ok=True)
                if state is not None:
                    shutil.copyfile(file, copy)
            if before == [file_state(file) for file in files]:
                return folder / path.name
    raise RunError(f"{path} is being changed by somebody else. Try again.")


def file_state(path: Path) -> tuple[int, int, int, int] | None:
    """Return which file a path leads to, as device and number, its size and the time of its change; None for none."""
    with suppress(OSError):
        state = path.stat()
        return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
    return None


def create_database(path: Path, identity: str | None = None) -> None:
    """Create a store that is complete from the moment its file exists, unless another process is first."""
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(8)}.partial{path.suffix}")
    if not os.access(path.parent, os.W_OK):
        raise _not_writable(path)
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA journal_mode = WAL")
            create_tables(connection, identity)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                temporary.rename(path)
        sync_folder(path.parent)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)


@dataclass(frozen=True)
class RecoveryResult:
    """What a recovery saved."""

    kept: int  # number of events in the new file
    lost: int  # number of events that cannot be read, are invalid, or undo one that is lost


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
        most = path.stat().st_size // _MIN_ROW_BYTES
        with database_errors(out), atomic_path(out) as temporary:
            temporary.unlink()
            create_database(temporary, identity)
            with closing(connect_untrusted(temporary, "rw")) as new:
                new.execute("BEGIN IMMEDIATE")
                recovered = [_copy_rows(damaged, new, table, most) for table in _tables(damaged)]
                new.execute("COMMIT")
    return recovered[0]


def _copy_rows(damaged: sqlite3.Connection, new: sqlite3.Connection, table: str, most: int) -> RecoveryResult:
    kept, numbers = 0, [0]
    columns = "*" if read_format(damaged) > 1 else "*, 0, 0"  # without a ranking and a place
    last = f"max(rowid) FROM {table} NOT INDEXED", f"seq FROM sqlite_sequence WHERE name = '{table}'"
    for query in last:
        with suppress(sqlite3.Error):
            numbers += [row[0] for row in damaged.execute(f"SELECT {query}") if isinstance(row[0], int)]
    for number in range(1, min(max(numbers), most) + 1):
        row = None
        with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
            row = damaged.execute(f"SELECT {columns} FROM {table} NOT INDEXED WHERE rowid = ?", (number,)).fetchone()
        if row is None:
            continue
        new.execute("SAVEPOINT one_row")
        try:
            new.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            valid = find_invalid_row(new, table, number) is None
        except (sqlite3.IntegrityError, sqlite3.DataError):
            valid = False
        if not valid:
            new.execute("ROLLBACK TO one_row")
        new.execute("RELEASE one_row")
        kept += valid
    return RecoveryResult(kept, min(max(numbers), most) - kept)
