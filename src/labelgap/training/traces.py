"""What happened to single training labels, epoch by epoch: loss, logit, and whether the method changed them.

The loss recorded is that of the observed label, with unknown taken as absent, for every method alike, so that pictures
of different methods can be compared (Kim 2022, figure 1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path
from labelgap.core.seeds import generator
from labelgap.labels import LabelTable
from labelgap.labels.codes import UNKNOWN
from labelgap.objectives.cole2021 import assume_negative

__all__ = ["AUTOMATIC_LIMIT", "Trace", "parse_trace", "read_trace"]

AUTOMATIC_LIMIT = 2_000_000
BLOCK = 1 << 24
"""How many entries of a table are laid out at once."""
FILE = "traces.npz"


def parse_trace(asked: str | int, entries: int) -> int | Literal["all", "off"]:
    """Turn "auto", "all", "off" or a number into what is recorded of so many entries."""
    if asked == "auto":
        return "all" if entries <= AUTOMATIC_LIMIT else AUTOMATIC_LIMIT // 10
    if asked in ("all", "off"):
        return asked  # type: ignore[return-value]
    try:
        number = int(asked)
    except ValueError:
        number = 0
    if number < 1:
        raise InputError(f"trace={asked!r}: it is all, off, or how many training labels to record.")
    return number if number < entries else "all"


class Trace:
    """Records chosen entries of the training table.

    Args:
        table: the observed labels.
        truth: the full labels where known; they are kept in the file for the pictures.
        amount: "all", "off" or how many entries. A sample takes equal shares of all kinds of labels, as far as there
            are so many among twenty times as many random entries (a false negative is rare, and what one wants to see).
        seed: of the sample.
    """

    def __init__(
        self, table: LabelTable, truth: LabelTable | None, amount: int | Literal["all", "off"], seed: int
    ) -> None:
        self.classes = len(table.classes)
        self.entries = _choose(table, truth, amount, seed)
        self.rows, self.columns = np.divmod(self.entries, self.classes)
        self.observed = _codes(table, self.rows, self.columns)
        self.truth = (
            _codes(truth, self.rows, self.columns) if truth is not None else np.full_like(self.observed, UNKNOWN)
        )
        self._by_row = np.searchsorted(self.rows, np.arange(len(table) + 1)) if len(self.entries) else None
        self._epochs: list[dict[str, NDArray[np.generic]]] = []

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._by_row is not None

    def start_epoch(self) -> None:
        """Make room for an epoch; entries that it never visits stay NaN."""
        blank = np.full(len(self.entries), np.nan, dtype=np.float32)
        self._epochs.append({"loss": blank, "logit": blank.copy(), "modified": np.zeros(len(blank), dtype=bool)})

    @torch.no_grad()
    def record(self, index: Tensor, logits: Tensor, labels: Tensor, modified: Tensor) -> None:
        """Keep what a batch showed, before the step it led to."""
        if self._by_row is None:
            return
        rows = index.cpu().numpy()
        first, last = self._by_row[rows], self._by_row[rows + 1]
        lengths = last - first
        place = np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        within = np.repeat(np.arange(len(rows)), lengths), self.columns[place]
        epoch = self._epochs[-1]
        epoch["loss"][place] = assume_negative(logits, labels).float().cpu().numpy()[within]
        epoch["logit"][place] = logits.float().cpu().numpy()[within]
        epoch["modified"][place] = modified.cpu().numpy()[within]

    def write(self, folder: Path) -> None:
        """Write ``traces.npz``: row, column, observed, truth of R entries; loss, logit, modified of E × R."""
        if not self.active or not self._epochs:
            return
        fixed = {"row": self.rows, "column": self.columns, "observed": self.observed, "truth": self.truth}
        stacked = {name: np.stack([epoch[name] for epoch in self._epochs]) for name in ("loss", "logit", "modified")}
        arrays: dict[str, Any] = {**fixed, **stacked}
        with atomic_path(folder / FILE) as temporary:
            np.savez(temporary, **arrays)

    def restore(self, folder: Path, epochs: int) -> None:
        """Take up the first epochs that a run had written before it was stopped."""
        if self._by_row is None or epochs == 0:
            return
        stored = read_trace(folder)
        if len(stored.get("loss", ())) < epochs:
            raise RunError(f"{folder} cannot be resumed: {FILE} is gone or too short. Train into a new folder.")
        names = ("loss", "logit", "modified")
        self._epochs = [{name: stored[name][epoch] for name in names} for epoch in range(epochs)]


def read_trace(folder: Path) -> dict[str, NDArray[np.generic]]:
    """Read ``traces.npz`` of a run; empty when the run recorded none."""
    path = folder / FILE
    if not path.exists():
        return {}
    with np.load(path) as stored:
        return dict(stored)


def _codes(table: LabelTable, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the codes of single entries, a block of rows at a time."""
    codes = np.empty(len(rows), dtype=np.int8)
    step = max(1, BLOCK // max(len(table.classes), 1))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        wanted, place = np.unique(rows[part], return_inverse=True)
        codes[part] = table.batch(wanted).numpy()[place, columns[part]]
    return codes


def _choose(
    table: LabelTable, truth: LabelTable | None, amount: int | Literal["all", "off"], seed: int
) -> NDArray[np.int64]:
    """Return the sorted flat numbers (row · K + column) of the entries to record."""
    total = len(table) * len(table.classes)
    if amount == "off":
        return np.zeros(0, dtype=np.int64)
    if amount == "all":
        return np.arange(total, dtype=np.int64)
    random = generator(seed, "trace")
    pool = np.sort(random.choice(total, size=min(total, 20 * amount), replace=False))
    rows, columns = np.divmod(pool, len(table.classes))
    kind = _codes(table, rows, columns).astype(np.int64) * 8
    if truth is not None:
        kind += _codes(truth, rows, columns)
    kinds, member = np.unique(kind, return_inverse=True)
    chosen = [random.permutation(pool[member == number])[: -(-amount // len(kinds))] for number in range(len(kinds))]
    picked = np.concatenate(chosen)
    if len(picked) < amount:
        rest = np.setdiff1d(pool, picked)
        picked = np.concatenate([picked, random.permutation(rest)[: amount - len(picked)]])
    return np.sort(random.permutation(picked)[:amount])
