"""The trials of a sweep in a storage of optuna's, which processes on many machines may share.

A process that has claimed a trial records heartbeats. The trial of one that died, or was stopped, waits again, as it
was: it keeps its number. People see the trials numbered from 1 without gaps.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import platform
import random
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import optuna
import psutil
from optuna import Study, Trial
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat, BaseHeartbeatThread, get_heartbeat_thread
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from labelgap.core.errors import InputError, RunError
from labelgap.core.sqlite import SCHEMA, check_database
from labelgap.core.text import escape_control, truncate_text
from labelgap.studies.sweep.results import DATABASE, Sweep, SweepTrial
from labelgap.studies.sweep.search_space import Parameter, Value

INTERVAL: Final = 30
GRACE: Final = 150
"""Seconds after the last heartbeat of a process on another machine from which its trials are run again."""
RESULT: Final = "labelgap"  # attribute of an ended trial: what ``SweepTrial`` has beside its number
WORKER: Final = "worker"  # attribute of a claimed trial: the process that trains it
DEATHS: Final = "deaths"  # attribute of a trial: how many processes that trained it have died
DROPPED: Final = "dropped"  # attribute of a trial that was asked for and not trained
_DRIVERS: Final = {"postgresql": "psycopg", "mysql": "pymysql"}
"""Database → the driver that is used where the URL names none."""
_PACKAGES: Final = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Module of a driver → the package that has it, where that is called something else."""
_TIMEOUTS: Final = {"sqlite": {"timeout": 60}, "postgresql": {"connect_timeout": 10}, "mysql": {"connect_timeout": 10}}
_TAKEN: Final = re.compile(r"already exists|unique|duplicate", re.IGNORECASE)
"""What a database says where two processes create the same table or row."""
_ATTEMPTS: Final = 10
_MAX_DEATHS: Final = 3
_MAX_POINTS: Final = 100_000
_MAX_DUPLICATES: Final = 50


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep the messages of optuna, and those of SQLAlchemy about a closed cursor, from the terminal."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("optuna", "sqlalchemy"))}
    try:
        for logger in levels:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")  # ``TrialQueue`` records it
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def hide_password(url: str) -> str:
    """Return a URL that can be shown."""
    try:
        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return f"{url.partition(':')[0][:20]}:…"


@contextmanager
def open_storage(url: str | None, folder: Path) -> Iterator[RDBStorage]:
    """Connect to a storage, by default a file in the folder, and create its tables; no error shows a password."""
    shown, used = "" if url is None else hide_password(url), Sweep.is_in(folder)
    not_a_url = InputError(
        f"--storage {shown} is not the URL of a database: write sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME."
    )
    try:
        address = URL.create("sqlite", database=str(folder.resolve() / DATABASE)) if url is None else make_url(url)
        database = address.get_backend_name()
    except (ArgumentError, ValueError):
        raise not_a_url from None
    if address.drivername == database and database in _DRIVERS:
        address = address.set(drivername=f"{database}+{_DRIVERS[database]}")
    shown = hide_password(address.render_as_string(hide_password=False))
    if database == "sqlite" and (path := Path(address.database or "")).is_file() and path.stat().st_size:
        check_storage(path)
    try:
        storage, used = _connect(address, shown), True
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except NoSuchModuleError:
        raise not_a_url from None
    except RuntimeError as error:
        if "optuna" not in str(error):
            raise
        raise RunError(f"the storage {shown} is of another version of optuna ({_reason(error, address)}).") from None
    except (StorageInternalError, SQLAlchemyError) as error:
        remedy = "Finished trials are safe in it: when it can be reached again, the same command resumes."
        if not used:
            remedy = "Nothing was trained. Check the URL, that its server runs, or that the folder of its file exists."
        raise RunError(f"the storage {shown} cannot be used ({_reason(error, address)}). {remedy}") from None


def check_storage(path: Path) -> None:
    """Raise a ``RunError`` where a file is not a storage as optuna makes it: what else is in it would run."""
    check_database(path, _own_schema(), "Sweep into another --out, or restore it from a copy.")


