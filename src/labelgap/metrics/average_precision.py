"""Average precision, with labels that may be unknown.

Six papers on partial labels compute it in five ways, several points apart: ties grouped or broken by the order of the
input, classes without a positive counted as 0 or left out. Here ties are grouped, and a class (or image) counts only
where the known labels support a value: with known positives alone it would always score 1, and with none always 0.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN, is_tensor
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
    format_labels,
    format_pair,
    unknown_as_absent,
    validate_options,
)

if TYPE_CHECKING:
    from torch import Tensor

ENTRIES_AT_ONCE: Final = 1 << 18
LONG_RANKING: Final = 4096  # entries from which rankings are sorted one by one
DEVICE_ENTRIES_AT_ONCE: Final = 1 << 26
RANKINGS_AT_ONCE: Final = 8
MAX_RANKINGS_AT_ONCE: Final = 64
_COPIED_AT_ONCE: Final = 512

Value = TypeVar("Value")
Number = TypeVar("Number", bound=np.generic)


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
    average: Average | None = ...,
    empty: Empty = ...,
    unknown: Unknown = ...,
    *,
    return_counted: Literal[True],
) -> tuple[Any, int]: ...
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
    one step, so the order of the input never matters (as in scikit-learn).

    Args:
        scores: ``(N, K)`` finite numbers, probabilities or logits alike: an array, a tensor or nested lists.
        labels: ``(N, K)`` of 1 present, 0 absent, -1 or NaN unknown; or a label table.
        average: ``"macro"``, the mean over classes (mAP@class); ``"samples"`` ranks the classes of each image, the
            mean over images (mAP@sample: Kobayashi, CVPR 2023); ``"micro"``, one ranking of all entries; None, each
            class for itself.
        empty: ``"skip"`` counts a ranking only if it has at least one known present *and* one known absent entry;
            ``"zero"`` counts all, 0 without a present and else 1 without an absent: the papers, on full labels.
        unknown: ``"ignore"`` leaves unknown entries out of their ranking; ``"absent"`` takes them as absent: the
            "observed" score, for choosing epochs, never an accuracy.
        return_counted: also return how many classes (images; 1 or 0 for ``"micro"``) were counted. It belongs beside
            every mean that is shown. What is not counted is NaN.

    Example:
        >>> scores = [[0.9, 0.2, 0.1], [0.7, 0.8, 0.3], [0.4, 0.6, 0.5]]
        >>> average_precision(scores, [[1, 1, 0], [0, -1, 1], [1, 1, -1]], return_counted=True)
        (0.9166666666666666, 2)
    """
    validate_options(average, empty, unknown)
    measured = None
    if is_tensor(scores) and scores.is_cuda and scores.ndim == 2 and str(scores.layout) == "torch.strided":
        import torch

        if not is_tensor(labels) or not labels.is_cuda or labels.layout != torch.strided:
            labels = torch.from_numpy(format_labels(labels))
        measured = measure_tensors(scores.detach(), labels.detach().to(scores.device), average, unknown)
    if measured is None:
        measured = _measure(*_rankings(*format_pair(scores, labels), average), unknown)
    return average_over(*measured, average, empty, return_counted)


def average_precision_of_rankings(scores: Floats, codes: Codes) -> NDArray[np.float64]:
    """Return the average precision of rankings ``(R, M)``; 0 without a present entry, unknown entries left out."""
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

    values, present, absent = map(np.concatenate, zip(*map_chunks(measure, *scores.shape), strict=True))
    return values, present, absent


def _rankings(scores: Any, codes: Any, average: Average | None) -> tuple[Any, Any]:
    """Return rankings ``(R, M)`` of arrays or tensors ``(N, K)``: a row per class, per image, or one of all entries."""
    if average == "samples":
        return scores, codes
    if average == "micro":
        return scores.reshape(1, -1), codes.reshape(1, -1)
    return scores.T, codes.T


@dataclass(frozen=True, eq=False)
class Cuts:
    """One cut for every present entry, by ranking and rising score, ``(P,)``; ``hits`` of the ``taken`` are present."""

    ranking: NDArray[np.int64]
    taken: NDArray[np.int64]
    hits: NDArray[np.int64]


