"""Scenes of handwritten digits, generated on the fly: the embedded data set.

Each scene is a 64×64 gray image of one to five digits from scikit-learn's collection, of different size, rotation,
polarity and contrast, among stains, pen strokes and corners of other digits. Its labels are the digits that appear, its
boxes are where. Train, val and test use different handwriting: no digit image is in two of them.

The same seed gives the same pixels on every machine; numpy's global state is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.readers.digits.background import (
    add_grain,
    paper_background,
    random_windows,
    stain_masks,
    stroke_masks,
)
from labelgap.data.readers.digits.glyphs import CLASSES, ink_box, render_digits, sklearn_digits

SIDE: Final = 64
CLASS_NAMES: Final = tuple(str(digit) for digit in range(CLASSES))
_SHARES: Final = (0.6, 0.15, 0.25)
_MOST: Final = 5
_CUMULATIVE: Final = (0.12, 0.36, 0.66, 0.88)
_TORN: Final = 2
_SIZES: Final = (16, 18, 20, 22, 24, 26, 28)
_TURNS: Final = (-5, -3, -1, 1, 3, 5)
_OVERLAP: Final = 0.1
_TRIES: Final = 16
_BANK: Final = 256


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images, their labels and boxes.

    Attributes:
        images: ``(N, 64, 64)`` uint8.
        labels: ``(N, 10)`` bool, whether digit ``k`` appears.
        boxes: ``(M, 6)`` int64, one row per digit placed: scene, class, x0, y0, x1, y1 (pixels, edges inclusive),
            ordered by scene; a digit painted later may cover a little of an earlier one.
        digits: ``(M,)`` int64, which of scikit-learn's 1,797 digits that is.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.bool_]
    boxes: NDArray[np.int64]
    digits: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)


class DigitScenes(NamedTuple):
    """The three splits, generated from different handwriting."""

    train: Scenes
    val: Scenes
    test: Scenes


def digit_scenes(seed: int = 0, counts: tuple[int, int, int] = (4000, 1000, 2000)) -> DigitScenes:
    """Generate the data set ``digits``.

    Args:
        seed: everything follows from it.
        counts: scenes of train, val and test. A split does not depend on the sizes of the others.

    Example:
        >>> scenes = digit_scenes(seed=0, counts=(3, 1, 1))
        >>> scenes.train.images.shape, scenes.train.labels.shape
        ((3, 64, 64), (3, 10))
    """
    if seed < 0 or min(counts) < 0:
        raise InputError(f"the seed and the numbers of scenes must not be negative, not {seed} and {counts}.")
    parts = split_digits(seed)
    return DigitScenes(
        *(
            make_scenes(digits, count, (seed, 1 + part))
            for part, (digits, count) in enumerate(zip(parts, counts, strict=True))
        )
    )


def split_digits(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split the 1,797 digits into train (60 %), val (15 %) and test (25 %), class by class: sorted row numbers."""
    rng = _generator((seed, 0))
    _, classes = sklearn_digits()
    parts: tuple[list[NDArray[np.int64]], ...] = ([], [], [])
    for digit in range(CLASSES):
        rows = rng.permutation(np.flatnonzero(classes == digit))
        cuts = [round(len(rows) * _SHARES[0]), round(len(rows) * (_SHARES[0] + _SHARES[1]))]
        for part, chosen in zip(parts, np.split(rows, cuts), strict=True):
            part.append(chosen)
    train, val, test = (np.sort(np.concatenate(part)) for part in parts)
    return train, val, test


