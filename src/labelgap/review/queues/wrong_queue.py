"""The queue of known labels that look wrong: what is left to ask, what was put away, and what it has brought."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.review.estimates import describe_left
from labelgap.review.queues.feeds import wrong_rows
from labelgap.review.queues.wrong_labels import (
    Precision,
    WrongLabelEstimate,
    WrongLabels,
    describe_put_away,
    estimate_wrong_labels,
)
from labelgap.review.session import Review

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WrongQueue:
    """The queue at one moment.

    Attributes:
        asked: labels to ask about, the least plausible first.
        put_away: open labels of classes that were put away.
        decided: labels that are answered, the newest first.
        estimate: of the precision.
        parts: number, name and sentence of each class that was put away.
    """

    asked: Numbers
    put_away: Numbers
    decided: Numbers
    estimate: WrongLabelEstimate
    parts: tuple[tuple[int, str, str], ...]

    @property
    def total(self) -> Precision:
        """Of all classes."""
        return self.estimate.total

    @property
    def summary(self) -> str:
        """What the queue has brought, and what is left, in a sentence."""
        return describe_put_away(self.total) if self.total.put_away else describe_precision(self.total)


def wrong_queue(review: Review) -> WrongQueue | None:
    """Return the queue; None where no label looks wrong."""
    queue: WrongQueue | None = review.cached("wrong queue", lambda: _make(review))
    return queue


def describe_precision(precision: Precision) -> str:
    """Return how many labels are wrong, answered and left, as a sentence.

    Example:
        >>> describe_precision(Precision(12, 3, 27, 0.3, 0.1, 0.52, False))
        '12 answered, 3 wrong. About 8 of the 27 left are wrong (95 %: 2 to 15).'
    """
    if not precision.left:
        return f"All {pluralize(precision.answered, 'label')} answered: {precision.wrong:,} wrong."
    if not precision.answered:
        return f"{pluralize(precision.left, 'label')} to look at. How many are wrong, the first answers will tell."
    low, high = int(precision.low * precision.left), -int(-precision.high * precision.left // 1)
    left = describe_left(round(precision.share * precision.left), high, precision.left)
    return f"{precision.answered:,} answered, {precision.wrong:,} wrong. {left} wrong (95 %: {low:,} to {high:,})."


def _make(review: Review) -> WrongQueue | None:
    rows, columns, current = wrong_rows(review), review.candidates.columns, review.current
    if not len(rows):
        return None
    with current.lock:
        decided, value, version = current.decided[rows], current.value[rows], current.version[rows]
    observed, score = columns.observed[rows], np.nan_to_num(columns.score[rows].astype(np.float64), nan=0.5)
    told, classes = decided & (value != UNKNOWN), columns.class_number[rows]
    implausibility = np.where(observed == PRESENT, 1 - score, score)
    answers = told & (value != observed), told & (value == observed)
    labels = WrongLabels(len(review.candidates.classes), classes, implausibility, decided, *answers)
    estimate = estimate_wrong_labels(labels)
    parts = tuple(
        (number, review.candidates.classes[number], describe_put_away(each))
        for number, each in enumerate(estimate.by_class)
        if each is not None and each.put_away
    )
    away = np.isin(classes, [number for number, _, _ in parts])
    answered = rows[decided][np.argsort(-version[decided], kind="stable")]
    return WrongQueue(rows[~decided & ~away], rows[~decided & away], answered, estimate, parts)
