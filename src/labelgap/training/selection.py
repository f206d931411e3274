"""The rule that selects the epoch, by what the known labels of val support.

- clean: every label of val is known; the epoch with the highest mAP. This is an accuracy.
- known: at least half of the classes have known labels that support an accuracy; mAP over those. Also an accuracy. A
  class needs a known present and so many known absents that random scores do not reach more than 0.5 on the average.
- observed: unknown counts as absent. This orders epochs and is never shown as an accuracy.
- last: the last epoch. There is no val, or no class of val is present in one image and not in another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, RunError
from labelgap.labels import LabelTable
from labelgap.metrics import average_precision
from labelgap.metrics.validation import supports_accuracy

_REFUSALS: Final = {
    "clean": "val has unknown labels, or no class is present in one image of it and absent in another",
    "known": "only {both} of {classes} classes have a known present and enough known absents in val",
    "observed": "no label of val is known to be present, or all are",
}
_REASONS: Final = {
    "clean": "val is fully known: the epoch with the highest val mAP is kept",
    "known": "{both} of {classes} classes have known presents and enough known absents in val: "
    "the epoch with the highest mAP over those is kept",
    "observed": "too few labels of val are known to measure accuracy: epochs are ordered by how high they rank the "
    "observed positives; for a true estimate have a few hundred random val images fully labeled",
    "last": "the last epoch is kept",
}
RULES: Final = tuple(_REASONS)
FEW_PRESENT = 20  # with fewer known presents than this in val, the selected epoch is close to random


@dataclass(frozen=True)
class EpochScore:
    """The score of an epoch, and over how many classes it was averaged."""

    value: float
    counted: int


@dataclass(frozen=True)
class Selection:
    """A selection rule and its labels."""

    rule: str  # "clean", "known", "observed" or "last"
    labels: LabelTable | None  # of val; None for "last"
    why: str  # what the rule is and why it was chosen

    def score(self, scores: NDArray[np.float32] | None) -> EpochScore | None:
        """Return the score of an epoch from the logits of val, or None under "last"."""
        if self.labels is None or scores is None:
            return None
        if not np.isfinite(scores).all():
            raise RunError("training has diverged, its scores are not finite: try a lower learning rate, --lr.")
        unknown: Literal["absent", "ignore"] = "absent" if self.rule == "observed" else "ignore"
        value, counted = average_precision(scores, self.labels.to_dense(), unknown=unknown, return_counted=True)
        return EpochScore(float(value), int(counted))


def choose_selection(observed: LabelTable | None, truth: LabelTable | None, rule: str = "auto") -> Selection:
    """Choose the strongest rule that the ``observed`` labels of val, or its ``truth``, support, or that requested."""
    check_rule(rule)
    if observed is None:
        if rule not in ("auto", "last"):
            raise InputError(f"select={rule!r} needs a val split, and there is none; `last` keeps the last epoch.")
        return Selection("last", None, "there is no val split: the last epoch is kept")
    known = [observed] if rule == "auto" or truth is None else [observed, truth]
    clean = next((table for table in known if table.complete), None)
    both, present = int(measurable(observed).sum()), observed.counts().present
    found = {"both": both, "classes": len(observed.classes)}
    supported = {
        "clean": clean is not None and bool(measurable(clean).any()),
        "known": 2 * both >= len(observed.classes),
        "observed": bool(((present > 0) & (present < len(observed))).any()),
        "last": True,
    }
    automatic = rule == "auto"
    if automatic:
        rule = next(name for name in RULES if supported[name])
    if not supported[rule]:
        reason = _REFUSALS[rule].format(**found)
        raise InputError(f"select='{rule}': {reason}. Leave it to `auto`, or review val.")
    why, positives = _REASONS[rule].format(**found), int(present.sum())
    if rule == "last":
        return Selection("last", None, f"no class of val can be ranked: {why}" if automatic else why)
    if positives < FEW_PRESENT:
        why += f"; with {positives} known presents in val that is close to chance"
    return Selection(rule, {"clean": clean, "known": measurable_labels(observed)}.get(rule, observed), why)


def check_rule(rule: str) -> None:
    """Raise an error if a rule is neither "auto" nor one of ``RULES``."""
    if rule not in ("auto", *RULES):
        raise InputError(f"select={rule!r}: it must be auto, {', '.join(RULES[:-1])} or {RULES[-1]}.")


def measurable_labels(table: LabelTable) -> LabelTable:
    """Return the known labels of the classes whose labels support an accuracy; the others are unknown."""
    return table.keep(measurable(table)[table.columns])


def measurable(table: LabelTable) -> NDArray[np.bool_]:
    """Return for every class whether its known labels support an accuracy."""
    counts = table.counts()
    return supports_accuracy(counts.present, counts.absent, len(table))
