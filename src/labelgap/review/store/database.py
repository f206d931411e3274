"""The file ``review.sqlite``, which anybody may have made or damaged: it is created whole, and checked before use.

A file is first opened read-only and checked in one read transaction: SQLite's own check of all pages and indexes, a
schema that is exactly ours (no view, trigger or virtual table of somebody else is ever run), and types and bounds of
every row. Only a file that passes is opened for writing.
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
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from labelgap.core.errors import RunError
from labelgap.core.files import DiskError, sync_folder
from labelgap.core.stored import reading
from labelgap.labels.codes import UNKNOWN

__all__ = [
    "DamagedStoreError",
    "FILE",
    "MAX_BYTES",
    "create_memory_database",
    "database_errors",
    "open_snapshot",
    "open_writable",
]

FILE: Final = "review.sqlite"
MAX_BYTES: Final = {
    "split": 1000,
    "image": 32_000,
    "class": 32_000,
    "reviewer": 400,
    "client": 200,
    "request_id": 200,
}
"""Length of every text, in bytes of UTF-8."""
_FORMAT: Final = 1
_TIMEOUT: Final = 15.0
"""Seconds to wait for another process that writes."""
_ATTEMPTS: Final = 5
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}

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
_DIGITS: Final = "[0-9]"
_TEXTS: Final = " AND ".join(
    f"typeof({name}) = 'text' AND length(CAST({name} AS BLOB)) BETWEEN 1 AND {most}" for name, most in MAX_BYTES.items()
)
_INVALID_ROW: Final = f"""
SELECT id FROM events AS e WHERE (
    id BETWEEN 1 AND {2**53} AND {_TEXTS}
    AND typeof(time) = 'text' AND time GLOB '*.{_DIGITS * 6}+00:00' AND time > '0001'
    AND strftime('%Y-%m-%dT%H:%M:%S', time) = substr(time, 1, 19) AND length(CAST(time AS BLOB)) = 32
    AND (value IS NULL OR typeof(value) = 'integer' AND value IN (1, 0, {UNKNOWN}))
    AND kind IN ('missing', 'wrong', 'random', 'other') AND (score IS NULL OR score BETWEEN 0.0 AND 1.0)
    AND typeof(accepted) = 'integer' AND accepted IN (0, 1)
    AND typeof(base_version) = 'integer' AND base_version BETWEEN 0 AND {2**53}
    AND (value IS NULL) = (undoes IS NOT NULL)
    AND (undoes IS NULL OR EXISTS (
        SELECT 1 FROM events AS d WHERE d.id = e.undoes AND d.undoes IS NULL AND d.id < e.id
        AND d.split = e.split AND d.image = e.image AND d.class = e.class))
) IS NOT TRUE LIMIT 1
"""
_WRITE_ERRORS: Final = frozenset(
    {
        "SQLITE_FULL",
        "SQLITE_IOERR_WRITE",
        "SQLITE_IOERR_FSYNC",
        "SQLITE_IOERR_DIR_FSYNC",
        "SQLITE_IOERR_SHMSIZE",
        "SQLITE_IOERR_TRUNCATE",
    }
)
_DENIED: Final = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")


class DamagedStoreError(RunError):
    """A store of decisions is damaged or not ours; it was not changed."""


def create_memory_database() -> sqlite3.Connection:
    """Return an empty store that is not on disk."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _create_tables(connection)
    return connection


