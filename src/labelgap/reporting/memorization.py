"""Memorization of labels that are hidden from the method but known for measurement (Kim et al. 2022, figures 1 and 4).

If unknown labels are taken as absent, those that are truly absent (true negatives) are learned soon. The loss of those
that are truly present (false negatives) stays high at first and falls later: they are memorized. A good method delays
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.training import Run

__all__ = [
    "Memorization",
    "ModifiedLabels",
    "memorization_by_label",
    "memorization_from_run",
    "memorization_from_trace",
]

BLOCK = 1 << 24


@dataclass(frozen=True, eq=False)
class ModifiedLabels:
    """The unknown labels that a method modified, per epoch.

    Attributes:
        share: ``(E,)`` of the unknown labels that were modified, 0 to 1.
        precision: ``(E,)`` of the modified labels that are truly present; NaN in an epoch that modified none.
        base_rate: the share of truly present labels, i.e. the precision of modifying at random.
    """

    share: NDArray[np.float64]
    precision: NDArray[np.float64]
    base_rate: float


@dataclass(frozen=True, eq=False)
class Memorization:
    """The mean loss of unknown labels, taken as absent, by what they truly are.

    Attributes:
        true_negative: ``(E,)`` mean loss of those truly absent; NaN in an epoch that saw none.
        false_negative: ``(E,)`` mean loss of those truly present.
        modified: None where the trace does not determine it.
    """

    true_negative: NDArray[np.float64]
    false_negative: NDArray[np.float64]
    modified: ModifiedLabels | None

    @property
    def epochs(self) -> int:
        """How many epochs were recorded."""
        return len(self.true_negative)


def memorization_from_trace(
    trace: Mapping[str, NDArray[Any]], population: tuple[int, int] | None = None
) -> Memorization | None:
    """Summarize a trace; None if it has no unknown label that is truly absent, or none that is truly present.

    Args:
        trace: as ``Run.trace`` gives it: observed, truth ``(R,)``; loss, modified ``(E, R)``.
        population: how many unknown labels of the whole training set are truly absent and truly present. A sampled
            trace has too many of the rare kind, so each kind is weighted by its number. Without it, ``modified`` is
            None.

    Unknown labels of unknown truth are left out.
    """
    if not trace or len(trace["loss"]) == 0:
        return None
    unknown = trace["observed"] == UNKNOWN
    absent, present = (unknown & (trace["truth"] == state) for state in (ABSENT, PRESENT))
    if not absent.any() or not present.any():
        return None
    modified = _modified(trace["modified"], absent, present, population) if population is not None else None
    return Memorization(_mean(trace["loss"][:, absent]), _mean(trace["loss"][:, present]), modified)


def memorization_from_run(run: Run, data: Dataset | None = None) -> Memorization | None:
    """Summarize the trace of a run; ``data`` is needed only if the trace is a sample."""
    trace = run.trace
    if not trace:
        return None
    if run.config.trace == "all":
        population: tuple[int, int] | None = _count(trace["observed"], trace["truth"])
    elif data is not None and data.train.truth is not None:
        population = _count_tables(data.train.labels, data.train.truth)
    else:
        population = None
    return memorization_from_trace(trace, population)


def memorization_by_label(runs: Mapping[str, Run], data: Dataset | None = None) -> dict[str, Memorization]:
    """Return the memorization of every run that recorded unknown labels of known truth."""
    found = {label: memorization_from_run(run, data) for label, run in runs.items()}
    return {label: values for label, values in found.items() if values is not None}


def _count(observed: NDArray[np.int8], truth: NDArray[np.int8]) -> tuple[int, int]:
    unknown = observed == UNKNOWN
    return int((unknown & (truth == ABSENT)).sum()), int((unknown & (truth == PRESENT)).sum())


def _count_tables(observed: LabelTable, truth: LabelTable) -> tuple[int, int]:
    """Count in blocks of rows: a table of millions of images would not fit into memory as a matrix."""
    size = max(1, BLOCK // max(len(observed.classes), 1))
    blocks = [np.arange(start, min(start + size, len(observed))) for start in range(0, len(observed), size)]
    counts = [_count(observed.batch(rows).numpy(), truth.batch(rows).numpy()) for rows in blocks]
    return sum(absent for absent, _ in counts), sum(present for _, present in counts)


def _mean(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of every row without its NaNs, and NaN for a row of NaNs."""
    seen = np.isfinite(values)
    total = np.where(seen, values, 0).sum(axis=1, dtype=np.float64)
    count = seen.sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _modified(
    flags: NDArray[np.bool_], absent: NDArray[np.bool_], present: NDArray[np.bool_], population: tuple[int, int]
) -> ModifiedLabels | None:
    """Weight the modified share of each kind by the number of its labels."""
    if not flags[:, absent | present].any():
        return None
    wrongly = flags[:, absent].mean(axis=1) * population[0]
    rightly = flags[:, present].mean(axis=1) * population[1]
    total = sum(population)
    touched = wrongly + rightly
    precision = np.where(touched > 0, rightly / np.where(touched > 0, touched, 1), np.nan)
    return ModifiedLabels(touched / total, precision, population[1] / total)
