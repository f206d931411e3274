"""Files that are either whole or not there: write to a neighbour, then rename."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labelgap.core.errors import InputError

__all__ = ["atomic_path", "write_bytes", "write_json", "write_text"]


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes the place of ``path``, on failure it is removed.

    The temporary name keeps the suffix, so that writers which look at it (``numpy.savez``) behave. Where ``path`` is
    a symbolic link, what it points to is replaced. A process killed in the middle leaves the old file whole, and
    beside it a hidden one with ``.partial`` in its name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder) / "a.txt") as temporary:
        ...         _ = temporary.write_text("whole")
        ...     (Path(folder) / "a.txt").read_text()
        'whole'
    """
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise InputError(f"{path} cannot be written: the folder {target.parent} does not exist.")
    name = f".{target.stem[:40]}-{secrets.token_hex(8)}.partial{target.suffix}"
    temporary = target.with_name(name)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        with temporary.open("r+b") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


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
