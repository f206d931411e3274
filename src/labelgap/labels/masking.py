"""Hiding labels of a full table at random: which known labels stay; ``gaps`` has draws that are not at random.

The single-positive papers (Cole 2021, Kim 2022, Zhou 2022) share one draw and one split. Both are reproduced here bit
for bit: results can be compared with theirs only on the same labels.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.labels.sparse import starts_from_lengths

Amount = int | Literal["all"]
BLOCK_LABELS: Final = 1 << 22
"""Known labels whose draws are made at once."""


def observe_mask(
    starts: NDArray[np.int64],
    values: NDArray[np.int8],
    positives: Amount | str = 1,
    negatives: Amount | str = 0,
    seed: int = 1200,
) -> NDArray[np.bool_]:
    """Return which known labels stay when some positives and negatives of every image are kept.

    The draw of the papers: one ``RandomState(seed)``; per image in row order the array of its positive class numbers
    is shuffled and the first ``positives`` are kept, then the array of its negative class numbers is shuffled and the
    first ``negatives`` are kept. The second shuffle uses up random state even when nothing is kept.
    """
    amounts = _amount(positives, "positives"), _amount(negatives, "negatives")
    random = random_state(seed)
    kept = np.zeros(len(values), dtype=bool)
    first = 0
    while first < len(starts) - 1:  # blocks of rows: their numbers take 8 bytes a label
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK_LABELS, side="right")) - 1)
        part = slice(starts[first], starts[last])
        kept[part] = _observe_block(starts[first : last + 1] - starts[first], values[part], amounts, random)
        first = last
    return kept


def _observe_block(
    starts: NDArray[np.int64],
    values: NDArray[np.int8],
    amounts: tuple[int | None, int | None],
    random: np.random.RandomState,
) -> NDArray[np.bool_]:
    """Return which known labels of some rows stay, and advance ``random`` as the shuffles of all of them would.

    ``RandomState.shuffle`` of n entries swaps the entries n − 1, …, 1 with one drawn from those up to itself, and
    ``randint`` with an array of bounds makes the same draws in one call. The swaps are then made in all rows at once,
    the entries n − 1 of the longest rows first.
    """
    sizes = np.stack([np.diff(starts_from_lengths(values == state)[starts]) for state in (PRESENT, ABSENT)])
    draws = np.maximum(sizes.T.ravel() - 1, 0)
    ends = np.cumsum(draws)
    bounds = np.repeat(ends, draws) - np.arange(ends[-1])
    drawn = random.randint(0, bounds + 1, dtype=np.int64)
    kept = np.zeros(len(values), dtype=bool)
    for number, (state, amount) in enumerate(zip((PRESENT, ABSENT), amounts, strict=True)):
        entries = np.flatnonzero(values == state)
        if amount is None:
            kept[entries] = True
            continue
        if amount:
            kept[_shuffled_first(entries, sizes[number], drawn, (ends - draws)[number::2], amount)] = True
    return kept


def _shuffled_first(
    entries: NDArray[np.int64],
    sizes: NDArray[np.int64],
    drawn: NDArray[np.int64],
    first_draw: NDArray[np.int64],
    amount: int,
) -> NDArray[np.int64]:
    """Return the first ``amount`` of each group of entries after its shuffle; ``drawn`` has the partners of swaps."""
    order = np.argsort(-sizes, kind="stable")
    start, size, draw = (np.cumsum(sizes) - sizes)[order], sizes[order], first_draw[order]
    longer = len(sizes) - np.searchsorted(size[::-1], np.arange(1, (size[0] if len(size) else 0) + 1), side="left")
    for place in range(len(longer) - 1, 0, -1):
        rows = longer[place]  # those with more than ``place`` entries
        here, there = start[:rows] + place, start[:rows] + drawn[draw[:rows] + size[:rows] - 1 - place]
        entries[here], entries[there] = entries[there], entries[here]
    position = np.arange(len(entries)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return entries[position < amount]


def drop_mask(
    columns: NDArray[np.int32], fraction: float, seed: int = 0, *, per_class: bool = False
) -> NDArray[np.bool_]:
    """Return which known labels stay when a fraction of all, or ``per_class`` of each class, is hidden at random.

    The fraction is read as the decimal it is written as, so that the number hidden is exactly fraction · labels,
    rounded (a half to the even number).
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"drop({fraction}): the share of labels to hide lies between 0 and 1.")
    random = numpy_generator(seed, "drop").random(len(columns))
    kept = np.empty(len(columns), dtype=bool)
    if not per_class:
        return ~lowest_mask(random, round(Fraction(str(fraction)) * len(random)))
    order = np.argsort(columns.astype(np.uint16) if columns.max(initial=0) < 1 << 16 else columns, kind="stable")
    for members in np.split(order, np.cumsum(np.bincount(columns))[:-1]):
        kept[members] = ~lowest_mask(random[members], round(Fraction(str(fraction)) * len(members)))
    return kept


def lowest_mask(values: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Mark the ``count`` lowest values; of equal ones the first."""
    if not count:
        return np.zeros(len(values), dtype=bool)
    highest = np.partition(values, count - 1)[count - 1]
    marked: NDArray[np.bool_] = values < highest
    marked[np.flatnonzero(values == highest)[: count - int(marked.sum())]] = True
    return marked


def paper_split(count: int, fraction: float = 0.2, seed: int = 1200) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split ``count`` rows into (train, val) as the papers do.

    ``RandomState(seed).permutation(N)``, n_val = round(fraction · N); train is the sorted first N − n_val, val the
    sorted rest.
    """
    if not 0 <= fraction < 1:
        raise InputError(
            f"a val fraction of {fraction}: it lies between 0 and 1, and 1 would leave nothing to train on."
        )
    order = random_state(seed).permutation(count).astype(np.int64)
    train = count - round(fraction * count)
    return np.sort(order[:train]), np.sort(order[train:])


def random_state(seed: int) -> np.random.RandomState:
    """Return numpy's legacy generator, whose numbers never change between versions or platforms."""
    try:
        return np.random.RandomState(seed)
    except (TypeError, ValueError):
        raise InputError(f"seed={seed!r}: a seed of the papers' draws is a whole number from 0 to 2³² - 1.") from None


def _amount(amount: Amount | str, name: str) -> int | None:
    """Return an upper end for a slice: None keeps all."""
    if amount == "all":
        return None
    if isinstance(amount, bool) or not isinstance(amount, int | np.integer) or amount < 0:
        raise InputError(f"{name}={amount!r}: give a number of labels per image, or 'all'.")
    return int(amount)
