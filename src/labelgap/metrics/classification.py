"""Precision, recall and F1 of the decisions at a threshold; only entries whose label is known count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT, as_array
from labelgap.metrics.validation import (
    Average,
    Codes,
    Empty,
    Floats,
    Labels,
    Result,
    Scores,
    average_over,
    format_pair,
    require_probabilities,
    validate_options,
)


class ClassificationMetric(Protocol):
    """The signature that :func:`f1`, :func:`precision` and :func:`recall` share."""

    @overload
    def __call__(
        self, scores: Scores, labels: Labels, threshold: ArrayLike = ..., average: Average = ..., empty: Empty = ...
    ) -> float: ...
    @overload
    def __call__(
        self, scores: Scores, labels: Labels, threshold: ArrayLike = ..., *, average: None, empty: Empty = ...
    ) -> NDArray[np.float64]: ...
    @overload
    def __call__(
        self,
        scores: Scores,
        labels: Labels,
        threshold: ArrayLike = ...,
        average: Average | None = ...,
        empty: Empty = ...,
        *,
        return_counted: Literal[True],
    ) -> tuple[Any, int]: ...


@dataclass(frozen=True, eq=False)
class ConfusionCounts:
    """Counts of decisions and known labels, ``(R,)``; ``hits`` are predicted present, and present."""

    hits: NDArray[Any]
    predicted: NDArray[Any]
    present: NDArray[Any]
    absent: NDArray[Any]

    def f1(self) -> NDArray[np.float64]:
        """Return F1 of each, ``(R,)``; 0/0 is 0, here and below."""
        return _ratio(2 * self.hits, self.present + self.predicted)


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(part / np.maximum(whole, 1), dtype=np.float64)


def _metric(formula: Callable[[ConfusionCounts], NDArray[np.float64]]) -> ClassificationMetric:
    """Turn the formula of a metric into the function of scores and labels, with its name and documentation."""

    def metric(
        scores: Scores,
        labels: Labels,
        threshold: ArrayLike = 0.5,
        average: Average | None = "macro",
        empty: Empty = "skip",
        return_counted: bool = False,
    ) -> Result:
        validate_options(average, empty)
        formatted, codes = format_pair(scores, labels)
        require_probabilities(formatted)
        counts = confusion_counts(formatted >= _format_threshold(threshold, formatted), codes, average)
        return average_over(formula(counts), counts.present, counts.absent, average, empty, return_counted)

    metric.__name__, metric.__qualname__, metric.__doc__ = formula.__name__, formula.__qualname__, formula.__doc__
    return cast(ClassificationMetric, metric)


@_metric
def f1(counts: ConfusionCounts) -> NDArray[np.float64]:
    r"""Return the harmonic mean of precision and recall of the decisions at a threshold.

    .. math:: F_1 = \frac{2\,TP}{2\,TP + FP + FN}

    Args:
        scores: ``(N, K)`` **probabilities**, 0 to 1: an array, a tensor or nested lists. Logits are refused.
        labels: ``(N, K)`` of 1 present, 0 absent, -1 or NaN unknown; or a label table. Unknown entries are left out.
        threshold: a number, or one for each class. A class is predicted present where ``score >= threshold``, in the
            precision of the scores (float32 0.9 reaches a threshold of 0.9).
        average: ``"macro"``, the mean over classes; ``"micro"``, one value from the counts of all entries together;
            ``"samples"``, the mean over images; None, the value of each class, NaN for one that is not counted.
        empty: ``"skip"`` counts a class (an image for ``"samples"``, all entries together for ``"micro"``) only if it
            has at least one known present *and* one known absent label: with positives alone no prediction can be
            wrong. ``"zero"`` counts all; 0/0 is 0, as in scikit-learn with ``zero_division=0``.
        return_counted: also return how many classes (images; 1 or 0 for ``"micro"``) were counted. What is not counted
            is NaN.

    Example:
        >>> f1([[0.9, 0.2], [0.6, 0.7], [0.8, 0.9]], [[1, 0], [0, 1], [-1, -1]], return_counted=True)
        (0.8333333333333333, 2)
    """
    return counts.f1()


@_metric
def precision(counts: ConfusionCounts) -> NDArray[np.float64]:
    r"""Return the share of present entries among the known entries predicted present.

    .. math:: P = \frac{TP}{TP + FP}

    Arguments, result and what is counted are those of :func:`f1`. A class never predicted present has precision 0.
    """
    return _ratio(counts.hits, counts.predicted)


@_metric
def recall(counts: ConfusionCounts) -> NDArray[np.float64]:
    r"""Return the share of known present entries that is predicted present.

    .. math:: R = \frac{TP}{TP + FN}

    Arguments, result and what is counted are those of :func:`f1`. Positives alone would suffice; recall is counted over
    the same classes as precision and F1, so that the three are comparable.
    """
    return _ratio(counts.hits, counts.present)


def confusion_counts(predicted: NDArray[np.bool_], codes: Codes, average: Average | None) -> ConfusionCounts:
    """Count decisions ``(N, K)`` of each class, of each image (``"samples"``), or of all together (``"micro"``)."""
    present, absent = codes == PRESENT, codes == ABSENT
    entries = (predicted & present, predicted & (present | absent), present, absent)
    axis = {"micro": None, "samples": 1}.get(str(average), 0)
    return ConfusionCounts(*(np.atleast_1d(np.count_nonzero(each, axis=axis)) for each in entries))


def _format_threshold(threshold: ArrayLike, scores: Floats) -> Floats:
    """Return the threshold, ``()`` or ``(K,)``, in the type of scores ``(N, K)``."""
    array = as_array(threshold, "threshold")
    classes = scores.shape[1]
    if array.dtype.kind not in "fiu" or array.shape not in ((), (classes,)):
        raise InputError(
            f"threshold must be a number, or {classes} of them, one for each class; "
            f"this is {array.dtype} of shape {array.shape}."
        )
    if np.isnan(array).any():
        raise InputError("threshold is NaN; 0.5 is the usual one.")
    with np.errstate(over="ignore"):
        return array.astype(scores.dtype)


def cohen_kappa(counts: NDArray[np.int64]) -> float | None:
    r"""Return Cohen's κ of a table of counts, first answers by second answers; None where it is undefined.

    It compares how often people agree, :math:`p_o`, with how often they would if each answered at random with his own
    share of yes, :math:`p_e`:

    .. math:: \kappa = \frac{p_o - p_e}{1 - p_e}

    1 is perfect agreement, 0 is that of chance. It is undefined where nobody ever answers differently, e.g. always no.

    Reference: J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement,
    1960.
    """
    total = int(counts.sum())
    chance = int(counts.sum(0) @ counts.sum(1))  # p_e and p_o, multiplied by the square of the total
    if not total or chance == total**2:
        return None
    return float((int(np.trace(counts)) * total - chance) / (total**2 - chance))
