"""Many trainings, some at a time: one after the other in this process, or several in processes that stop together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from labelgap.core.errors import LabelGapError, RunError
from labelgap.data.dataset import Dataset
from labelgap.training import Run
from labelgap.training.fit import fit
from labelgap.training.plan import TrainingRequest
from labelgap.training.progress import Reporter
from labelgap.training.run_folder import is_run_folder
from labelgap.training.signals import record_signals

T = TypeVar("T")

_POLL_SECONDS: Final = 2.0
_ENDED: Final = "a process ended without a result, perhaps for want of memory: resume with fewer --jobs."
_STOPPED: Final = threading.Event()


def train_run(data: Dataset, request: TrainingRequest, folder: Path, **execution: Any) -> Run:
    """Train what is asked for as a run in a folder, or resume the run that is there; see ``fit`` for ``execution``."""
    given = {name: value for name, value in vars(request).items() if name != "training"}
    return fit(data, **given, **request.training, out=folder, resume=is_run_folder(folder), **execution)


def is_trained(folder: Path) -> bool:
    """Return whether a folder has a run with all its epochs."""
    run = Run(folder) if is_run_folder(folder) else None
    return run is not None and run.finished and not run.metrics["interrupted"]


def run_jobs(
    queue: deque[T],
    train: Callable[..., Path],
    jobs: int,
    reporter: Reporter,
    total: int,
    note: Callable[[Iterable[T]], str] = lambda running: "",
) -> Iterator[tuple[T, Run | LabelGapError]]:
    """Train everything in a queue, and yield each as it ends, with its run or its error; more may be queued meanwhile.

    ``train`` returns the folder of the run; ``jobs`` of ``total`` run at a time; ``note`` describes those in training.
    Raises ``KeyboardInterrupt`` where Ctrl-C stopped one.
    """
    if jobs == 1:
        while queue:
            job = queue.popleft()
            yield job, _result(partial(train, job, quiet=reporter.quiet))
        return
    context, running = multiprocessing.get_context("spawn"), dict[Future[Path], T]()
    ended, (stop, stopper) = 0, context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_follow_parent, initargs=(stop,))
    with stop, stopper, pool:
        try:
            while queue or running:
                while queue and len(running) < jobs:
                    job = queue.popleft()
                    try:
                        running[pool.submit(_run_until_stopped, train, job)] = job
                    except BrokenProcessPool:
                        yield job, RunError(_ENDED)
                with reporter.bar("networks", total, ended):
                    while not (done := wait(running, _POLL_SECONDS, FIRST_COMPLETED).done) and running:
                        reporter.advance(0, note=lambda: note(running.values()))
                for future in done:
                    ended += 1
                    yield running.pop(future), _result(future.result)
        finally:
            if running:
                stopper.send_bytes(b"stop")


def _result(train: Callable[[], Path]) -> Run | LabelGapError:
    try:
        run = Run(train())
    except LabelGapError as error:
        return error
    except BrokenProcessPool:
        return RunError(_ENDED)
    if not is_trained(run.path):
        raise KeyboardInterrupt
    return run


def _follow_parent(stop: Connection) -> None:
    """Stop the training of this process when the parent writes to a pipe: a Ctrl-C counts in the parent only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_unless_stopped)

    def watch() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            connection.wait([stop, parent.sentinel])
            _STOPPED.set()
            os.kill(os.getpid(), signal.SIGTERM)
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_until_stopped(train: Callable[..., Path], job: object) -> Path:
    """Call a training, which is interrupted, as by Ctrl-C, when the parent stops it."""
    with record_signals() as received:
        try:
            if _STOPPED.is_set():
                raise KeyboardInterrupt
            return train(job, quiet=True)
        finally:
            if received:
                _end_unless_stopped()


def _end_unless_stopped(_number: int = signal.SIGTERM, _frame: FrameType | None = None) -> None:
    """End this process at a SIGTERM of somebody else, e.g. of a pool that has lost another process."""
    if not _STOPPED.is_set():
        os._exit(1)