def make_scenes(digits: NDArray[np.int64], count: int, entropy: tuple[int, ...]) -> Scenes:
    """Generate ``count`` scenes from the given digits (row numbers into scikit-learn's) only."""
    rng = _generator(entropy)
    canvas = _background(rng, count)
    placed = _place(rng, digits, count)
    _paint(rng, canvas, placed)
    add_grain(rng, canvas, 2 + 5 * rng.random(count, dtype=np.float32))
    images = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    whole = [piece for piece in placed if not piece.torn]
    whole.sort(key=lambda piece: piece.scene)
    ends = [(p.x + p.ink.shape[1] - 1, p.y + p.ink.shape[0] - 1) for p in whole]
    boxes = np.array([(p.scene, p.label, p.x, p.y, *end) for p, end in zip(whole, ends, strict=True)], dtype=np.int64)
    boxes = boxes.reshape(-1, 6)
    labels = np.zeros((count, CLASSES), dtype=bool)
    labels[boxes[:, 0], boxes[:, 1]] = True
    return Scenes(images, labels, boxes, np.array([piece.digit for piece in whole], dtype=np.int64))


class _Piece(NamedTuple):
    """A drawing at its place: a whole digit, or the torn-off corner of one."""

    scene: int
    digit: int
    label: int
    x: int
    y: int
    ink: NDArray[np.uint8]
    torn: bool


