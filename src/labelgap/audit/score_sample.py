"""What the scores of known and of unknown labels look like: all that is needed to make scores comparable.

The scores of all known labels are kept, as many numbers as the table has; of the unknown ones those of a random sample
of images, so that memory does not grow with images × classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.scorers import Scorer, score_blocks
from labelgap.core.seeds import numpy_generator
from labelgap.labels import ABSENT, PRESENT, LabelTable

__all__ = ["ScoreSample", "count_unknown_above", "sample_scores"]

MAX_SAMPLED_SCORES: Final = 4_000_000
"""So many scores of unknown labels are kept at most, over all scorers."""


@dataclass(frozen=True, eq=False)
class ScoreSample:
    """Scores by the state of the label; leading axes (…) are those of several scorers, if any.

    Attributes:
        present: ``(…, P)`` of known present labels.
        present_class: ``(P,)`` their class numbers.
        absent: ``(…, A)`` of known absent labels.
        absent_class: ``(A,)``
        unknown: ``(…, M, K)`` of the sampled images; NaN where the label is known.
        scale: images for each one in the sample.
    """

    present: NDArray[np.floating[Any]]
    present_class: NDArray[np.int64]
    absent: NDArray[np.floating[Any]]
    absent_class: NDArray[np.int64]
    unknown: NDArray[np.floating[Any]]
    scale: float = 1.0

    @property
    def classes(self) -> int:
        """K."""
        return int(self.unknown.shape[-1])

    def mapped(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> ScoreSample:
        """Return the evidence with every score changed; ``change`` may take the leading axes away."""
        scores = (change(self.present), change(self.absent), change(self.unknown))
        return ScoreSample(scores[0], self.present_class, scores[1], self.absent_class, scores[2], self.scale)

    def moved(self, by_class: NDArray[np.float64]) -> ScoreSample:
        """Return the evidence with a number added to all scores of a class."""
        narrow = by_class.astype(self.unknown.dtype)
        present = self.present + narrow[self.present_class]
        absent = self.absent + narrow[self.absent_class]
        return ScoreSample(present, self.present_class, absent, self.absent_class, self.unknown + narrow, self.scale)


def sample_scores(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    seed: int = 0,
    sampled: int = MAX_SAMPLED_SCORES,
    advance: Callable[[int], None] = lambda count: None,
) -> ScoreSample:
    """Go through all images once and keep the scores of what is known, and of a sample of what is not.

    Args:
        tables: labels of each split that is looked at.
        scorers: R of them; the evidence has one leading axis of that length.
        seed: of the sample.
        sampled: scores of unknown labels to keep at most.
        advance: told how many images were done.
    """
    images = sum(map(len, tables.values()))
    classes = len(next(iter(tables.values())).classes)
    count = min(images, max(1, sampled // max(classes * len(scorers), 1)))
    chosen = np.sort(numpy_generator(seed, "evidence").permutation(images)[:count])
    unknown = np.empty((len(scorers), count, classes), dtype=np.float32)
    known: list[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int8]]] = []
    for block in score_blocks(tables, scorers):
        flat = block.logits.reshape(len(scorers), -1)
        known.append((flat[:, block.places], block.places % classes, block.values))
        flat[:, block.places] = np.nan
        length = block.logits.shape[1]
        first, last = np.searchsorted(chosen, [block.first, block.first + length])
        unknown[:, first:last] = block.logits[:, chosen[first:last] - block.first]
        advance(length)
    logits = np.concatenate([part[0] for part in known], axis=1)
    columns, values = (np.concatenate([part[place] for part in known]) for place in (1, 2))
    present, absent = values == PRESENT, values == ABSENT
    return ScoreSample(
        logits[:, present], columns[present], logits[:, absent], columns[absent], unknown, images / max(count, 1)
    )


def count_unknown_above(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    log_odds: Callable[[NDArray[np.float32]], NDArray[np.floating[Any]]],
    cuts: NDArray[np.floating[Any]],
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.int64]:
    """Count the unknown labels of each class at or above some cuts, over all images.

    A sample would do for frequent classes; of a class that one image in a million shows it holds nothing.

    Args:
        tables: labels of each split.
        scorers: R of them.
        log_odds: from logits ``(R, B, K)`` to ``(B, K)`` in single precision, as the cuts are.
        cuts: ``(K, G)``, ascending; inf where a class has fewer.

    Returns:
        ``(K, G)``
    """
    counts, cuts = np.zeros(cuts.shape, dtype=np.int64), cuts.astype(np.float32)
    for block in score_blocks(tables, scorers):
        odds = log_odds(block.logits)
        odds.reshape(-1)[block.places] = -np.inf
        by_class = np.ascontiguousarray(odds.T, dtype=np.float32)
        by_class.sort(axis=1)
        for number, values in enumerate(by_class):
            counts[number] += len(values) - np.searchsorted(values, cuts[number])
        advance(len(odds))
    return counts