def open_snapshot(path: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open an existing file as it is now: checked, read-only, in one read transaction.

    Others may write at the same time; what they write is not seen. A file on a disk that cannot be written to is read
    as well, from a copy where SQLite needs to write beside it.

    Args:
        path: the file.
        resources: closes the connection.

    Raises:
        RunError: the file is damaged, not ours, or cannot be read.
    """
    _check_files(path)
    with database_errors(path):
        try:
            connection = resources.enter_context(closing(_connect(path, "ro")))
            _begin(connection)
        except sqlite3.OperationalError as error:
            if not str(_name(error)).startswith(_DENIED):
                raise
            connection = resources.enter_context(closing(_connect(_copy(path, resources), "rw")))
            _begin(connection)
        _check(connection, path)
    return connection


def open_writable(path: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open a file for reading and writing, after the checks of ``open_snapshot``; created when it does not exist."""
    if not path.exists():
        with database_errors(path):
            _create(path)
    with ExitStack() as check:
        open_snapshot(path, check)
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise _not_writable(path)
    with database_errors(path):
        connection = resources.enter_context(closing(_connect(path, "rw")))
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_mode = WAL")
    return connection


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into one that names the file and the remedy."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from error


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
        return RunError(f"{path}: another process has been writing for more than {_TIMEOUT:.0f} seconds. Try again.")
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
    return DamagedStoreError(
        f"{path} is damaged ({reason[:200]}). It was not changed. Restore it from a copy, with {path.name}-wal "
        f"if the copy has one. Without a copy, SQLite's own tool saves what can still be read: sqlite3 {path} .recover "
        "| sqlite3 recovered.sqlite; then put recovered.sqlite in its place."
    )


def _not_writable(path: Path) -> DiskError:
    error = DiskError.of(path, "it cannot be written to, so that decisions could not be saved", full=False)
    error.args = (
        f"{error.problem}. Copy {path.parent} to a disk that can be written to, and review the copy. `labelgap review "
        "--summary`, `--export-to`, `labelgap revisions` and `labelgap apply` work here.",
    )
    return error


def _check_files(path: Path) -> None:
    """Refuse what SQLite would wait for, or would roll back: a rollback journal can name other files to delete."""
    with reading(path):
        state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise RunError(f"{path} is not an ordinary file.")
    if not state.st_size:
        raise RunError(f"{path} is empty. Restore it from a copy; if there were no decisions yet, delete it.")
    journal = path.with_name(f"{path.name}-journal")
    if os.path.lexists(journal):
        raise RunError(f"{journal} was not made by labelgap. Delete it if you do not know where it comes from.")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a file without trusting what is in it."""
    address = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(address, _TIMEOUT, isolation_level=None, check_same_thread=False, uri=True)
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    if hasattr(connection, "setconfig"):  # Python 3.12
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)  # type: ignore[attr-defined, unused-ignore]
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("PRAGMA schema_version").fetchone()  # the transaction starts with the first read


def _copy(path: Path, resources: ExitStack) -> Path:
    """Copy a file, with the changes beside it that are not yet in it, to a folder that can be written to."""
    folder = Path(resources.enter_context(TemporaryDirectory(prefix="labelgap-")))
    files = [path, path.with_name(f"{path.name}-wal")]
    with reading(path):
        for _ in range(_ATTEMPTS):
            before = [_state(file) for file in files]
            for file, state in zip(files, before, strict=True):
                copy = folder / file.name
                copy.unlink(missing_ok=True)
                if state is not None:
                    shutil.copyfile(file, copy)
            if before == [_state(file) for file in files]:
                return folder / path.name
    raise RunError(f"{path} is being changed by somebody else. Try again.")


def _state(path: Path) -> tuple[int, int, int] | None:
    with suppress(FileNotFoundError):
        state = path.stat()
        return state.st_ino, state.st_size, state.st_mtime_ns
    return None


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise an error unless a database is intact, of our schema, and every row within bounds."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _FORMAT:
        raise RunError(f"{path} has format {version}; this version of labelgap reads format {_FORMAT}.")
    if _objects(connection) != _our_objects():
        raise _damaged(path, "its tables are not those of a review")
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise _damaged(path, " ".join(str(result).split()))
    invalid = connection.execute(_INVALID_ROW).fetchone()
    if invalid is not None:
        raise _damaged(path, f"event {invalid[0]} is not one that labelgap writes")
    about = connection.execute("SELECT key, value FROM about LIMIT 2").fetchall()
    if [key for key, _ in about] != ["id"] or not _is_id(about[0][1]):
        raise _damaged(path, "its id is missing")
    (last,) = connection.execute("SELECT max(id) FROM events").fetchone()
    sequence = connection.execute("SELECT name, seq FROM sqlite_sequence LIMIT 2").fetchall()
    if sequence != ([] if last is None else [("events", last)]):
        raise _damaged(path, "the number of its last event is wrong")


def _is_id(text: object) -> bool:
    return isinstance(text, str) and len(text) == 32 and set(text) <= set("0123456789abcdef")


def _objects(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name LIMIT 100"
    return connection.execute(query).fetchall()


@cache
def _our_objects() -> list[tuple[object, ...]]:
    with closing(create_memory_database()) as connection:
        return _objects(connection)


def _create(path: Path) -> None:
    """Create a file that is complete from the moment it exists, unless another process is first."""
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(8)}.partial{path.suffix}")
    if not os.access(path.parent, os.W_OK):
        raise _not_writable(path)
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA journal_mode = WAL")
            _create_tables(connection)
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


def _create_tables(connection: sqlite3.Connection) -> None:
    connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
    connection.execute("INSERT INTO about VALUES ('id', ?)", (uuid.uuid4().hex,))