def _generator(entropy: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def _background(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Paper with stains and pen strokes on it."""
    canvas = paper_background(rng, count, SIDE)
    for bank, chances in ((stain_masks(rng, _BANK), (0.6, 0.3)), (stroke_masks(rng, _BANK), (0.7, 0.4))):
        for chance in chances:
            scenes = np.flatnonzero(rng.random(count) < chance)
            strength = rng.integers(10, 51, len(scenes)) * (2 * rng.integers(0, 2, len(scenes)) - 1)
            masks = random_windows(rng, bank, len(scenes), SIDE)
            canvas[scenes] += masks * (strength.astype(np.float32) / 255)[:, None, None]
    return canvas


def _place(rng: np.random.Generator, digits: NDArray[np.int64], count: int) -> list[_Piece]:
    """Draw what every scene holds and find a place for it; what finds none is left out, the first digit never is."""
    slots = _MOST + _TORN
    torn = np.arange(slots) >= _MOST
    _, classes = sklearn_digits()
    chosen = digits[rng.integers(0, len(digits), (count, slots))]
    wholes = 1 + (rng.random((count, 1)) >= np.array(_CUMULATIVE)).sum(axis=1)
    tears = rng.integers(0, _TORN + 1, count)
    wanted = np.where(torn, np.arange(slots) - _MOST < tears[:, None], np.arange(slots) < wholes[:, None])
    wanted &= ~(torn & (classes[chosen] == 1))  # a piece of a 1 is still a 1
    drawn = _draw(rng, chosen, wanted, torn)
    sizes = np.array([[ink.shape for ink in row] for row in drawn], dtype=np.int64).reshape(count, slots, 2)
    corner = np.zeros((count, slots, 2), dtype=np.int64)
    there = np.zeros((count, slots), dtype=bool)
    for slot in range(slots):
        limit = 0.0 if torn[slot] else _OVERLAP
        corner[:, slot], fits = _free_corner(
            rng, corner[:, :slot], sizes[:, :slot], there[:, :slot], sizes[:, slot], limit
        )
        there[:, slot] = wanted[:, slot] & fits & (sizes[:, slot, 0] > 0)
    pieces = []
    for slot in (*range(_MOST, slots), *range(_MOST)):  # torn corners lie below the digits
        for scene in np.flatnonzero(there[:, slot]).tolist():
            digit, (y, x) = int(chosen[scene, slot]), corner[scene, slot].tolist()
            pieces.append(_Piece(scene, digit, int(classes[digit]), x, y, drawn[scene][slot], slot >= _MOST))
    return pieces


def _draw(
    rng: np.random.Generator, chosen: NDArray[np.int64], wanted: NDArray[np.bool_], torn: NDArray[np.bool_]
) -> list[list[NDArray[np.uint8]]]:
    """Draw the wanted digits, cropped to their ink: ``[scene][slot]``, empty where nothing is wanted."""
    cells, _ = sklearn_digits()
    size = rng.integers(0, len(_SIZES), chosen.shape)
    size = np.where(torn, 1 + size // 2, size)  # corners stay smaller than any digit
    turn = rng.integers(0, len(_TURNS), chosen.shape)
    threshold = rng.integers(24, 35, chosen.shape)
    quarter = rng.integers(0, 4, chosen.shape)
    drawn = [[np.zeros((0, 0), np.uint8)] * chosen.shape[1] for _ in range(len(chosen))]
    for size_now in range(len(_SIZES)):
        for turn_now in range(len(_TURNS)):
            scene, slot = np.nonzero(wanted & (size == size_now) & (turn == turn_now))
            rows = chosen[scene, slot]
            ink = render_digits(cells[rows], _SIZES[size_now], _TURNS[turn_now], threshold[scene, slot])
            boxes, _ = ink_box(ink)
            for i, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
                cut = ink[i, y0 : y1 + 1, x0 : x1 + 1]
                drawn[scene[i]][slot[i]] = _tear(cut, int(quarter[scene[i], slot[i]])) if torn[slot[i]] else cut
    return drawn


def _tear(ink: NDArray[np.uint8], quarter: int) -> NDArray[np.uint8]:
    """Tear a quarter off a digit, so that it reads as none.

    An upper left or a lower right corner stays as it is, the other two are mirrored (an upper right corner looks like
    a 7), and what stands is laid down (a standing stroke looks like a 1).
    """
    height, width = ink.shape[0] // 2, ink.shape[1] // 2
    right, lower = quarter % 2, quarter // 2
    piece = ink[height:, :] if lower else ink[:height, :]
    piece = piece[:, width:] if right else piece[:, :width]
    if right != lower:
        piece = piece[:, ::-1]
    (x0, y0, x1, y1), there = (part[0] for part in ink_box(piece[None]))
    piece = piece[y0 : y1 + 1, x0 : x1 + 1] if there else piece[:0, :0]
    return piece.T if piece.shape[0] > piece.shape[1] else piece


def _free_corner(
    rng: np.random.Generator,
    corner: NDArray[np.int64],
    sizes: NDArray[np.int64],
    there: NDArray[np.bool_],
    size: NDArray[np.int64],
    limit: float,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Find a place in every scene for one more piece.

    Args:
        rng: the source of randomness.
        corner: ``(N, s, 2)``, the upper left corners (y, x) of what is placed already.
        sizes: ``(N, s, 2)``, heights and widths of that.
        there: ``(N, s)``, whether it was placed.
        size: ``(N, 2)``, height and width of the new piece.
        limit: the share of the smaller of two boxes that they may have in common.

    Returns:
        The first of some random corners that is free enough, ``(N, 2)``, and whether there is one, ``(N,)``.
    """
    room = np.maximum(SIDE - size, 0)[:, None] + 1
    tries = np.floor(rng.random((len(size), _TRIES, 2)) * room).astype(np.int64)
    low = np.maximum(tries[:, :, None], corner[:, None])
    high = np.minimum(tries[:, :, None] + size[:, None, None], (corner + sizes)[:, None])
    shared = np.maximum(high - low, 0).prod(axis=-1) * there[:, None]
    smaller = np.minimum(size.prod(axis=-1)[:, None], sizes.prod(axis=-1))
    free = (shared <= limit * smaller[:, None]).all(axis=-1)
    return tries[np.arange(len(size)), free.argmax(axis=1)], free.any(axis=1)


def _paint(rng: np.random.Generator, canvas: NDArray[np.float32], pieces: list[_Piece]) -> None:
    """Lay every piece on its scene, lighter or darker than what is there."""
    draws = rng.random((len(pieces), 2)).tolist()
    for (lighter, bold), piece in zip(draws, pieces, strict=True):
        height, width = piece.ink.shape
        region = canvas[piece.scene, piece.y : piece.y + height, piece.x : piece.x + width]
        around = int(region.astype(np.int64).sum()) / region.size
        contrast = 30 + 60 * bold + 40 * bold * bold
        up = lighter < 0.5 if contrast < min(around, 255 - around) else around < 128
        level = around + contrast if up else around - contrast
        region += (np.float32(level) - region) * (piece.ink * np.float32(1 / 255))
