"""The handwritten digits of scikit-learn, rendered at any size and rotation.

The 1,797 digits are 8×8 grids of 0…16. Enlarging, turning and squeezing such a grid is linear in its 64 cells, so one
sparse matrix per (size, turn) draws a whole batch of digits; a steep ramp then makes crisp strokes of it.

The weights are whole numbers small enough for float32 to add them without rounding, and turns are given as rational
cosines and sines: the same pixels come out whatever the processor and the number of threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

CELLS: Final = 8
CLASSES: Final = 10
_UNIT: Final = 1 << 14
_VISIBLE: Final = 32


@lru_cache(maxsize=1)
def sklearn_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the cells ``(1797, 8, 8)`` of 0…16 and the classes ``(1797,)``, both read-only."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    cells = np.asarray(bunch.images, dtype=np.float32)
    classes = np.asarray(bunch.target, dtype=np.int64)
    cells.flags.writeable = False
    classes.flags.writeable = False
    return cells, classes


def render_digits(cells: NDArray[np.float32], size: int, turn: int, threshold: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Draw digits as ink: 0 is paper, 255 is full ink.

    Args:
        cells: ``(M, 8, 8)`` of 0…16.
        size: side in pixels that the 8×8 grid is enlarged to.
        turn: the tangent of half the angle, in forty-eighths; 6 turns by 14°, positive clockwise.
        threshold: ``(M,)``, the cell value (in quarters) at which ink is half covered: low draws thick strokes.

    Returns:
        ``(M, P, P)``, where ``P`` is about 1.3 × ``size``, so that a turned digit fits.
    """
    matrix, side = _enlarging(size, turn)
    ink = matrix @ cells.reshape(-1, CELLS * CELLS).T  # whole numbers below 2**24: exact
    ink -= (threshold * (_UNIT // 4)).astype(np.float32)
    ink *= 4 * max(size // 2, 8) / _UNIT  # the edge stays about one pixel wide at any size
    ink += 128
    np.clip(ink, 0, 255, out=ink)
    return np.ascontiguousarray(ink.astype(np.uint8).T).reshape(len(cells), side, side)


def ink_box(ink: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Find the box ``(M, 4)`` of visible ink, x0, y0, x1, y1 inclusive, and ``(M,)`` whether there is any ink."""
    visible = ink >= _VISIBLE
    columns: NDArray[np.bool_] = np.asarray(visible.any(axis=1))
    rows: NDArray[np.bool_] = np.asarray(visible.any(axis=2))
    lowest, rightmost = ink.shape[1] - 1, ink.shape[2] - 1
    box = np.stack(
        [
            columns.argmax(axis=1),
            rows.argmax(axis=1),
            rightmost - columns[:, ::-1].argmax(axis=1),
            lowest - rows[:, ::-1].argmax(axis=1),
        ],
        axis=1,
    )
    return box.astype(np.int64), np.asarray(columns.any(axis=1))


@lru_cache(maxsize=256)
def _enlarging(size: int, turn: int) -> tuple[csr_array, int]:
    """Return the matrix ``(P·P, 64)`` from cells to pixels, and ``P``."""
    side = (size * 13 // 10 + 2) // 2 * 2
    tangent = turn / 48
    cosine = (1 - tangent * tangent) / (1 + tangent * tangent)
    sine = 2 * tangent / (1 + tangent * tangent)
    offset = (np.arange(side) - (side - 1) / 2) * (CELLS / size)
    x, y = offset[None, :], offset[:, None]
    middle = (CELLS - 1) / 2
    across = _cubic((cosine * x + sine * y + middle)[..., None] - np.arange(CELLS))
    down = _cubic((cosine * y - sine * x + middle)[..., None] - np.arange(CELLS))
    weights = down[..., :, None] * across[..., None, :]
    return csr_array(np.rint(weights.reshape(side * side, CELLS * CELLS) * _UNIT).astype(np.float32)), side


def _cubic(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mitchell and Netravali's cubic with B = C = 1/3: smooth without visible rings."""
    d = np.abs(distance)
    near = (7 * d * d * d - 12 * d * d) / 6 + 8 / 9
    far = (-7 * d * d * d + 36 * d * d - 60 * d) / 18 + 16 / 9
    return np.where(d < 1, near, np.where(d < 2, far, 0.0))
