"""Average precision, with labels that may be unknown.

Six papers on partial labels compute it in five ways: ties grouped or broken by the order of the input, classes without
a positive counted as 0 or left out. On the same prediction that makes a difference of several points. Here ties are
grouped, and a class is counted only where the known labels support a value: with known positives alone it would always
score 1, and with none always 0.

The same holds for an image when the classes of each image are ranked. Kobayashi counts images with at least one
positive; here an image needs a known absent class as well. On full labels the two rules differ only for an image with
every class present, where any order scores 1; on positives alone, his rule would count every image as such.
"""

from __future__ import annotations

from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.metrics.on_device import measure_on_device
from labelgap.metrics.sorting import cuts_at_present, map_chunks, to_rows
from labelgap.metrics.validation import (
    Average,
    Codes,
    Empty,
    Floats,
    Labels,
    Measured,
    Result,
    Scores,
    Unknown,
    average_over,
    format_pair,
    unknown_as_absent,
    validate_options,
)


@overload
def average_precision(
    scores: Scores, labels: Labels, average: Average = ..., empty: Empty = ..., unknown: Unknown = ...
) -> float: ...
@overload
def average_precision(
    scores: Scores, labels: Labels, average: None, empty: Empty = ..., unknown: Unknown = ...
) -> NDArray[np.float64]: ...
@overload
def average_precision(
    scores: Scores,
    labels: Labels,
    average: Average = ...,
    empty: Empty = ...,
    unknown: Unknown = ...,
    *,
    return_counted: Literal[True],
) -> tuple[float, int]: ...
@overload
def average_precision(
    scores: Scores,
    labels: Labels,
    average: None,
    empty: Empty = ...,
    unknown: Unknown = ...,
    *,
    return_counted: Literal[True],
) -> tuple[NDArray[np.float64], int]: ...
def average_precision(
    scores: Scores,
    labels: Labels,
    average: Average | None = "macro",
    empty: Empty = "skip",
    unknown: Unknown = "ignore",
    return_counted: bool = False,
) -> Result:
    r"""Area under the precision-recall steps: of what ranks at least as high as a present entry, how much is present.

    .. math:: \mathrm{AP} = \sum_n (R_n - R_{n-1})\, P_n
              = \frac{1}{|Y|} \sum_{i \in Y} \frac{|\{j \in Y : s_j \ge s_i\}|}{|\{j : s_j \ge s_i\}|}

    with :math:`Y` the present entries of a ranking, and :math:`n` running over its distinct scores: equal scores are
    one step, so the order of the input never matters.

    Args:
        scores: ``(N, K)`` finite numbers, probabilities or logits alike: an array, a tensor or nested lists.
        labels: ``(N, K)`` of 1 present, 0 absent, -1 or NaN unknown; or a label table.
        average: ``"macro"``, the mean over classes (mAP@class); ``"samples"`` ranks the classes of each image, the
            mean over images (mAP@sample); ``"micro"``, one ranking of all entries; None, each class for itself.
        empty: ``"skip"`` counts a ranking only if it has at least one known present *and* one known absent entry;
            ``"zero"`` counts all, 0 without a present and else 1 without an absent: the papers, on full labels.
        unknown: ``"ignore"`` leaves unknown entries out of their ranking; ``"absent"`` takes them as absent: the
            "observed" score, for choosing epochs, never an accuracy.
        return_counted: also return how many rankings were counted: classes for ``"macro"`` and None, images for
            ``"samples"``, 1 or 0 for ``"micro"``. It belongs beside every mean that is shown.

    Returns:
        A float from 0 to 1, NaN where nothing is counted; with None an array ``(K,)``, NaN for a class that is not.

    Reference:
        Ties as in scikit-learn's ``average_precision_score``. mAP@sample: Kobayashi, CVPR 2023.

    Example:
        >>> scores = [[0.9, 0.2, 0.1], [0.7, 0.8, 0.3], [0.4, 0.6, 0.5]]
        >>> average_precision(scores, [[1, 1, 0], [0, -1, 1], [1, 1, -1]], return_counted=True)
        (0.9166666666666666, 2)
    """
    validate_options(average, empty, unknown)
    measured = measure_on_device(scores, labels, average, unknown)
    if measured is None:
        measured = _measure(*_rankings(*format_pair(scores, labels), average), unknown)
    return average_over(*measured, average, empty, return_counted)


