"""Hiding labels of a full table: which known labels stay.

The single-positive papers (Cole 2021, Kim 2022, Zhou 2022) share one draw and one split. Both are reproduced here bit
for bit: results can be compared with theirs only on the same labels.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.labels.codes import ABSENT, PRESENT

__all__ = ["Amount", "drop_mask", "observe_mask", "paper_split"]

Amount = int | Literal["all"]


def observe_mask(
    starts: NDArray[np.int64],
    values: NDArray[np.int8],
    positives: Amount = 1,
    negatives: Amount = 0,
    seed: int = 1200,
) -> NDArray[np.bool_]:
    """Return which known labels stay when some positives and negatives of every image are kept.

    The draw of the papers: one ``RandomState(seed)``; per image in row order the array of its positive class numbers
    is shuffled and the first ``positives`` are kept, then the array of its negative class numbers is shuffled and the
    first ``negatives`` are kept. The second shuffle uses up random state even when nothing is kept.
    """
    keep_positives, keep_negatives = _amount(positives, "positives"), _amount(negatives, "negatives")
    random = _random_state(seed)
    kept = np.zeros(len(values), dtype=bool)
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        row = values[first:last]
        for state, amount in ((PRESENT, keep_positives), (ABSENT, keep_negatives)):
            entries = np.flatnonzero(row == state)
            random.shuffle(entries)
            kept[first + entries[:amount]] = True
    return kept


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
    group = columns if per_class else np.zeros_like(columns)
    order = np.lexsort((random, group))
    sizes = np.bincount(group, minlength=1)
    hidden = [round(Fraction(str(fraction)) * size) for size in sizes.tolist()]
    position = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = np.zeros(len(order), dtype=bool)
    kept[order] = position >= np.repeat(hidden, sizes)
    return kept


def paper_split(count: int, fraction: float = 0.2, seed: int = 1200) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split ``count`` rows into (train, val) as the papers do.

    ``RandomState(seed).permutation(N)``, n_val = round(fraction · N); train is the sorted first N − n_val, val the
    sorted rest.
    """
    if not 0 <= fraction < 1:
        raise InputError(
            f"a val fraction of {fraction}: it lies between 0 and 1, and 1 would leave nothing to train on."
        )
    order = _random_state(seed).permutation(count).astype(np.int64)
    train = count - round(fraction * count)
    return np.sort(order[:train]), np.sort(order[train:])


def _random_state(seed: int) -> np.random.RandomState:
    try:
        return np.random.RandomState(seed)
    except (TypeError, ValueError):
        raise InputError(f"seed={seed!r}: a seed of the papers' draws is a whole number from 0 to 2³² - 1.") from None


def _amount(amount: Amount, name: str) -> int | None:
    """Return an upper end for a slice: None keeps all."""
    if amount == "all":
        return None
    if isinstance(amount, bool) or not isinstance(amount, int | np.integer) or amount < 0:
        raise InputError(f"{name}={amount!r}: give a number of labels per image, or 'all'.")
    return int(amount)
