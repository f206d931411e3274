"""Commands that ``torchrun`` starts in several processes: which can, and which process prints what."""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError

DIVISIBLE: Final = ("train", "predict", "audit", "evaluate")
_SECONDS: Final = 2.0
"""How long a process waits before it ends because of an error that another one prints: torchrun then ends that one."""


def check_divisible(command: str | None) -> None:
    """Refuse a command that cannot be divided over several processes."""
    if _processes() > 1 and command is not None and command not in DIVISIBLE:
        raise InputError(
            f"`labelgap {command}` runs in one process: start it without torchrun. "
            f"{', '.join(DIVISIBLE[:-1])} and {DIVISIBLE[-1]} divide their work over several."
        )


def silence_other_processes() -> None:
    """Discard the output and the warnings of all processes but the first."""
    if _processes() > 1 and _rank() > 0:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open as long as the process)
        warnings.simplefilter("ignore")


def report_error(error: Exception, message: str) -> None:
    """Print an error to standard error, in one of the processes where all have the same."""
    if not message:
        return
    if _processes() == 1:
        print(f"labelgap: {message}", file=sys.stderr)
    elif _is_reported(error):
        time.sleep(_SECONDS)
    else:
        name = "" if _rank() == 0 else f" (process {_rank()} of {_processes()}, on {socket.gethostname()})"
        print(f"labelgap{name}: {message}", file=sys.stderr, flush=True)


def _is_reported(error: Exception) -> bool:
    """Return whether another process of this machine prints the error.

    Before the processes are connected, an error is one of the arguments, which are the same on a machine.
    """
    distributed = sys.modules.get("torch.distributed")
    connected = distributed is not None and distributed.is_initialized()
    if not connected:
        return int(os.environ.get("LOCAL_RANK", "0")) > 0
    from labelgap.training.loop.processes import ReportedError

    return isinstance(error, ReportedError)


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
