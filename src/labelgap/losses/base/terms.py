"""The terms that the equations of all methods are written with, and the checks of their options.

Everything is exact in the logit: ``−ln p`` and ``−ln(1 − p)`` never pass through ``p``, so cost and gradient stay
finite for logits of ±10,000, and half-precision logits are widened first.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelgap.core.distributed import all_sum, world_size
from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN

Number = float | Tensor
"""A plain number, or a tensor of shape ``(…)`` that gives every head its own."""

LOWEST = -1e30
"""Below every logit. Added where a mask is false, it stands for −∞, and adding is much faster than selecting."""


class States(NamedTuple):
    """Three masks of shape ``(…, B, K)``, of which exactly one is true at every entry."""

    present: Tensor
    absent: Tensor
    unknown: Tensor


def states(labels: Tensor) -> States:
    """Return the masks of the three states; NaN, and anything that is neither PRESENT nor ABSENT, is unknown."""
    present, absent = has_state(labels, PRESENT), has_state(labels, ABSENT)
    return States(present, absent, ~(present | absent))


def only_where(mask: Tensor, values: Tensor) -> Tensor:
    """Return the values where a mask is true, and ``LOWEST`` elsewhere."""
    return torch.add(values, (~mask).view(torch.uint8), alpha=LOWEST)


def host_array(values: Tensor) -> NDArray[Any] | None:
    """Return values that the host can read without waiting; None on a device, in a compiler, or inside of torch.func.

    On the CPU numpy compares in a third of the time that torch takes.
    """
    if not values.is_cpu or torch.compiler.is_compiling():
        return None
    try:
        array: NDArray[Any] = values.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


def is_unknown(labels: Tensor) -> Tensor:
    """Return the mask of the unknown labels; see ``states``. As bytes without a sign they are above 1."""
    codes = host_array(labels) if labels.dtype == torch.int8 else None
    return states(labels).unknown if codes is None else torch.from_numpy(codes.view(np.uint8) > 1)


def has_state(labels: Tensor, code: int) -> Tensor:
    """Return the mask of one state."""
    codes = host_array(labels) if labels.dtype == torch.int8 else None
    return labels == code if codes is None else torch.from_numpy(codes == code)


def are_above(values: Tensor, level: float) -> Tensor:
    """Return the mask of the values above a plain number."""
    array = host_array(values.detach())
    return values > level if array is None else torch.from_numpy(array > level)


def widen(logits: Tensor) -> Tensor:
    """Return half-precision logits as float32; float32 and float64 stay as they are."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float type of a device: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def per_head(value: Number, like: Tensor) -> Tensor:
    """Append the two axes (B, K) to a number of shape ``(…)``, so that it broadcasts over its head's batch.

    It takes on the float type of ``like``, the widened logits: float64 logits meet an exact 0.1 (a mask times a plain
    0.1 would be float32), and a float64 number never widens float32 logits.
    """
    if isinstance(value, Tensor):
        return value.to(like.dtype)[..., None, None]
    return like.new_full((1, 1), value)


def cost_present(logits: Tensor, eps: Number = 0.0) -> Tensor:
    r"""Cost of a label that is present, :math:`-\ln(p + \varepsilon)`: exact, and finite, for any ε from 0 on."""
    log = logsigmoid(widen(logits))
    if isinstance(eps, Tensor):
        return -torch.logaddexp(log, per_head(eps, log).log())
    return -torch.logaddexp(log, log.new_full((), math.log(eps))) if eps else -log


def cost_absent(logits: Tensor, eps: Number = 0.0) -> Tensor:
    r"""Cost of a label that is absent, :math:`-\ln(1 - p + \varepsilon)`."""
    return cost_present(-logits, eps)


def cross_entropy(logits: Tensor, target: Number, eps: Number = 0.0) -> Tensor:
    r"""Cost of a soft target, :math:`-t \ln(p + \varepsilon) - (1 - t) \ln(1 - p + \varepsilon)`."""
    return target * cost_present(logits, eps) + (1.0 - target) * cost_absent(logits, eps)


def focused_cost(logits: Tensor, gamma: Tensor, eps: Number = 0.0, *, detach: bool = False) -> Tensor:
    r"""Cost of a present label with the focus of a focal loss, :math:`(1-p)^\gamma (-\ln(p + \varepsilon))`.

    ``detach`` makes the focus a constant to the gradient. Of an absent label, pass ``−logits``.
    """
    focus = torch.exp(-gamma * cost_absent(logits))
    return (focus.detach() if detach else focus) * cost_present(logits, eps)


