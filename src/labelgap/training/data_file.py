"""``data.parquet``: the images that a run was trained and measured on, so that the run knows its data again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.errors import RunError
from labelgap.core.files import atomic_path
from labelgap.core.manifest import check_files
from labelgap.core.stored import read_table
from labelgap.data.dataset import Dataset
from labelgap.data.identity import COLUMNS, DIGEST_COLUMN, DataChanges, DataIdentity
from labelgap.data.images import ArrayImages, StoredImages
from labelgap.training.features import content_keys, open_digests
from labelgap.training.progress import Reporter

DATA_FILE: Final = "data.parquet"
MAX_HASHED: Final = 200_000
"""Files of a split that are read for their digests; of more only those whose digests are in the cache are known."""
_REMEDY: Final = "Restore it from a copy. Without the file the run can be used, but does not know its data again."


def write_data_identity(
    folder: Path, identity: DataIdentity, data: Dataset | None = None, reporter: Reporter | None = None
) -> None:
    """Write the split of every image, and digests of its labels and content.

    Args:
        folder: of the run.
        identity: of the data.
        data: to read the images of train for their digests, by which they are recognized under other names.
        reporter: shows how many files are read.
    """
    if data is not None:
        identity = _add_digests(identity, data, np.array(identity.splits) == "train", reporter)
    with atomic_path(folder / DATA_FILE) as temporary:
        pq.write_table(identity.to_table(), temporary)


def read_data_identity(folder: Path) -> DataIdentity | None:
    """Return what a run was trained on; None for a run without the file."""
    check_files(folder, [DATA_FILE])
    if not (folder / DATA_FILE).exists():
        return None
    return DataIdentity.from_table(read_table(folder / DATA_FILE, COLUMNS, optional=DIGEST_COLUMN, remedy=_REMEDY))


def find_training_images(
    folder: Path, data: Dataset, split: str = "all", reporter: Reporter | None = None
) -> list[str | None] | None:
    """Return for every image of a split the name under which the run was trained on it; None if it was not.

    Images are compared by content where the run knows the digests of its images; only those of the size of a training
    image are read, and none whose digest is in the cache. Elsewhere they are compared by name and size, and vectors by
    name and numbers.

    Args:
        folder: of the run.
        data: that the run is used on.
        split: of them, or "all".
        reporter: shows how many files are read.

    Returns:
        None where the run does not know its data.
    """
    trained = read_data_identity(folder)
    if trained is None:
        return None
    now = DataIdentity.of(data)
    chosen = np.array([split in ("all", name) for name in now.splits], dtype=bool)
    if trained.digests:
        likely = np.isin(now.content, trained.content[trained.trained_rows()])
        now = _add_digests(now, data, chosen & likely, reporter)
    found = trained.find_trained(now)
    return [found[row] for row in np.flatnonzero(chosen).tolist()]


def _add_digests(
    identity: DataIdentity, data: Dataset, wanted: NDArray[np.bool_], reporter: Reporter | None
) -> DataIdentity:
    """Return the identity of data with the digests of the wanted images that can be read."""
    cache, start, digests = open_digests(), 0, dict[int, bytes]()
    for split in data.splits:
        rows = np.flatnonzero(wanted[start : start + len(split)])
        if len(rows) and isinstance(split.images, StoredImages | ArrayImages):
            found = content_keys(split.images.select(rows), cache, reporter, hash_files=len(rows) <= MAX_HASHED)
            known = zip((rows + start).tolist(), found.keys, found.known.tolist(), strict=True)
            digests |= {row: key.tobytes() for row, key, readable in known if readable}
        start += len(split)
    return identity.with_digests(digests)


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
