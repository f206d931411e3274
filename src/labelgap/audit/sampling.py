"""A uniform random sample of unknown labels, from which a review estimates how many labels are missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labelgap.core.seeds import numpy_generator
from labelgap.labels import LabelTable


def draw_unknown(
    tables: Sequence[LabelTable], count: int, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw unknown labels of several tables uniformly, without replacement, in random order.

    Args:
        tables: of the same classes; row numbers continue from one table to the next.
        count: how many; all of them where there are fewer.
        seed: of the draw.

    Returns:
        ``(count,)`` rows and ``(count,)`` class numbers. No array of the size rows × classes is made.

    Example:
        >>> rows, columns = draw_unknown([LabelTable.from_dense([[1, -1], [0, 1], [-1, 0]])], 5)
        >>> sorted(zip(rows.tolist(), columns.tolist()))
        [(0, 1), (2, 0)]
    """
    table = tables[0] if len(tables) == 1 else LabelTable.concatenate(tables, keep_names=False)
    ends = np.cumsum(len(table.classes) - np.diff(table.starts))
    total = int(ends[-1]) if len(ends) else 0
    random = numpy_generator(seed, "random candidates")
    if 4 * count >= total:
        numbers = random.permutation(total)[:count]
    else:
        numbers = np.empty(0, dtype=np.int64)
        while len(numbers) < count:
            drawn = np.concatenate([numbers, random.integers(total, size=count + 16)])
            numbers = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        numbers = numbers[:count]
    rows = np.searchsorted(ends, numbers, side="right")
    before = np.concatenate([[0], ends])[rows]
    return rows, nth_unknown(table, rows, numbers - before)


def nth_unknown(table: LabelTable, rows: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class number of the n-th unknown label (from 0) of each row.

    The known classes c₀ < c₁ < … of a row leave its n-th unknown label at n + #{i : cᵢ − i ≤ n}.

    Example:
        >>> table = LabelTable.from_dense([[-1, 1, 0, -1, 1, -1]])
        >>> nth_unknown(table, np.array([0, 0, 0]), np.array([0, 1, 2]))
        array([0, 3, 5])
    """
    width = len(table.classes) + 1
    order = np.arange(len(table.columns)) - np.repeat(table.starts[:-1], np.diff(table.starts))
    gaps = table.rows * width + table.columns - order
    skipped: NDArray[np.int64] = np.searchsorted(gaps, rows * width + n, side="right") - table.starts[rows]
    return n + skipped
