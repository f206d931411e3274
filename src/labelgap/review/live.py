"""The live order of a review: a process ranks what is open again while people decide, and lists show the new order.

The worker neither reads nor writes the store, and ends when the server does. One request is under way at a time.
Rankings depend on the decisions alone: the same decisions give the same ranking, under the same number.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from labelgap.audit.candidates import CandidateList
from labelgap.audit.live import Aim, Decisions, FeatureScale, rank_open
from labelgap.audit.scorers import feature_options
from labelgap.core.errors import LabelGapError
from labelgap.models import Backbone, create_backbone, is_pretrained
from labelgap.review.candidates import MISSING, CandidateColumns, Candidates
from labelgap.review.folder import ReviewFolder, open_review_folder
from labelgap.review.store import DecisionStore
from labelgap.training.devices import choose_device
from labelgap.training.features import split_features
from labelgap.training.plan import default_linear_backbone
from labelgap.training.progress import Reporter

EVERY: Final = 10  # decisions after which candidates are ranked again; docs/results/review.md has the evidence
IDLE_SECONDS: Final = 4.0  # fewer decisions are taken into account after so many seconds without another
INTERVAL: Final = 0.25  # seconds between two looks at the decisions
MAX_CRASHES: Final = 3  # after so many ends of the worker without a ranking there is none any more
RETRY_SECONDS: Final = 5.0  # between two attempts to store a ranking
AIM_SECONDS: Final = 600.0  # an aim that no page has asked for so long is not ranked
NICENESS: Final = 10

_LAST: Final = np.iinfo(np.int32).max

Numbers = NDArray[np.int64]
# Returns the numbers of the decided candidates, their values, and the last event.
CurrentState = Callable[[], tuple[Numbers, NDArray[np.int8], int]]


def image_features(folder: ReviewFolder, images: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
    """Return ``(M, D)`` features of images by split and name, those of the audit; zeros for one that the data lack."""
    data, device = folder.data, choose_device("auto")
    build, options = _backbone(folder)
    splits = sorted({split for split, _ in images})
    found = split_features(data, splits, build, device, 0, Reporter(quiet=True), **options)
    features = np.zeros((len(images), next(iter(found.values())).shape[1]), dtype=np.float32)
    place = {key: at for at, key in enumerate(images)}
    for split in splits:
        at = np.array([place.get((split, name), -1) for name in data.split(split).labels.images], dtype=np.int64)
        features[at[at >= 0]] = found[split][at >= 0]
    return features


def _backbone(folder: ReviewFolder) -> tuple[Callable[[], Backbone], dict[str, Any]]:
    run = folder.run
    if run is None:
        return lambda: create_backbone(default_linear_backbone(folder.data)), {}
    if is_pretrained(run.config.backbone, run.config.weights):
        return run.initial_backbone, feature_options(run.config, choose_device("auto"))
    return lambda: run.model.backbone, {}


@dataclass(frozen=True, eq=False)
class RankingJob:
    """What the worker is for: a review and its candidates, C of them."""

    path: str  # the review's folder
    source: str | None  # where the user says that its data are
    options: Mapping[str, Any]  # the options to read them with
    columns: CandidateColumns
    classes: int  # K

    @classmethod
    def of(cls, folder: ReviewFolder, candidates: Candidates) -> RankingJob:
        """Return the job for the candidates of a folder."""
        path, options = str(folder.path), dict(folder.options)
        return cls(path, folder.source, options, candidates.columns, len(candidates.classes))

    def open(self) -> ReviewFolder:
        """Open the folder again, in another process."""
        return open_review_folder(self.path, self.source, **self.options)


class RankingRequest(NamedTuple):
    """Decisions to learn from."""

    aims: tuple[Aim, ...]  # the orders that are wanted
    decided: Numbers  # (M,) numbers of candidates
    values: NDArray[np.int8]  # (M,) codes
    last_event: int  # id of the last event that is taken into account


class RankingResult(NamedTuple):
    """An order of open candidates."""

    aim: Aim  # what the order is for
    model: str  # digest of the heads
    decisions: int  # how many they have learned from
    last_event: int  # that of the request
    numbers: Numbers  # (R,) candidates, the first to be decided first
    probability: NDArray[np.float32]  # (R,) that they are present


class WorkerFailure(NamedTuple):
    """Why there will be no ranking: one that another attempt would not change."""

    reason: str


def run_worker(connection: Connection, job: RankingJob) -> None:
    """Load the features, then answer requests until the connection is closed; of several only the newest."""
    _follow_parent()
    torch.set_num_threads(1)
    threadpool_limits(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        images, scale = None, None
        while True:
            try:
                if scale is None or job.columns.images != images:
                    images = job.columns.images
                    scale = FeatureScale.of(image_features(job.open(), images))
            except (LabelGapError, OSError, RuntimeError, ImportError) as error:
                connection.send(WorkerFailure(str(error)))
                return
            message = connection.recv()
            while isinstance(message, RankingRequest) and connection.poll():
                message = connection.recv()
            if isinstance(message, RankingJob):
                job = message
            else:
                for aim in message.aims:
                    connection.send(rank(job, scale, message, aim))


def rank(job: RankingJob, scale: FeatureScale, request: RankingRequest, aim: Aim) -> RankingResult:
    """Return the order of the open candidates that have a score."""
    columns, scored = job.columns, ~np.isnan(job.columns.score[request.decided])
    pool = np.flatnonzero((columns.kind == MISSING) & ~np.isnan(columns.score))
    decisions = Decisions(_select(columns, request.decided[scored]), request.values[scored])
    made = rank_open(scale, _select(columns, pool), decisions, job.classes, aim)
    found = made.candidates
    place = np.argsort(key := columns.image[pool].astype(np.int64) * job.classes + columns.class_number[pool])
    at = place[np.searchsorted(key[place], found.rows * job.classes + found.columns)]
    return RankingResult(aim, made.model, made.decisions, request.last_event, pool[at], found.scores)


def _select(columns: CandidateColumns, numbers: Numbers) -> CandidateList:
    image, class_number = columns.image[numbers].astype(np.int64), columns.class_number[numbers].astype(np.int64)
    return CandidateList.of_unknown(image, class_number, columns.score[numbers])


def _follow_parent() -> None:
    """Give way to other processes, ignore Ctrl-C (the server ends this process), and end when the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True, eq=False)
