"""Average precision of tensors on a CUDA device, without copying them to main memory.

It is computed as in :mod:`labelgap.metrics.sorting`, with the same values: the known scores of each ranking are sorted,
and the present ones found among them by binary search. All sums are float64, and in an order that does not vary.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics.validation import Average, Labels, Measured, Scores, Unknown, format_labels

ENTRIES_AT_ONCE: Final = 1 << 26


def measure_on_device(scores: Scores, labels: Labels, average: Average | None, unknown: Unknown) -> Measured | None:
    """Return what :func:`measure_tensors` returns, or None for scores in main memory and for what is not valid."""
    if not (isinstance(scores, Tensor) and scores.is_cuda and scores.layout == torch.strided and scores.ndim == 2):
        return None
    if not isinstance(labels, Tensor) or not labels.is_cuda or labels.layout != torch.strided:
        labels = torch.from_numpy(format_labels(labels))
    return measure_tensors(scores.detach(), labels.detach().to(scores.device), average, unknown)


def measure_tensors(scores: Tensor, labels: Tensor, average: Average | None, unknown: Unknown) -> Measured | None:
    """Return the average precision of each ranking, and its known present and known absent entries, ``(R,)`` each.

    Scores and labels, ``(N, K)``, are on one device; a few rankings are sorted at a time, so memory is bounded. None
    where they are not valid: the check in main memory says what is wrong.
    """
    if scores.shape != labels.shape or scores.is_complex() or labels.is_complex() or not scores.numel():
        return None
    if not scores.is_floating_point():
        scores = scores.double()
    scores = scores.float() if scores.element_size() < 4 else scores
    if labels.is_floating_point():
        labels = labels.nan_to_num(nan=UNKNOWN)
    codes = labels.to(torch.int8)
    are_codes = (codes == labels) & (codes >= UNKNOWN) & (codes <= PRESENT)
    if not bool(torch.stack([*scores.aminmax()]).isfinite().all() & are_codes.all()):
        return None
    if average == "micro":
        scores, codes = scores.reshape(1, -1), codes.reshape(1, -1)
    elif average != "samples":
        scores, codes = scores.T, codes.T
    step = max(1, ENTRIES_AT_ONCE // scores.shape[1])
    parts = []
    for part in (slice(start, start + step) for start in range(0, len(scores), step)):
        states = codes[part].clamp(min=ABSENT) if unknown == "absent" else codes[part]
        parts.append(_measure(scores[part].contiguous(), states.contiguous()))
    values, present, absent = (torch.cat(each).cpu().numpy() for each in zip(*parts, strict=True))
    return values, present, absent


def average_precision_on_device(scores: Tensor, codes: Tensor) -> Tensor:
    """Return the average precision of rankings as ``average_precision_of_rankings`` does, without leaving the device.

    Finite scores and codes ``(…, N)`` give ``(…)`` float64.
    """
    entries = scores.shape[-1]
    rankings = scores.reshape(-1, entries), codes.expand(scores.shape).reshape(-1, entries)
    return _measure(*rankings)[0].reshape(scores.shape[:-1])


def _measure(scores: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the average precision of rankings ``(R, M)``, and their known present and known absent entries."""
    is_present, is_known = codes == PRESENT, codes != UNKNOWN
    count, entries = is_present.sum(dim=1), scores.shape[1]
    ranked = torch.where(is_known, scores, -torch.inf).sort(dim=1).values
    row, column = is_present.nonzero(as_tuple=True)
    values = scores[row, column]
    order = values.argsort()
    values = values[order[row[order].argsort(stable=True)]]
    new = torch.ones_like(row, dtype=torch.bool)
    new[1:] = (values[1:] != values[:-1]) | (row[1:] != row[:-1])
    first = new.nonzero().squeeze(1)[new.cumsum(dim=0) - 1]
    hits, taken = count.cumsum(dim=0)[row] - first, entries - _count_lower(ranked, row, values)
    total = torch.segment_reduce(hits.double() / taken, "sum", lengths=count, initial=0)
    return total / count.clamp(min=1), count, is_known.sum(dim=1) - count


def _count_lower(ranked: Tensor, row: Tensor, values: Tensor) -> Tensor:
    """Return how many entries of the sorted row of each value are lower than it, ``(P,)``, by binary search."""
    entries = ranked.shape[1]
    flat, start = ranked.flatten(), row * entries
    lower, last = start - 1, start + (entries - 1)
    step = 1 << entries.bit_length()
    while step := step >> 1:
        probe = torch.minimum(lower + step, last)
        lower = torch.where(flat[probe] < values, probe, lower)
    return lower + 1 - start
