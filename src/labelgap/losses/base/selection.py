"""The largest entries of a batch: how many there are to choose from, and which they are.

On the CPU, where the host reads a value without waiting, the k-th largest entry is selected; on a device entries are
sorted there, and nothing waits for the count. A share of the entries is exact for the decimal that the user wrote.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.distributed import all_sum, gather_rows, world_size
from labelgap.losses.base.terms import host_array, only_where, widen

Count = int | Tensor
"""A number that the host has read, or a tensor ``(…)`` on a device."""
MOST_ENTRIES = 2**31
"""Of a global batch, for which a share is exact."""
ROUNDING = 1.0 + 1e-9
"""Makes a share in floats at least as large as the exact one."""
SAMPLE = 2048
"""Entries from which ``kth_largest`` estimates where the k-th largest lies."""
DEVIATIONS = 4
"""By how many standard deviations, and entries, the estimate is lower."""


def share_ratio(shares: NDArray[Any] | Fraction) -> Tensor:
    r"""Return shares as numerator and denominator, int64 ``(…, 2)``, for ``count_share``; a share above 1 is 1.

    Where a denominator is above 2³¹, the ratio is the smallest above the share whose denominator is not: no m/n with
    n ≤ 2³¹ lies between the two, so that :math:`\lceil n \cdot \text{share} \rceil` is the same for both.
    """
    array = np.asarray(shares, dtype=object)
    ratios = [_ratio_above(min(share, Fraction(1))).as_integer_ratio() for share in array.flat]
    return torch.tensor(ratios, dtype=torch.int64, device="cpu").reshape(*array.shape, 2)


def _ratio_above(share: Fraction) -> Fraction:
    near = share.limit_denominator(MOST_ENTRIES)
    if near >= share:
        return near
    a, b = near.as_integer_ratio()  # the next one, c / d, has b c − a d = 1
    d = pow(-a, -1, b)
    d += (MOST_ENTRIES - d) // b * b
    return Fraction((a * d + 1) // b, d)


def count_share(entries: Count, ratio: Tensor) -> Count:
    r"""Return :math:`\lceil n \cdot \text{share} \rceil` of shape ``(…)``, exactly and without synchronization."""
    if isinstance(entries, int) and ratio.ndim == 1:
        numerator, denominator = ratio.tolist()
        return int((entries * numerator + denominator - 1) // denominator)
    denominators = ratio[..., 1]
    return (entries * ratio[..., 0] + (denominators - 1)) // denominators


def as_count(count: Count) -> Tensor:
    """Return a count as a tensor."""
    return torch.full((), count, device="cpu") if isinstance(count, int) else count


def count_marked(mask: Tensor) -> Count:
    """Return how many entries of a mask ``(…, B, K)`` are true in the global batch, of shape ``(…)``."""
    array = host_array(mask) if mask.ndim == 2 else None
    return all_sum(mask.sum(dim=(-2, -1))) if array is None else all_count(int(np.count_nonzero(array)))


def all_count(count: int) -> int:
    """Add up a number that the host has read, over all processes."""
    return count if world_size() == 1 else int(all_sum(torch.full((), count, device="cpu")))


def top_k_mask(logits: Tensor, allowed: Tensor, count: Count, *, largest_share: float | None = None) -> Tensor:
    """Mark the allowed entries that are at least as large as the ``count``-th largest of the global batch.

    Logits and masks are ``(…, B, K)``, ``count`` is ``(…)``, at most as many as are allowed; ties with the last one are
    marked too. The loss of an assumed negative grows with the logit, so the order of both is the same.

    ``largest_share`` is a share of the batch that the count is known not to exceed, so that the largest are selected
    without waiting for the count; None sorts all entries.
    """
    values = widen(logits.detach())
    if isinstance(count, int) and values.ndim == 2:
        if not count:
            return torch.zeros_like(allowed)
        pool, among = gather_rows(values, dim=-2).numpy(), gather_rows(allowed, dim=-2).numpy()
        found = values.numpy() >= kth_largest(pool, among, count)
        found &= allowed.numpy()
        return torch.from_numpy(found)
    count = as_count(count)
    values = only_where(allowed, values)
    pooled = gather_rows(values, dim=-2).flatten(-2)
    size = pooled.shape[-1]
    if size == 0:
        return torch.zeros_like(allowed)
    if largest_share is None:
        ordered = pooled.sort(dim=-1, descending=True).values
    else:
        most = min(size, math.ceil(size * largest_share * ROUNDING) + 1)
        array = host_array(pooled)
        if array is None:
            ordered = pooled.topk(most, dim=-1).values
        else:  # NumPy partitions five times as fast
            ordered = torch.from_numpy(np.sort(np.partition(array, size - most)[..., size - most :])).flip(-1)
    place = (count - 1).clamp(0, ordered.shape[-1] - 1).expand(ordered.shape[:-1])[..., None]
    threshold = torch.where((count > 0)[..., None], ordered.gather(-1, place), torch.inf)
    return allowed & (values >= threshold[..., None])


def kth_largest(values: NDArray[Any], among: NDArray[np.bool_], k: int) -> Any:
    """Return the k-th largest of those values where a mask is true, which are at least k; NaN is above all others.

    A few thousand values tell a lower bound of it, and only those above are searched (Floyd and Rivest, 1975): five
    times as fast as ``torch.topk``. Where the bound turns out too high, all are searched.
    """
    step = max(1, values.size // SAMPLE)
    while math.gcd(step, values.shape[-1]) > 1:  # so that all classes are in the sample
        step += 1
    values, among = values.ravel(), among.ravel()
    sample, mean = values[::step][among[::step]], k / step
    place = math.ceil(mean + DEVIATIONS * (math.sqrt(mean) + 1))
    if step > 1 and place < sample.size:
        near = values[np.flatnonzero(~(values < _largest(sample, place)) & among)]
        if near.size >= k:
            return _largest(near, k)
    return _largest(values[among], k)


def _largest(values: NDArray[Any], k: int) -> Any:
    """Return the k-th largest; the values are reordered."""
    values.partition(values.size - k)
    return values[values.size - k]
