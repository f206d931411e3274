"""The image files of Open Images: ``ID.jpg``, in a folder per split, in the sixteen of train's archives, or in one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.data.images import FileImages
from labelgap.data.readers.openimages.blocks import format_ids, ids_from_digits

_SUFFIX: Final = ".jpg"
_LENGTH: Final = 16 + len(_SUFFIX)


@dataclass(frozen=True)
class ImageFiles:
    """The image files below a folder.

    Attributes:
        folder: the one that holds ``train``, ``validation`` and ``test``, the images themselves, or ``images``.
    """

    folder: Path

    def places(self, official: str) -> Iterator[Path]:
        """Yield the folders that images of a split can be in."""
        parts = [official, *(f"{official}_{digit:x}" for digit in range(16)), *(["val"] if "val" in official else [])]
        for base in (self.folder, self.folder / "images"):
            yield from (place for part in parts if (place := base / part).is_dir())
            if base.is_dir():
                yield base

    def find(self, official: str, ids: NDArray[np.uint64]) -> NDArray[np.int8]:
        """Return the number of the place of every image, ``ids`` ascending; the number of places where none has it."""
        places = list(self.places(official))
        found = np.full(len(ids), len(places), dtype=np.int8)
        for number, place in enumerate(places):
            row = np.searchsorted(ids, there := _ids_of_files(place))
            row = row[ids[row.clip(max=max(len(ids) - 1, 0))] == there] if len(ids) else row[:0]
            found[row[found[row] == len(places)]] = number
        return found

    def open(self, official: str, ids: NDArray[np.uint64], found: NDArray[np.int8]) -> FileImages:
        """Return images by their ids; ``found`` is what ``find`` returned for them."""
        names = format_ids(ids)
        folders = [os.path.relpath(place, self.folder) for place in self.places(official)]
        heads = ["" if folder == os.curdir else f"{folder}/" for folder in folders]
        files = [f"{heads[number]}{name}{_SUFFIX}" for number, name in zip(found.tolist(), names, strict=True)]
        return FileImages(self.folder, names, files)


def _ids_of_files(folder: Path) -> NDArray[np.uint64]:
    """Return the ids of the images in a folder, in any order."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(_SUFFIX) and len(entry.name) == _LENGTH]
    digits = np.array([name.encode("utf-8", "replace")[:16] for name in names], dtype="S16")
    ids, valid = ids_from_digits(digits.view(np.uint8).reshape(-1, 16))
    return ids[valid]
