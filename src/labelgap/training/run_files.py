"""The files of a run folder: their names, and the readers that take no PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.manifest import check_files
from labelgap.core.stored import read_arrays, read_table, reading
from labelgap.data.identity import COLUMNS, DIGEST_COLUMN, DataIdentity
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.training.config import CONFIG_FILE, INITIAL_WEIGHTS, JOINED
from labelgap.training.history import METRICS_FILE

DATA_FILE: Final = "data.parquet"
LINEAR_FOLDER: Final = "linear"  # the folder of linear-init's first phase, in the folder of the run
PREDICTIONS_FILE: Final = "predictions.parquet"
BEST: Final = "best.safetensors"
LAST: Final = "last.pt"
REVISIONS_FILE: Final = "revisions.parquet"
HANDOFF_FILE: Final = "handoff.safetensors"
SEARCH_FILE: Final = "search.safetensors"
PRIOR_FILE: Final = "prior.safetensors"
TEACHER_FILE: Final = "teacher.safetensors"
TRACE_FILE: Final = "traces.npz"
TRACE_PARTS: Final = "traces.parts"
MAX_FOREIGN_SIZE: Final = 1536
"""Side of the largest images for which a network of somebody else is used unasked: memory grows with its square."""
_PHASE_FILES: Final = (METRICS_FILE, BEST, LAST, REVISIONS_FILE)
RUN_FILES: Final = (
    *(CONFIG_FILE, DATA_FILE, *_PHASE_FILES, INITIAL_WEIGHTS, SEARCH_FILE, PRIOR_FILE, TEACHER_FILE),
    *(PREDICTIONS_FILE, TRACE_FILE),
    *(f"{JOINED}.csv", f"{JOINED}.parquet", f"{JOINED}.provenance.csv"),
    *(f"{LINEAR_FOLDER}/{name}" for name in (*_PHASE_FILES, HANDOFF_FILE)),
)
"""What a training writes, as far as the run has it; the manifest lists these files."""
Types = Mapping[str, type[np.generic]]
FIXED: Final[Types] = {"row": np.int64, "column": np.int64, "observed": np.int8, "truth": np.int8}
PER_EPOCH: Final[Types] = {"loss": np.float32, "logit": np.float32, "modified": np.bool_}
ENTRIES_FILE: Final = "entries.npz"
_TRACE_REMEDY: Final = "Restore it from a copy. Without the file the run can be used as before, but has no trace."
PART_REMEDY: Final = "The run cannot be resumed: train into a new folder."
_DATA_REMEDY: Final = "Restore it from a copy. Without the file the run can be used, but does not know its data again."


def read_data_identity(folder: Path) -> DataIdentity | None:
    """Return what a run was trained on; None for a run without the file."""
    check_files(folder, [DATA_FILE])
    if not (folder / DATA_FILE).exists():
        return None
    table = read_table(folder / DATA_FILE, COLUMNS, optional=DIGEST_COLUMN, remedy=_DATA_REMEDY)
    return DataIdentity.from_table(table)


def read_trace(folder: Path) -> dict[str, NDArray[Any]]:
    """Read the trace of a run, complete or not; empty if none was recorded."""
    if not (parts := trace_parts(folder)):
        check_files(folder, [TRACE_FILE])
        path = folder / TRACE_FILE
        return read_trace_part(path, {**FIXED, **PER_EPOCH}, None, _TRACE_REMEDY) if os.path.lexists(path) else {}
    fixed = read_trace_part(folder / TRACE_PARTS / ENTRIES_FILE, FIXED)
    epochs = [read_trace_part(path, PER_EPOCH, len(fixed["row"])) for path in parts]
    return fixed | {name: np.stack([epoch[name] for epoch in epochs]) for name in PER_EPOCH}


def read_trace_part(
    path: Path, types: Types, entries: int | None = None, remedy: str = PART_REMEDY
) -> dict[str, NDArray[Any]]:
    """Read arrays ``(R,)`` of a part, or ``(E, R)`` of ``traces.npz``, of the types, shapes and values written."""
    size = path.stat().st_size if path.exists() else 0  # arrays are not compressed, so they are not larger
    arrays: dict[str, NDArray[Any]] = read_arrays(path, limit=size, remedy=remedy)
    with reading(path, remedy):
        if arrays.keys() != types.keys():
            raise ValueError("an array is missing, or one too many")
        fixed: tuple[int, ...] = arrays[next(iter(types))].shape if entries is None else (entries,)
        per_epoch = (*arrays["loss"].shape[:1], *fixed) if types.keys() > FIXED.keys() else fixed
        for name, dtype in types.items():
            array = arrays[name]
            if len(fixed) != 1 or array.shape != (fixed if name in FIXED else per_epoch) or array.dtype != dtype:
                raise ValueError(f"{name} has another shape or type")
            labels = dtype is np.int8 and not np.isin(array, (PRESENT, ABSENT, UNKNOWN)).all()
            flags = dtype is np.bool_ and (array.view(np.uint8) > 1).any()
            if labels or flags or (dtype is np.int64 and (array < 0).any()):
                raise ValueError(f"{name} has a value that it cannot have")
    return arrays


def trace_part(folder: Path, epoch: int) -> Path:
    """Return the file of an epoch of an unfinished run."""
    return folder / TRACE_PARTS / f"{epoch:06d}.npz"


def trace_parts(folder: Path) -> list[Path]:
    """Return the files of the epochs, from the first to the one before a gap."""
    if not (folder / TRACE_PARTS / ENTRIES_FILE).exists():
        return []
    paths: list[Path] = []
    while (path := trace_part(folder, len(paths) + 1)).exists():
        paths.append(path)
    return paths
