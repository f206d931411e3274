"""The budget curve: how many of the missing labels are found by reviewing so many candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.audit.candidates import Audit
from labelgap.core.errors import InputError
from labelgap.labels import PRESENT, LabelTable, as_codes

__all__ = ["BudgetCurve", "budget_curve", "truth_of"]


@dataclass(frozen=True, eq=False)
class BudgetCurve:
    """What reviewing in an order brings.

    Attributes:
        found: ``(C + 1,)`` missing labels among the first 0, 1, … C candidates.
        missing: how many there are to be found: counted where the truth is known, else an estimate.
        unknown: among how many unknown labels.
    """

    found: NDArray[np.int64]
    missing: float
    unknown: int

    def share_at(self, reviewed: int) -> float:
        """Return the share of the missing labels that is found by reviewing so many."""
        return float(self.found[min(max(reviewed, 0), len(self.found) - 1)]) / self.missing if self.missing else 0.0

    def random_share_at(self, reviewed: int) -> float:
        """Return what reviewing so many unknown labels at random finds on average."""
        return min(reviewed / self.unknown, 1.0) if self.unknown else 0.0

    def reviewed_for(self, share: float) -> int | None:
        """Return how many to review for a share of the missing labels; None where the candidates do not reach it."""
        enough = np.flatnonzero(self.found >= share * self.missing)
        return int(enough[0]) if len(enough) else None


def budget_curve(answers: ArrayLike, missing: float, unknown: int) -> BudgetCurve:
    """Make the curve from the answers to candidates, in the order in which they are reviewed.

    Args:
        answers: ``(C,)`` of PRESENT, ABSENT or UNKNOWN (nobody knows): the truth (``truth_of``), or what a person has
            decided so far.
        missing: how many labels are missing in all; an estimate, where that is all there is.
        unknown: how many labels are unknown in all.

    Example:
        >>> curve = budget_curve([1, 0, 1, -1, 1], missing=4, unknown=40)
        >>> curve.share_at(3), curve.reviewed_for(0.75), curve.random_share_at(10)
        (0.5, 5, 0.25)
    """
    if missing < 0 or unknown < 0:
        raise InputError(f"{missing} missing of {unknown} unknown labels: neither is below 0.")
    hits = as_codes(answers, what="answers").ravel() == PRESENT
    return BudgetCurve(np.concatenate([[0], np.cumsum(hits)]).astype(np.int64), missing, unknown)


def truth_of(audit: Audit, truth: LabelTable, split: str = "train", kind: str = "missing") -> NDArray[np.int8]:
    """Return the true state of every candidate of a split, in the order of their ranks.

    Args:
        audit: with candidates.
        truth: the full labels of the split.
        split: by name.
        kind: "missing", "wrong" or "random".
    """
    table = audit.of_kind(kind)
    mine = [row for row in table.select(["image", "split", "class"]).to_pylist() if row["split"] == split]
    place = {name: number for number, name in enumerate(truth.images)}
    column = {name: number for number, name in enumerate(truth.classes)}
    rows = np.array([place[row["image"]] for row in mine], dtype=np.int64)
    return truth.codes_at(rows, np.array([column[row["class"]] for row in mine], dtype=np.int64))
