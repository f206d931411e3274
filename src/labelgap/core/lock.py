"""One process at a time in a folder: a lock that the system releases when its holder dies.

It does what the package filelock does not: it says who holds it, leaves no file behind, and is free at once when its
holder is killed, though forked workers live on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from labelgap.core.errors import RunError
from labelgap.core.files import display_path, make_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE: Final = ".labelgap.lock"
_INTERVAL: Final = 0.05
_HELD: set[int] = set()
"""Descriptors of the locks that this process holds."""


@contextmanager
def lock_folder(folder: Path, purpose: str, *, wait: float = 0.0, name: str = LOCK_FILE) -> Iterator[None]:
    """Hold the lock of a folder, which only one process can; the folder is created where it does not exist.

    The lock ends with the block, or with the process, however it dies. Folders that were created here and are still
    empty at the end are removed. Another process waits for it so many seconds, and then gets a ``RunError`` that says
    what the holder does (``purpose``). The file ``name`` is locked; it exists while the lock is held.
    """
    created = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]  # the innermost first
    try:
        make_folder(folder)
        with _locked(folder, name, purpose, time.monotonic() + wait):
            yield
    finally:
        with suppress(OSError):
            for path in created:
                path.rmdir()


if fcntl is not None:

    @contextmanager
    def _locked(folder: Path, name: str, purpose: str, deadline: float) -> Iterator[None]:
        """Lock with ``flock``. The file is removed before the lock is released, so none is left behind."""
        while (descriptor := _try_flock(folder / name)) is None:
            if time.monotonic() >= deadline:
                raise _in_use(folder, _holder(folder / name))
            time.sleep(_INTERVAL)
        _HELD.add(descriptor)
        try:
            about = {"purpose": purpose, "process": os.getpid(), "since": f"{datetime.now():%H:%M:%S}"}
            with suppress(OSError):
                os.write(descriptor, json.dumps(about).encode())
            yield
        finally:
            if descriptor in _HELD:  # a forked process has closed its copy
                with suppress(OSError):
                    (folder / name).unlink()
                _HELD.discard(descriptor)
                os.close(descriptor)

    def _try_flock(path: Path) -> int | None:
        """Return the descriptor of the locked file; None where another process holds it."""
        make_folder(path.parent)  # its last holder may have removed it
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _no_lock(path.parent, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == path.stat().st_ino:  # else its last holder has removed it since
                os.ftruncate(descriptor, 0)
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:  # a file system without locks
            os.close(descriptor)
            raise _no_lock(path.parent, error) from None
        os.close(descriptor)
        return None

    def _close_copies() -> None:
        """Close the copies of a forked process: a worker that outlives its parent must not keep the lock."""
        for descriptor in _HELD:
            with suppress(OSError):
                os.close(descriptor)
        _HELD.clear()

    os.register_at_fork(after_in_child=_close_copies)

else:

    @contextmanager
    def _locked(folder: Path, name: str, purpose: str, deadline: float) -> Iterator[None]:
        """Lock with the package filelock; the file stays."""
        lock = FileLock(folder / name, timeout=max(deadline - time.monotonic(), 0))
        try:
            lock.acquire()
        except Timeout:
            raise _in_use(folder, "") from None
        try:
            yield
        finally:
            lock.release()


def _holder(path: Path) -> str:
    """Return what the lock file says about its holder, who writes it just after taking the lock."""
    for _ in range(10):
        with suppress(OSError, ValueError, KeyError, TypeError):
            with path.open(encoding="utf-8") as file:
                about = json.loads(file.read(1000))
            return f" ({str(about['purpose'])[:40]}, process {int(about['process'])}, since {str(about['since'])[:20]})"
        time.sleep(_INTERVAL / 5)
    return ""


def _no_lock(folder: Path, error: OSError) -> RunError:
    return RunError(f"{folder} cannot be locked ({error.strerror}): choose another folder.")


def _in_use(folder: Path, holder: str) -> RunError:
    return RunError(
        f"{display_path(folder)} is in use by another process{holder}. Wait for it to end, or choose another folder."
    )
