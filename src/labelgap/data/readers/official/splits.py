"""What the papers' data sets share: an official training set, which the papers split into train and val."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from labelgap.core.findings import Finding
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.findings import BoxesOutsideImage, BoxesWithoutArea, ObjectsOfNoClass, PaperSplit
from labelgap.labels import paper_split

_SEED: Final = 1200
_MAX_PIXELS: Final = 1e7

Corners = tuple[float, float, float, float]
"""Left, top, right and bottom: inclusive, from 0."""


@dataclass
class BoxList:
    """Boxes as they are read, and where the ones without a pixel are."""

    _found: list[tuple[int, int, Corners, bool]] = field(default_factory=list)
    _without_area: list[str] = field(default_factory=list)
    _outside: list[str] = field(default_factory=list)
    _of_no_class: list[str] = field(default_factory=list)

    def add(
        self,
        row: int,
        column: int,
        corners: Corners,
        difficult: bool,
        place: str,
        size: tuple[float, float] = (math.inf, math.inf),
    ) -> None:
        """Add the box of an object.

        Args:
            row: of its image.
            column: of its class.
            corners: a pixel beyond the edge of the image is no mistake: people count from 0 or from 1.
            difficult: whether it is hard to recognize.
            place: where it is written.
            size: width and height of the image.
        """
        left, top, right, bottom = corners
        if right + 1 <= max(left, 0) or bottom + 1 <= max(top, 0):
            self._without_area.append(place)
        elif min(left, top) + 1 < 0 or right > size[0] or bottom > size[1]:
            self._outside.append(place)
        self._found.append((row, column, corners, difficult))

    def leave_out(self, place: str) -> None:
        """Count an object of a class that the data set does not have."""
        self._of_no_class.append(place)

    def boxes(self) -> Boxes:
        """Return the boxes sorted by image and class, each with at least one pixel and none left of or above 0."""
        rows, classes = (np.array([box[part] for box in self._found], dtype=np.int64) for part in (0, 1))
        corners = np.array([box[2] for box in self._found], dtype=np.float64).reshape(-1, 4)
        corners[:, :2] = np.maximum(corners[:, :2], 0)
        corners[:, 2:] = np.maximum(corners[:, 2:], corners[:, :2])
        order = np.lexsort((classes, rows))
        difficult = np.array([box[3] for box in self._found], dtype=bool)
        return Boxes(rows[order], classes[order], corners[order], difficult[order])

    def findings(self) -> list[Finding]:
        """Return how many boxes have no pixel, reach beyond their image, or are of no class; empty when none are."""
        found = {
            BoxesWithoutArea: self._without_area,
            BoxesOutsideImage: self._outside,
            ObjectsOfNoClass: self._of_no_class,
        }
        return [kind(tuple(places)) for kind, places in found.items() if places]


def from_official_splits(name: str, train: Split, test: Split, findings: Sequence[Finding]) -> Dataset:
    """Split an official training set into train (80 %) and val (20 %) as the papers do; test stays complete.

    Labels are hidden by ``Dataset.observe``, which draws over the official set before the split; see ``Split.origin``.
    """
    rows, held_out = paper_split(len(train), seed=_SEED)
    parts = (
        replace(train.select(rows, "train"), origin=rows),
        replace(train.select(held_out, "val"), origin=held_out),
    )
    sizes = {"train": len(rows), "val": len(held_out), "test": len(test)}
    return Dataset(name, *parts, test, findings=(*findings, PaperSplit(sizes, _SEED)))


def check_corners(corners: Corners) -> Corners:
    """Return the corners of a box; an error for those that no image has."""
    if not all(abs(edge) <= _MAX_PIXELS for edge in corners):  # not a number, too
        raise ValueError(f"a box at {', '.join(map(str, corners))}")
    return corners
