"""A threshold for each class, with a mark that says how it was chosen: by the label model, of all classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.special import expit, logit
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.metrics.average_precision import cuts_at_present, map_chunks, to_rows
from labelgap.metrics.label_model import LabelModel
from labelgap.metrics.validation import Codes, Floats, Labels, Scores, ThresholdMark, format_pair, require_probabilities

DEFAULT_THRESHOLD: Final = 0.5
MIN_PRESENT: Final = 5  # known presents from which on a class has a threshold of its own
MIN_MEASURED: Final = 10  # known labels of each state from which on a threshold counts as measured
_SMALLEST: Final = 1e-9  # scores nearer than this to 0 or 1 count as this in logits
_MAX_STEPS: Final = 100


@dataclass(frozen=True, eq=False)
class Thresholds:
    """A threshold for each of K classes, and how each was chosen.

    Attributes:
        values: ``(K,)`` float64, read-only: the class is predicted present where ``score >= value``. Each value is
            exact in the type the scores had, so float32 scores may be compared in float32.
        marks: ``"measured"`` on at least 10 known present and 10 known absent labels, ``"estimated"`` from at least 5
            known present ones, ``"borrowed"`` mostly from the other classes, or ``"default"``, 0.5, where no class has
            5 known presents and all together fewer than 10, or where known presents score no higher than others.
    """

    values: NDArray[np.float64]
    marks: tuple[ThresholdMark, ...]

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @classmethod
    def default(cls, classes: int) -> Thresholds:
        """Return 0.5 for every class."""
        marks: list[ThresholdMark] = ["default"] * classes
        return cls(np.full(classes, DEFAULT_THRESHOLD), tuple(marks))


def choose_thresholds(scores: Scores, labels: Labels) -> Thresholds:
    r"""Choose the threshold of each class from held-out images.

    With the calibrated probability :math:`p_i` of the class in image :math:`i` of :math:`N`, known or not:

    .. math:: F(s) = \frac{2 \sum_i [p_i \ge s]\, p_i}{\sum_i [p_i \ge s] + \sum_i p_i}, \qquad
              s^* = \tfrac12 \max_s F(s)

    is the expected :math:`F_1` of those at least :math:`s`, and the best :math:`s` is half of the highest one (Lipton,
    Elkan & Naryanaswamy, ECML 2014). The threshold is the score whose probability is :math:`s^*`. A class of at least 5
    presents whose labels are all known has the cut with the exact best :math:`F_1` instead: midway between the lowest
    score that is taken and the next lower one; of several that are equally good the highest.

    Args:
        scores: ``(N, K)`` **probabilities** of images that the model was *not* trained on: held out, or out-of-fold.
        labels: ``(N, K)`` of 1 present, 0 absent, -1 or NaN unknown; or a label table.

    The fewer presents of a class are known, the more its threshold depends on the other classes; without any it has
    their mean offset.

    Example:
        >>> scores = np.linspace(0.99, 0.01, 50)[:, None]
        >>> labels = (np.arange(50) < 10).astype(np.int8)[:, None]
        >>> choose_thresholds(scores, labels)
        Thresholds(values=array([0.8]), marks=('measured',))
    """
    formatted, codes = format_pair(scores, labels)
    require_probabilities(formatted)
    present, absent = (np.count_nonzero(codes == state, axis=0) for state in (PRESENT, ABSENT))
    if not (present >= MIN_PRESENT).any() and present.sum() < MIN_MEASURED:
        return Thresholds.default(codes.shape[1])
    complete = (present + absent == len(codes)) & (present >= MIN_PRESENT)
    expected = None if complete.all() else _expected_best(formatted, codes)
    values = np.full(codes.shape[1], DEFAULT_THRESHOLD) if expected is None else expected
    columns = np.flatnonzero(complete)
    best = map_chunks(lambda part: _best_cuts(formatted, codes, columns[part]), columns.size, len(codes))
    values[columns] = np.concatenate(best)
    marks = np.select(
        [~complete & (expected is None), (present >= MIN_MEASURED) & (absent >= MIN_MEASURED), present >= MIN_PRESENT],
        ["default", "measured", "estimated"],
        "borrowed",
    )
    return Thresholds(values=values, marks=tuple(marks.tolist()))


def _expected_best(scores: Floats, codes: Codes) -> NDArray[np.float64] | None:
    """Return the threshold of each class with the highest expected F1; None where the label model has no fit."""
    smallest = max(_SMALLEST, float(np.finfo(scores.dtype).eps) / 2)
    logits = logit(np.clip(scores, smallest, 1 - smallest))
    model = LabelModel.fit(logits, codes)
    if model is None:
        return None
    chunks = map_chunks(lambda part: _best_expected_f1(model.probabilities(logits, part)), *codes.shape[::-1])
    best = np.concatenate(chunks)
    values: NDArray[np.float64] = expit((logit(best / 2) - model.offset) / model.scale)
    return values.astype(scores.dtype).astype(np.float64)


def _best_expected_f1(chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the highest expected F1 of each class, ``(K,)``, by Dinkelbach's method: it rises to it in few steps."""
    total, best = chance.sum(axis=0), np.zeros(chance.shape[1])
    for _ in range(_MAX_STEPS):
        taken = chance >= best / 2
        better = 2 * (chance * taken).sum(axis=0) / (taken.sum(axis=0) + total)
        if (better <= best).all():
            break
        best = np.maximum(best, better)
    return np.maximum(best, np.finfo(np.float64).tiny)


def _best_cuts(scores: Floats, codes: Codes, columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the threshold with the highest F1 of fully known classes, midway from a present to the next score."""
    scores, codes = to_rows(scores[:, columns].T), to_rows(codes[:, columns].T)
    cuts = cuts_at_present(scores, codes)
    score = 2 * cuts.hits / (np.count_nonzero(codes == PRESENT, axis=1)[cuts.ranking] + cuts.taken)
    best = np.full(len(codes), -np.inf)
    np.maximum.at(best, cuts.ranking, score)
    highest = np.full(len(codes), -1)
    winners = np.flatnonzero(score >= best[cuts.ranking] * (1 - 1e-12))
    np.maximum.at(highest, cuts.ranking[winners], winners)
    bordered = np.pad(np.sort(scores, axis=1), ((0, 0), (1, 0)), constant_values=-np.inf)
    row, index = np.arange(len(bordered)), bordered.shape[1] - cuts.taken[highest]
    lowest, below = bordered[row, index], bordered[row, index - 1]
    with np.errstate(invalid="ignore"):
        middle = (below + (lowest - below) / 2).astype(scores.dtype).astype(np.float64)
    return np.asarray(np.where(middle > below, middle, lowest), dtype=np.float64)
