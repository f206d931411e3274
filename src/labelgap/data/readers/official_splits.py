"""What the papers' data sets share: one official training set, cut into train and val by the papers' rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import Problem, ProblemsError
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.labels import paper_split

__all__ = ["BoxBuilder", "from_official_splits", "require_files", "subset"]


class BoxBuilder:
    """Boxes as they are found, image by image.

    Corners are inclusive and count from 0; a box keeps at least one pixel.
    """

    def __init__(self) -> None:
        self._found: list[tuple[int, int, float, float, float, float, bool]] = []

    def add(self, row: int, column: int, corners: Sequence[float], difficult: bool) -> None:
        """Take a box of class ``column`` in image ``row``."""
        left, top, right, bottom = corners
        left, top = max(left, 0.0), max(top, 0.0)
        self._found.append((row, column, left, top, max(right, left), max(bottom, top), difficult))

    def boxes(self) -> Boxes:
        """Return all of them, by image and class, in the order they came."""
        found = np.array(self._found, dtype=np.float64).reshape(-1, 7)
        found = found[np.lexsort((found[:, 1], found[:, 0]))]
        rows, classes = found[:, 0].astype(np.int64), found[:, 1].astype(np.int64)
        return Boxes(rows, classes, found[:, 2:6], found[:, 6].astype(bool))


def from_official_splits(
    name: str,
    train: Split,
    test: Split,
    rules: Sequence[str],
    *,
    seed: int = 1200,
) -> Dataset:
    """Cut an official training set into train (80 %) and val (20 %) as the papers do; test stays whole.

    Labels are hidden by ``Dataset.observe``, which draws over the official set before the cut; see ``Split.origin``.

    Args:
        name: of the data set.
        train: the official training set, in the papers' order.
        test: what the papers report on.
        rules: in words, how labels were read.
        seed: of the cut; 1200 in the papers.
    """
    rows, held_out = paper_split(len(train), seed=seed)
    cut_rule = (
        f"train and val are the papers' 80/20 cut of the {len(train):,} official training images (seed {seed}): "
        f"{len(rows):,} train, {len(held_out):,} val, {len(test):,} test"
    )
    parts = subset(train, "train", rows), subset(train, "val", held_out)
    return Dataset(name, *parts, test, rules=(*rules, cut_rule))


def subset(split: Split, name: str, rows: NDArray[np.int64]) -> Split:
    """Return some rows of a split as a split of their own that knows where it came from."""
    boxes = split.boxes
    if boxes is not None:
        place = np.full(len(split), len(split), dtype=np.int64)
        place[rows] = np.arange(len(rows))
        kept = place[boxes.rows] < len(split)
        difficult = None if boxes.difficult is None else boxes.difficult[kept]
        boxes = Boxes(place[boxes.rows[kept]], boxes.classes[kept], boxes.corners[kept], difficult)
    truth = None if split.truth is None else split.truth.select(rows)
    return Split(name, split.images.select(rows), split.labels.select(rows), truth, boxes, rows)


def require_files(where: Path, folder: Path, files: Sequence[str], hint: str) -> None:
    """Raise one error about all images that are not in their folder."""
    listed: dict[Path, set[str]] = {}
    problems = []
    for row, file in enumerate(files):
        place = folder / file
        if place.parent not in listed:
            there = place.parent.is_dir()
            listed[place.parent] = {child.name for child in place.parent.iterdir()} if there else set()
        if place.name not in listed[place.parent]:
            problems.append(Problem(row, f"{place} does not exist"))
    if problems:
        raise ProblemsError(where, problems, f"nothing was trained. {hint}", unit="")
