"""``data.parquet``: the images that a run was trained and measured on, so that the run knows its data again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from labelgap.core.errors import RunError
from labelgap.core.files import atomic_path
from labelgap.core.manifest import check_files
from labelgap.core.stored import read_table
from labelgap.data.identity import COLUMNS, DataChanges, DataIdentity

__all__ = ["DATA_FILE", "check_data", "read_data_identity", "write_data_identity"]

DATA_FILE: Final = "data.parquet"
_REMEDY: Final = "Restore it from a copy. Without the file the run can be used, but does not know its data again."


def write_data_identity(folder: Path, identity: DataIdentity) -> None:
    """Write the split of every image, and digests of its labels and content."""
    with atomic_path(folder / DATA_FILE) as temporary:
        pq.write_table(identity.to_table(), temporary)


def read_data_identity(folder: Path) -> DataIdentity | None:
    """Return what a run was trained on; None for a run without the file."""
    check_files(folder, [DATA_FILE])
    if not (folder / DATA_FILE).exists():
        return None
    return DataIdentity.from_table(read_table(folder / DATA_FILE, COLUMNS, remedy=_REMEDY))


def check_data(
    folder: Path, now: DataIdentity, *, accept_changes: bool, log: Callable[[str], None]
) -> tuple[DataIdentity, DataChanges]:
    """Return the identity to keep, and how data have changed; refuse to resume on others, unless that is accepted.

    Args:
        folder: of the run.
        now: of the data that it would be resumed on.
        accept_changes: log the changes instead.
        log: is called with them.

    Raises:
        RunError: the data are not those that the run was started on.
    """
    before = read_data_identity(folder)
    if before is None:
        log(f"{folder} has no {DATA_FILE}: whether the data have changed since is not known")
        return now, DataChanges()
    changes = before.changes(now)
    if not changes:
        return before, changes
    if not accept_changes:
        raise RunError(
            f"{folder} was started on other data: {changes}. Restore the data, train into a new folder, or resume on "
            "the data as they are now with --accept-changes (accept_changes=True in Python)."
        )
    log(f"resuming on other data: {changes}; single labels are not traced any more")
    return now.after(before), changes
