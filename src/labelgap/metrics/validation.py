"""Input validation that all metrics share, and which classes (or images) a mean is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.labels.codes import ABSENT, as_array, as_codes
from labelgap.labels.table import LabelTable

if TYPE_CHECKING:
    from torch import Tensor

Average: TypeAlias = Literal["macro", "samples", "micro"]
Empty: TypeAlias = Literal["skip", "zero"]
Unknown: TypeAlias = Literal["ignore", "absent"]
Floats: TypeAlias = NDArray[np.floating[Any]]
Codes: TypeAlias = NDArray[np.int8]
Measured: TypeAlias = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]
"""A value for each of R rankings, and how many of its entries are known present and known absent."""

MIN_KNOWN_LABELS: Final = 5
"""Known present and known absent labels that a class must have, each, for an interval; for a calibration, present."""
MAX_CHANCE: Final = 0.5
"""Where random scores would reach a higher average precision than this on partial labels, it is no accuracy."""

ThresholdMark: TypeAlias = Literal["measured", "estimated", "borrowed", "default"]
Scores: TypeAlias = "ArrayLike | Tensor"
Labels: TypeAlias = "ArrayLike | LabelTable | Tensor"
Result: TypeAlias = "float | NDArray[np.float64] | tuple[float, int] | tuple[NDArray[np.float64], int]"


def validate_options(average: object, empty: object, unknown: object = "ignore") -> None:
    """Refuse an option that has none of its values (None is an average too); the error suggests the nearest one."""
    for kind, value, known in (
        ("average", "macro" if average is None else average, get_args(Average)),
        ("rule for what has no present or no absent (empty=)", empty, ("skip", "zero")),
        ("treatment of unknown labels (unknown=)", unknown, ("ignore", "absent")),
    ):
        if value not in known:
            raise UnknownNameError(kind, str(value), known)


def format_scores(scores: Scores) -> Floats:
    """Convert an array, a tensor or nested lists to finite ``(N, K)`` scores, float32 or wider."""
    array = as_array(scores, "scores")
    if array.dtype.kind not in "fiub":
        raise InputError(f"scores must be numbers, not {array.dtype}.")
    _require_matrix(array, "scores")
    narrow = array.dtype in (np.float16, np.float32)
    with np.errstate(over="ignore"):
        formatted: Floats = array.astype(np.float32 if narrow else np.float64, copy=False)
    if formatted.size and not np.isfinite([formatted.min(), formatted.max()]).all():
        finite = np.isfinite(formatted)
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        count = formatted.size - int(np.count_nonzero(finite))
        raise InputError(
            f"scores must be finite: {formatted[row, column]} at row {row}, class {column}, and {count} such in all. "
            "Check the model that computed them; a missing score cannot be ranked."
        )
    return formatted


def format_labels(labels: Labels) -> Codes:
    """Convert an array, a tensor, nested lists or a label table to ``(N, K)`` int8 codes."""
    codes = as_codes(labels.to_dense() if isinstance(labels, LabelTable) else labels, what="labels")
    _require_matrix(codes, "labels")
    return codes


def format_pair(scores: Scores, labels: Labels) -> tuple[Floats, Codes]:
    """Format scores and labels, and refuse them unless their shapes are equal."""
    formatted, codes = format_scores(scores), format_labels(labels)
    if formatted.shape != codes.shape:
        raise InputError(
            f"scores are {formatted.shape} and labels {codes.shape}: both must be (images, classes), in the same order."
        )
    return formatted, codes


def require_probabilities(scores: Floats) -> None:
    """Refuse scores outside 0 … 1: a threshold of 0.5 on logits would silently mean another probability."""
    if not scores.size:
        return
    low, high = float(scores.min()), float(scores.max())
    if low < -1e-6 or high > 1 + 1e-6:
        raise InputError(
            f"scores run from {low:.6g} to {high:.6g}, but a threshold is set on probabilities (0 to 1): "
            "give the sigmoid of the logits."
        )


def expected_random_precision(
    present: NDArray[np.integer[Any]], absent: NDArray[np.integer[Any]]
) -> NDArray[np.float64]:
    r"""Return the average precision that random scores reach on the average, for known labels of each state.

    .. math:: \frac{1}{n} \Bigl( \frac{P - 1}{n - 1} (n - H_n) + H_n \Bigr), \qquad
              n = P + A,\; H_n = \sum_{i=1}^{n} 1 / i

    For many labels it is near the share of presents, :math:`P / n`; for few it is higher.
    """
    count = np.asarray(present) + absent
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, count.max(initial=0) + 1)))[count]
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = ((present - 1) / np.maximum(count - 1, 1) * (count - harmonic) + harmonic) / np.maximum(count, 1)
    return np.where(np.asarray(present) > 0, expected, 0.0)


def supports_accuracy(
    present: NDArray[np.integer[Any]], absent: NDArray[np.integer[Any]], images: int
) -> NDArray[np.bool_]:
    """Return which classes' known labels, ``(K,)`` of each state, support an accuracy: chance is low enough."""
    known, chance = present + absent, expected_random_precision(present, absent)
    supported: NDArray[np.bool_] = (present > 0) & (absent > 0) & ((known == images) | (chance <= MAX_CHANCE))
    return supported


def unknown_as_absent(codes: Codes) -> Codes:
    """Return the codes with ABSENT for UNKNOWN."""
    return np.maximum(codes, np.int8(ABSENT))


def average_over(
    values: NDArray[np.float64],
    present: NDArray[np.integer[Any]],
    absent: NDArray[np.integer[Any]],
    average: Average | None,
    empty: Empty,
    return_counted: bool,
) -> Result:
    """Return the mean over the counted classes (or images), or their values ``(R,)`` where ``average`` is None."""
    counted = np.ones(values.shape, dtype=bool) if empty == "zero" else (present > 0) & (absent > 0)
    count = int(np.count_nonzero(counted))
    if average is None:
        each = np.where(counted, values, np.nan)
        return (each, count) if return_counted else each
    mean = float(values[counted].mean()) if count else float("nan")
    return (mean, count) if return_counted else mean


def _require_matrix(array: NDArray[Any], what: str) -> None:
    if array.ndim != 2:
        raise InputError(
            f"{what} must be (images, classes), not {array.shape}; a single class is one column: reshape(-1, 1)."
        )
