"""Two real processes that write to the same place: one wins, and is held until the other has been refused."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from tests.waiting import PATIENCE

from labelgap.core.errors import LabelGapError

_FORKSERVER = multiprocessing.get_context("forkserver")


def race(function: Callable[..., object], *arguments: Any) -> tuple[str, str]:
    """Call ``function(wait, *arguments)`` in two processes, and return what the loser was told, and "done".

    Args:
        function: importable; it calls ``wait()`` when it has won: this returns when the other process was refused.
        *arguments: picklable.
    """
    refused, results = _FORKSERVER.Event(), _FORKSERVER.Queue()
    workers = [
        _FORKSERVER.Process(target=_work, args=(function, refused, results, arguments), daemon=True) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    try:
        said = sorted((results.get(timeout=PATIENCE) for _ in workers), key=lambda text: text == "done")
        for worker in workers:
            worker.join(PATIENCE)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return said[0], said[1]


def _work(function: Callable[..., object], refused: Event, results: Queue[str], arguments: tuple[Any, ...]) -> None:
    def wait() -> None:
        assert refused.wait(PATIENCE), "the other process was not refused"

    try:
        function(wait, *arguments)
        results.put("done")
    except LabelGapError as error:
        results.put(str(error))
        refused.set()
    except BaseException as error:
        results.put(repr(error))
        raise
