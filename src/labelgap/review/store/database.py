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
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from labelgap.core.errors import RunError
from labelgap.core.files import DiskError, sync_folder
from labelgap.core.stored import reading
from labelgap.core.text import escape_control
from labelgap.review.store.schema import FORMAT, create_tables, find_damage, read_format, upgrade

FILE: Final = "review.sqlite"
_TIMEOUT: Final = 15.0
"""Seconds to wait for another process that writes."""
_ATTEMPTS: Final = 5
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}

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


def open_snapshot(path: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open an existing file as it is now: checked, read-only, in one read transaction.

    Others may write at the same time; what they write is not seen. A file on a disk that cannot be written to is read
    as well, from a copy where SQLite needs to write beside it. A file of an older format is read from a copy in memory.

    Args:
        path: the file.
        resources: closes the connection.

    Raises:
        RunError: the file is damaged, not ours, or cannot be read.
    """
    _check_files(path)
    with database_errors(path):
        try:
            connection = resources.enter_context(closing(connect_untrusted(path, "ro")))
            _begin(connection)
        except sqlite3.OperationalError as error:
            if not str(_name(error)).startswith(_DENIED):
                raise
            connection = resources.enter_context(closing(connect_untrusted(_copy(path, resources), "rw")))
            _begin(connection)
        _check(connection, path)
        if read_format(connection) < FORMAT:
            copy = resources.enter_context(closing(sqlite3.connect(":memory:", check_same_thread=False)))
            copy.isolation_level = None
            connection.backup(copy)
            upgrade(copy)
            return copy
    return connection


def open_writable(path: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open a file for reading and writing, after the checks of ``open_snapshot``; created when it does not exist.

    A file of an older format is changed to the newest one.
    """
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


def connect_untrusted(path: Path, mode: str) -> sqlite3.Connection:
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
    version = read_format(connection)
    if not 1 <= version <= FORMAT:
        raise RunError(f"{path} has format {version}; this version of labelgap reads formats 1 to {FORMAT}.")
    if (reason := find_damage(connection)) is not None:
        raise _damaged(path, reason)


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
