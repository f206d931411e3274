"""The trace of single training entries: loss, logit and modified flag per epoch.

The loss is that of the observed label with unknown as absent, for every method, so that methods can be compared (Kim
2022, figure 1). During training every epoch is a file in ``traces.parts``; the end of a run merges them.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path, make_folder
from labelgap.core.seeds import numpy_generator
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.training.run_files import (
    ENTRIES_FILE,
    FIXED,
    PART_REMEDY,
    PER_EPOCH,
    TRACE_FILE,
    TRACE_PARTS,
    read_trace_part,
    trace_part,
    trace_parts,
)

AUTO_LIMIT: Final = 2_000_000
MAX_RECORDED: Final = 2**22
"""Entries of batches that stay on their device until they are copied together."""
Amount = int | Literal["all", "off"]


def parse_trace(amount: str | int, entries: int) -> Amount:
    """Resolve "auto", "all", "off" or a number for a table of so many entries."""
    if amount == "auto":
        return "all" if entries <= AUTO_LIMIT else AUTO_LIMIT // 10
    if amount in ("all", "off"):
        return amount  # type: ignore[return-value]
    number = int(amount) if str(amount).isdecimal() else 0
    if number < 1:
        raise InputError(f"trace={amount!r}: it must be all, off, or how many training labels to record.")
    return number if number < entries else "all"


class Trace:
    """Records entries of the training table.

    ``amount`` is "all", "off" or how many entries. A sample has equal shares of all pairs of observed and true state,
    as far as twenty times as many random entries contain them: false negatives are rare, and of interest.
    """

    def __init__(self, table: LabelTable, truth: LabelTable | None, amount: Amount, seed: int) -> None:
        self.classes = len(table.classes)
        self.entries = _choose(table, truth, amount, seed)
        self.rows, self.columns = np.divmod(self.entries, self.classes)
        self.observed = table.codes_at(self.rows, self.columns)
        unknown = np.full_like(self.observed, UNKNOWN)
        self.truth = unknown if truth is None else truth.codes_at(self.rows, self.columns)
        self._fixed = dict(zip(FIXED, (self.rows, self.columns, self.observed, self.truth), strict=True))
        self._by_row = np.searchsorted(self.rows, np.arange(len(table) + 1)) if len(self.entries) else None
        self._epoch: dict[str, NDArray[np.generic]] = {}
        self._recorded: list[tuple[Tensor, ...]] = []
        self._written = 0

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._by_row is not None

    def start_epoch(self, recorded: Mapping[str, Tensor] | None = None) -> None:
        """Start an epoch, or continue one with what was recorded; entries that it never visits stay NaN."""
        self._recorded.clear()
        blank = np.full(len(self.entries), np.nan, dtype=np.float32)
        self._epoch = {"loss": blank, "logit": blank.copy(), "modified": np.zeros(len(blank), dtype=bool)}
        for name, values in (recorded or {}).items() if self.active else ():
            self._epoch[name][:] = values.cpu().numpy()

    def recorded(self) -> dict[str, Tensor]:
        """Return what was recorded of the epoch so far; a device is waited for."""
        self._collect()
        return {name: torch.from_numpy(values) for name, values in self._epoch.items()} if self.active else {}

    def record(self, index: Tensor, logits: Tensor, labels: Tensor, modified: Tensor) -> None:
        """Record a batch as it was before its optimizer step; the entries of many batches are taken at once."""
        if self._by_row is None:
            return
        batch = (index, logits.detach().float(), labels, modified)
        self._recorded.append(tuple(values.clone() for values in batch))  # a CUDA graph writes to the same place again
        if len(self._recorded) * logits.numel() > MAX_RECORDED:
            self._collect()

    def _collect(self) -> None:
        """Take the entries of the batches so far; a GPU is waited for."""
        if self._recorded:
            self._store(*(torch.cat(parts).cpu() for parts in zip(*self._recorded, strict=True)))
            self._recorded.clear()

    def _store(self, index: Tensor, *batch: Tensor) -> None:
        """Take the logits, labels and flags of the entries: of millions of labels, a few may be recorded."""
        assert self._by_row is not None
        first, last = self._by_row[index.numpy()], self._by_row[index.numpy() + 1]
        lengths = last - first
        entries = np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        within = (np.repeat(np.arange(len(index)), lengths), self.columns[entries])
        logits, labels, modified = (values[within] for values in batch)
        loss = -logsigmoid(torch.where(labels == PRESENT, logits, -logits))
        for name, found in zip(PER_EPOCH, (loss, logits, modified), strict=True):
            self._epoch[name][entries] = found.numpy()

    def write(self, folder: Path) -> None:
        """Write the file of the last recorded epoch."""
        if not self.active or not self._epoch:
            return
        self._collect()
        make_folder(folder / TRACE_PARTS)
        if not (folder / TRACE_PARTS / ENTRIES_FILE).exists():
            _write(folder / TRACE_PARTS / ENTRIES_FILE, self._fixed)
        _write(trace_part(folder, self._written + 1), self._epoch)
        self._written += 1

    def restore(self, folder: Path, epochs: int) -> None:
        """Continue after the first epochs of a stopped run; delete the files of later ones."""
        if not self.active:
            return
        self._written = epochs
        if not is_main_process():
            return
        parts = trace_parts(folder)
        for path in parts[epochs:]:
            path.unlink()
        if parts:
            stored = read_trace_part(path := folder / TRACE_PARTS / ENTRIES_FILE, FIXED, len(self.entries))
            if not all(np.array_equal(stored[name], own) for name, own in self._fixed.items()):
                raise RunError(f"{path} has other entries than this run. {PART_REMEDY}")
        for path in parts[:epochs]:
            read_trace_part(path, PER_EPOCH, len(self.entries))
        if len(parts) < epochs:
            raise RunError(f"{folder} cannot be resumed: a file of {TRACE_PARTS} is missing. Train into a new folder.")


def merge_trace(folder: Path) -> None:
    """Merge the parts into ``traces.npz``; one epoch is in memory at a time.

    The file holds row, column, observed, truth ``(R,)`` and loss, logit, modified ``(E, R)``.
    """
    parts = trace_parts(folder)
    if not parts:
        return
    entries = read_trace_part(folder / TRACE_PARTS / ENTRIES_FILE, FIXED)
    shape = (len(parts), *entries["row"].shape)
    with atomic_path(folder / TRACE_FILE) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name in FIXED:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, entries[name])
        for name, dtype in PER_EPOCH.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
                np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
                for path in parts:
                    file.write(read_trace_part(path, PER_EPOCH, shape[1])[name].data)


def remove_trace_parts(folder: Path) -> None:
    """Remove the parts of a complete run."""
    (folder / TRACE_PARTS / ENTRIES_FILE).unlink(missing_ok=True)  # first: without it the parts do not count
    shutil.rmtree(folder / TRACE_PARTS, ignore_errors=True)


def _write(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    with atomic_path(path) as temporary:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]


def _choose(table: LabelTable, truth: LabelTable | None, amount: Amount, seed: int) -> NDArray[np.int64]:
    """Return the sorted flat indices (row · K + column) of the entries to record."""
    total = len(table) * len(table.classes)
    if amount == "off":
        return np.zeros(0, dtype=np.int64)
    if amount == "all":
        return np.arange(total, dtype=np.int64)
    random = numpy_generator(seed, "trace")
    pool = np.sort(random.choice(total, size=min(total, 20 * amount), replace=False))
    rows, columns = np.divmod(pool, len(table.classes))
    kind = table.codes_at(rows, columns).astype(np.int64) * 8
    if truth is not None:
        kind += truth.codes_at(rows, columns)
    kinds, member = np.unique(kind, return_inverse=True)
    share = -(-amount // len(kinds))
    picked = np.concatenate([random.permutation(pool[member == number])[:share] for number in range(len(kinds))])
    if len(picked) < amount:
        rest = np.setdiff1d(pool, picked)
        picked = np.concatenate([picked, random.permutation(rest)[: amount - len(picked)]])
    return np.sort(random.permutation(picked)[:amount])
