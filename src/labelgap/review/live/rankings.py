"""The rankings of a review that is being served: a thread asks the worker for a new one while people decide.

The latest state wins: one request is under way at a time, with the decisions of that moment. Rankings depend on the
decisions alone, so after a restart the same decisions give the same ranking, under the same number.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import Aim
from labelgap.core.errors import LabelGapError
from labelgap.review.live.worker import RankingJob, RankingRequest, RankingResult, WorkerFailure, run_worker
from labelgap.review.store import DecisionStore

EVERY: Final = 10
"""Decisions after which candidates are ranked again; docs/results/review.md has the evidence."""
IDLE_SECONDS: Final = 4.0
"""Fewer decisions are taken into account after so many seconds without another."""
INTERVAL: Final = 0.25
"""Seconds between two looks at the decisions."""
MAX_CRASHES: Final = 3
"""After so many ends of the worker without a ranking there is none any more."""
RETRY_SECONDS: Final = 5.0
"""Between two attempts to store a ranking."""
AIM_SECONDS: Final = 600.0
"""An aim that no page has asked for so long is not ranked."""

_THREAD_SETTINGS: Final = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LAST: Final = np.iinfo(np.int32).max
CurrentState = Callable[[], tuple[NDArray[np.int64], NDArray[np.int8], int]]
"""Returns the numbers of the decided candidates, their values, and the last event."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """An order of the candidates, C of them.

    Attributes:
        number: in the store.
        aim: of the order.
        decisions: how many the heads have learned from.
        position: ``(C,)`` from 0; the largest integer for a candidate that it does not rank.
        probability: ``(C,)`` of being present; NaN for a candidate that it does not rank.
    """

    number: int
    aim: Aim
    decisions: int
    position: NDArray[np.int32]
    probability: NDArray[np.float32]

    def extended(self, count: int) -> Ranking:
        """Return the order of more candidates, of which it does not rank the last ones."""
        more = count - len(self.position)
        if more <= 0:
            return self
        position = np.pad(self.position, (0, more), constant_values=_LAST)
        probability = np.pad(self.probability, (0, more), constant_values=np.nan)
        return replace(self, position=position, probability=probability)

    @classmethod
    def of(cls, result: RankingResult, number: int, count: int) -> Ranking:
        """Spread a result over C candidates."""
        position, probability = np.full(count, _LAST, np.int32), np.full(count, np.nan, np.float32)
        position[result.numbers] = np.arange(len(result.numbers))
        probability[result.numbers] = result.probability
        return cls(number, result.aim, result.decisions, position, probability)


class LiveRankings:
    """The newest ranking of each aim, and the process that makes them.

    Args:
        job: for the worker.
        store: where rankings get their numbers.
        state: the decisions so far.

    Attributes:
        problem: why there are no new rankings; empty while there are.
    """

    def __init__(self, job: RankingJob, store: DecisionStore, state: CurrentState) -> None:
        self.job, self.store, self.state = job, store, state
        self.problem = ""
        self._newest: dict[Aim, Ranking] = {}
        self._wanted: dict[Aim, float] = {"missing": np.inf}
        self._stopped = threading.Event()
        self._worker = WorkerProcess(job)
        self._thread = threading.Thread(target=self._run, name="labelgap-rankings", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the worker and the thread that asks it."""
        self._stopped.set()
        self._worker.process.kill()  # the thread closes its connection, which it may be using
        self._thread.join()

    def newest(self, aim: Aim) -> Ranking | None:
        """Return the newest ranking for an aim, which is ranked again from now on; None while there is none."""
        self._wanted[aim] = max(self._wanted.get(aim, 0.0), time.monotonic())
        ranking = self._newest.get(aim)
        return None if ranking is None else ranking.extended(len(self.job.image))

    def extend(self, job: RankingJob) -> None:
        """Rank more candidates from now on, of which the first ones are those of before."""
        self.job = job

    @property
    def worker_id(self) -> int | None:
        """The process id of the worker."""
        return self._worker.process.pid

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # there must be no end without a reason
            self.problem = str(error) or type(error).__name__
        self._worker.kill()

    def _follow(self) -> None:
        """Ask for a ranking whenever one is due, until there is a problem."""
        crashes, asked = 0, _Asked()
        while not self._stopped.wait(INTERVAL) and not self.problem:
            try:
                for message in self._worker.receive():
                    self._accept(message)
                    asked.waiting, crashes = max(asked.waiting - 1, 0), 0
                self._ask(asked)
            except LabelGapError:  # of the store, e.g. a full disk: the page says so as long as it lasts
                asked = _Asked()
                self._stopped.wait(RETRY_SECONDS)
            except (EOFError, OSError):  # the worker is gone
                if self._stopped.is_set():
                    break
                crashes, asked = crashes + 1, _Asked()
                if crashes >= MAX_CRASHES:
                    self.problem = "the process that ranks candidates ended unexpectedly, several times."
                else:
                    self._worker.kill()
                    self._worker = WorkerProcess(self.job)

    def _accept(self, message: RankingResult | WorkerFailure) -> None:
        if isinstance(message, WorkerFailure):
            self.problem = message.reason
            return
        number = self.store.add_ranking(message.aim, message.model, message.decisions, message.last_event)
        self._newest[message.aim] = Ranking.of(message, number, len(self.job.image))

    def _ask(self, asked: _Asked) -> None:
        """Send a request where there are enough new decisions, or a new aim."""
        decided, values, last_event = self.state()
        now = time.monotonic()
        if last_event != asked.seen:
            asked.seen, asked.quiet_since = last_event, now
        aims = tuple(aim for aim, last in tuple(self._wanted.items()) if now - last < AIM_SECONDS)
        new = abs(len(decided) - asked.decisions)
        idle = now - asked.quiet_since > IDLE_SECONDS and last_event != asked.last_event
        due = new >= EVERY or idle or not set(aims) <= set(asked.aims)
        job = self.job
        if asked.waiting or not (due or self._worker.job is not job):
            return
        self._worker.extend(job)
        known = decided < len(job.image)
        self._worker.send(RankingRequest(aims, decided[known], values[known], last_event))
        asked.aims, asked.decisions, asked.last_event, asked.waiting = aims, len(decided), last_event, len(aims)


@dataclass
class _Asked:
    """The last request.

    Attributes:
        aims: of the request.
        decisions: how many there were.
        last_event: of them; -1 before the first request.
        waiting: answers that have not come yet.
        seen: last event that was seen.
        quiet_since: when it was seen first.
    """

    aims: tuple[Aim, ...] = ()
    decisions: int = 0
    last_event: int = -1
    waiting: int = 0
    seen: int = -1
    quiet_since: float = 0.0


class WorkerProcess:
    """A running worker; methods raise ``EOFError`` or ``OSError`` once it has ended."""

    def __init__(self, job: RankingJob) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self.process = context.Process(target=run_worker, args=(other, job), name="labelgap-ranking", daemon=True)
        with _environment(dict.fromkeys(_THREAD_SETTINGS, "1")):  # read when the process imports numpy
            self.process.start()
        other.close()

    def extend(self, job: RankingJob) -> None:
        """Give it another job, unless it has that."""
        if job is not self.job:
            self._connection.send(job)
            self.job = job

    def send(self, request: RankingRequest) -> None:
        """Ask for rankings."""
        self._connection.send(request)

    def receive(self) -> Iterator[RankingResult | WorkerFailure]:
        """Yield what has arrived."""
        while self._connection.poll():
            yield self._connection.recv()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.join()
        self._connection.close()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in this block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
