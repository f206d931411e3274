"""A lock of a folder that the system releases when its holder dies; it says who holds it, and leaves no file behind."""

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

LOCK_FILE: Final = ".labelgap.lock"


@contextmanager
def lock_folder(folder: Path, purpose: str, *, wait: float = 0.0, name: str = LOCK_FILE) -> Iterator[None]:
    """Hold the lock of a folder, which is created where it does not exist and removed if still empty at the end.

    The lock ends with the block, or with the process. Another process waits for it so many seconds, and then gets a
    ``RunError`` that says what the holder does (``purpose``). The file ``name`` exists while the lock is held.
    """
    path, deadline = folder / name, time.monotonic() + wait
    created = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]  # the innermost first
    about = {"purpose": purpose, "process": os.getpid(), "since": f"{datetime.now():%H:%M:%S}"}

    def tell(descriptor: int) -> None:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(about).encode())

    lock = FileLock(path, thread_local=False, fallback_to_soft=False, on_acquired=tell)
    try:
        while not lock.is_locked:
            make_folder(folder)
            with suppress(FileNotFoundError):  # its last holder has just removed the folder
                _acquire(lock, path, max(deadline - time.monotonic(), 0))
        yield
    finally:
        if lock.is_locked:  # it is not in a forked process
            with suppress(OSError):
                path.unlink()
            lock.release()
        with suppress(OSError):
            for each in created:
                each.rmdir()


def _acquire(lock: FileLock, path: Path, timeout: float) -> None:
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise RunError(
            f"{display_path(path.parent)} is in use by another process{_holder(path)}. Wait for it to end, or choose "
            "another folder."
        ) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"{path.parent} cannot be locked ({error.strerror}): choose another folder.") from None


def _holder(path: Path) -> str:
    """Return what the lock file says about its holder, who writes it just after taking the lock."""
    for _ in range(10):
        with suppress(OSError, ValueError, KeyError, TypeError):
            with path.open(encoding="utf-8") as file:
                about = json.loads(file.read(1000))
            return f" ({str(about['purpose'])[:40]}, process {int(about['process'])}, since {str(about['since'])[:20]})"
        time.sleep(0.01)
    return ""
