"""The folder of a run while it is written: its lock and links, its data, its results, and the manifest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.errors import RunError, suggest_path
from labelgap.core.files import atomic_path, remove_file, remove_partials
from labelgap.core.lock import lock_folder
from labelgap.core.manifest import LOCK_FILE as MANIFEST_LOCK
from labelgap.core.manifest import MANIFEST_FILE, check_files, write_manifest
from labelgap.core.special import expit
from labelgap.core.stored import damaged, read_table
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataChanges, DataIdentity
from labelgap.data.images import ArrayImages, StoredImages
from labelgap.training.checkpoint import remove_previous
from labelgap.training.config import CONFIG_FILE, INITIAL_WEIGHTS, JOINED, RunConfig
from labelgap.training.features import content_keys, open_digests
from labelgap.training.loop.trace import remove_trace_parts
from labelgap.training.progress import Reporter
from labelgap.training.run_files import (
    DATA_FILE,
    HANDOFF_FILE,
    LINEAR_FOLDER,
    PREDICTIONS_FILE,
    RUN_FILES,
    read_data_identity,
)

_TRAINED_FILES: Final = tuple(
    name for name in RUN_FILES if name not in (CONFIG_FILE, DATA_FILE, INITIAL_WEIGHTS) and not name.startswith(JOINED)
)
_STRAY_AGE: Final = 60.0
"""Seconds after which a temporary file is not in use any more: reports are written without the lock."""
MAX_HASHED: Final = 200_000
"""Files of a split that are read for their digests; of more only those whose digests are in the cache are known."""
_SCORES_AT_ONCE: Final = 1 << 24
"""Scores that are in memory at once, besides the logits: a row group of ``predictions.parquet``."""
_PREDICTIONS_REMEDY: Final = "Restore it from a copy, or write it again with `labelgap predict`."


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder holds a run; an error if it cannot be read."""
    try:
        return (folder / CONFIG_FILE).exists()
    except OSError as error:
        raise RunError(f"{folder} cannot be read ({error.strerror}): choose another --out.") from None


def default_folder(*, resume: bool = False) -> Path:
    """Return the first of runs/latest, runs/latest-2, … that holds no run; to resume, the last one that does."""
    folders = (Path("runs/latest" if number == 1 else f"runs/latest-{number}") for number in count(1))
    taken = list(takewhile(is_run_folder, folders))
    return taken[-1] if resume and taken else Path(f"runs/latest-{len(taken) + 1}" if taken else "runs/latest")


def check_folder(folder: Path, resume: bool) -> None:
    """Raise an error where a folder holds a run, beyond a failed start, and none is to be resumed, or the reverse."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    exists = is_run_folder(folder)
    if exists and not resume and any((folder / name).exists() for name in _TRAINED_FILES):
        raise RunError(
            f"{folder} holds a run already: continue it with --resume (resume=True in Python), or choose another --out."
        )
    if resume and not exists:
        raise RunError(f"{folder} holds no run to resume.{suggest_path(folder)}")


def check_config(folder: Path, stored: RunConfig, *configs: RunConfig) -> None:
    """Check that the run in a folder has one of these configurations: with the settings of its search, or before it."""
    free = {"why": configs[0].why, "checkpoint_minutes": configs[0].checkpoint_minutes}
    if (stored := stored.model_copy(update=free)) not in configs:
        changed = next(name for name in RunConfig.model_fields if getattr(stored, name) != getattr(configs[0], name))
        raise RunError(
            f"{folder} was started with another {changed} ({getattr(stored, changed)!r}, now "
            f"{getattr(configs[0], changed)!r}): resume it with the same settings, or choose another --out."
        )


def check_links(folder: Path) -> None:
    """Refuse a folder with symbolic links that lead out of it: a file elsewhere would be read or replaced."""
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


def sweep_run(folder: Path, *, interrupted: bool) -> None:
    """Remove what a killed process left in the folder of a finished run, and write a missing manifest.

    Whoever writes to a finished run calls it first. A run that was ``interrupted`` keeps the files to resume from.
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