def average_precision_of_rankings(scores: Floats, codes: Codes) -> NDArray[np.float64]:
    """Return the average precision of R rankings of M entries; 0 without a present entry, unknown entries left out.

    Finite scores and codes ``(R, M)`` give ``(R,)``. A few rankings are sorted at a time, so memory is bounded.

    Example:
        >>> average_precision_of_rankings(np.array([[0.9, 0.5, 0.1]]), np.array([[1, 0, 1]], dtype=np.int8))
        array([0.83333333])
    """
    return _measure(scores, codes, "ignore")[0]


def _measure(scores: Floats, codes: Codes, unknown: Unknown) -> Measured:
    """Return the average precision of rankings ``(R, M)``, and their known present and known absent entries."""

    def measure(chunk: slice) -> Measured:
        states = to_rows(codes[chunk])
        states = unknown_as_absent(states) if unknown == "absent" else states
        cuts = cuts_at_present(to_rows(scores[chunk]), states)
        present, known = np.bincount(cuts.ranking, minlength=len(states)), np.count_nonzero(states != UNKNOWN, axis=1)
        total = np.bincount(cuts.ranking, weights=cuts.hits / cuts.taken, minlength=len(states))
        return total / np.maximum(present, 1), present, known - present

    count = len(scores)
    values, present, absent = np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for chunk, part in map_chunks(measure, *scores.shape):
        values[chunk], present[chunk], absent[chunk] = part
    return values, present, absent


class WeightedRanking:
    """The average precision of one class when every image counts as often as its weight says, as in a bootstrap.

    A resample only changes how often each image counts, so the order is found once; of a resample, only the sums
    between the cuts at present entries are needed, which a sparse matrix of ones gives for many resamples at a time.

    Args:
        scores: ``(N,)``, finite.
        codes: ``(N,)`` of PRESENT, ABSENT, UNKNOWN; at least one is present.

    Example:
        >>> ranking = WeightedRanking(np.array([0.9, 0.5, 0.1]), np.array([1, 0, 1], dtype=np.int8))
        >>> ranking(np.array([[1, 0], [1, 1], [1, 1]], dtype=np.float32))
        array([0.83333333, 0.5       ])
    """

    def __init__(self, scores: Floats, codes: Codes) -> None:
        known = np.flatnonzero(codes != UNKNOWN)
        order = known[np.argsort(-scores[known].astype(np.float64), kind="stable")]
        ranked, is_present = scores[order], codes[order] == PRESENT
        last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(order) - 1)
        group = np.searchsorted(last, np.arange(len(order)))
        cuts = last[np.unique(group[is_present])]
        self._taken = _row_sums(order, np.concatenate([[0], cuts + 1]), len(codes))
        places = np.flatnonzero(is_present)
        self._hits = _row_sums(order[places], np.concatenate([[0], np.searchsorted(places, cuts + 1)]), len(codes))
        self._absent = _row_sums(order[~is_present], np.array([0, (~is_present).sum()]), len(codes))

    def __call__(self, weights: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return average precision, ``(R,)``, for weights ``(N, R)``; NaN where a resample lacks one of the states."""
        new_hits = self._hits @ weights
        hits = np.cumsum(new_hits, axis=0, dtype=np.float64)
        precision = hits / np.maximum(np.cumsum(self._taken @ weights, axis=0, dtype=np.float64), 1)
        both = (hits[-1] > 0) & ((self._absent @ weights)[0] > 0)
        return np.where(both, (new_hits * precision).sum(axis=0) / np.maximum(hits[-1], 1), np.nan)


def _row_sums(rows: NDArray[np.int64], borders: NDArray[np.int64], images: int) -> csr_array:
    """Return the ``(C, N)`` matrix that sums what lies between borders of a list of rows."""
    rows = rows[: borders[-1]]
    return csr_array((np.ones(len(rows), dtype=np.float32), rows, borders), shape=(len(borders) - 1, images))


def _rankings(scores: Floats, codes: Codes, average: Average | None) -> tuple[Floats, Codes]:
    """Return rankings ``(R, M)`` of ``(N, K)``: a row per class, per image, or one of all entries."""
    if average == "samples":
        return scores, codes
    if average == "micro":
        return scores.reshape(1, -1), codes.reshape(1, -1)
    return scores.T, codes.T
