"""Errors that no command expects: the system ran out of something, or labelgap has a bug."""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
import tempfile
import traceback
from typing import Final

from labelgap import __version__
from labelgap.core.errors import InputError
from labelgap.core.files import DISK_FULL
from labelgap.core.system import format_bytes

DEBUG_VARIABLE: Final = "LABELGAP_DEBUG"  # environment variable: 1 shows the traceback of every error

_INTACT: Final = "Files that were written before are complete; a training is resumed by --resume."
_MEMORY: Final = re.compile(
    r"(?:out of|not enough) memory|(?:can't|cannot|could not|failed to) (?:allocate|map segment)|bad_alloc",
    re.IGNORECASE,
)
_CONNECTION: Final = re.compile(r"gloo|nccl|connection (?:closed|reset|refused)|broken pipe|tcpstore", re.IGNORECASE)
"""What errors of the connections between processes have in common."""
_PASSWORD: Final = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+@|(?<=password=)[^\s&'\"]+")
"""The password in the URL of a database."""
_LEAST_MEMORY: Final = 640 << 20
"""Bytes of address space without which the libraries abort the process while they are imported."""


def check_system() -> None:
    """Raise an error where libraries would end the process: without a current folder, or with too little memory."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        raise InputError("the current folder does not exist any more: change to another one (`cd`).") from None
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_MEMORY:
        raise InputError(
            f"this process may use {format_bytes(limit)} of memory, and PyTorch alone needs more: raise the limit to "
            f"4 GB or more (`ulimit -v 4000000`)."
        )


def describe_failure(error: BaseException) -> str | None:
    """Return what ran out, also where it caused another error, and the remedy; None where it is not the system's."""
    each: BaseException | None = error
    while each is not None:
        if what := _what_ran_out(each):
            return f"{what} {_INTACT}"
        each = each.__cause__ or each.__context__
    if isinstance(error, OSError) and error.errno is not None:
        return f"{os.strerror(error.errno).lower()}{_where(error)}. {_INTACT}"
    return None


def _what_ran_out(error: BaseException) -> str | None:
    text, number = str(error), error.errno if isinstance(error, OSError) else None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and isinstance(error, RuntimeError) and _CONNECTION.search(text):
        return "another process of this command ended or cannot be reached: its own message says why."
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _MEMORY.search(text):
        return "there is not enough memory. Use a smaller --batch-size or fewer --workers, or close other programs."
    if number in (errno.EMFILE, errno.ENFILE) or os.strerror(errno.EMFILE) in text:
        return "too many files are open. Raise the limit (`ulimit -n 1024`), or use fewer --workers."
    if number in DISK_FULL:
        return f"the disk is full{_where(error)}. Free some space and try again."
    if number == errno.EAGAIN or "can't start new thread" in text:
        return "no further process or thread can be started. Use fewer --workers."
    if isinstance(error, RecursionError):
        return "a file or an option is nested too deeply to be read."
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[error.start : error.end]!r} cannot be written in {error.encoding}: use a UTF-8 locale."
    return None


def report_bug(error: Exception) -> str:
    """Write the traceback of an unexpected error to a new file, and return the message that names it."""
    about = f"labelgap {__version__}, Python {platform.python_version()}, {platform.platform()}"
    content = "\n".join([about, repr(sys.argv), *traceback.format_exception(error)])
    content = _PASSWORD.sub(lambda found: "***" if found[1] is None else f"{found[1]}:***@", content)
    place = "its traceback"
    try:
        number, path = tempfile.mkstemp(prefix="labelgap-", suffix=".txt")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)
        place = f"the file {path}"
    except OSError:  # no temporary folder, or a full one
        pass
    first = next((f": {line[:200]}" for line in str(error).strip().splitlines() if line), "")
    return (
        f"unexpected error ({type(error).__name__}{first}). This is a bug of labelgap: please report it with {place}; "
        f"{DEBUG_VARIABLE}=1 shows the traceback here. {_INTACT}"
    )


def _where(error: BaseException) -> str:
    name = getattr(error, "filename", None)
    return "" if name is None else f" ({os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else name})"
