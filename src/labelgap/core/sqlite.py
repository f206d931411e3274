"""Databases of SQLite that somebody else may have made: opened without trust, and used with our own schema alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import RunError
from labelgap.core.stored import check_ordinary, damaged, open_ordinary, reading, size_limit

TIMEOUT: Final = 15.0  # seconds to wait for another process that writes
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_NAMES_A_FILE: Final = bytes.fromhex("d9d505f920a163d7")  # the end of a journal of several databases
SCHEMA: Final = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name LIMIT 100"
"""The query for what a database is made of; no program of ours makes a hundred objects."""


def connect_untrusted(path: Path, mode: str) -> sqlite3.Connection:
    """Open a file without trusting what is in it."""
    address = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(address, TIMEOUT, isolation_level=None, check_same_thread=False, uri=True)
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    if hasattr(connection, "setconfig"):  # Python 3.12
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)  # type: ignore[attr-defined, unused-ignore]
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def find_foreign(connection: sqlite3.Connection, own: Collection[Any], *, complete: bool = True) -> str | None:
    """Return what a database has beside its ``own`` rows of ``SCHEMA``, or lacks if ``complete``; None if ours."""
    found = connection.execute(SCHEMA).fetchall()
    lacking = [each for each in own if each not in found] if complete else []
    return next((f"{kind} {name}" for kind, name, *_ in [*(each for each in found if each not in own), *lacking]), None)


def check_database(path: Path, own: Collection[Any], remedy: str) -> None:
    """Raise a ``RunError`` where a file is damaged, or has anything beside the ``own`` schema of its program."""
    check_ordinary(path, limit=size_limit(path), remedy=remedy)
    journal = path.with_name(f"{path.name}-journal")
    if _names_a_file(journal):
        raise RunError(f"{journal} names another file, which would be deleted: {path} is not used. {remedy}")
    try:
        with closing(connect_untrusted(path, "rw")) as connection:  # a change that a kill has cut short is withdrawn
            if (foreign := find_foreign(connection, own, complete=False)) is not None:
                raise RunError(f"{path} has the {foreign!a}, which its program does not make: it is not used. {remedy}")
            ((found,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.OperationalError as error:  # it is locked, or cannot be opened
        raise RunError(f"{path} cannot be read: {error}.") from None
    except sqlite3.DatabaseError as error:
        raise damaged(path, error, remedy) from None
    if found != "ok":
        raise damaged(path, found, remedy)


def _names_a_file(journal: Path) -> bool:
    with reading(journal), suppress(FileNotFoundError), open_ordinary(journal, size_limit(journal)) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(_NAMES_A_FILE)))
        return file.read() == _NAMES_A_FILE
    return False
