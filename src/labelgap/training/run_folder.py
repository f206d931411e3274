"""The folder of a run while it is written: what it holds before, its lock, links that leave it, and the manifest."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from labelgap.core.errors import RunError, suggest_path
from labelgap.core.files import remove_file, remove_partials
from labelgap.core.lock import lock_folder
from labelgap.core.manifest import LOCK_FILE as MANIFEST_LOCK
from labelgap.core.manifest import MANIFEST_FILE, write_manifest
from labelgap.core.trust import refuse_links
from labelgap.training.checkpoint import BEST, LAST, remove_previous
from labelgap.training.config import CONFIG_FILE, INITIAL_WEIGHTS, RunConfig, read_config
from labelgap.training.data_file import DATA_FILE
from labelgap.training.history import METRICS_FILE
from labelgap.training.loop.linear_trainer import HANDOFF_FILE
from labelgap.training.loop.trace import TRACE_FILE, remove_trace_parts
from labelgap.training.loop.trainer import REVISIONS_FILE
from labelgap.training.predictions import PREDICTIONS_FILE
from labelgap.training.protocols import LINEAR_FOLDER
from labelgap.training.search import SEARCH_FILE

_PHASE_FILES: Final = (METRICS_FILE, BEST, LAST, REVISIONS_FILE)
RUN_FILES: Final = (
    *(CONFIG_FILE, DATA_FILE, *_PHASE_FILES, INITIAL_WEIGHTS, SEARCH_FILE, PREDICTIONS_FILE, TRACE_FILE),
    *(f"{LINEAR_FOLDER}/{name}" for name in (*_PHASE_FILES, HANDOFF_FILE)),
)
"""What a training writes, as far as the run has it; the manifest lists these files."""
_TRAINED_FILES: Final = tuple(name for name in RUN_FILES if name not in (CONFIG_FILE, DATA_FILE, INITIAL_WEIGHTS))
_STRAY_AGE: Final = 60.0
"""Seconds after which a temporary file is not in use any more: a report may be written without the lock."""


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder holds a run; an error if it cannot be read."""
    try:
        return (folder / CONFIG_FILE).exists()
    except OSError as error:
        raise RunError(f"{folder} cannot be read ({error.strerror}): choose another --out.") from None


def check_folder(folder: Path, resume: bool) -> None:
    """Raise an error where a folder holds a run and none is to be resumed, or the reverse.

    A run that failed before it had trained anything, by a broken image for instance, is in nobody's way.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    exists = is_run_folder(folder)
    if exists and not resume and any((folder / name).exists() for name in _TRAINED_FILES):
        raise RunError(
            f"{folder} holds a run already: continue it with --resume (resume=True in Python), or choose another --out."
        )
    if resume and not exists:
        raise RunError(f"{folder} holds no run to resume.{suggest_path(folder)}")


def prepare_folder(folder: Path, config: RunConfig, resume: bool, started: RunConfig | None = None) -> None:
    """Make the folder of a run, or check that the run in it has the same configuration.

    ``started`` is the configuration before a cross-validation: the folder has it where the run was killed before it
    stored the chosen settings there.
    """
    check_folder(folder, resume)
    free = {"why": config.why, "checkpoint_minutes": config.checkpoint_minutes}
    if resume and (stored := read_config(folder).model_copy(update=free)) not in (config, started):
        different = [name for name in type(config).model_fields if getattr(stored, name) != getattr(config, name)]
        raise RunError(
            f"{folder} was started with another {different[0]} ({getattr(stored, different[0])!r}, now "
            f"{getattr(config, different[0])!r}): resume it with the same settings, or choose another --out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made ({error.strerror}): choose another --out.") from None
    if not os.access(folder, os.W_OK):
        raise RunError(f"{folder} is not writable: choose another --out.")


def check_links(folder: Path) -> None:
    """Refuse a folder with symbolic links that lead out of it.

    Raises:
        RunError: to read or to replace a file of the run would be to read or replace one elsewhere.
    """
    if (folder / CONFIG_FILE).exists():
        refuse_links(folder)
    elif links := [name for name in RUN_FILES if (folder / name).is_symlink()]:
        raise RunError(f"{folder} holds the link {links[0]}, which a run would replace: choose another folder.")


def finish_folder(folder: Path, *, interrupted: bool) -> None:
    """Remove what only a resumed run needs, unless this one was interrupted, and write the manifest."""
    if not interrupted:
        remove_previous(folder)
        remove_trace_parts(folder)
        remove_file(folder / LINEAR_FOLDER / HANDOFF_FILE)
    write_manifest(folder, RUN_FILES)


def reopen_folder(folder: Path) -> None:
    """Prepare the folder of an interrupted run for more epochs: its manifest is not valid any more."""
    remove_file(folder / MANIFEST_FILE)


def sweep_run(folder: Path, *, interrupted: bool) -> None:
    """Remove what a killed process left in the folder of a finished run, and write a missing manifest.

    Whoever writes to a finished run calls it first. Nothing happens while another process holds the lock.

    Args:
        folder: of the run.
        interrupted: whether the run can be resumed: it keeps the files for that.
    """
    with suppress(RunError), lock_folder(folder, "removing temporary files"):
        clean_folder(folder, interrupted=interrupted)


def clean_folder(folder: Path, *, interrupted: bool, older_than: float = _STRAY_AGE) -> None:
    """Do the work of ``sweep_run`` in a process that holds the lock."""
    for part in (folder, folder / LINEAR_FOLDER):
        remove_partials(part, older_than)
    if (folder / MANIFEST_LOCK).exists():
        with suppress(RunError), lock_folder(folder, "removing temporary files", name=MANIFEST_LOCK):
            pass  # it is removed where nobody holds it
    if not (folder / MANIFEST_FILE).exists():
        finish_folder(folder, interrupted=interrupted)
