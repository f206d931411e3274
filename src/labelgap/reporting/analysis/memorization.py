"""Memorization of labels that are hidden from training but known for measurement (Kim et al. 2022, figure 1, table 1).

If unknown labels are taken as absent, those that are truly absent (true negatives) are learned soon. The loss of those
that are truly present (false negatives) stays high at first and falls later: they are memorized. A good method delays
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.seeds import numpy_generator
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.studies.reproduce.results import first_epoch_share

SINGLE_LABELS: Final = 12
"""How many labels of a kind are followed one by one."""
_BY_TRUTH: Final = {"TP": (PRESENT, PRESENT), "TN": (UNKNOWN, ABSENT), "FN": (UNKNOWN, PRESENT)}
_BY_OBSERVATION: Final = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}


@dataclass(frozen=True, eq=False)
class LabelLosses:
    """Losses of the training labels of one kind, over the epochs; unknown labels are taken as absent.

    Attributes:
        count: how many were recorded.
        mean: ``(E,)`` mean loss; NaN in an epoch that saw none.
        first_epoch: the share whose highest loss falls in the first epoch, 0 to 1; None for fewer than two epochs.
        row: ``(S,)`` row numbers of ``SINGLE_LABELS`` random labels, or of all if there are fewer.
        column: ``(S,)`` their class numbers.
        single: ``(E, S)`` their losses.
    """

    count: int
    mean: NDArray[np.float64]
    first_epoch: float | None
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    single: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Memorization:
    """Losses by what labels truly are.

    Attributes:
        true_positive: observed present; None if there are none.
        true_negative: unknown and truly absent.
        false_negative: unknown and truly present.
    """

    true_positive: LabelLosses | None
    true_negative: LabelLosses
    false_negative: LabelLosses

    @property
    def epochs(self) -> int:
        """How many epochs were recorded."""
        return len(self.true_negative.mean)


def label_losses(trace: Mapping[str, NDArray[Any]]) -> dict[str, LabelLosses]:
    """Return the losses of each kind of training labels.

    Args:
        trace: as ``Run.trace`` gives it: row, column, observed, truth ``(R,)``; loss ``(E, R)``.

    Returns:
        "TP", "TN" and "FN", those of them that exist, where the truth of unknown labels is known; elsewhere "present",
        "absent" and "unknown" as observed. Unknown labels of unknown truth are left out of the former.
    """
    if not trace or len(trace["loss"]) == 0:
        return {}
    observed, truth = trace["observed"], trace["truth"]
    if ((observed == UNKNOWN) & (truth != UNKNOWN)).any():
        kinds = {name: (observed == seen) & (truth == true) for name, (seen, true) in _BY_TRUTH.items()}
    else:
        kinds = {name: observed == seen for name, seen in _BY_OBSERVATION.items()}
    return {name: _losses(trace, np.flatnonzero(chosen), name) for name, chosen in kinds.items() if chosen.any()}


def memorization_from_losses(losses: Mapping[str, LabelLosses]) -> Memorization | None:
    """Select what ``label_losses`` found; None if no unknown label is truly absent, or none truly present."""
    if not {"TN", "FN"} <= losses.keys():
        return None
    return Memorization(losses.get("TP"), losses["TN"], losses["FN"])


def memorization_by_label(losses: Mapping[str, Mapping[str, LabelLosses]]) -> dict[str, Memorization]:
    """Return the memorization of every run that recorded unknown labels of known truth."""
    found = {label: memorization_from_losses(kinds) for label, kinds in losses.items()}
    return {label: values for label, values in found.items() if values is not None}


def _losses(trace: Mapping[str, NDArray[Any]], entries: NDArray[np.int64], name: str) -> LabelLosses:
    losses = trace["loss"][:, entries]
    random = numpy_generator(0, f"single labels {name}")
    picked = np.sort(random.choice(len(entries), min(SINGLE_LABELS, len(entries)), replace=False))
    share = first_epoch_share(losses) if len(losses) > 1 else None
    single = entries[picked]
    return LabelLosses(
        len(entries), _mean(losses), share, trace["row"][single], trace["column"][single], losses[:, picked]
    )


def _mean(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of every row without its NaNs, and NaN for a row of NaNs."""
    seen = np.isfinite(values)
    total = np.where(seen, values, 0).sum(axis=1, dtype=np.float64)
    count = seen.sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
