"""``manifest.json``: size and SHA-256 of every file of a finished folder, so that damage is found when it is opened.

Whoever adds or replaces a file of a finished folder does it in a block of ``replacing``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Final, Literal

from pydantic import BaseModel, Field, StringConstraints

from labelgap.core.errors import RunError
from labelgap.core.files import remove_partials_of, sync_folder, write_json
from labelgap.core.lock import lock_folder
from labelgap.core.stored import open_ordinary, read_json, reading, size_limit
from labelgap.core.trust import refuse_links

MANIFEST_FILE: Final = "manifest.json"
FORMAT: Final = 1
LOCK_FILE: Final = ".manifest.lock"
REPLACEMENT: Final = ".replacement"
"""The folder of files that are about to take the place of others, see ``replace_together``."""
_WAIT: Final = 60.0

State = Literal["intact", "changed", "missing", "refused"]
"""What became of a file since the folder was finished; one that is refused is too large, or cannot be read."""


class _Entry(BaseModel, extra="forbid", frozen=True):
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _Manifest(BaseModel, extra="forbid", frozen=True):
    format: Literal[1] = FORMAT
    files: dict[Annotated[str, StringConstraints(min_length=1, max_length=1000)], _Entry]


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Write the manifest of a folder that is finished now; names of files that do not exist are left out."""
    with lock_folder(folder, "writing the manifest", wait=_WAIT, name=LOCK_FILE):
        _write(folder, _entries(folder, names))


@contextmanager
def replacing(folder: Path, names: Iterable[str]) -> Iterator[None]:
    """Write, replace or remove files of a finished folder in this block, in which the manifest does not list them."""
    names = list(names)
    _update(folder, names, [])
    yield
    _update(folder, names, names)


def _update(folder: Path, removed: Collection[str], added: Collection[str]) -> None:
    if (folder / MANIFEST_FILE).exists():
        with lock_folder(folder, "writing the manifest", wait=_WAIT, name=LOCK_FILE):
            entries = _read(folder)
            updated = {name: entry for name, entry in entries.items() if name not in removed} | _entries(folder, added)
            if updated != entries:
                _write(folder, updated)


def replace_together(folder: Path, new: Path) -> None:
    """Let the finished folder ``new``, inside of a finished folder, take the place of all files that are in manifests.

    Killed at any moment, all are replaced or none: after the rename, whoever opens the folder next finishes the rest.
    """
    new.rename(folder / REPLACEMENT)
    sync_folder(folder)
    finish_replacement(folder)


def finish_replacement(folder: Path) -> None:
    """Finish what ``replace_together`` has begun, if it was killed."""
    new = folder / REPLACEMENT
    if not new.is_dir() or new.is_symlink():
        return
    refuse_links(folder)  # somebody else may have made it
    with lock_folder(folder, "replacing files", wait=_WAIT, name=LOCK_FILE):
        if (new / MANIFEST_FILE).exists():  # it comes last
            if (folder / MANIFEST_FILE).exists():
                for name in _read(folder).keys() - _read(new).keys():
                    (folder / name).unlink(missing_ok=True)
            files = sorted(
                (path for path in new.rglob("*") if path.is_file()), key=lambda path: path.name == MANIFEST_FILE
            )
            for path in files:
                (folder / path.relative_to(new)).parent.mkdir(exist_ok=True)
                path.replace(folder / path.relative_to(new))
            sync_folder(folder)
        shutil.rmtree(new, ignore_errors=True)


def check_files(folder: Path, names: Iterable[str]) -> None:
    """Compare files with the manifest; a file that it does not list, or a folder without one, passes."""
    for name in names:
        if _differs(folder, name) and _differs(folder, name):  # once: it was replaced while it was compared
            raise RunError(
                f"{folder / name} is not as it was written: its digest differs from {MANIFEST_FILE}. Restore it from a "
                f"copy, or train again. If you changed it on purpose: labelgap verify {folder} --accept."
            )


def _differs(folder: Path, name: str) -> bool:
    try:
        return _state(folder, name, _read(folder)) != "intact"
    except RunError:
        if (folder / MANIFEST_FILE).exists():
            raise
        return False  # whoever continues what is in the folder removes the manifest, maybe just now


def verify_folder(folder: Path) -> dict[str, State]:
    """Compare every file that the manifest of a folder lists with it, in the order of their names."""
    if not (folder / MANIFEST_FILE).exists():
        raise RunError(f"{folder} has no {MANIFEST_FILE}: it is not finished, or was made by an older version.")
    entries = _read(folder)
    states: dict[str, State] = {}
    for name in sorted(entries):
        try:
            states[name] = _state(folder, name, entries)
        except RunError:
            states[name] = "refused"
    return states


def _state(folder: Path, name: str, entries: dict[str, _Entry]) -> State:
    """Compare a file with its entry, first their sizes; a file without one is intact."""
    if name not in entries:
        return "intact"
    path, entry = folder / name, entries[name]
    if not path.is_file():
        return "missing"
    with reading(path), open_ordinary(path, size_limit(path)) as file:
        same = os.fstat(file.fileno()).st_size == entry.bytes and _digest(file) == entry.sha256
    return "intact" if same else "changed"


def _digest(file: IO[bytes]) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _entries(folder: Path, names: Iterable[str]) -> dict[str, _Entry]:
    entries = {}
    for name in names:
        if (path := folder / name).is_file():
            with reading(path), path.open("rb") as file:
                entries[name] = _Entry(bytes=os.fstat(file.fileno()).st_size, sha256=_digest(file))
    return entries


def _write(folder: Path, entries: dict[str, _Entry]) -> None:
    remove_partials_of(folder / MANIFEST_FILE)
    write_json(folder / MANIFEST_FILE, _Manifest(files=dict(sorted(entries.items()))).model_dump(mode="json"))


def _read(folder: Path) -> dict[str, _Entry]:
    path = folder / MANIFEST_FILE
    remedy = f"`labelgap verify {folder} --accept` writes it again from the files as they are now."
    files = read_json(path, _Manifest, format=FORMAT, remedy=remedy).files
    for name in files:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name:
            raise RunError(f"{path} lists {name!r}, which is not a file of this folder.")
    return files
