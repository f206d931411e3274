"""The estimate of an open review: of its candidates, the decisions in force, and what the audit counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.metrics.label_model import MODEL_SPREAD
from labelgap.review.candidates import WRONG, Candidates
from labelgap.review.estimates.decisions import join_labels, order_decisions, other_decisions
from labelgap.review.estimates.labels import MIN_RANDOM, ReviewEstimate
from labelgap.review.estimates.sample import estimate_review
from labelgap.review.folder import ReviewFolder
from labelgap.review.new_classes.extension import ADDED_SCORE
from labelgap.review.progress import CurrentDecisions


class AuditCounts(NamedTuple):
    """The labels of each class before the review, ``(K,)`` each.

    Attributes:
        unknown: how many are unknown in the data that the random sample was drawn from.
        expected: how many of these are present by the audit; None without a model.
        spread: how wrong the scores of all classes may be, by the audit; a pair of numbers.
        range: how few and how many of all may be present by the audit; None for a part of what was audited.
    """

    unknown: NDArray[np.int64]
    expected: NDArray[np.float64] | None
    spread: tuple[float, float] = MODEL_SPREAD
    range: tuple[int, int] | None = None


def count_audited(folder: ReviewFolder, candidates: Candidates, split: str | None) -> AuditCounts:
    """Count the labels before a review of one split, or of all that was audited."""
    metadata, names, own = candidates.metadata, candidates.classes, len(folder.classes)
    counts = metadata.get("unknown_per_class") or {}
    audited = np.array([int(counts.get(name, 0)) for name in names], dtype=np.int64)
    known = audited[:own] if split is None else folder.data.split(split).labels.counts().unknown
    asked = np.bincount(candidates.columns.class_number, minlength=len(names))
    unknown = np.concatenate([known, asked[own:]])
    if metadata.get("estimate") is None:
        return AuditCounts(unknown, None)
    missing = np.array([float(metadata["estimate"]["missing_per_class"].get(name, 0)) for name in names])
    expected = missing * unknown / np.maximum(audited, 1)
    expected[own:] = ADDED_SCORE * unknown[own:]
    ends = metadata["estimate"].get("range") if split is None and len(names) == own else None
    return AuditCounts(unknown, expected, tuple(metadata["estimate"].get("spread", MODEL_SPREAD)), ends and tuple(ends))


def estimate_current(
    folder: ReviewFolder,
    current: CurrentDecisions,
    counts: AuditCounts,
    splits: Sequence[str],
    shown: NDArray[np.bool_],
) -> ReviewEstimate:
    """Estimate how many labels are missing, of each class and of all, and how probable each candidate is.

    Args:
        folder: of the review.
        current: the decisions in force on C candidates.
        counts: of the labels before the review.
        splits: that were audited.
        shown: ``(C,)`` which candidates are asked about; the others are copies.

    Decided labels that are no candidates, e.g. of copies, are as certain as the others. What is known of an added class
    are its random answers alone.
    """
    candidates = current.candidates
    columns, decisions = candidates.columns, order_decisions(current, shown)
    others = other_decisions(folder, current.others, splits)
    answers = np.bincount(columns.class_number[decisions.random], minlength=len(candidates.classes))
    silent = (np.arange(len(answers)) >= len(folder.classes)) & (answers < MIN_RANDOM)
    numbers = np.flatnonzero((columns.kind != WRONG) & ~silent[columns.class_number])
    unknown = np.where(silent, 0, counts.unknown)
    expected = None if counts.expected is None else np.where(silent, 0.0, counts.expected)
    labels = join_labels(columns, numbers, decisions, others, unknown, expected)
    labels = replace(labels, spread=counts.spread, range=counts.range)
    return estimate_review(labels).spread_over(numbers, columns.class_number)
