"""The largest entries of a batch: how many there are to choose from, and which they are.

On the CPU, where the host reads a value without waiting, the k-th largest entry is selected; on a device entries are
sorted there, and nothing waits for the count.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.distributed import all_sum, gather_rows, world_size
from labelgap.losses.base.terms import on_host, only_where, widen

Count = int | Tensor
"""A number that the host has read, or a tensor ``(…)`` on a device."""
ROUNDING = 1.0 + 1e-9
"""Makes a share in floats at least as large as the exact one."""
SAMPLE = 2048
"""Entries from which ``kth_largest`` estimates where the k-th largest lies."""
DEVIATIONS = 4
"""By how many standard deviations, and entries, the estimate is lower."""


def as_count(count: Count) -> Tensor:
    """Return a count as a tensor.

    Example:
        >>> as_count(3)
        tensor(3)
    """
    return torch.full((), count, device="cpu") if isinstance(count, int) else count


def count_marked(mask: Tensor) -> Count:
    """Return how many entries of a mask ``(…, B, K)`` are true in the global batch, of shape ``(…)``.

    Example:
        >>> count_marked(torch.tensor([[True, False, True]]))
        2
    """
    if mask.ndim == 2 and on_host(mask):
        count = int(np.count_nonzero(mask.numpy()))
        return count if world_size() == 1 else int(all_sum(torch.full((), count, device="cpu")))
    return all_sum(torch.count_nonzero(mask) if mask.ndim == 2 else mask.sum(dim=(-2, -1)))


def top_k_mask(logits: Tensor, allowed: Tensor, count: Count, *, largest_share: float | None = None) -> Tensor:
    """Mark the allowed entries that are at least as large as the ``count``-th largest of the global batch.

    Logits and masks are ``(…, B, K)``, ``count`` is ``(…)``, at most as many as are allowed; ties with the last one are
    marked too. The loss of an assumed negative grows with the logit, so the order of both is the same.

    ``largest_share`` is a share of the batch that the count is known not to exceed, so that the largest are selected
    without waiting for the count; None sorts all entries.

    Example:
        >>> top_k_mask(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[False, True, True]]), 1)
        tensor([[False, False,  True]])
    """
    values = widen(logits.detach())
    if on_host(values) and values.ndim == 2 and (isinstance(count, int) or not count.ndim):
        return _selected(values, allowed, int(count))
    count = as_count(count)
    values = only_where(allowed, values)
    pool = gather_rows(values, dim=-2).flatten(-2)
    size = pool.shape[-1]
    if size == 0:
        return torch.zeros_like(allowed)
    if largest_share is None:
        ordered = pool.sort(dim=-1, descending=True).values
    else:
        ordered = pool.topk(min(size, math.ceil(size * largest_share * ROUNDING) + 1), dim=-1).values
    place = (count - 1).clamp(0, ordered.shape[-1] - 1).expand(ordered.shape[:-1])[..., None]
    threshold = torch.where((count > 0)[..., None], ordered.gather(-1, place), torch.inf)
    return allowed & (values >= threshold[..., None])


def _selected(values: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Return what ``top_k_mask`` does, for one head and a count that was read."""
    if not count:
        return torch.zeros_like(allowed)
    pool, among = (gather_rows(part, dim=-2).numpy() for part in (values, allowed))
    found = values.numpy() >= kth_largest(pool, among, count)
    found &= allowed.numpy()
    return torch.from_numpy(found)


def kth_largest(values: NDArray[Any], among: NDArray[np.bool_], k: int) -> Any:
    """Return the k-th largest of those values where a mask is true, which are at least k; NaN is above all others.

    A few thousand values tell a lower bound of it, and only those above are searched (Floyd and Rivest, 1975): five
    times as fast as ``torch.topk``. Where the bound turns out too high, all are searched.

    Example:
        >>> kth_largest(np.array([[3.0, 1.0, 2.0]]), np.array([[False, True, True]]), 1).item()
        2.0
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