def cuts_at_present(scores: Floats, codes: Codes) -> Cuts:
    """Sort R rankings of M entries and cut each at each of its present entries; unknown entries are left out."""
    if scores.shape[1] >= LONG_RANKING:
        each = [_cuts_of_one(*ranking) for ranking in zip(scores, codes, strict=True)]
        counts = np.array([len(taken) for taken, _ in each], dtype=np.int64)
        nothing = np.empty(0, dtype=np.int64)
        taken, hits = (np.concatenate([nothing, *(pair[part] for pair in each)]) for part in (0, 1))
        return Cuts(np.repeat(np.arange(len(each)), counts), taken, hits)
    is_present, entries = codes == PRESENT, scores.shape[1]
    ranked = np.where(codes != UNKNOWN, scores, scores.dtype.type(-np.inf))
    ranked.sort(axis=1)
    present = np.where(is_present, scores, scores.dtype.type(np.inf))
    present.sort(axis=1)
    count = np.count_nonzero(is_present, axis=1)
    values, ranking = present[np.arange(entries) < count[:, None]], np.repeat(np.arange(len(count)), count)
    new = np.ones(values.size, dtype=bool)
    new[1:] = (values[1:] != values[:-1]) | (ranking[1:] != ranking[:-1])
    first = np.maximum.accumulate(np.arange(values.size) * new)
    return Cuts(ranking, entries - _count_lower(ranked, ranking, values), np.cumsum(count)[ranking] - first)


def _cuts_of_one(scores: Floats, codes: Codes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the taken entries and the hits at the present entries of one ranking; faster where it is long."""
    present, ranked = np.sort(scores[codes == PRESENT]), np.sort(scores[codes != UNKNOWN])
    return ranked.size - np.searchsorted(ranked, present), present.size - np.searchsorted(present, present)


def _count_lower(ranked: Any, ranking: Any, values: Any) -> Any:
    """Return how many entries of the sorted ranking of each value are lower, ``(P,)``: of arrays or of tensors."""
    entries = ranked.shape[1]
    flat, start = ranked.reshape(-1), ranking * entries
    lower, last = start - 1, start + (entries - 1)
    step = 1 << entries.bit_length()
    while step := step >> 1:
        probe = (lower + step).clip(max=last)
        lower = lower + (probe - lower) * (flat[probe] < values)
    return lower + 1 - start


def map_chunks(function: Callable[[slice], Value], rankings: int, entries: int) -> list[Value]:
    """Return what the function returns for chunks of R rankings, in order, computed on threads in bounded memory."""
    import torch

    columns = max(RANKINGS_AT_ONCE, min(MAX_RANKINGS_AT_ONCE, rankings // 16))
    step = max(columns, ENTRIES_AT_ONCE // max(entries, 1))
    chunks = [slice(start, min(start + step, rankings)) for start in range(0, max(rankings, 1), step)]
    threads = min(torch.get_num_threads(), len(chunks))
    if threads < 2:
        return list(map(function, chunks))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, chunks))


def to_rows(rankings: NDArray[Number]) -> NDArray[Number]:
    """Return rankings ``(R, M)`` with the entries of each adjacent in memory, copied in blocks that fit the cache."""
    if rankings.flags.c_contiguous:
        return rankings
    rows = np.empty(rankings.shape, dtype=rankings.dtype)
    for start in range(0, rankings.shape[1], _COPIED_AT_ONCE):
        part = slice(start, start + _COPIED_AT_ONCE)
        rows[:, part] = rankings[:, part]
    return rows


def measure_tensors(scores: Tensor, labels: Tensor, average: Average | None, unknown: Unknown) -> Measured | None:
    """Return the average precision of each ranking, and its known presents and absents, ``(R,)``, on a device.

    None where scores or labels are not valid: the check in main memory says what is wrong.
    """
    import torch

    if scores.shape != labels.shape or scores.is_complex() or labels.is_complex() or not scores.numel():
        return None
    scores = scores if scores.is_floating_point() else scores.double()
    scores = scores.float() if scores.element_size() < 4 else scores
    if labels.is_floating_point():
        labels = labels.nan_to_num(nan=UNKNOWN)
    codes = labels.to(torch.int8)
    are_codes = (codes == labels) & (codes >= UNKNOWN) & (codes <= PRESENT)
    if not bool(torch.stack([*scores.aminmax()]).isfinite().all() & are_codes.all()):
        return None
    scores, codes = _rankings(scores, codes, average)
    step = max(1, DEVICE_ENTRIES_AT_ONCE // scores.shape[1])
    parts = []
    for part in (slice(start, start + step) for start in range(0, len(scores), step)):
        states = codes[part].clamp(min=ABSENT) if unknown == "absent" else codes[part]
        parts.append(_measure_rankings(scores[part].contiguous(), states.contiguous()))
    values, present, absent = (torch.cat(each).cpu().numpy() for each in zip(*parts, strict=True))
    return values, present, absent


def average_precision_on_device(scores: Tensor, codes: Tensor) -> Tensor:
    """Return the average precision ``(…)`` of rankings ``(…, N)``, as above, without leaving the device."""
    entries = scores.shape[-1]
    rankings = scores.reshape(-1, entries), codes.expand(scores.shape).reshape(-1, entries)
    return _measure_rankings(*rankings)[0].reshape(scores.shape[:-1])


def _measure_rankings(scores: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the average precision of rankings ``(R, M)``, and their known present and known absent entries."""
    import torch

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
