"""Scenes of handwritten digits, generated on the fly: the embedded data set.

A scene is a 64×64 gray image of one to five digits of scikit-learn's, among stains, strokes and corners of digits. No
handwriting is in two splits, and the same seed gives the same pixels on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.findings import Note
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.findings import format_sizes
from labelgap.data.images import ArrayImages
from labelgap.labels import LabelTable

if TYPE_CHECKING:
    from scipy.sparse import csr_array

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
    position = np.arange(fine) * ((coarse - 1) / (fine - 1))
    weights = np.clip(1 - np.abs(position[:, None] - np.arange(coarse)), 0, 1)
    return np.asarray(np.rint(weights * 64), dtype=np.float32)


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
    """Draw digits ``(M, 8, 8)`` of 0…16 as ink from 0 (paper) to 255: ``(M, P, P)`` with room for a turned digit.

    ``size`` is the side of the enlarged grid, ``turn`` the tangent of half the angle in forty-eighths, ``threshold``
    ``(M,)`` the cell value in quarters at which ink is half covered: low draws thick strokes.
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
    first = columns.argmax(axis=1), rows.argmax(axis=1)
    last = ink.shape[2] - 1 - columns[:, ::-1].argmax(axis=1), ink.shape[1] - 1 - rows[:, ::-1].argmax(axis=1)
    box = np.stack([*first, *last], axis=1)
    return box.astype(np.int64), np.asarray(columns.any(axis=1))


@lru_cache(maxsize=256)
def _enlarging(size: int, turn: int) -> tuple[csr_array, int]:
    """Return the matrix ``(P·P, 64)`` from cells to pixels, and ``P``."""
    from scipy.sparse import csr_array

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
    """Images, their labels and boxes."""

    images: NDArray[np.uint8]  # ``(N, 64, 64)`` uint8
    labels: NDArray[np.bool_]  # ``(N, 10)`` bool, whether digit ``k`` appears
    boxes: NDArray[np.int64]  # ``(M, 6)`` one per digit placed: scene, class, x0, y0, x1, y1, ordered by scene
    digits: NDArray[np.int64]  # ``(M,)`` int64, which of scikit-learn's 1,797 digits that is

    def __len__(self) -> int:
        return len(self.images)


def digit_scenes(seed: int, counts: tuple[int, int, int]) -> tuple[Scenes, ...]:
    """Generate train, val and test, which share no handwriting; none depends on the sizes of the others."""
    parts = zip(split_digits(seed), counts, strict=True)
    return tuple(make_scenes(digits, count, (seed, 1 + part)) for part, (digits, count) in enumerate(parts))


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
    """Tear a quarter off a digit, so that it reads as none: an upper right corner, like a 7, is mirrored."""
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
    """Return a random corner in every scene for one more piece, sharing at most ``limit``, and whether there is one."""
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


_MAX_SCENES: Final = 100_000  # scenes of a split: they are generated at once, in some gigabytes of memory


def load_digits(*, train: int = 4000, val: int = 1000, test: int = 2000, seed: int = 0) -> Dataset:
    """Generate scenes of one to five handwritten digits, classes "0" to "9", with boxes.

    Training images show one positive each (drawn with the papers' seed, 1200), all other labels are unknown; what was
    hidden is kept as ``truth``. Val and test are complete. Generated once per process: several runs share the pixels.

    Args:
        train: number of training scenes.
        val: number of validation scenes; 0 for none.
        test: number of test scenes; 0 for none.
        seed: the seed of the scenes.

    Example:
        >>> data = load_digits(train=20, val=5, test=5)
        >>> data.train.labels
        LabelTable(20 images, 10 classes: 20 present, 0 absent, 180 unknown)
        >>> data.train.truth.complete and data.val.labels.complete
        True
    """
    for name, value, least in (("train", train, 1), ("val", val, 0), ("test", test, 0), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"digits: {name}={value!r} is not a whole number of at least {least}.")
        if name != "seed" and value > _MAX_SCENES:
            raise InputError(f"digits: {name}={value!r} is more than {_MAX_SCENES:,} scenes.")
    return _generate(train, val, test, seed)


@lru_cache(maxsize=2)
def _generate(train: int, val: int, test: int, seed: int) -> Dataset:
    sizes = {"train": train, "val": val, "test": test}
    scenes = zip(sizes, digit_scenes(seed, (train, val, test)), strict=True)
    parts = {name: _split(name, each) for name, each in scenes if len(each)}
    generated = f"scenes of handwritten digits generated with seed {seed}: {format_sizes(sizes)}"
    whole = Dataset(
        "digits",
        parts["train"],
        parts.get("val"),
        parts.get("test"),
        findings=(Note(f"{generated}; every label is known, and shown in val and test", "source"),),
        backbone="small-cnn",
        protocol="end-to-end",
        flip=False,
    )
    return whole.observe(positives=1, negatives=0, seed=1200)


def _split(name: str, scenes: Scenes) -> Split:
    images = [f"{name}-{number:05d}" for number in range(len(scenes))]
    truth = LabelTable.from_dense(scenes.labels, CLASS_NAMES, images)
    boxes = Boxes(scenes.boxes[:, 0], scenes.boxes[:, 1], scenes.boxes[:, 2:].astype("float64"))
    for array in (scenes.images, boxes.rows, boxes.classes, boxes.corners):
        array.flags.writeable = False
    return Split(name, ArrayImages(scenes.images, images), truth, truth, boxes)
