"""The signals that stop a training: Ctrl-C (SIGINT), and SIGTERM where a command asks for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def defer_interrupt() -> Iterator[list[int]]:
    """Defer a Ctrl-C to the end of the block; a second one interrupts at once. Only the main thread receives any.

    So it is with SIGTERM in a block of ``record_signals``. The list that is yielded has the signal that came.
    """
    pending: list[int] = []
    failure: RuntimeError | None = None
    previous = {number: signal.getsignal(number) for number in _STOPPING}

    def handle(number: int, frame: FrameType | None) -> None:
        if pending:
            _call(previous[signal.Signals(number)], number, frame)
        pending.append(number)

    interrupt = signal.SIGINT if previous[signal.SIGINT] in (signal.SIG_DFL, None) else None
    deferred = [number for number, handler in previous.items() if callable(handler) or number is interrupt]
    try:
        with _handled(deferred, handle):
            yield pending
    except RuntimeError as error:  # of torch, where a worker process got the signal too and has ended
        if not pending:
            raise
        failure = error
    if pending:
        signal.raise_signal(pending[0])
    if failure is not None:
        raise failure


@contextmanager
def record_signals() -> Iterator[list[int]]:
    """Let SIGTERM interrupt as a Ctrl-C does, unless it is ignored; yield the list of the signals that came."""
    received: list[int] = []
    process = os.getpid()
    previous = {number: signal.getsignal(number) for number in _STOPPING}

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            _call(previous[signal.Signals(number)], number, frame)
            return
        received.append(number)
        raise KeyboardInterrupt

    with _handled([number for number in _STOPPING if previous[number] not in (signal.SIG_IGN, None)], handle):
        yield received


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals so while the block runs; only the main thread can."""
    own = list(numbers) if threading.current_thread() is threading.main_thread() else []
    previous = {number: signal.signal(number, handle) for number in own}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _call(handler: signal._HANDLER, number: int, frame: FrameType | None) -> None:
    if callable(handler):
        handler(number, frame)
    elif handler != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