def write_data_identity(
    folder: Path, identity: DataIdentity, data: Dataset | None = None, reporter: Reporter | None = None
) -> None:
    """Write ``data.parquet``: the split of every image, and digests of its labels and content, which are read."""
    if data is not None:
        identity = _add_digests(identity, data, np.ones(len(identity.images), dtype=bool), reporter)
    with atomic_path(folder / DATA_FILE) as temporary:
        pq.write_table(identity.to_table(), temporary)


def find_training_images(
    folder: Path, data: Dataset, split: str = "all", reporter: Reporter | None = None
) -> list[str | None] | None:
    """Return the name under which the run was trained on each image of a split; None if it was not.

    Images are compared by content where the run knows digests, and only those of a known size are read; else by name
    and size. The result is None where the run does not know its data.
    """
    trained = read_data_identity(folder)
    if trained is None:
        return None
    now = DataIdentity.of(data)
    chosen = np.array([split in ("all", name) for name in now.splits], dtype=bool)
    if any(trained.digests):
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


def add_known_digests(
    now: DataIdentity, data: Dataset, before: DataIdentity, reporter: Reporter | None = None
) -> DataIdentity:
    """Return the identity of data with digests in the splits where an earlier one has them."""
    hashed = {split for split, digest in zip(before.splits, before.digests, strict=True) if digest is not None}
    return _add_digests(now, data, np.array([split in hashed for split in now.splits], dtype=bool), reporter)


def check_data(
    folder: Path, data: Dataset, now: DataIdentity, *, accept_changes: bool, reporter: Reporter
) -> tuple[DataIdentity, DataChanges]:
    """Return the identity to keep, and how data have changed; refuse to resume on others, unless that is accepted."""
    before = read_data_identity(folder)
    if before is None:
        reporter.log(f"{folder} has no {DATA_FILE}: whether the data have changed since is not known")
        return now, DataChanges()
    now = add_known_digests(now, data, before, reporter)
    changes = before.changes(now)
    if not changes:
        return before, changes
    if not accept_changes:
        raise RunError(
            f"{folder} was started on other data: {changes}. Restore the data, train into a new folder, or resume on "
            "the data as they are now with --accept-changes (accept_changes=True in Python)."
        )
    reporter.log(f"resuming on other data: {changes}; single labels are not traced any more")
    return now.after(before), changes


def write_predictions(
    folder: Path, scores: Mapping[str, tuple[Sequence[str], NDArray[np.float32]]], classes: Sequence[str]
) -> None:
    """Write ``predictions.parquet``: image, split, and a column ``score.CLASS`` of probabilities per class."""
    if not scores:
        return
    schema, step = pa.schema(_prediction_types(classes)), max(1, _SCORES_AT_ONCE // max(len(classes), 1))
    with (
        atomic_path(folder / PREDICTIONS_FILE) as temporary,
        pq.ParquetWriter(temporary, schema, write_page_checksum=True) as writer,
    ):
        for split, (images, logits) in scores.items():
            for first in range(0, max(len(images), 1), step):
                probability = np.asfortranarray(expit(logits[first : first + step]))
                columns = [list(images[first : first + step]), [split] * len(probability), *probability.T]
                writer.write_table(pa.table(columns, schema))


def _prediction_types(classes: Sequence[str]) -> dict[str, pa.DataType]:
    return {"image": pa.string(), "split": pa.string(), **{f"score.{name}": pa.float32() for name in classes}}


def read_predictions(
    folder: Path, split: str, images: Sequence[str], classes: Sequence[str]
) -> NDArray[np.float32] | None:
    """Read the scores of images of a split, ``(R, K)``, in their order; None where the file lacks one of them."""
    path = folder / PREDICTIONS_FILE
    check_files(folder, [PREDICTIONS_FILE])
    if not os.path.lexists(path):
        return None
    names, types = pa.array(list(images), pa.string()), _prediction_types(classes)
    selected = (pc.field("split") == split) & pc.field("image").isin(names)
    table = read_table(path, types, where=selected, remedy=_PREDICTIONS_REMEDY)
    place = pc.index_in(names, table["image"].combine_chunks())
    if place.null_count:
        return None
    ordered = table.take(place)
    found = np.stack([ordered[f"score.{name}"].to_numpy() for name in classes], axis=1)
    if not ((found >= 0) & (found <= 1)).all():
        raise damaged(path, "a score is not between 0 and 1", _PREDICTIONS_REMEDY)
    return found
