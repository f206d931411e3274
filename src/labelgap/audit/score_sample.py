"""The scores of known labels, and of a sample of unknown ones: what the calibration is fitted on.

All known labels are kept. Of the unknown ones, those of a random sample of images are kept, so that memory does not
grow with images × classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.scorers import Scorer, score_blocks
from labelgap.core.seeds import numpy_generator
from labelgap.labels import ABSENT, PRESENT, LabelTable

MAX_SAMPLED_SCORES: Final = 4_000_000
"""Largest number of scores of unknown labels that are kept, over all scorers."""


@dataclass(frozen=True, eq=False)
class ScoreSample:
    """Scores by the state of the label; leading axes (…) are those of several scorers, if any.

    Attributes:
        present: ``(…, P)`` of known present labels.
        present_class: ``(P,)`` their class numbers.
        absent: ``(…, A)`` of known absent labels.
        absent_class: ``(A,)``
        unknown: ``(…, M, K)`` of the sampled images; NaN where the label is known.
        present_others: ``(P,)`` other known present labels in the image of each known present one.
        unknown_others: ``(M,)`` known present labels of the sampled images.
        scale: number of images per sampled image.
    """

    present: NDArray[np.floating[Any]]
    present_class: NDArray[np.int64]
    absent: NDArray[np.floating[Any]]
    absent_class: NDArray[np.int64]
    unknown: NDArray[np.floating[Any]]
    present_others: NDArray[np.int64]
    unknown_others: NDArray[np.int64]
    scale: float = 1.0

    @property
    def classes(self) -> int:
        """K."""
        return int(self.unknown.shape[-1])

    def map(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> ScoreSample:
        """Return the sample with a function applied to all scores; it may remove the leading axes."""
        present, absent, unknown = function(self.present), function(self.absent), function(self.unknown)
        return replace(self, present=present, absent=absent, unknown=unknown)

    def shift(self, by_class: NDArray[np.float64]) -> ScoreSample:
        """Return the sample with a number added to all scores of a class."""
        offset = by_class.astype(self.unknown.dtype)
        present, absent = self.present + offset[self.present_class], self.absent + offset[self.absent_class]
        return replace(self, present=present, absent=absent, unknown=self.unknown + offset)


def sample_scores(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    seed: int = 0,
    max_sampled: int = MAX_SAMPLED_SCORES,
    advance: Callable[[int], None] = lambda count: None,
) -> ScoreSample:
    """Score all images once; keep the scores of known labels, and at most ``max_sampled`` of unknown ones.

    The sample has one leading axis, over the scorers. ``advance`` is called with the number of images of each block.
    """
    images = sum(map(len, tables.values()))
    classes = len(next(iter(tables.values())).classes)
    count = min(images, max(1, max_sampled // max(classes * len(scorers), 1)))
    sampled = np.sort(numpy_generator(seed, "evidence").permutation(images)[:count])
    unknown = np.empty((len(scorers), count, classes), dtype=np.float32)
    unknown_others = np.empty(count, dtype=np.int64)
    known: list[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int8], NDArray[np.int64]]] = []
    for block in score_blocks(tables, scorers):
        flat, length = block.logits.reshape(len(scorers), -1), block.logits.shape[1]
        row = block.known // classes
        present_count = np.bincount(row[block.values == PRESENT], minlength=length)
        known.append((flat[:, block.known], block.known % classes, block.values, present_count[row] - 1))
        flat[:, block.known] = np.nan
        first, last = np.searchsorted(sampled, [block.first, block.first + length])
        rows = sampled[first:last] - block.first
        unknown[:, first:last], unknown_others[first:last] = block.logits[:, rows], present_count[rows]
        advance(length)
    logits = np.concatenate([part[0] for part in known], axis=1)
    columns, values, others = (np.concatenate([part[item] for part in known]) for item in (1, 2, 3))
    present, absent = values == PRESENT, values == ABSENT
    return ScoreSample(
        logits[:, present],
        columns[present],
        logits[:, absent],
        columns[absent],
        unknown,
        others[present],
        unknown_others,
        images / max(count, 1),
    )


def count_unknown_above(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    log_odds: Callable[[NDArray[np.float32]], NDArray[np.floating[Any]]],
    cuts: NDArray[np.floating[Any]],
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.int64]:
    """Count the unknown labels of each class at or above some cuts, over all images.

    A sample is enough for frequent classes, but holds nothing of a class that one image in a million shows. Both the
    cuts and the counts are ``(K, G)``; the cuts of a class ascend from -inf, and are evenly spaced from the second on.
    ``log_odds`` maps logits ``(R, B, K)`` to ``(B, K)``.
    """
    classes, bins = cuts.shape
    cuts = cuts.astype(np.float64)  # the scores of a class may lie close together
    first, width = cuts[:, 1], cuts[:, 2] - cuts[:, 1]
    ends = np.append(cuts[:, 1:], np.full((classes, 1), np.inf), axis=1)
    counts, offset = np.zeros(classes * bins, dtype=np.int64), np.arange(classes) * bins
    for block in score_blocks(tables, scorers):
        odds = np.asarray(log_odds(block.logits), dtype=np.float32)
        number = np.clip(np.floor((odds - first) / width) + 1, 0, bins - 1).astype(np.int64) + offset
        number += odds >= ends.take(number)  # the quotient is rounded: the cuts decide
        number -= odds < cuts.take(number)
        counts += np.bincount(number.ravel(), minlength=len(counts))
        counts -= np.bincount(number.ravel()[block.known], minlength=len(counts))
        advance(len(odds))
    above: NDArray[np.int64] = counts.reshape(classes, bins)[:, ::-1].cumsum(axis=1)[:, ::-1]
    return above