class Ranking:
    """An order of the candidates, C of them."""

    number: int  # its number in the store
    aim: Aim  # what the order is for
    decisions: int  # how many the heads have learned from
    position: NDArray[np.int32]  # (C,) from 0; the largest integer for a candidate that it does not rank
    probability: NDArray[np.float32]  # (C,) of being present; NaN for a candidate that it does not rank

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
    """The newest ranking of each aim, and the process that makes them; ``problem`` says why there are no new ones."""

    def __init__(self, job: RankingJob, store: DecisionStore, state: CurrentState) -> None:
        self.job, self.store, self.state = job, store, state
        self.problem = ""
        self._newest: dict[Aim, Ranking] = {}
        self._wanted: dict[Aim, float] = {"missing": np.inf}
        self._stopped = threading.Event()
        self.worker = WorkerProcess(job)
        self._thread = threading.Thread(target=self._run, name="labelgap-rankings", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the worker and the thread that asks it."""
        self._stopped.set()
        self.worker.process.kill()  # the thread closes its connection, which it may be using
        self._thread.join()

    def newest(self, aim: Aim) -> Ranking | None:
        """Return the newest ranking for an aim, which is ranked again from now on; None while there is none."""
        self._wanted[aim] = max(self._wanted.get(aim, 0.0), time.monotonic())
        ranking = self._newest.get(aim)
        return None if ranking is None else ranking.extended(len(self.job.columns.image))

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # there must be no end without a reason
            self.problem = str(error) or type(error).__name__
        self.worker.kill()

    def _follow(self) -> None:
        crashes, asked = 0, _Asked()
        while not self._stopped.wait(INTERVAL) and not self.problem:
            try:
                for message in self.worker.receive():
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
                    self.worker.kill()
                    self.worker = WorkerProcess(self.job)

    def _accept(self, message: RankingResult | WorkerFailure) -> None:
        if isinstance(message, WorkerFailure):
            self.problem = message.reason
            return
        number = self.store.add_ranking(message.aim, message.model, message.decisions, message.last_event)
        self._newest[message.aim] = Ranking.of(message, number, len(self.job.columns.image))

    def _ask(self, asked: _Asked) -> None:
        decided, values, last_event = self.state()
        now = time.monotonic()
        if last_event != asked.seen:
            asked.seen, asked.quiet_since = last_event, now
        aims = tuple(aim for aim, last in tuple(self._wanted.items()) if now - last < AIM_SECONDS)
        new = abs(len(decided) - asked.decisions)
        idle = now - asked.quiet_since > IDLE_SECONDS and last_event != asked.last_event
        due = new >= EVERY or idle or not set(aims) <= set(asked.aims)
        job = self.job
        if asked.waiting or not (due or self.worker.job is not job):
            return
        known = decided < len(job.columns.image)
        self.worker.send(job, RankingRequest(aims, decided[known], values[known], last_event))
        asked.aims, asked.decisions, asked.last_event, asked.waiting = aims, len(decided), last_event, len(aims)


@dataclass
class _Asked:
    aims: tuple[Aim, ...] = ()  # the orders that it asked for
    decisions: int = 0  # how many decisions there were
    last_event: int = -1  # the last one's event; -1 before the first request
    waiting: int = 0  # answers that have not come yet
    seen: int = -1  # last event that was seen
    quiet_since: float = 0.0  # when it was seen first


class WorkerProcess:
    """A running worker; methods raise ``EOFError`` or ``OSError`` once it has ended."""

    def __init__(self, job: RankingJob) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self.process = context.Process(target=run_worker, args=(other, job), name="labelgap-ranking", daemon=True)
        self.process.start()
        other.close()

    def send(self, job: RankingJob, request: RankingRequest) -> None:
        """Ask for rankings of a job; the worker is told of another job than it has."""
        if job is not self.job:
            self._connection.send(job)
            self.job = job
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