@cache
def _own_schema() -> list[tuple[object, ...]]:
    with quiet_optuna():
        storage = RDBStorage("sqlite://")  # in memory
    with storage.engine.connect() as connection:
        schema = [tuple(row) for row in connection.exec_driver_sql(SCHEMA)]
    storage.remove_session()
    storage.engine.dispose()
    return schema


def _connect(address: URL, shown: str) -> RDBStorage:
    url, arguments = address.render_as_string(hide_password=False), _TIMEOUTS.get(address.get_backend_name(), {})
    engine = {"connect_args": arguments, "pool_pre_ping": True}
    for attempt in itertools.count(1):
        try:
            return RDBStorage(url, engine_kwargs=engine, heartbeat_interval=INTERVAL, grace_period=GRACE)
        except SQLAlchemyError as error:
            if not _TAKEN.search(str(error)) or attempt == _ATTEMPTS:
                raise
            time.sleep(0.5)
        except ImportError as error:
            module = getattr(error.__cause__, "name", None) or url.partition(":")[0].partition("+")[2]
            install = f"pip install '{_PACKAGES.get(module, module)}'"
            raise InputError(f"the storage {shown} needs another package: {install}.") from None
    raise AssertionError


def _reason(error: BaseException, address: URL) -> str:
    while error.__cause__ is not None and not getattr(error, "orig", None):
        error = error.__cause__
    text = str(getattr(error, "orig", None) or error).strip()
    for secret in (address.password, *address.query.values()):
        if secret:
            text = text.replace(str(secret), "***")
    return truncate_text(escape_control((text.splitlines() or [type(error).__name__])[0].rstrip(".")), 200)


