"""Copies of this process that are killed: at every operation on the files of a folder, or wherever a test says."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_started: list[int] = []
_PR_SET_PDEATHSIG = 1


def killed_at_every_operation(target: Callable[[], object], folder: Path, step: int = 1) -> Iterator[int]:
    """Call ``target()`` in processes that are killed before their first, second … operation on a folder.

    An operation creates, opens for writing, renames or removes a file or folder below ``folder``. The number of the
    operation is yielded after each kill; the last process ends by itself, and its number is yielded too.

    Args:
        target: called in a copy of this process, so that nothing is loaded again.
        folder: what is watched.
        step: the distance to the next operation.
    """
    for number in count(1, step):
        code = run_forked(partial(_run_watched, target, folder, number))
        assert code in (0, -signal.SIGKILL), f"exit code {code} at operation {number}"
        yield number
        if code == 0:
            return


def _run_watched(target: Callable[[], object], folder: Path, number: int) -> None:
    """Call ``target()``, and kill this process before an operation."""
    sys.addaudithook(_hook(folder, number))
    target()


def run_forked(target: Callable[[], object]) -> int:
    """Call ``target()`` in a copy of this process, so that nothing is loaded again, and return the exit code."""
    return wait_forked(start_forked(target))


def wait_forked(process: int) -> int:
    """Wait for a copy of this process, and return its exit code: minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def start_forked(target: Callable[[], object], log: Path | None = None) -> int:
    """Call ``target()`` in a copy of this process, and return its id; what it prints goes to ``log``."""
    with warnings.catch_warnings():  # threads of numerical libraries, which are not used here
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        process = os.fork()
    if process:
        _started.append(process)
        with suppress(ProcessLookupError, PermissionError):  # it has done so itself, or has ended
            os.setpgid(process, process)
        return process
    os.setpgid(0, 0)
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    code = 1
    try:
        if log is not None:
            sys.stdout = sys.stderr = log.open("w", buffering=1, encoding="utf-8")
        target()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_with_parent() -> None:
    """Have this process killed when its parent ends: a test that hangs is ended without being able to do it itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_forked() -> None:
    """Kill what is left of the copies that were started, and of what they started, after the test that did so.

    They hold the pipes of this process: a browser that is closed, say, would wait for them for ever.
    """
    while _started:
        process = _started.pop()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)


def _hook(folder: Path, number: int) -> Callable[[str, tuple[Any, ...]], None]:
    remaining = number

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal remaining
        writes = event == "open" and isinstance(values[2], int) and values[2] & _WRITING
        if writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            path = values[0]
            if isinstance(path, str | os.PathLike) and Path(path).absolute().is_relative_to(folder):
                remaining -= 1
                if not remaining:
                    os.kill(os.getpid(), signal.SIGKILL)

    return hook
