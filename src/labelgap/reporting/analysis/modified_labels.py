"""Unknown labels that a method modified, per epoch, and how many rightly (Kim et al. 2022, figure 4; Zhou et al. 2022,
tables 2 and 6).

Large-loss methods reject or correct unknown labels that they take for present: their trace has them. Asymmetric
pseudo-labels and curriculum labeling assign states at the end of epochs: their revisions have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revisions
from labelgap.losses.base.state import PseudoLabelRounds
from labelgap.losses.large_loss import AbsoluteLargeLoss, PermanentCorrection, RelativeLargeLoss
from labelgap.reporting.run_description import find_method
from labelgap.training import Run
from labelgap.training.history import trained_epochs

BLOCK: Final = 1 << 24


@dataclass(frozen=True, eq=False)
class ModifiedLabels:
    """The unknown labels that a method took for one state, per epoch. What is not determined is NaN.

    Attributes:
        share: ``(E,)`` of the unknown labels that were modified, 0 to 1.
        precision: ``(E,)`` of the modified labels that are truly of the state; NaN in an epoch that modified none.
        recall: ``(E,)`` of the unknown labels truly of the state that were modified.
        base_rate: the share of unknown labels truly of the state, i.e. the precision of modifying at random.
        accumulated: whether an epoch counts what it and all earlier ones modified.
    """

    share: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    base_rate: float
    accumulated: bool = False


def modified_labels_from_run(run: Run, data: Dataset | None = None) -> dict[int, ModifiedLabels]:
    """Return what a large-loss method modified (PRESENT), or the pseudo-labels of a method (PRESENT, ABSENT).

    Args:
        run: finished or not.
        data: that it was trained on; needed for pseudo-labels, and for the shares if the trace is a sample.

    Returns:
        The states of which there are any; nothing for other methods.
    """
    method = find_method(run.config.method)
    if method is None:
        return {}
    if issubclass(method.loss_class, RelativeLargeLoss | AbsoluteLargeLoss):
        trace = run.trace
        accumulated = issubclass(method.loss_class, PermanentCorrection)
        found = modified_labels_from_trace(trace, _population(run, trace, data), accumulated=accumulated)
        return {} if found is None else {PRESENT: found}
    if data is None or not issubclass(method.loss_class, PseudoLabelRounds):
        return {}
    try:
        return pseudo_labels_from_revisions(
            run.revisions, data.train.labels, data.train.truth, trained_epochs(run.history)
        )
    except InputError:  # the data set has other images than the run was trained on
        return {}


def modified_labels_from_trace(
    trace: Mapping[str, NDArray[Any]], population: tuple[int, int] | None = None, *, accumulated: bool = False
) -> ModifiedLabels | None:
    """Summarize the modified flags of a trace; None if none is set.

    Args:
        trace: as ``Run.trace`` gives it: observed, truth ``(R,)``; modified ``(E, R)``.
        population: how many unknown labels of the whole training set are truly absent and truly present. A sampled
            trace has too many of the rare kind, so each kind is weighted by its number. Without it, only the recall
            is determined.
        accumulated: whether flags stay set in later epochs.

    Unknown labels of unknown truth are left out, unless there are no others: then only the share is determined.
    """
    if not trace:
        return None
    unknown, flags = trace["observed"] == UNKNOWN, trace["modified"]
    absent, present = (unknown & (trace["truth"] == state) for state in (ABSENT, PRESENT))
    blank = np.full(len(flags), np.nan)
    if not (absent | present).any():
        return ModifiedLabels(_rate(flags, unknown), blank, blank, np.nan, accumulated) if flags.any() else None
    if not flags[:, absent | present].any():
        return None
    recall = _rate(flags, present)
    if population is None or not (absent.any() and present.any()):
        return ModifiedLabels(blank, blank, recall, np.nan, accumulated)
    wrong, right = _rate(flags, absent) * population[0], recall * population[1]
    total = sum(population)
    return ModifiedLabels(
        (wrong + right) / total, _divide(right, wrong + right), recall, population[1] / total, accumulated
    )


def pseudo_labels_from_revisions(
    revisions: Revisions, observed: LabelTable, truth: LabelTable | None, epochs: int
) -> dict[int, ModifiedLabels]:
    """Return the pseudo-labels so far at the end of every epoch, by the state that they assign.

    Args:
        revisions: of a method that assigns a label once, with their epochs; soft targets count as their nearer state.
        observed: the labels of the training set.
        truth: its full labels; None where they are not known: then only the share is determined.
        epochs: how many were trained.
    """
    entries = revisions.to_table()
    value = entries["value"].to_numpy()
    epoch = entries["epoch"].fill_null(epochs + 1).to_numpy()
    known = None if truth is None else truth.codes_at(*revisions.indices(truth))
    hidden = (0, 0) if truth is None else _count_tables(observed, truth)
    unknown, found = observed.counts().total[2], {}
    for state, count in zip((ABSENT, PRESENT), hidden, strict=True):
        chosen = value == state
        if not chosen.any():
            continue
        assigned = _accumulate(epoch[chosen], epochs)
        precision = recall = np.full(epochs, np.nan)
        if known is not None:
            right = _accumulate(epoch[chosen & (known == state)], epochs)
            precision = _divide(right, _accumulate(epoch[chosen & (known != UNKNOWN)], epochs))
            recall = right / count if count else recall
        base_rate = count / sum(hidden) if sum(hidden) else np.nan
        found[state] = ModifiedLabels(assigned / max(unknown, 1), precision, recall, base_rate, accumulated=True)
    return found


def _population(run: Run, trace: Mapping[str, NDArray[Any]], data: Dataset | None) -> tuple[int, int] | None:
    if trace and run.config.trace == "all":
        return _count(trace["observed"], trace["truth"])
    if data is not None and data.train.truth is not None:
        return _count_tables(data.train.labels, data.train.truth)
    return None


def _count(observed: NDArray[np.int8], truth: NDArray[np.int8]) -> tuple[int, int]:
    unknown = observed == UNKNOWN
    return int((unknown & (truth == ABSENT)).sum()), int((unknown & (truth == PRESENT)).sum())


def _count_tables(observed: LabelTable, truth: LabelTable) -> tuple[int, int]:
    """Count in blocks of rows: a table of millions of images would not fit into memory as a matrix."""
    size = max(1, BLOCK // max(len(observed.classes), 1))
    blocks = [np.arange(start, min(start + size, len(observed))) for start in range(0, len(observed), size)]
    counts = [_count(observed.batch(rows).numpy(), truth.batch(rows).numpy()) for rows in blocks]
    return sum(absent for absent, _ in counts), sum(present for _, present in counts)


def _rate(flags: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of the chosen entries that are set, per epoch; NaN without entries."""
    return flags[:, chosen].mean(axis=1) if chosen.any() else np.full(len(flags), np.nan)


def _accumulate(epochs: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Return how many of the epochs are at most 1, 2, …, ``count``."""
    return np.searchsorted(np.sort(epochs), np.arange(1, count + 1), side="right")


def _divide(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """Return part / whole, and NaN where the whole is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan)
