"""A threshold for each class, with a mark that says how it was chosen.

0.5 suits a calibrated model. A model trained with most labels missing is not calibrated: at 0.5 it predicts too few or
too many labels as present. Where held-out labels allow it, the threshold is measured; where only positives are known it
is estimated; with fewer than 5 known positives it stays 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics.sorting import cuts_at_present, slices
from labelgap.metrics.validation import (
    Codes,
    Floats,
    Labels,
    Scores,
    format_pair,
    require_probabilities,
    unknown_as_absent,
)

__all__ = ["DEFAULT_THRESHOLD", "MIN_PRESENT", "ThresholdMark", "Thresholds", "choose_thresholds"]

ThresholdMark: TypeAlias = Literal["measured", "estimated", "default"]

DEFAULT_THRESHOLD: Final = 0.5
MIN_PRESENT: Final = 5


@dataclass(frozen=True, eq=False)
class Thresholds:
    """A threshold for each of K classes, and how each was chosen.

    Attributes:
        values: ``(K,)`` float64, read-only: the class is predicted present where ``score >= value``. Each value is
            exact in the type the scores had, so float32 scores may be compared in float32.
        marks: ``"measured"`` on known present and known absent labels, ``"estimated"`` from present ones only, or
            ``"default"``, 0.5, with too few of either.
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

    With :math:`TP`, the known present labels at or above the threshold, among :math:`P` of them, and :math:`n`, the
    entries at or above it:

    .. math:: \text{measured: } \max F_1 = \frac{2\,TP}{P + n}, \qquad
              \text{estimated: } \max \frac{(TP / P)^2}{n / N}

    measured over the known entries of the class, and estimated over all :math:`N` images, known or not. The second is
    recall² over the share predicted present; for positives that are a random sample of all positives it is proportional
    to precision × recall, and it needs no known absent label.

    Args:
        scores: ``(N, K)`` **probabilities** of images that the model was *not* trained on.
        labels: ``(N, K)`` of 1 present, 0 absent, -1 or NaN unknown; or a label table.

    Returns:
        ``(K,)`` values and their marks. A class with fewer than 5 known present labels is ``"default"``, 0.5; else it
        is ``"measured"`` if it has at least one known absent label, and ``"estimated"`` if it has none.

    Raises:
        InputError: scores outside 0 … 1, shapes that do not match, values that are no labels.

    The threshold lies midway between the lowest score predicted present and the next lower one (of a known entry where
    measured, of any image where estimated), and on the lowest score itself where there is no lower one. Equal scores
    stay together. Of several thresholds that are equally good the highest is chosen.

    Unknown entries are left out of a measured threshold, and count among the N images of an estimated one. A threshold
    measured on few known absents is unreliable.

    Reference:
        The estimate: Lee & Liu, "Learning with positive and unlabeled examples using weighted logistic regression",
        ICML 2003.

    Example:
        >>> scores = [[0.9], [0.8], [0.7], [0.4], [0.35], [0.3], [0.2]]
        >>> choose_thresholds(scores, [[1], [1], [1], [1], [0], [1], [0]])
        Thresholds(values=array([0.25]), marks=('measured',))
    """
    formatted, codes = format_pair(scores, labels)
    require_probabilities(formatted)
    present, absent = (np.count_nonzero(codes == state, axis=0) for state in (PRESENT, ABSENT))
    enough = present >= MIN_PRESENT
    measured, estimated = enough & (absent > 0), enough & (absent == 0)
    values = np.full(codes.shape[1], DEFAULT_THRESHOLD)
    for chosen, is_measured in ((measured, True), (estimated, False)):
        columns = np.flatnonzero(chosen)
        for chunk in slices(columns.size, codes.shape[0]):
            part = columns[chunk]
            values[part] = _best_cuts(formatted.T[part], codes.T[part], is_measured)
    marks = np.where(measured, "measured", np.where(estimated, "estimated", "default")).tolist()
    return Thresholds(values=values, marks=tuple(marks))


def _best_cuts(scores: Floats, codes: Codes, measured: bool) -> NDArray[np.float64]:
    """Return the best threshold of R classes of M images, each with at least one present label.

    Only a cut at a present entry can be best: taking more entries without a further hit lowers both measures.
    """
    codes = codes if measured else unknown_as_absent(codes)
    cuts = cuts_at_present(scores, codes)
    if measured:
        score = 2 * cuts.hits / (np.bincount(cuts.ranking)[cuts.ranking] + cuts.taken)
    else:
        score = cuts.hits.astype(np.float64) ** 2 / cuts.taken
    best = np.full(len(codes), -np.inf)
    np.maximum.at(best, cuts.ranking, score)
    winners = np.flatnonzero(score == best[cuts.ranking])
    highest = np.full(len(codes), -1)
    np.maximum.at(highest, cuts.ranking[winners], winners)
    return _midway(scores, codes, cuts.taken[highest])


def _midway(scores: Floats, codes: Codes, taken: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the middle between the ``taken``-th highest known score and the next, in the type of the scores."""
    ordered = np.sort(np.where(codes == UNKNOWN, scores.dtype.type(-np.inf), scores), axis=1)
    bordered = np.concatenate([np.full((len(ordered), 1), -np.inf), ordered], axis=1)
    row, index = np.arange(len(ordered)), ordered.shape[1] - taken + 1
    score, below = bordered[row, index], bordered[row, index - 1]
    with np.errstate(invalid="ignore"):
        middle = (below + (score - below) / 2).astype(scores.dtype).astype(np.float64)
    result: NDArray[np.float64] = np.where(middle > below, middle, score)
    return result
