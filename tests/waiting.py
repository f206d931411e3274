"""Waiting for what another process or thread does, however busy the machine is."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 300.0
"""Seconds after which something that has not happened never will."""


def wait_until(holds: Callable[[], object]) -> None:
    """Wait until something holds; fail where it never does."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def has_ended(process: int) -> bool:
    """Whether a process of another parent has ended, be it that nobody has asked for its exit code yet."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine that the system gives to nobody else: only a server that asks for it listens on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
