"""A Ctrl-C that waits until what must stay together is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["defer_interrupt"]


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Put a Ctrl-C off until the block is done, and then let it be heard; a second one is heard at once.

    Only the main thread ever hears one.

    Example:
        >>> heard = []
        >>> try:
        ...     with defer_interrupt():
        ...         signal.raise_signal(signal.SIGINT)
        ...         heard.append("the block was finished")
        ... except KeyboardInterrupt:
        ...     heard.append("stopped")
        >>> heard
        ['the block was finished', 'stopped']
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def later(number: int, frame: FrameType | None) -> None:
        if waiting:
            signal.default_int_handler(number, frame)
        waiting.append(number)

    signal.signal(signal.SIGINT, later)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if waiting:
        signal.raise_signal(signal.SIGINT)
