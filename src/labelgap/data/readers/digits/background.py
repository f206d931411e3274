"""Paper, light, stains and pen strokes: everything in a scene that is not a digit.

Strokes are long thin curves and stains are soft ellipses, so neither reads as a digit. Both are drawn once, larger than
a scene, into a bank of masks; a scene takes a window of a mask, perhaps mirrored or transposed. Only additions,
multiplications, divisions and square roots are used, which every processor rounds alike.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_CANVAS: Final = 96
_TEXTURE: Final = 6


def paper_background(rng: np.random.Generator, count: int, side: int) -> NDArray[np.float32]:
    """Draw ``(count, side, side)`` of gray levels around 70…190: a level, a gradient and a slow, cloudy texture."""
    level = rng.integers(75, 186, (count, 1, 1)).astype(np.float32)
    ramp = np.linspace(-1, 1, side, dtype=np.float32)
    slope = rng.integers(-22, 23, (2, count, 1, 1)).astype(np.float32)
    clouds = rng.integers(-12, 13, (count, _TEXTURE, _TEXTURE)).astype(np.float32)
    spread = _linear(_TEXTURE, side)
    texture = (spread @ clouds @ spread.T) / 4096  # whole numbers until here: exact
    return np.asarray(level + slope[0] * ramp[:, None] + slope[1] * ramp + texture, dtype=np.float32)


def add_grain(rng: np.random.Generator, images: NDArray[np.float32], strength: NDArray[np.float32]) -> None:
    """Add film grain to ``(N, side, side)`` in place: three uniform draws per pixel, of deviation ``strength`` (N,)."""
    draws = rng.integers(0, 256, (3, *images.shape), dtype=np.uint8)
    total = draws.sum(axis=0, dtype=np.int16).astype(np.float32)
    images += (total - 382.5) * (strength / 128)[:, None, None]


def stroke_masks(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Draw long thin curves, quadratic Béziers from side to side: ``(count, 96, 96)``, 0 paper … 255 ink."""
    ends = rng.random((count, 3, 2)) * (_CANVAS - 1)
    edge = rng.integers(0, 4, count)
    for side in range(4):  # each begins on one side and ends on the opposite one
        ends[edge == side, 0, side // 2] = (side % 2) * (_CANVAS - 1)
        ends[edge == side, 2, side // 2] = (1 - side % 2) * (_CANVAS - 1)
    steps = np.linspace(0, 1, 2 * _CANVAS)[None, :, None]
    points = (
        (1 - steps) ** 2 * ends[:, None, 0] + 2 * steps * (1 - steps) * ends[:, None, 1] + steps**2 * ends[:, None, 2]
    )
    radius = (0.5 + rng.random(count))[:, None]
    masks = np.zeros((count, _CANVAS, _CANVAS), np.uint8)
    which = np.broadcast_to(np.arange(count)[:, None], points.shape[:2])
    center = np.rint(points).astype(np.int64)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            y, x = center[..., 0] + dy, center[..., 1] + dx
            distance = np.sqrt((y - points[..., 0]) ** 2 + (x - points[..., 1]) ** 2)
            ink = np.rint(np.clip(radius + 0.5 - distance, 0, 1) * 255).astype(np.uint8)
            inside = (y >= 0) & (y < _CANVAS) & (x >= 0) & (x < _CANVAS) & (ink > 0)
            np.maximum.at(masks, (which[inside], y[inside], x[inside]), ink[inside])
    return masks


def stain_masks(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Draw soft ellipses, each near the middle of its mask: ``(count, 96, 96)``, 0 paper … 255 ink."""
    center = _CANVAS / 2 + (rng.random((2, count, 1, 1)) - 0.5) * 40
    height = 5 + 11 * rng.random((count, 1, 1))
    width = height * (0.75 + 0.5 * rng.random((count, 1, 1)))  # roundish: a narrow one would look like a 1
    lean = rng.random((count, 1, 1)) - 0.5
    pixel = np.arange(_CANVAS, dtype=np.float64)
    down, across = (pixel[:, None] - center[0]) / height, (pixel - center[1]) / width
    distance = down * down + across * across + lean * down * across
    return np.asarray(np.rint(np.clip(1.5 - distance, 0, 1) * 255), dtype=np.uint8)


def random_windows(rng: np.random.Generator, bank: NDArray[np.uint8], count: int, side: int) -> NDArray[np.uint8]:
    """Take random windows ``(count, side, side)`` of a bank's masks; half are mirrored, half are transposed."""
    room = bank.shape[1] - side + 1
    which = rng.integers(0, len(bank), count)
    down, across = rng.integers(0, room, (2, count))
    taken: NDArray[np.uint8] = sliding_window_view(bank, (side, side), axis=(1, 2))[which, down, across]
    mirrored, transposed = rng.integers(0, 2, (2, count)) == 1
    taken[mirrored] = taken[mirrored, :, ::-1]
    taken[transposed] = taken[transposed].transpose(0, 2, 1)
    return taken


def _linear(coarse: int, fine: int) -> NDArray[np.float32]:
    """Return the matrix ``(fine, coarse)`` of linear interpolation, in whole sixty-fourths."""
    position = np.arange(fine) * ((coarse - 1) / (fine - 1))
    weights = np.clip(1 - np.abs(position[:, None] - np.arange(coarse)), 0, 1)
    return np.asarray(np.rint(weights * 64), dtype=np.float32)