class TrialQueue:
    """The trials of a study, ``total`` over all processes; the block that claims some gives them back when stopped."""

    def __init__(self, study: Study, space: Sequence[Parameter], total: int) -> None:
        self.study, self.space = study, space
        self.points = math.prod(parameter.size for parameter in space)
        self.total = int(min(total, self.points))
        self._own: dict[int, tuple[Trial, BaseHeartbeatThread]] = {}
        self._worker = _process()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for trial, _thread in list(self._own.values()):
            self._release(trial)
            if kind is not None and issubclass(kind, KeyboardInterrupt | SystemExit):
                with suppress(Exception):  # it has just ended, or the storage is gone: as for a killed process
                    self._wait_again(trial._trial_id)

    def suggest(self, values: Mapping[str, Value]) -> None:
        """Queue a setting, in which other parameters may be open, as the first one of the study."""
        if not self._trials() and values:
            self.study.enqueue_trial(dict(values), skip_if_exists=True)

    def ask(self, most: int) -> list[Trial]:
        """Claim the next trials, at most so many; none where no more are wanted."""
        self._recover()
        asked = list[Trial]()
        while len(asked) < most and (trial := self._next()) is not None:
            asked.append(trial)
        return asked

    def tell(self, trial: Trial, ended: SweepTrial) -> None:
        """Store what became of a trial; ignored where another process has taken it over."""
        try:
            self._store(trial, ended)
        except (KeyboardInterrupt, SystemExit):
            self._store(trial, ended)  # half of it would make a failed trial of a complete one
            raise
        finally:
            self._release(trial)

    def results(self) -> tuple[SweepTrial, ...]:
        """Return the trials that run or have ended, those of other processes too."""
        numbered = enumerate(self._trials(), start=1)
        return tuple(_result(number, trial) for number, trial in numbered if trial.state != TrialState.WAITING)

    def number(self, trial: Trial) -> int:
        """Return the number of a claimed trial as people see it, from 1."""
        return 1 + [each.number for each in self._trials()].index(trial.number)

    def _recover(self) -> None:
        """Let the trials whose process has died wait again, a few times at most."""
        storage = self.study._storage
        silent = storage._get_stale_trial_ids(self.study._study_id) if isinstance(storage, BaseHeartbeat) else ()
        for trial in self._trials():
            dead = trial._trial_id in silent or self._is_dead(trial)
            if trial.state == TrialState.RUNNING and trial.number not in self._own and dead:
                deaths = 1 + trial.user_attrs.get(DEATHS, 0)
                with suppress(UpdateFinishedTrialError):  # another process was quicker
                    storage.set_trial_user_attr(trial._trial_id, DEATHS, deaths)
                    if deaths < _MAX_DEATHS:
                        self._wait_again(trial._trial_id)
                    else:
                        storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def _wait_again(self, trial_id: int) -> None:
        self.study._storage.set_trial_user_attr(trial_id, WORKER, None)
        self.study._storage.set_trial_state_values(trial_id, TrialState.WAITING)

    def _is_dead(self, trial: FrozenTrial) -> bool:
        """Return whether the process of a running trial is known to have ended."""
        worker = trial.user_attrs.get(WORKER)
        if worker is None:  # killed between two operations
            started = trial.datetime_start
            return started is not None and abs((datetime.now() - started).total_seconds()) > GRACE
        if worker == self._worker:
            return trial.number not in self._own
        host, process, _ = str(worker).rsplit(" ", 2)
        return host == platform.node() and _process(int(process)) != worker

    def _next(self) -> Trial | None:
        """Claim one trial whose setting is new; several processes may ask at the same time."""
        for _ in range(_MAX_DUPLICATES):
            if sum(trial.state != TrialState.WAITING for trial in self._trials()) >= self.total:
                return None
            trial = self._claim()
            if trial is None:
                continue
            others = (each for each in self._trials() if each.state != TrialState.WAITING)
            earlier = [each.params for each in others if each.number < trial.number]
            if len(earlier) < self.total and trial.params not in earlier:
                return trial
            trial.set_user_attr(DROPPED, True)
            self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            self._release(trial)
            if len(earlier) >= self.total:
                return None
            if (point := self._nearest_untried(trial.params, earlier)) is not None:
                self.study.enqueue_trial(point)
        return None

    def _claim(self) -> Trial | None:
        """Ask optuna for a trial; None where another process has just ended it."""
        trial = self.study.ask({parameter.name: parameter.distribution for parameter in self.space})
        thread = get_heartbeat_thread(trial._trial_id, self.study._storage)
        thread.start()
        self._own[trial.number] = trial, thread
        try:
            trial.set_user_attr(WORKER, self._worker)
        except UpdateFinishedTrialError:
            self._release(trial)
            return None
        return trial

    def _store(self, trial: Trial, ended: SweepTrial) -> None:
        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        result = {name: value for name, value in asdict(ended).items() if name != "number"}
        with suppress(UpdateFinishedTrialError, ValueError):  # ``ValueError``: of one that waits again
            trial.set_user_attr(RESULT, result)
            self.study.tell(trial, ended.score if ended.state == "complete" else None, state=states[ended.state])

    def _release(self, trial: Trial) -> None:
        if (own := self._own.pop(trial.number, None)) is not None:
            own[1].join()

    def _nearest_untried(
        self, values: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
    ) -> dict[str, Value] | None:
        """Return the untried point of a finite space that is nearest to some values; None in a large space."""
        if self.points > _MAX_POINTS:
            return None
        points = itertools.product(*(parameter.values or () for parameter in self.space))
        named = (dict(zip(values, point, strict=True)) for point in points)
        left = [point for point in named if point not in tried]
        random.Random(len(tried)).shuffle(left)  # of equally near ones any
        ranks = {each.name: ((each.values or ()).index, max(each.size - 1, 1)) for each in self.space}

        def distance(point: Mapping[str, Value]) -> float:
            return sum(abs(rank(point[name]) - rank(values[name])) / steps for name, (rank, steps) in ranks.items())

        return min(left, key=distance, default=None)

    def _trials(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.get_trials(deepcopy=False) if DROPPED not in trial.user_attrs]


def _process(number: int | None = None) -> str:
    """Return what identifies a process among all that share a storage: machine, number and start; "" where it ended."""
    try:
        process = psutil.Process(number or os.getpid())
        return f"{platform.node()} {process.pid} {process.create_time():.2f}"
    except psutil.Error:
        return ""


def _result(number: int, trial: FrozenTrial) -> SweepTrial:
    values = dict(trial.params)
    if not trial.state.is_finished():
        return SweepTrial(number, values, "running")
    lost = {"values": values, "state": "failed", "reason": "its process ended, three times"}
    return SweepTrial(number, **trial.user_attrs.get(RESULT, lost))
