"""Checks of what users write as options: each says what is allowed."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.losses.base.terms import Number

Entries = TypeVar("Entries", int, Tensor)
GROUP = 10**9


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return the value if it is one of the allowed texts."""
    if value not in allowed:
        raise InputError(f"{name}={value!r}: it is one of {', '.join(repr(text) for text in allowed)}.")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return a value that is true or false; a text such as "no" is neither.

    Example:
        >>> check_flag("hard", "no")
        Traceback (most recent call last):
        ...
        labelgap.core.errors.InputError: hard='no': it is true or false.
    """
    if not isinstance(value, bool | np.bool_ | int) or value not in (0, 1):
        raise InputError(f"{name}={value!r}: it is true or false.")
    return bool(value)


def check_number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, above: bool = False
) -> Number:
    """Return a number, or a tensor of them, that lies within [low, high], or (low, high] when ``above``.

    Example:
        >>> check_number("smoothing", 0.1, 0, 1)
        0.1
        >>> check_number("smoothing", 3, 0, 1)
        Traceback (most recent call last):
        ...
        labelgap.core.errors.InputError: smoothing=3: it lies between 0 and 1.
    """
    try:
        values = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}={value!r}: a number is needed.") from None
    inside = np.isfinite(values) & (values > low if above else values >= low) & (values <= high)
    if values.ndim and not isinstance(value, Tensor):
        raise InputError(f"{name}={value!r}: one number, or a tensor with one per head.")
    if not inside.all():
        raise InputError(f"{name}={value}: it {_range(low, high, above)}.")
    return value if isinstance(value, Tensor) else float(value)


def _range(low: float, high: float, above: bool) -> str:
    if math.isinf(low) and math.isinf(high):
        return "must be finite"
    if math.isinf(high):
        return f"must be {'above' if above else 'at least'} {low:g}"
    return f"lies between {low:g} {'(not included) ' if above else ''}and {high:g}"


def check_integer(name: str, value: Any, low: int = 0) -> Number:
    """Return a whole number, or a tensor of them, that is at least ``low``.

    Example:
        >>> check_integer("warmup", 1.5)
        Traceback (most recent call last):
        ...
        labelgap.core.errors.InputError: warmup=1.5: a whole number is needed.
    """
    checked = check_number(name, value, low)
    if any(item.denominator != 1 for item in exact_fractions(checked).flat):
        raise InputError(f"{name}={value}: a whole number is needed.")
    return checked if isinstance(checked, Tensor) else int(checked)


def exact_fractions(value: Number) -> NDArray[Any]:
    """Read numbers as the decimals the user wrote; return an array of ``Fraction`` of shape ``(…)``.

    0.2 is 1/5 here, not 0.200000000000000011: counts that follow from it are exact.

    Example:
        >>> exact_fractions(0.2).item()
        Fraction(1, 5)
    """
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    return np.array([Fraction(str(item)) for item in array.flat], dtype=object).reshape(array.shape)


def exact_percents(value: Number) -> Tensor:
    """Write percentages as a share of 1 in groups of nine decimals, int64 of shape ``(…, 1 to 3)``.

    ``exact_share`` multiplies with them on the device, without a rounding error. What lies behind the 27th decimal is
    rounded up; no percentage above 1e-8 has any when it is written as a float. Last groups that are 0 are left out.

    Example:
        >>> exact_percents(12.5)
        tensor([125000000])
    """
    fractions = exact_fractions(value)
    units = [math.ceil(item / 100 * GROUP**3) for item in fractions.flat]
    groups = [(unit // GROUP**2, unit // GROUP % GROUP, unit % GROUP) for unit in units]
    used = max((3 - next((n for n, part in enumerate(reversed(group[1:])) if part), 2) for group in groups), default=1)
    return torch.tensor(groups, dtype=torch.int64).reshape(*fractions.shape, 3)[..., :used]


def exact_share(entries: Entries, groups: Tensor) -> Entries:
    r"""Return :math:`\lceil n \cdot \text{share} \rceil` of shape ``(…)``, exactly and without synchronisation.

    n is an integer, or int64 of shape ``(…)``, below nine thousand million; the groups are those of ``exact_percents``.
    A carry from group to group, rounded up each time, is the rounded-up product: for whole numbers
    :math:`\lceil \lceil a / c \rceil / d \rceil = \lceil a / (c d) \rceil`.

    Example:
        >>> exact_share(torch.tensor(1000), exact_percents(0.2))
        tensor(2)
    """
    count: Any = 0
    for group in reversed(groups.tolist() if isinstance(entries, int) else groups.unbind(-1)):
        count = (entries * group + (count + (GROUP - 1))) // GROUP
    result: Entries = count
    return result
