"""The storage of a sweep: a database of optuna's, which processes on many machines may share."""

from __future__ import annotations

import logging
import re
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labelgap.core.errors import InputError, RunError
from labelgap.core.text import escape_control, truncate_text
from labelgap.studies.sweep.results import is_sweep

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

DATABASE: Final = "sweep.sqlite"
"""The storage in the folder of a sweep, where none is given."""
INTERVAL: Final = 30
GRACE: Final = 150
"""Seconds after the last heartbeat of a process on another machine from which its trials are run again."""
_DRIVERS: Final = {"postgresql": "psycopg", "mysql": "pymysql"}
"""Database → the driver that is used where the URL names none."""
_PACKAGES: Final = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Module of a driver → the package that has it, where that is called something else."""
_TIMEOUTS: Final = {"sqlite": {"timeout": 60}, "postgresql": {"connect_timeout": 10}, "mysql": {"connect_timeout": 10}}

_ATTEMPTS: Final = 10
_TAKEN: Final = re.compile(r"already exists|unique|duplicate", re.IGNORECASE)
"""What a database says where two processes create the same table or row."""


def check_optuna() -> None:
    """Raise an error with the command that installs optuna where it is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise InputError(f"a sweep needs the package {error.name}: pip install 'labelgap[sweep]'.") from None


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep the messages of optuna from the terminal while the block runs, and those of SQLAlchemy.

    A signal that comes while the database is read makes SQLAlchemy log the error of a cursor that is closed already.
    """
    import optuna

    verbosity, database = optuna.logging.get_verbosity(), logging.getLogger("sqlalchemy")
    level = database.level
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    database.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")  # it is recorded by a thread of ours
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
        database.setLevel(level)


def hide_password(url: str) -> str:
    """Return a URL that can be shown.

    Example:
        >>> hide_password("postgresql://ann:secret@db.example/sweeps?password=also")
        'postgresql://ann:***@db.example/sweeps'
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return f"{url.partition(':')[0][:20]}:…"


@contextmanager
def open_storage(url: str | None, folder: Path) -> Iterator[RDBStorage]:
    """Connect to a storage, and create its tables where it has none; connections are closed at the end of the block.

    Args:
        url: of a database, as SQLAlchemy writes it: ``sqlite:///FILE``, ``postgresql://USER@HOST/NAME``.
        folder: of the sweep; it holds the storage where no URL is given.

    Raises:
        InputError: the URL is none, or its driver is not installed.
        RunError: the database cannot be reached, at the beginning or later.
    """
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        address = URL.create("sqlite", database=str(folder.resolve() / DATABASE)) if url is None else make_url(url)
        database = address.get_backend_name()
    except (ArgumentError, ValueError):
        raise _not_a_url(str(url)) from None
    if address.drivername == database and database in _DRIVERS:
        address = address.set(drivername=f"{database}+{_DRIVERS[database]}")
    engine: dict[str, Any] = {"connect_args": _TIMEOUTS.get(database, {}), "pool_pre_ping": True}
    text = address.render_as_string(hide_password=False)
    with reaching(text, started=is_sweep(folder)):
        storage = _connect(text, engine)
    with reaching(text):
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()


def _connect(url: str, engine: dict[str, Any]) -> RDBStorage:
    """Connect to a database; where another process creates its tables at this moment, after that."""
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    for attempt in range(_ATTEMPTS):
        try:
            return RDBStorage(url, engine_kwargs=engine, heartbeat_interval=INTERVAL, grace_period=GRACE)
        except SQLAlchemyError as error:
            if not _TAKEN.search(str(error)) or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(0.5)
        except ImportError as error:
            module = getattr(error.__cause__, "name", None) or url.partition(":")[0].partition("+")[2]
            install = f"pip install '{_PACKAGES.get(module, module)}'"
            raise InputError(f"the storage {hide_password(url)} needs another package: {install}.") from None
    raise AssertionError


@contextmanager
def reaching(url: str, *, started: bool = True) -> Iterator[None]:
    """Turn what a database raises while the block runs into an error that shows no password.

    ``started``: whether a sweep has used the storage before, which may have finished trials in it.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

    shown = hide_password(url)
    try:
        yield
    except NoSuchModuleError:
        raise _not_a_url(url) from None
    except RuntimeError as error:
        if "optuna" not in str(error):
            raise
        raise RunError(f"the storage {shown} is of another version of optuna ({_reason(error, url)}).") from None
    except (StorageInternalError, SQLAlchemyError) as error:
        remedy = "Finished trials are safe in it: when it can be reached again, the same command resumes."
        if not started:
            remedy = "Nothing was trained. Check the URL, that its server runs, or that the folder of its file exists."
        raise RunError(f"the storage {shown} cannot be used ({_reason(error, url)}). {remedy}") from None


def _not_a_url(url: str) -> InputError:
    return InputError(
        f"--storage {hide_password(url)} is not the URL of a database: write sqlite:///FILE or "
        "postgresql://USER:PASSWORD@HOST/NAME."
    )


def _reason(error: BaseException, url: str) -> str:
    """Return the first line of what the driver says, without the password."""
    from sqlalchemy.engine import make_url

    while error.__cause__ is not None and not getattr(error, "orig", None):
        error = error.__cause__
    text = str(getattr(error, "orig", None) or error).strip()
    secrets = [make_url(url).password, *make_url(url).query.values()]
    for secret in secrets:
        if secret:
            text = text.replace(str(secret), "***")
    return truncate_text(escape_control((text.splitlines() or [type(error).__name__])[0].rstrip(".")), 200)


class Heartbeat:
    """Tells the storage that trials are being trained, from a thread, while the block runs.

    A process on another machine runs the trials again when their heartbeat has stopped.
    """

    def __init__(self, storage: RDBStorage) -> None:
        self._storage, self._trials = storage, set[int]()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="labelgap-heartbeat")

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def add(self, trial: int) -> None:
        """Record the first heartbeat of a trial, by its id in the storage."""
        self._storage.record_heartbeat(trial)
        self._trials.add(trial)

    def remove(self, trial: int) -> None:
        """Record no more heartbeats of a trial."""
        self._trials.discard(trial)

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            for trial in tuple(self._trials):
                try:
                    self._storage.record_heartbeat(trial)
                except Exception:  # the training itself reports a storage that cannot be reached
                    continue
