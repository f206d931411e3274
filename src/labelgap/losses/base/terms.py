"""The terms that the equations of all methods are written with.

Everything is exact in the logit: ``−ln p`` and ``−ln(1 − p)`` never pass through ``p``, so cost and gradient stay
finite for logits of ±10,000, and half-precision logits are widened first.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from labelgap.core.distributed import all_sum, world_size
from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT

Number = float | Tensor
"""A plain number, or a tensor of shape ``(…)`` that gives every head its own."""


HOST_DEVICES = frozenset({"cpu"})
"""Devices whose values the host reads without waiting."""
LOWEST = -1e30
"""Below every logit. Added where a mask is false, it stands for −∞, and adding is much faster than selecting."""


class States(NamedTuple):
    """Three masks of shape ``(…, B, K)``, of which exactly one is true at every entry."""

    present: Tensor
    absent: Tensor
    unknown: Tensor


def states(labels: Tensor) -> States:
    """Return the masks of the three states; NaN, and anything that is neither PRESENT nor ABSENT, is unknown.

    Example:
        >>> [mask.int().tolist() for mask in states(torch.tensor([1.0, 0.0, float("nan")]))]
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """
    present, absent = has_state(labels, PRESENT), has_state(labels, ABSENT)
    return States(present, absent, ~(present | absent))


def only_where(mask: Tensor, values: Tensor) -> Tensor:
    """Return the values where a mask is true, and ``LOWEST`` elsewhere.

    Example:
        >>> only_where(torch.tensor([True, False]), torch.tensor([2.0, 3.0]))
        tensor([ 2.0000e+00, -1.0000e+30])
    """
    return torch.add(values, (~mask).view(torch.uint8), alpha=LOWEST)


def on_host(values: Tensor) -> bool:
    """Return whether values can be read without waiting for a device, and outside of a compiled loss."""
    return values.is_cpu and "cpu" in HOST_DEVICES and not torch.compiler.is_compiling()


def constant(value: Number, like: Tensor) -> Number:
    """Return a number for arithmetic with tensors like this one: on the CPU as a tensor, which is kept.

    There a plain number becomes a tensor in every call, which takes as long as thousands of entries.

    Example:
        >>> constant(2.0, torch.zeros(3, dtype=torch.float64))
        tensor(2., dtype=torch.float64)
    """
    return value if isinstance(value, Tensor) or not on_host(like) else _constant(float(value), like.dtype)


@lru_cache(maxsize=1024)
def _constant(value: float, dtype: torch.dtype) -> Tensor:
    return torch.full((), value, dtype=dtype, device="cpu")  # the default device may be another


def is_unknown(labels: Tensor) -> Tensor:
    """Return the mask of the unknown labels; see ``states``. As bytes without a sign they are above 1.

    Example:
        >>> is_unknown(torch.tensor([1, 0, -1], dtype=torch.int8))
        tensor([False, False,  True])
    """
    codes = _array(labels) if labels.dtype == torch.int8 else None
    return states(labels).unknown if codes is None else torch.from_numpy(codes.view(np.uint8) > 1)


def are_above(values: Tensor, level: float) -> Tensor:
    """Return the mask of the values above a plain number; on the CPU numpy's comparison takes a tenth of the time.

    Example:
        >>> are_above(torch.tensor([1.0, 3.0]), 2)
        tensor([False,  True])
    """
    array = _array(values.detach())
    return values > level if array is None else torch.from_numpy(array > level)


def _array(values: Tensor) -> NDArray[Any] | None:
    """Return values on the host as an array; None for others, also for those that torch.func or a tracer stands for."""
    if not on_host(values):
        return None
    try:
        array: NDArray[Any] = values.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


def has_state(labels: Tensor, code: int) -> Tensor:
    """Return the mask of one state; bytes on the CPU are compared in place, which takes half as long there.

    Example:
        >>> has_state(torch.tensor([1, 0, -1], dtype=torch.int8), PRESENT)
        tensor([ True, False, False])
    """
    if labels.dtype == torch.int8 and on_host(labels):
        return labels.clone().eq_(constant(code, labels)).view(torch.bool)
    return labels == code


def equals(value: Number, number: float) -> bool:
    """Return whether a value is this plain number; a tensor never is.

    Example:
        >>> equals(0.0, 0), equals(torch.zeros(2), 0)
        (True, False)
    """
    return isinstance(value, int | float) and value == number


def widen(logits: Tensor) -> Tensor:
    """Return half-precision logits as float32; float32 and float64 stay as they are."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float type of a device: Apple's GPUs have no float64.

    Example:
        >>> widest_float(torch.device("mps"))
        torch.float32
    """
    return torch.float32 if device.type == "mps" else torch.float64


def per_head(value: Number, like: Tensor) -> Tensor:
    """Append the two axes (B, K) to a number of shape ``(…)``, so that it broadcasts over its head's batch.

    Args:
        value: a plain number, or a tensor of shape ``(…)``.
        like: the widened logits, whose float type it takes on: float64 logits meet an exact 0.1 (a mask times a plain
            0.1 would be float32), and a float64 number never widens float32 logits.

    Example:
        >>> per_head(torch.tensor([0.1, 0.2]), torch.zeros(2, 8, 20)).shape
        torch.Size([2, 1, 1])
    """
    if isinstance(value, Tensor):
        return value.to(like.dtype)[..., None, None]
    return like.new_full((1, 1), value)


def cost_present(logits: Tensor, eps: Number = 0.0) -> Tensor:
    r"""Cost of a label that is present, :math:`-\ln(p + \varepsilon)`.

    Args:
        logits: ``(…, B, K)``
        eps: ``ε``; a tensor of shape ``(…)`` gives every head its own. Exact, and finite, for any ε from 0 on.
    """
    log = logsigmoid(widen(logits))
    if isinstance(eps, Tensor):
        return -torch.logaddexp(log, per_head(eps, log).log())
    return -torch.logaddexp(log, log.new_full((), math.log(eps))) if eps else -log


def cost_absent(logits: Tensor, eps: Number = 0.0) -> Tensor:
    r"""Cost of a label that is absent, :math:`-\ln(1 - p + \varepsilon)`."""
    return cost_present(-logits, eps)


def cost_known(logits: Tensor, present: Tensor, eps: Number = 0.0) -> Tensor:
    r"""Cost of a hard label, :math:`-\ln(p + \varepsilon)` if present, else :math:`-\ln(1 - p + \varepsilon)`.

    One logarithm an entry: what is absent in ``x`` is present in ``−x``.

    Example:
        >>> cost_known(torch.tensor([[2.0, 2.0]]), torch.tensor([[True, False]]))
        tensor([[0.1269, 2.1269]])
    """
    return cost_present(torch.where(present, logits, -logits), eps)


def cross_entropy(logits: Tensor, target: Number, eps: Number = 0.0) -> Tensor:
    r"""Cost of a soft target, :math:`-t \ln(p + \varepsilon) - (1 - t) \ln(1 - p + \varepsilon)`."""
    return target * cost_present(logits, eps) + (1.0 - target) * cost_absent(logits, eps)


def focused_cost(logits: Tensor, gamma: Tensor, eps: Number = 0.0, *, detach: bool = False) -> Tensor:
    r"""Cost of a present label with the focus of a focal loss, :math:`(1-p)^\gamma (-\ln(p + \varepsilon))`.

    ``detach`` makes the focus a constant to the gradient. Of an absent label, pass ``−logits``.

    Example:
        >>> focused_cost(torch.zeros(1), torch.tensor(2.0))
        tensor([0.1733])
    """
    focus = torch.exp(-gamma * cost_absent(logits))
    return (focus.detach() if detach else focus) * cost_present(logits, eps)


def entropy(logits: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Return the entropy of every entry, :math:`H(p) = -p \ln p - (1-p) \ln(1-p)`, between 0 and ln 2.

    Its derivative in the logit x is :math:`-x\,p\,(1-p)`.

    Args:
        logits: ``(…, B, K)``, any float type; computed in float32 or wider.
        eps: added inside both logarithms; a tensor of shape ``(…)`` gives every head its own.

    Example:
        >>> entropy(torch.zeros(1, 1))
        tensor([[0.6931]])
    """
    return cross_entropy(logits, torch.sigmoid(widen(logits)), eps)


def expected_positive_regularization(probabilities: Tensor, expected_positives: Number) -> Tensor:
    r"""Cost of a batch whose images have more or fewer positives, on average, than expected.

    .. math:: R = \Bigl( \frac{\frac1B \sum_{b,k} p_{bk} - \kappa}{K} \Bigr)^2

    Args:
        probabilities: ``(…, B, K)``
        expected_positives: ``κ``, positives per image; a tensor of shape ``(…)`` gives every head its own.

    Returns:
        ``(…)``. Over several processes the mean is that of the global batch.

    Example:
        >>> expected_positive_regularization(torch.full((2, 4), 0.75), 1.0)
        tensor(0.2500)
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
