"""The three states of a label and their codes: "nobody labeled it" is not the same as "it is absent"."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

PRESENT: Final = 1
ABSENT: Final = 0
UNKNOWN: Final = -1


def as_codes(values: ArrayLike | Tensor, *, what: str = "labels") -> NDArray[np.int8]:
    """Convert 1 / 0 / −1, booleans, or 1 / 0 / NaN to int8 codes; raise ``InputError`` for anything else.

    Args:
        values: an array of any shape; NaN means unknown in float input.
        what: the name to use in the error message.

    Example:
        >>> as_codes([[1.0, float("nan"), 0.0]])
        array([[ 1, -1,  0]], dtype=int8)
    """
    array = as_array(values, what)
    if array.dtype.kind not in "iubf":
        raise InputError(f"{what} must be numbers (1 present, 0 absent, -1 or NaN unknown), not {array.dtype}.")
    if array.dtype.kind != "f" and array.size and array.min() >= UNKNOWN and array.max() <= PRESENT:
        return array.astype(np.int8, copy=False)
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


def is_tensor(value: object) -> TypeIs[Tensor]:
    """Return whether a value is a tensor, without an import of PyTorch: that takes seconds, and a table needs none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(values: Any, what: str) -> NDArray[Any]:
    """Convert a tensor on any device, nested lists or any array-like to an array of any type."""
    if is_tensor(values):
        import torch

        if values.layout != torch.strided:
            raise InputError(
                f"{what} is a sparse tensor, which does not say whether an entry it leaves out is absent or unknown: "
                "give a dense one or a label table."
            )
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() and values.element_size() < 4 else values
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} must be a table of numbers, every row as long as the first ({error}).") from None
