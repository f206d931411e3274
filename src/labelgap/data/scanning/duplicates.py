"""Duplicate images: the same bytes, or nearly the same pixels.

An image in train and its copy in test make a result look better than it is. Bytes are hashed only where two files have
the same size, and perceptual hashes are compared only where three of their seven parts agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from labelgap.core.errors import InputError
from labelgap.data.images import StoredImages
from labelgap.data.scanning.image_scan import HASH_BITS, ImageScan

MAX_HASH_DISTANCE: Final = 4
"""How many of the 63 bits may differ. Of 2,400 photos of VOC2012, scaled to 224 px, no two differ in fewer than 8.
Copies of 400 of them at half, 1.7 and 4 times the size, or of JPEG quality 50 and 25, all differ in 4 or fewer; of
copies with 2 % cut off at each side only two in three do, and the others are not found."""

_PARTS: Final = 7
_EQUAL_PARTS: Final = 3  # of seven parts, when four bits or fewer differ
_MAX_COLOR_DISTANCE: Final = 12.0
_BIT_COUNTS: Final = np.array([number.bit_count() for number in range(256)])


@dataclass(frozen=True, eq=False)
class DuplicatePairs:
    """Pairs of images that are copies: ``first < second``, row numbers; ``exact`` where the bytes agree."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    exact: NDArray[np.bool_]

    @classmethod
    def of(cls, pairs: ArrayLike, *, exact: bool) -> DuplicatePairs:
        """Make them from ``(M, 2)`` row numbers."""
        ends = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        return cls(ends[:, 0], ends[:, 1], np.full(len(ends), exact))

    def __len__(self) -> int:
        return len(self.first)

    def exact_only(self) -> DuplicatePairs:
        """Return the pairs whose bytes agree."""
        return DuplicatePairs(self.first[self.exact], self.second[self.exact], self.exact[self.exact])

    def __add__(self, other: DuplicatePairs) -> DuplicatePairs:
        return DuplicatePairs(
            np.concatenate([self.first, other.first]),
            np.concatenate([self.second, other.second]),
            np.concatenate([self.exact, other.exact]),
        )


def find_duplicates(images: StoredImages, scan: ImageScan, which: str) -> DuplicatePairs:
    """Find copies of images: "exact" by their bytes, "near" by their looks too, "off" none."""
    if which == "off":
        return DuplicatePairs.of([], exact=True)
    exact = exact_pairs(images)
    if which == "exact":
        return exact
    return exact + near_pairs(scan, np.flatnonzero(~np.isin(np.arange(len(images)), exact.second)))


def exact_pairs(images: StoredImages) -> DuplicatePairs:
    """Find files with the same bytes; each is paired with the first of them. Missing files are skipped."""
    by_size: dict[int, list[int]] = {}
    for row in range(len(images)):
        try:
            by_size.setdefault(images.encoded_size(row), []).append(row)
        except InputError:
            continue
    pairs = list[tuple[int, int]]()
    for rows in by_size.values():
        seen: dict[bytes, int] = {}
        for row in rows if len(rows) > 1 else ():
            digest = _digest(images, row)
            if digest is not None and (earlier := seen.setdefault(digest, row)) != row:
                pairs.append((earlier, row))
    return DuplicatePairs.of(pairs, exact=True)


def near_pairs(scan: ImageScan, rows: Sequence[int] | NDArray[np.int64] | None = None) -> DuplicatePairs:
    """Find images that look the same: at most ``MAX_HASH_DISTANCE`` bits of their hashes differ, and the colors agree.

    Four bits that differ lie in at most four of the seven parts of nine bits, so that three parts agree: images are
    sorted by every choice of three parts, and only neighbors are compared. The work grows as N log N.

    Only ``rows`` (ascending) are compared; images without texture never match. Enough pairs to connect all copies are
    returned, not every pair of many equal images.
    """
    chosen = np.arange(len(scan.bits)) if rows is None else np.asarray(rows, dtype=np.int64)
    chosen = chosen[scan.textured[chosen]]
    different, place = np.unique(scan.bits[chosen], return_inverse=True)
    same = _same_bits(chosen, place, scan.color[chosen, 0])
    representative = np.zeros(len(different), dtype=np.int64)
    representative[place[::-1]] = chosen[::-1]
    found = [_close(different, first, second) for first, second in _candidates(different)]
    left = representative[np.concatenate([same[0][:0], *(pair[0] for pair in found)])]
    right = representative[np.concatenate([same[0][:0], *(pair[1] for pair in found)])]
    first = np.concatenate([same[0], np.minimum(left, right)])
    second = np.concatenate([same[1], np.maximum(left, right)])
    like = np.abs(scan.color[first] - scan.color[second]).max(axis=1, initial=0) <= _MAX_COLOR_DISTANCE
    return DuplicatePairs.of(np.unique(np.stack([first[like], second[like]], axis=1), axis=0), exact=False)


def cluster_ids(pairs: DuplicatePairs, count: int) -> NDArray[np.int64]:
    """Return a number per image, the same for all that pairs connect.

    Example:
        >>> cluster_ids(DuplicatePairs(np.array([0, 2]), np.array([2, 3]), np.array([True, False])), 5)
        array([0, 1, 0, 0, 2])
    """
    edges = coo_array((np.ones(len(pairs), dtype=bool), (pairs.first, pairs.second)), shape=(count, count))
    _, number = connected_components(edges, directed=False)
    return np.asarray(number, dtype=np.int64)


def _same_bits(
    rows: NDArray[np.int64], place: NDArray[np.int64], color: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair images with one and the same hash, each with the next in the order of their colors."""
    order = np.lexsort((rows, color, place))
    again = place[order][1:] == place[order][:-1]
    one, other = rows[order[:-1][again]], rows[order[1:][again]]
    return np.minimum(one, other), np.maximum(one, other)


def _candidates(bits: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs of hashes that agree in three of seven parts, for every choice of three."""
    width = HASH_BITS // _PARTS
    parts = [(bits >> np.uint64(width * part)) & np.uint64(2**width - 1) for part in range(_PARTS)]
    for chosen in combinations(range(_PARTS), _EQUAL_PARTS):
        key = np.zeros(len(bits), dtype=np.uint64)
        for part in chosen:
            key = (key << np.uint64(width)) | parts[part]
        order = np.argsort(key, kind="stable")
        key = key[order]
        at, step = np.flatnonzero(key[1:] == key[:-1]), 1
        while len(at):
            yield order[at], order[at + step]
            step += 1
            at = at[at + step < len(key)]
            at = at[key[at + step] == key[at]]


def _close(
    bits: NDArray[np.uint64], first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keep the pairs whose hashes differ in few bits."""
    different = (bits[first] ^ bits[second]).view(np.uint8).reshape(-1, 8)
    near = _BIT_COUNTS[different].sum(axis=1) <= MAX_HASH_DISTANCE
    return first[near], second[near]


def _digest(images: StoredImages, row: int) -> bytes | None:
    try:
        return images.digest(row)
    except OSError:
        return None
