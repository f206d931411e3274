"""A threshold for each class, with a mark that says how it was chosen.

0.5 suits a calibrated model. A model trained with most labels missing is not calibrated: at 0.5 it predicts too few or
too many labels as present. The threshold is the one with the highest F1, measured where held-out labels allow it, else
estimated. It changes little when one label is added: known absents enter through the prevalence of their class, near
ties are averaged while labels are unknown, and a class with few known presents leans on the other classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.metrics.prevalence import partial_cuts
from labelgap.metrics.sorting import slices
from labelgap.metrics.validation import Codes, Floats, Labels, Scores, format_pair, require_probabilities

__all__ = ["DEFAULT_THRESHOLD", "MIN_MEASURED", "MIN_PRESENT", "ThresholdMark", "Thresholds", "choose_thresholds"]

ThresholdMark: TypeAlias = Literal["measured", "estimated", "borrowed", "default"]

DEFAULT_THRESHOLD: Final = 0.5
MIN_PRESENT: Final = 5
"""Known presents from which on a class has a threshold of its own."""
MIN_MEASURED: Final = 10
"""Known labels of each state from which on a threshold counts as measured."""
_MAX_SHARPNESS: Final = 2.0
"""While a label is unknown, cuts that are nearly as good always take part."""
_SMALLEST: Final = 1e-4
"""Thresholds nearer than this to 0 or 1 count as this in a mean of logits."""
_MAX_WEIGHT: Final = 50
"""Known presents from which on a class counts no more in the threshold that others borrow."""


@dataclass(frozen=True, eq=False)
class Thresholds:
    """A threshold for each of K classes, and how each was chosen.

    Attributes:
        values: ``(K,)`` float64, read-only: the class is predicted present where ``score >= value``. Each value is
            exact in the type the scores had, so float32 scores may be compared in float32.
        marks: ``"measured"`` on at least 10 known present and 10 known absent labels, ``"estimated"`` from at least 5
            known present ones, ``"borrowed"`` from the other classes, or ``"default"``, 0.5, where no class has any.
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

    With :math:`r(t)` the share of the known presents that score at least :math:`t`, :math:`q(t)` that of all :math:`N`
    images, known or not, and the prevalence :math:`\pi` (``labelgap.metrics.prevalence``):

    .. math:: F_1(t) = \frac{2 \pi\, r(t)}{\pi + q(t)}, \qquad n^* = \frac{\sum_t w(t)\, N q(t)}{\sum_t w(t)}, \quad
              w(t) = \exp\Bigl(P \min\bigl(\tfrac{N}{U}, 2\bigr) \bigl(F_1(t) - \max F_1\bigr)\Bigr)

    over the cuts at the :math:`P` known presents; the threshold takes the :math:`n^*` images with the highest scores.
    On complete labels this is the exact :math:`F_1` and its best cut. With :math:`U` unknown labels, cuts that are
    nearly as good take part, so that no single label decides.

    Args:
        scores: ``(N, K)`` **probabilities** of images that the model was *not* trained on.
        labels: ``(N, K)`` of 1 present, 0 absent, -1 or NaN unknown; or a label table.

    Returns:
        ``(K,)`` values and their marks. A class with fewer than 5 known presents takes the mean of the other classes
        (in logits, by their known presents, and 0.5 as a small one); from 5 to 9 it moves from there to its own
        threshold in six equal steps, unless all its labels are known.

    Raises:
        InputError: scores outside 0 … 1, shapes that do not match, values that are no labels.

    The threshold lies midway between the lowest score that is taken and the next lower one, and on the lowest score
    itself where there is no lower one. Equal scores stay together. Of several cuts that are equally good on complete
    labels the highest is chosen. The assumption is that of the prevalence: labels are missing at random.

    Reference:
        F1 from positive and unlabeled data: Lee & Liu, ICML 2003; the exponential weights: Vovk, "Aggregating
        strategies", COLT 1990.

    Example:
        >>> scores = np.linspace(0.99, 0.01, 50)[:, None]
        >>> labels = (np.arange(50) < 10).astype(np.int8)[:, None]
        >>> choose_thresholds(scores, labels)
        Thresholds(values=array([0.8]), marks=('measured',))
    """
    formatted, codes = format_pair(scores, labels)
    require_probabilities(formatted)
    present, absent = (np.count_nonzero(codes == state, axis=0) for state in (PRESENT, ABSENT))
    values = np.full(codes.shape[1], DEFAULT_THRESHOLD)
    columns = np.flatnonzero(present)
    for chunk in slices(columns.size, codes.shape[0]):
        part = columns[chunk]
        values[part] = _best_cuts(np.ascontiguousarray(formatted.T[part]), np.ascontiguousarray(codes.T[part]))
    values = _borrow(values, present, present + absent == len(codes), formatted.dtype)
    marks = np.select(
        [(present >= MIN_MEASURED) & (absent >= MIN_MEASURED), present >= MIN_PRESENT],
        ["measured", "estimated"],
        "borrowed" if (present >= MIN_PRESENT).any() else "default",
    )
    return Thresholds(values=values, marks=tuple(marks.tolist()))


def _borrow(
    values: NDArray[np.float64],
    present: NDArray[np.integer[Any]],
    complete: NDArray[np.bool_],
    dtype: np.dtype[Any],
) -> NDArray[np.float64]:
    """Move the thresholds of classes with few known presents to the mean of all, in logits.

    A class counts in the mean by its known presents beyond the fourth, up to 50; the default counts 5. A class of at
    least 5 known presents whose labels are all known keeps its own.
    """
    weight = np.clip(present - MIN_PRESENT + 1, 0, _MAX_WEIGHT)
    own = logit(np.clip(values, _SMALLEST, 1 - _SMALLEST))
    shared = float(weight @ own) / (weight.sum() + MIN_PRESENT) if weight.any() else 0.0
    trust = np.where(complete & (weight > 0), 1.0, np.clip(weight / (MIN_MEASURED - MIN_PRESENT + 1), 0, 1))
    moved = expit(trust * own + (1 - trust) * shared).astype(dtype).astype(np.float64)
    borrowed: NDArray[np.float64] = np.where(trust == 1, values, moved)
    return borrowed


def _best_cuts(scores: Floats, codes: Codes) -> NDArray[np.float64]:
    """Return the threshold of R classes of M images, each with at least one known present.

    Only a cut at a present entry can be best: taking more entries without a further hit lowers F1.
    """
    cuts = partial_cuts(scores, codes)
    prevalence = cuts.prevalence()[cuts.ranking]
    score = 2 * prevalence * cuts.recall / (prevalence + cuts.share)
    best = np.full(len(codes), -np.inf)
    np.maximum.at(best, cuts.ranking, score)
    highest = np.full(len(codes), -1)
    winners = np.flatnonzero(score >= best[cuts.ranking] * (1 - 1e-12))
    np.maximum.at(highest, cuts.ranking[winners], winners)
    unknown = cuts.images - cuts.present - cuts.absent
    rate = cuts.present * np.minimum(cuts.images / np.maximum(unknown, 1), _MAX_SHARPNESS)
    weight = np.exp(rate[cuts.ranking] * (score - best[cuts.ranking]))
    mean = np.rint(cuts.sums(weight * cuts.taken) / cuts.sums(weight)).astype(np.int64)
    return _midway(scores, np.where(unknown > 0, mean, cuts.taken[highest]))


def _midway(scores: Floats, taken: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the middle between the ``taken``-th highest score and the next, in the type of the scores."""
    bordered = np.pad(np.sort(scores, axis=1), ((0, 0), (1, 0)), constant_values=-np.inf)
    row, index = np.arange(len(bordered)), bordered.shape[1] - taken
    score, below = bordered[row, index], bordered[row, index - 1]
    with np.errstate(invalid="ignore"):
        middle = (below + (score - below) / 2).astype(scores.dtype).astype(np.float64)
    result: NDArray[np.float64] = np.where(middle > below, middle, score)
    return result
