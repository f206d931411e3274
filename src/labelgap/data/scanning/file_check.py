"""Which image files cannot be read: a quick look at all of them, or all decoded.

The quick look reads the first and the last bytes of a file. A JPEG, PNG, GIF or WebP that has the start and the end of
its format is taken as sound; any other file is decoded, and so are these where the end is missing. It finds what
downloads and copies leave behind: truncated files, web pages and texts with the name of a photo, empty files. Damage in
the middle of a file is found only where all are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from labelgap.core.errors import LabelGapError, Problem, ProblemsError
from labelgap.core.system import cpu_count
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.data.decoding import UnreadableImageError, check_file
from labelgap.data.images import FileImages, ImageSource, StoredImages
from labelgap.data.scanning.image_scan import scan_images

MAX_QUICK_FILES: Final = 200_000
"""Files that are looked at without being asked to: of more, reading two parts of each takes minutes."""

_CHUNK: Final = 256
_TAIL: Final = 32

T = TypeVar("T")
Advance = Callable[[int], object]


def find_unreadable(images: StoredImages, advance: Advance = lambda images: None, *, decode: bool) -> dict[int, str]:
    """Return row → why an image cannot be read.

    Args:
        images: the quick look is at files; others are decoded in any case.
        advance: called with the number of images that are done, as the work proceeds.
        decode: whether to decode all of them, which is cached, rather than to look at both ends of each file.
    """
    if decode or not isinstance(images, FileImages):
        return scan_images(images, advance).unreadable
    rows = np.arange(len(images))
    chunks = [rows[start : start + _CHUNK].tolist() for start in range(0, len(rows), _CHUNK)]
    suspects: list[int] = []
    with ThreadPoolExecutor(cpu_count()) as threads:
        for chunk, sound in zip(
            chunks, threads.map(lambda part: [_has_both_ends(images.path(row)) for row in part], chunks), strict=True
        ):
            suspects += [row for row, each in zip(chunk, sound, strict=True) if not each]
            advance(len(chunk))
    unreadable = scan_images(images.select(suspects)).unreadable
    return {suspects[number]: reason for number, reason in unreadable.items()}


def refuse_unreadable(data: Dataset, advance: Advance = lambda images: None, *, decode: bool) -> None:
    """Raise one error with all images of a data set that cannot be read; nothing where all can be, as far as is seen.

    Args:
        data: with images that are stored; others need no check.
        advance: see ``find_unreadable``.
        decode: see ``find_unreadable``.
    """
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
    """Return whether a file has the start and the end of an image; False where that cannot be told."""
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
