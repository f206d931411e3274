"""The three states of a label and their codes.

A label is present, absent or *unknown*. The third state is kept from the import to the metric: "nobody labeled it" is
not the same as "it is absent".
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError

__all__ = ["ABSENT", "PRESENT", "UNKNOWN", "as_codes"]

PRESENT: Final = 1
ABSENT: Final = 0
UNKNOWN: Final = -1


def as_codes(values: ArrayLike, *, what: str = "labels") -> NDArray[np.int8]:
    """Convert 1 / 0 / −1, booleans, or 1 / 0 / NaN to int8 codes; raise ``InputError`` for anything else.

    Args:
        values: an array of any shape; NaN means unknown in float input.
        what: the name to use in the error message.

    Example:
        >>> as_codes([[1.0, float("nan"), 0.0]])
        array([[ 1, -1,  0]], dtype=int8)
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} must be a table of numbers, every row as long as the first ({error}).") from None
    if array.dtype.kind not in "iubf":
        raise InputError(f"{what} must be numbers (1 present, 0 absent, -1 or NaN unknown), not {array.dtype}.")
    states = np.where(np.isnan(array), UNKNOWN, array) if array.dtype.kind == "f" else array
    invalid = (states != PRESENT) & (states != ABSENT) & (states != UNKNOWN)
    if invalid.any():
        where = tuple(int(i) for i in np.argwhere(invalid)[0])
        raise InputError(
            f"{what} holds {array[where]!s} at {where}, and {int(invalid.sum())} such values in all: "
            "a label is 1 (present), 0 (absent) or -1 / NaN (unknown)."
        )
    codes: NDArray[np.int8] = states.astype(np.int8, copy=False)
    return codes