def entropy(logits: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Return the entropy of every entry, :math:`H(p) = -p \ln p - (1-p) \ln(1-p)`, between 0 and ln 2.

    Its derivative in the logit x is :math:`-x\,p\,(1-p)`; ``eps`` is added inside both logarithms.
    """
    return cross_entropy(logits, torch.sigmoid(widen(logits)), eps)


def expected_positive_regularization(probabilities: Tensor, expected_positives: Number) -> Tensor:
    r"""Cost of a batch whose images have more or fewer positives, on average, than expected.

    .. math:: R = \Bigl( \frac{\frac1B \sum_{b,k} p_{bk} - \kappa}{K} \Bigr)^2

    ``expected_positives`` is κ, positives per image. The cost is ``(…)``, of the global batch.
    """
    total = all_sum(probabilities.sum(dim=(-2, -1)))
    images = all_sum(total.new_full((), probabilities.shape[-2])).clamp(min=1)
    if isinstance(expected_positives, Tensor):
        expected_positives = expected_positives.to(total.dtype)
    return ((total / images - expected_positives) / probabilities.shape[-1]) ** 2


def reduce(entries: Tensor, reduction: str) -> Tensor:
    """Reduce ``(…, B, K)`` to ``(…)`` over the global batch: "mean", "sum", or "none" to leave it.

    The mean is over all entries of all processes, so that shards of unequal size weigh as their rows do.
    """
    if reduction == "none":
        return entries
    total = all_sum(entries.sum(dim=(-2, -1)))
    if reduction == "sum":
        return total
    size = entries.shape[-2] * entries.shape[-1]
    if world_size() == 1:
        return total / max(size, 1)
    return total / all_sum(total.new_full((), size)).clamp(min=1)


def check_shapes(logits: Tensor, labels: Tensor) -> None:
    """Raise ``InputError`` where logits and labels are not one batch."""
    if not (isinstance(logits, Tensor) and isinstance(labels, Tensor)):
        other = labels if isinstance(logits, Tensor) else logits
        raise InputError(f"logits and labels must be tensors: torch.as_tensor makes one of a {type(other).__name__}.")
    if not logits.is_floating_point():
        raise InputError(f"logits must be floats, not {logits.dtype}.")
    if logits.ndim < 2:
        raise InputError(f"logits must have shape (…, B, K), a row per image; got {tuple(logits.shape)}.")
    if labels.shape != logits.shape and labels.shape != logits.shape[-2:]:
        raise InputError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} are not of the same batch: "
            f"labels have shape {tuple(logits.shape[-2:])}" + (" or that of the logits." if logits.ndim > 2 else ".")
        )


def check_codes(labels: NDArray[Any]) -> None:
    """Raise ``InputError`` where a label is none of 1, 0, -1 and NaN."""
    wrong = ~np.isin(labels, (PRESENT, ABSENT, UNKNOWN)) & (labels == labels)
    if wrong.any():
        raise InputError(
            f"a label is {labels[wrong][0]:g}: labels are 1 (present), 0 (absent) and -1 or NaN (unknown)."
        )


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return the value if it is one of the allowed texts."""
    if value not in allowed:
        raise InputError(f"{name}={value!r}: it must be one of {', '.join(repr(text) for text in allowed)}.")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return a value that is true or false; a text such as "no" is neither."""
    if not isinstance(value, bool | np.bool_ | int) or value not in (0, 1):
        raise InputError(f"{name}={value!r}: it must be true or false.")
    return bool(value)


def check_number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, above: bool = False
) -> Number:
    """Return a number, or a tensor of them, that lies within [low, high], or (low, high] when ``above``."""
    try:
        values = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}={value!r}: a number is needed.") from None
    inside = np.isfinite(values) & (values > low if above else values >= low) & (values <= high)
    if values.ndim and not isinstance(value, Tensor):
        raise InputError(f"{name}={value!r}: one number, or a tensor with one per head.")
    if not inside.all():
        raise InputError(f"{name}={value}: it {_range(low, high, above)}.")
    return value.detach().clone() if isinstance(value, Tensor) else float(value)


def _range(low: float, high: float, above: bool) -> str:
    if math.isinf(high):
        return "must be finite" if math.isinf(low) else f"must be {'above' if above else 'at least'} {low:g}"
    return f"must lie between {low:g} {'(not included) ' if above else ''}and {high:g}"


def check_integer(name: str, value: Any, low: int = 0) -> Number:
    """Return a whole number, or a tensor of them, that is at least ``low``."""
    checked = check_number(name, value, low)
    if any(item.denominator != 1 for item in exact_fractions(checked).flat):
        raise InputError(f"{name}={value}: a whole number is needed.")
    return checked if isinstance(checked, Tensor) else int(checked)


def exact_fractions(value: Number) -> NDArray[Any]:
    """Read numbers as the decimals the user wrote; return an array of ``Fraction`` of shape ``(…)``.

    0.2 is 1/5 here, not 0.200000000000000011: counts that follow from it are exact.
    """
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    return np.array([Fraction(str(item)) for item in array.flat], dtype=object).reshape(array.shape)
