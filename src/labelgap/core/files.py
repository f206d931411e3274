"""Files that are either whole or not there: write to a neighbour, then rename."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, LabelGapError, RunError

__all__ = [
    "DiskError",
    "atomic_path",
    "display_path",
    "make_folder",
    "remove_partials",
    "write_bytes",
    "write_json",
    "write_text",
]

_FULL: Final = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ASKED: Final = 1 << 16
"""So many bytes more are asked of a disk, where a writer failed without saying why."""
_NUMBER: Final = re.compile(r"\(os error (\d+)\)")
_PARTIAL: Final = re.compile(r"\..*-[0-9a-f]{16}\.partial(\..*)?")


class DiskError(RunError, OSError):
    """The disk takes no more, or this file may not be written. What was there before is whole.

    It is an ``OSError`` too: where a file is worth little, such as in a cache, that is caught and the work goes on.

    Attributes:
        path: the file that was to be written.
        problem: what is wrong, without a way out.
        full: whether more room on the disk would help.
    """

    path: Path = Path()
    problem: str = ""
    full: bool = False

    @classmethod
    def of(cls, path: str | os.PathLike[str], reason: str, full: bool) -> DiskError:
        """Make the error of a file from what the system said."""
        said = reason[:1].lower() + reason[1:]
        problem = f"the disk is full: {path} could not be written ({said})" if full else f"{path}: {said}"
        way_out = "Free some space and try again." if full else "Choose a place that may be written to."
        error = cls(f"{problem}. What was there before is whole. {way_out}")
        error.path, error.problem, error.full = Path(path), problem, full
        return error


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, previous: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes the place of ``path``, on failure it is removed.

    The temporary name keeps the suffix, so that writers which look at it (``numpy.savez``) behave. Where ``path`` is
    a symbolic link, what it points to is replaced. A process killed in the middle leaves the old file whole, and
    beside it a hidden one with ``.partial`` in its name. A disk that is full is a ``DiskError``, whatever the writer
    made of it.

    Args:
        path: the file to write.
        previous: what the old file is called from then on, beside it; it is thrown away when not given. There is no
            moment without a whole file under one of the two names.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder) / "a.txt") as temporary:
        ...         _ = temporary.write_text("whole")
        ...     (Path(folder) / "a.txt").read_text()
        'whole'
    """
    target = Path(path).resolve()
    with _telling(path):
        found = target.parent.is_dir()
    if not found:
        raise InputError(f"{path} cannot be written: the folder {target.parent} does not exist.")
    temporary = target.with_name(f".{target.stem[:40]}-{secrets.token_hex(8)}.partial{target.suffix}")
    with _telling(path):
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)  # a writer that replaces the file may have made it for itself alone
        with temporary.open("r+b") as written:
            os.fsync(written.fileno())
        if previous is not None and target.exists():
            target.replace(previous)
        temporary.replace(target)
    except LabelGapError:
        raise
    except Exception as error:
        if (reason := _why_full(error, temporary)) is not None:
            raise DiskError.of(path, reason, full=True) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there; where that cannot be, it is a ``DiskError``."""
    with _telling(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def _telling(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the system's refusal to make something into a ``DiskError``."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.errno not in _FULL | _DENIED:
            raise
        raise DiskError.of(path, os.strerror(error.errno), error.errno in _FULL) from error


def _why_full(error: Exception, temporary: Path) -> str | None:
    """Return what the system says of a disk that takes no more; None where something else is wrong.

    Not every writer passes the system's number on: safetensors writes it into its message, torch and numpy lose it, and
    then the disk is asked.
    """
    number: int | None = None
    if isinstance(error, OSError):
        number = error.errno
    elif told := _NUMBER.search(str(error)):
        number = int(told[1])
    if number is None and isinstance(error, OSError | RuntimeError):
        number = _refused(temporary)
    return os.strerror(number) if number is not None and number in _FULL else None


def _refused(path: Path) -> int | None:
    """Write a little more to a file, and return the number of the error; None where it goes well."""
    try:
        with path.open("ab") as file:
            file.write(bytes(_ASKED))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno
    return None


def remove_partials(folder: Path, older_than: float = 0.0) -> None:
    """Remove what writers that were killed have left behind in a folder.

    Args:
        folder: where they wrote.
        older_than: seconds since a file was last written to; leave the default only where nobody else writes.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            if _PARTIAL.fullmatch(path.name) and path.is_file():
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime >= older_than:
                        path.unlink()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write bytes, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def display_path(path: str | os.PathLike[str]) -> str:
    """Return a path as it would be typed here: from the current folder, where it lies below it.

    Example:
        >>> display_path(Path.cwd() / "photos")
        'photos'
    """
    try:
        return os.fspath(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.fspath(path)
