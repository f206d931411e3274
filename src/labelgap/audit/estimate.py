r"""How many labels are missing, before anybody has looked: an estimate, and the assumption that it stands on.

**If tags are missing at random**, a label that nobody gave is as easy to find as one that somebody gave. Then, among
the labels that score as high as the surest quarter of a class's known ones, nearly all are there, and so is that
quarter of the missing ones. With :math:`u` unknown labels at or above a cut that a share :math:`r` of the known present
ones reach, all scored by models that have not seen them,

.. math:: m = \frac{u\,p}{r}, \qquad
          p = \frac{\text{known present at or above}}{\text{known present and known absent at or above}}

are missing; where no absent label is known, :math:`p = 1`.

**If the obvious tags were given first**, missing ones score lower than known ones, and high up there are few of them.
Cut lower, where recall² / share taken is highest (Lee and Liu, as ``metrics.thresholds`` does where only positives are
known), the same formula gives more: there are more missing ones above that cut, and false alarms too. It is what class
offsets are made of (``calibration``), and told beside the estimate as what the number may come up to.

No interval is given, since none could be right: after a review of random candidates there is one.

Reference: Lee & Liu, "Learning with positive and unlabeled examples using weighted logistic regression", ICML 2003.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.score_sample import ScoreSample
from labelgap.metrics.thresholds import MIN_PRESENT

__all__ = ["ASSUMPTION", "FEWEST", "MissingEstimate", "cut_points", "estimate_missing_from_scores"]

FEWEST: Final = MIN_PRESENT
CUTS: Final = 256
QUARTER: Final = 0.25
ASSUMPTION: Final = "tags are missing at random: one that nobody gave is as easy to find as one that somebody gave"


@dataclass(frozen=True, eq=False)
class MissingEstimate:
    """How many unknown labels are present.

    Attributes:
        by_class: ``(K,)`` if tags are missing at random; 0 where a class is not counted.
        obvious_first: ``(K,)`` what it may come up to if the obvious tags were given first.
        counted: ``(K,)`` whether a class has enough known labels to tell, five present ones.
        known: known present labels of those classes.
        found: the surest quarter of them.
        taken: unknown labels that score as high.
    """

    by_class: NDArray[np.float64]
    obvious_first: NDArray[np.float64]
    counted: NDArray[np.bool_]
    known: int
    found: int
    taken: float

    @property
    def missing(self) -> float:
        """Missing labels of all classes that are counted, if tags are missing at random."""
        return float(self.by_class.sum())

    @property
    def most(self) -> float:
        """What it may come up to if the obvious tags were given first; not less than ``missing``."""
        return max(float(self.obvious_first.sum()), self.missing)

    def as_json(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return what is written with the candidates."""
        each = {name: round(float(self.by_class[k]), 1) for k, name in enumerate(classes) if self.counted[k]}
        return {
            "missing": round(self.missing),
            "assumption": ASSUMPTION,
            "if_obvious_first": round(self.most),
            "interval": None,
            "known": self.known,
            "surest_known": self.found,
            "unknown_as_sure": round(self.taken),
            "classes": int(self.counted.sum()),
            "missing_per_class": each,
        }


def cut_points(scores: ScoreSample, most: int = CUTS) -> NDArray[np.float64]:
    """Return where each class may be cut: at its known present labels, or at evenly spaced ones of many.

    Args:
        scores: of one model, or of several put together.
        most: cuts of a class.

    Returns:
        ``(K, G)``, ascending, inf where a class has fewer.
    """
    by_class = _by_class(scores.present, scores.present_class, scores.classes)
    points = [np.unique(values) if len(values) >= FEWEST else values[:0] for values in by_class]
    points = [
        values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).round().astype(np.int64)]
        for values in points
    ]
    cuts = np.full((scores.classes, max(map(len, points), default=0)), np.inf)
    for number, values in enumerate(points):
        cuts[number, : len(values)] = values
    return cuts


def estimate_missing_from_scores(
    scores: ScoreSample, cuts: NDArray[np.float64] | None = None, taken: NDArray[np.integer[Any]] | None = None
) -> MissingEstimate | None:
    """Estimate how many labels are missing; see the head of this file.

    Args:
        scores: any that rank the images of a class.
        cuts: ``(K, G)`` where classes may be cut; ``cut_points`` when not given.
        taken: ``(K, G)`` unknown labels at or above the cuts; counted in the sample when not given.

    Returns:
        None where no class has five known present labels.

    Example:
        >>> unknown = np.array([[0.9], [0.7], [0.2], [0.1], [0.1], [0.0]])
        >>> present = np.array([0.9, 0.8, 0.8, 0.7, 0.1])
        >>> nothing = np.empty(0), np.empty(0, np.int64)
        >>> made = estimate_missing_from_scores(ScoreSample(present, np.zeros(5, np.int64), *nothing, unknown))
        >>> round(made.missing, 2), made.most
        (1.67, 2.5)
    """
    cuts = cut_points(scores) if cuts is None else cuts
    classes = scores.classes
    present = _by_class(scores.present, scores.present_class, classes)
    absent = _by_class(scores.absent, scores.absent_class, classes)
    sure, lower, counted = np.zeros(classes), np.zeros(classes), np.zeros(classes, dtype=np.bool_)
    known, found, reached = 0, 0, 0.0
    for number in range(classes):
        points = cuts[number][np.isfinite(cuts[number])]
        if not len(points):
            continue
        unknown = _sampled(scores, number, points) if taken is None else taken[number, : len(points)].astype(float)
        made = _Cuts(points, present[number], absent[number], unknown)
        at, best = made.surest(), made.best()
        counted[number], sure[number], lower[number] = True, made.missing(at), made.missing(best)
        known, found, reached = known + made.known, found + int(made.found[at]), reached + float(unknown[at])
    return MissingEstimate(sure, lower, counted, known, found, reached) if counted.any() else None


class _Cuts:
    """What lies at or above the cuts of a class, which are ascending; as are the scores of its known labels."""

    def __init__(
        self, points: NDArray[Any], present: NDArray[Any], absent: NDArray[Any], unknown: NDArray[np.float64]
    ) -> None:
        self.known, self.unknown = len(present), unknown
        self.found, self.false = (len(values) - np.searchsorted(values, points) for values in (present, absent))

    def surest(self) -> int:
        """Return the highest cut that a quarter of the known labels reach."""
        return int(np.flatnonzero(self.found >= QUARTER * self.known)[-1])

    def best(self) -> int:
        """Return the cut with the highest recall² / share taken; of equals the highest."""
        merit = self.found.astype(np.float64) ** 2 / (self.found + self.false + self.unknown)
        return len(merit) - 1 - int(np.argmax(merit[::-1]))

    def missing(self, place: int) -> float:
        """Return how many labels are missing, from what lies above a cut."""
        hits = float(self.found[place])
        return float(self.unknown[place]) * hits / (hits + float(self.false[place])) * self.known / hits


def _sampled(scores: ScoreSample, number: int, points: NDArray[Any]) -> NDArray[np.float64]:
    """Return how many unknown labels of a class are at or above points, from the sample."""
    column = np.sort(scores.unknown[:, number])
    unknown = column[: len(column) - int(np.isnan(column).sum())]
    return scores.scale * (len(unknown) - np.searchsorted(unknown, points)).astype(np.float64)


def _by_class(values: NDArray[Any], columns: NDArray[np.int64], classes: int) -> list[NDArray[Any]]:
    """Return the values of every class, ascending."""
    order = np.lexsort((values, columns))
    return np.split(values[order], np.searchsorted(columns[order], np.arange(1, classes)))
