"""Watch a reader: its time, its memory, the processes, connections and files that it opens."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.fuzzing.base import canary

MOST_MEMORY: Final = 1 << 30
"""Bytes that a reader of samples of at most a megabyte may take beyond what the process has."""
_FORBIDDEN: Final = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
_ACTIVE: list[Watch] = []


class Hang(BaseException):
    """The time of a reader is over."""


class Watch:
    """Watches the block of a ``with`` statement.

    Args:
        root: the only folder in which files may be opened for writing.
        seconds: after which the block is interrupted by ``Hang``.
    """

    def __init__(self, root: Path, seconds: float) -> None:
        self.seconds = seconds
        self.writable = (str(root), "/dev/null", *filter(None, map(os.environ.get, ("XDG_STATE_HOME", "MPLCONFIGDIR"))))
        self.seen: list[str] = []
        self._warnings = warnings.catch_warnings(action="ignore")

    def __enter__(self) -> Self:
        _install_hook()
        self._before = _reset_memory()
        self._warnings.__enter__()
        signal.signal(signal.SIGALRM, _raise_hang)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        _ACTIVE.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _ACTIVE.remove(self)
        self._warnings.__exit__(None, None, None)
        self._memory = _memory() - self._before

    def problem(self) -> str | None:
        """Return what the block did that no file may make it do."""
        if self.seen:
            return self.seen[0]
        return f"more than {MOST_MEMORY >> 20} MB" if self._memory > MOST_MEMORY else None

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event of Python's audit hooks, if it is forbidden."""
        if event in _FORBIDDEN:
            self.seen.append(f"{event} was called")
        elif event == "open" and isinstance(arguments[0], str) and isinstance(arguments[2], int):
            path, writes = arguments[0], arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if path == str(canary()) and "LABELGAP_TRUST" not in os.environ:
                self.seen.append("a path that the folder names was opened")
            elif writes and path.startswith("/") and not path.startswith(self.writable):
                self.seen.append(f"opened for writing: {path[:200]}")


def _raise_hang(*_: object) -> None:
    raise Hang


def _install_hook() -> None:
    """Install the hook once; it stays for the life of the process."""
    if not getattr(sys, "_labelgap_fuzz_hook", False):
        sys._labelgap_fuzz_hook = True  # type: ignore[attr-defined]
        sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in _ACTIVE:
        watch.audit(event, arguments)


def _memory() -> int:
    """Return the most bytes of memory since ``_reset_memory``; 0 where the system does not tell."""
    with suppress(OSError, IndexError):
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
    return 0


def _reset_memory() -> int:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory()
