"""What all images are scanned for before training: which can be read, and which are copies of others.

A full scan decodes each file small; results are cached by path, size and time. A quick look reads both ends of a file:
it finds truncated downloads, web pages and empty files, but no damage in the middle.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError, LabelGapError, Problem, ProblemsError, RunError
from labelgap.core.files import atomic_path
from labelgap.core.stored import read_arrays
from labelgap.core.system import cpu_count
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.data.decoding import DecodedImage, UnreadableImageError, check_file, decoded, max_pixels, upright
from labelgap.data.images import FileImages, ImageSource, StoredImages, to_channels

HASH_BITS: Final = 63
_SIDE: Final = 32
_COSINES: Final = np.cos(np.pi / _SIDE * np.outer(np.arange(8), np.arange(_SIDE) + 0.5)) * np.sqrt(2 / _SIDE)
_COSINES[0] /= np.sqrt(2)
"""The lowest rows of the cosine transform, orthonormal."""
_DECODE_SIZE: Final = 64
_MIN_DETAIL: Final = 2.0
_MIN_CACHED_SECONDS: Final = 0.1
_VERSION: Final = 6
_MAX_CACHED: Final = 1_000_000  # images of one folder whose scan is kept: 25 bytes each
RECORD: Final = np.dtype([("key", "<u8"), ("bits", "<u8"), ("textured", "u1"), ("color", "<f4", 2)])
"""What is known of an image that can be read: a key of its file, 0 where there is none; its perceptual hash, 63 bits;
whether it has enough detail for the hash to mean something; and the means of red − green and of blue − green."""


class ImageSignature(NamedTuple):
    """What copies of one image share; see ``perceptual_hash``."""

    bits: int
    detail: float
    color: tuple[float, float]


@dataclass(frozen=True, eq=False)
class ImageScan:
    """The result of scanning N images: why each cannot be read, or "", and its ``RECORD``."""

    errors: tuple[str, ...]
    records: NDArray[np.void]

    def select(self, rows: NDArray[np.int64]) -> ImageScan:
        """Return the scan of these images, in this order."""
        return ImageScan(tuple(self.errors[row] for row in rows.tolist()), self.records[rows])

    @property
    def unreadable(self) -> dict[int, str]:
        """Row → why the image cannot be read."""
        return {row: error for row, error in enumerate(self.errors) if error}


def scan_images(images: StoredImages, advance: Callable[[int], object] = lambda images: None) -> ImageScan:
    """Scan every image that is not in the cache, and ``advance``; what cannot be read is recorded, not raised."""
    folder = hashlib.sha256(f"{_VERSION} {max_pixels()} ".encode() + os.fsencode(images.root)).hexdigest()[:32]
    path = cache_folder() / "scans" / f"{folder}.npz"
    cached, errors, records = _read_cache(path), [""] * len(images), np.zeros(len(images), RECORD)
    records["key"] = keys = _image_keys(images)
    known = np.isin(keys, cached["key"])
    records[known] = cached[np.searchsorted(cached["key"], keys[known])]
    new = np.flatnonzero(~known)
    advance(len(images) - len(new))
    started = time.perf_counter()
    # once for all threads: broken metadata, sizes that are large but accepted
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(cpu_count()) as threads:
        for row, result in zip(new, threads.map(partial(_scan_image, images), new.tolist()), strict=True):
            if isinstance(result, InputError):
                errors[row] = str(result)
            else:
                records[row] = (keys[row], result.bits, result.detail > _MIN_DETAIL, result.color)
            advance(1)
    if time.perf_counter() - started > _MIN_CACHED_SECONDS:
        _add_to_cache(path, records[[row for row in new.tolist() if keys[row] and not errors[row]]])
    return ImageScan(tuple(errors), records)


def perceptual_hash(image: DecodedImage) -> ImageSignature:
    """Hash an image so that copies of it, resized or recompressed, have nearly the same bits.

    A bit is whether one of the 63 lowest frequencies of 32 × 32 gray pixels, the first left out, is above their median.
    Reference: C. Zauner, "Implementation and benchmarking of perceptual image hash functions", 2010.
    """
    gray, total = np.empty((image.height, image.width), dtype=np.uint8), np.zeros(3)
    for top, strip in image.strips():
        gray[top : top + len(strip)] = to_channels(strip, 1)[..., 0]
        total += strip.sum(axis=(0, 1), dtype=np.float64)
    shown = Image.fromarray(np.ascontiguousarray(upright(gray, image.orientation)))
    small = np.asarray(shown.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), dtype=np.float64)
    low = (_COSINES @ small @ _COSINES.T).ravel()[1:]
    bits = int.from_bytes(np.packbits(low > np.median(low)).tobytes(), "big") >> 1
    red, green, blue = total / gray.size
    return ImageSignature(bits, float(np.sqrt((low**2).sum())) / _SIDE, (float(red - green), float(blue - green)))


def _scan_image(images: StoredImages, row: int) -> ImageSignature | InputError:
    try:
        with decoded(images.encoded(row), _DECODE_SIZE, quiet=False) as image:
            return perceptual_hash(image)
    except InputError as error:
        return type(error)(str(error))  # without the traceback, which refers to the image


def _image_keys(images: StoredImages) -> NDArray[np.uint64]:
    """Return a hash of the state of every image; 0 where there is none."""
    keys = np.zeros(len(images), dtype=np.uint64)
    for row in range(len(images)):
        try:
            state = images.state(row)
        except InputError:
            continue
        keys[row] = int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "big")
    return keys


def _read_cache(path: Path) -> NDArray[np.void]:
    if path.exists():
        with suppress(RunError, KeyError):
            stored = read_arrays(path)["records"]
            if stored.dtype == np.uint8 and stored.ndim == 2 and stored.shape[1] == RECORD.itemsize:
                records = stored.view(RECORD)[:, 0]
                if (records["key"][1:] > records["key"][:-1]).all():
                    return records
    return np.zeros(0, RECORD)


def _add_to_cache(path: Path, new: NDArray[np.void]) -> None:
    """Add records to those of a folder; where the cache cannot be written, the next scan computes them again."""
    records = np.concatenate([new, _read_cache(path)])[:_MAX_CACHED]  # read again: others may have added to it
    records = records[np.unique(records["key"], return_index=True)[1]]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            np.savez(temporary, records=records.view(np.uint8).reshape(-1, RECORD.itemsize))


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
            with suppress(OSError):
                if (earlier := seen.setdefault(images.digest(row), row)) != row:
                    pairs.append((earlier, row))
    return DuplicatePairs.of(pairs, exact=True)


def near_pairs(scan: ImageScan, rows: Sequence[int] | NDArray[np.int64] | None = None) -> DuplicatePairs:
    """Find images that look the same: at most ``MAX_HASH_DISTANCE`` bits of their hashes differ, and the colors agree.

    Four bits that differ leave three of seven parts equal: images are sorted by every choice of three, and neighbors
    compared. Enough pairs of ``rows`` (ascending) to connect all copies are returned, not every pair.
    """
    bits, color = scan.records["bits"], scan.records["color"]
    chosen = np.arange(len(bits)) if rows is None else np.asarray(rows, dtype=np.int64)
    chosen = chosen[scan.records["textured"][chosen] > 0]
    different, place = np.unique(bits[chosen], return_inverse=True)
    same = _same_bits(chosen, place, color[chosen, 0])
    representative = np.zeros(len(different), dtype=np.int64)
    representative[place[::-1]] = chosen[::-1]
    found = list[tuple[NDArray[np.int64], NDArray[np.int64]]]()
    for first, second in _candidates(different):
        bits = (different[first] ^ different[second]).view(np.uint8).reshape(-1, 8)
        near = _BIT_COUNTS[bits].sum(axis=1) <= MAX_HASH_DISTANCE
        found.append((first[near], second[near]))
    left = representative[np.concatenate([same[0][:0], *(pair[0] for pair in found)])]
    right = representative[np.concatenate([same[0][:0], *(pair[1] for pair in found)])]
    first = np.concatenate([same[0], np.minimum(left, right)])
    second = np.concatenate([same[1], np.maximum(left, right)])
    like = np.abs(color[first] - color[second]).max(axis=1, initial=0) <= _MAX_COLOR_DISTANCE
    return DuplicatePairs.of(np.unique(np.stack([first[like], second[like]], axis=1), axis=0), exact=False)


def cluster_ids(pairs: DuplicatePairs, count: int) -> NDArray[np.int64]:
    """Return a number per image, the same for all that pairs connect."""
    if not len(pairs):
        return np.arange(count)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

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


MAX_QUICK_FILES: Final = 200_000
"""Files that are looked at without being asked to: of more, reading two parts of each takes minutes."""

_TAIL: Final = 32

T = TypeVar("T")
Advance = Callable[[int], object]


def find_unreadable(images: StoredImages, advance: Advance = lambda images: None, *, decode: bool) -> dict[int, str]:
    """Return row → why an image cannot be read: by decoding all (cached), or by a quick look at both ends of files."""
    if decode or not isinstance(images, FileImages):
        return scan_images(images, advance).unreadable
    suspects: list[int] = []
    with ThreadPoolExecutor(cpu_count()) as threads:
        sound = threads.map(lambda row: _has_both_ends(images.path(row)), range(len(images)))
        for row, each in enumerate(sound):
            suspects += [] if each else [row]
            advance(1)
    unreadable = scan_images(images.select(suspects)).unreadable
    return {suspects[number]: reason for number, reason in unreadable.items()}


def refuse_unreadable(data: Dataset, advance: Advance = lambda images: None, *, decode: bool) -> None:
    """Raise one error with all images of a data set that cannot be read; see ``find_unreadable``."""
    reasons: list[str] = []
    for split in data.splits:
        if isinstance(split.images, StoredImages):
            reasons += find_unreadable(split.images, advance, decode=decode).values()
    if reasons:
        raise _error(data.name, reasons, "Replace them by sound copies, or take them off the list")


def name_unreadable(batches: Iterable[T], images: ImageSource) -> Iterator[T]:
    """Yield batches of images; where one cannot be read, the error names all that a quick look at the others finds."""
    try:
        yield from batches
    except UnreadableImageError as error:
        if not isinstance(images, FileImages) or len(images) > MAX_QUICK_FILES:
            raise
        reasons = dict.fromkeys([str(error), *find_unreadable(images, decode=False).values()])
        if len(reasons) == 1:
            raise
        raise _error(
            images.root, list(reasons), "`labelgap inspect DATA --check-images` names those of all splits"
        ) from error


def _error(where: object, reasons: list[str], remedy: str) -> ProblemsError:
    problems = [Problem(number, reason) for number, reason in enumerate(reasons)]
    return ProblemsError(where, problems, f"{pluralize(len(reasons), 'image')} cannot be read. {remedy}", unit="")


def _has_both_ends(path: Path) -> bool:
    try:
        size = check_file(path).st_size
        with path.open("rb") as file:
            start = file.read(16)
            file.seek(max(size - _TAIL, 0))
            end = file.read(_TAIL)
    except (LabelGapError, OSError):
        return False
    if start.startswith(b"\xff\xd8\xff"):
        return b"\xff\xd9" in end
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return b"IEND" in end
    if start.startswith((b"GIF87a", b"GIF89a")):
        return end.rstrip(b"\0").endswith(b";")
    return start[:4] == b"RIFF" and start[8:12] == b"WEBP" and int.from_bytes(start[4:8], "little") + 8 <= size
