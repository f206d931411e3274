"""Defer Ctrl-C while files that belong together are written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["defer_interrupt"]


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Defer a Ctrl-C to the end of the block; a second one interrupts at once. Only the main thread receives any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    previous = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if pending:
            signal.default_int_handler(number, frame)
        pending.append(number)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)
    if pending:
        signal.raise_signal(signal.SIGINT)
