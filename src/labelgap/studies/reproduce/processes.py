"""Processes of a pool that stop together: each stores the position of its training when the parent is interrupted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Final

from labelgap.training.signals import record_signals

_STOPPED: Final = threading.Event()


def follow_parent(stop: Connection) -> None:
    """Stop the training of this process when the parent writes to a pipe, which nobody reads; end with the parent.

    A terminal sends Ctrl-C to every process. It counts in the parent only: two signals would cut a batch short.
    """
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


def run_until_stopped(train: Callable[..., Path], *given: Any, **settings: Any) -> Path:
    """Call a training, which is interrupted, as by Ctrl-C, when the parent stops it."""
    with record_signals() as received:
        try:
            if _STOPPED.is_set():
                raise KeyboardInterrupt
            return train(*given, **settings)
        finally:
            if received:
                _end_unless_stopped()


def _end_unless_stopped(_number: int = signal.SIGTERM, _frame: FrameType | None = None) -> None:
    """End this process at a SIGTERM of somebody else, e.g. of a pool that has lost another process."""
    if not _STOPPED.is_set():
        os._exit(1)
