"""Atomic writes: a file is complete or not there at all (write to a temporary file, then rename)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from labelgap.core.errors import InputError, LabelGapError, RunError

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ATTEMPTS: Final = 10  # to create a folder that other processes create and remove at the same time
_ERROR_NUMBER: Final = re.compile(r"\(os error (\d+)\)")
_MAX_STEM: Final = 40
_PARTIAL: Final = re.compile(r"\..*-[0-9a-f]{16}\.partial(\..*)?|\.tmp[0-9A-Za-z]{6}")
"""Temporary files of ``atomic_path``, and of the writer of safetensors, which earlier versions used."""


class DiskError(RunError, OSError):
    """The disk is full, or the file may not be written. The previous file is intact. Caches catch it."""

    path: Path = Path()  # the file that was to be written
    problem: str = ""  # what is wrong, without the remedy
    full: bool = False  # whether free disk space would help

    @classmethod
    def of(cls, path: str | os.PathLike[str], reason: str, full: bool) -> DiskError:
        """Make the error from the reason that the system gives."""
        reason = reason[:1].lower() + reason[1:]
        problem = f"the disk is full: {path} could not be written ({reason})" if full else f"{path}: {reason}"
        remedy = "Free some space and try again." if full else "Choose a folder that can be written to."
        error = cls(f"{problem}. The previous file is intact. {remedy}")
        error.path, error.problem, error.full = Path(path), problem, full
        return error


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, previous: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes the place of ``path``, on failure it is removed.

    The name keeps the suffix, since some writers (``numpy.savez``) depend on it; links are followed, permissions kept.
    A killed process leaves the old file intact, and a hidden ``.partial`` file. A full disk raises ``DiskError``,
    whatever the writer raised. On return the file survives a loss of power. The old file is renamed to ``previous``
    where that is given.
    """
    target = _target(Path(path))
    temporary = target.with_name(f".{target.stem[:_MAX_STEM]}-{secrets.token_hex(8)}.partial{target.suffix}")
    with _as_disk_error(path):
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
    try:
        yield temporary
        temporary.chmod(mode)  # a writer that replaces the file may have set other permissions
        with temporary.open("r+b") as written:
            os.fsync(written.fileno())
        if previous is not None and target.exists():
            target.replace(previous)
        temporary.replace(target)
        sync_folder(target.parent)
    except LabelGapError:
        raise
    except Exception as error:
        if (reason := _full_disk_reason(error, temporary)) is not None:
            raise DiskError.of(path, reason, full=True) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    try:
        target = path.resolve()
    except RuntimeError:  # of Python up to 3.12
        raise InputError(f"{path} cannot be written: it is a link to itself.") from None
    with _as_disk_error(path):
        if not target.parent.is_dir():
            raise InputError(f"{path} cannot be written: the folder {target.parent} does not exist.")
        if os.path.lexists(target) and not target.is_file():  # a rename would replace a device for everybody
            raise InputError(f"{path} cannot be written: it is a folder, a device or a link to itself, not a file.")
    return target


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk, so that a rename in it survives a loss of power."""
    if os.name == "posix":
        with suppress(OSError):  # some network file systems cannot
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its parents unless they exist; raise a ``RunError`` where that is impossible."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            with _as_disk_error(path):
                return path.mkdir(parents=True, exist_ok=True)
        except DiskError:
            raise
        except OSError as error:
            if left and isinstance(error, FileExistsError | FileNotFoundError):
                continue  # a folder that another process has removed since, or a file
            raise RunError(f"{path} cannot be created ({error.strerror}): choose another folder.") from None


@contextmanager
def _as_disk_error(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is None or error.errno not in DISK_FULL | _DENIED:
            raise
        raise DiskError.of(path, os.strerror(error.errno), error.errno in DISK_FULL) from error


def _full_disk_reason(error: Exception, temporary: Path) -> str | None:
    """Return the system's message where the disk is full, which a write shows where no number of an error does."""
    number = int(match[1]) if (match := _ERROR_NUMBER.search(str(error))) else getattr(error, "errno", None)
    if number is None:
        try:
            with temporary.open("ab") as file:
                file.write(bytes(1 << 16))
                file.flush()
                os.fsync(file.fileno())
        except OSError as failure:
            number = failure.errno
    return os.strerror(number) if number in DISK_FULL else None


def is_partial(name: str) -> bool:
    """Return whether a name is that of a temporary file that a killed writer leaves."""
    return _PARTIAL.fullmatch(name) is not None


def remove_partials(folder: Path, older_than: float = 0.0, name: re.Pattern[str] = _PARTIAL) -> None:
    """Remove what killed writers left in a folder and did not write to for some seconds, 0 where nobody else writes."""
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                if name.fullmatch(path.name) and path.is_file() and time.time() - path.stat().st_mtime >= older_than:
                    path.unlink()


def remove_partials_of(path: Path) -> None:
    """Remove the temporary files that killed writers of one file left; nothing else may write to it now."""
    target = path.resolve()
    if len(target.stem) <= _MAX_STEM:
        name = rf"\.{re.escape(target.stem)}-[0-9a-f]{{16}}\.partial{re.escape(target.suffix)}"
        remove_partials(target.parent, name=re.compile(name))


def remove_file(path: Path) -> None:
    """Remove a file where there is one; ``RunError`` where something else is in its place."""
    with _as_disk_error(path):
        if path.is_dir():
            raise RunError(f"{path} is a folder, where a file belongs: remove it.")
        path.unlink(missing_ok=True)


def file_digest(path: Path) -> bytes:
    """Return a digest of a file's bytes, of 16 bytes; ``OSError`` where it cannot be read."""
    with path.open("rb") as file:
        return stream_digest(file)


def stream_digest(file: IO[bytes]) -> bytes:
    """Return the digest of what is left to read in an open file."""
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()  # type: ignore[arg-type]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write bytes atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def display_path(path: str | os.PathLike[str]) -> str:
    """Return a path for messages: relative to the current folder where it lies below it."""
    try:
        return os.fspath(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.fspath(path)


def file_stem(name: str) -> str:
    """Return the name of data without its folder and suffix, for the names of files that are made of them."""
    return re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "data"
