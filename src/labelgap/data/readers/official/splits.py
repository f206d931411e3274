"""What the papers' data sets share: an official training set, which the papers split into train and val."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from labelgap.core.errors import Problem, ProblemsError
from labelgap.core.findings import Finding
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.findings import PaperSplit
from labelgap.labels import paper_split
from labelgap.labels.io.rows import image_name_problem

__all__ = ["Box", "check_corners", "from_official_splits", "make_boxes", "require_files"]

_SEED: Final = 1200
_MAX_PIXELS: Final = 1e7

Box = tuple[int, int, Sequence[float], bool]
"""Row of the image, number of the class, corners (inclusive, from 0), and whether the object is difficult."""


def make_boxes(found: Sequence[Box]) -> Boxes:
    """Return boxes sorted by image and class; a box has at least one pixel, inside the image on the left and top."""
    rows, classes = (np.array([box[part] for box in found], dtype=np.int64) for part in (0, 1))
    corners = np.array([box[2] for box in found], dtype=np.float64).reshape(-1, 4)
    corners[:, :2] = np.maximum(corners[:, :2], 0)
    corners[:, 2:] = np.maximum(corners[:, 2:], corners[:, :2])
    order = np.lexsort((classes, rows))
    difficult = np.array([box[3] for box in found], dtype=bool)
    return Boxes(rows[order], classes[order], corners[order], difficult[order])


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


def require_files(where: Path, folder: Path, files: Sequence[str], hint: str) -> None:
    """Raise one error about all images that are not in their folder, or have names that no path should have."""
    listed: dict[Path, set[str]] = {}
    problems = []
    for row, file in enumerate(files):
        path = folder / file
        if (problem := image_name_problem(file)) is not None:
            problems.append(Problem(row, problem))
            continue
        if ".." in path.parts[len(folder.parts) :]:
            problems.append(Problem(row, f"{path} leads to another folder"))
            continue
        if path.parent not in listed:
            exists = path.parent.is_dir()
            listed[path.parent] = {child.name for child in path.parent.iterdir()} if exists else set()
        if path.name not in listed[path.parent]:
            problems.append(Problem(row, f"{path} does not exist"))
    if problems:
        raise ProblemsError(where, problems, f"nothing was trained. {hint}", unit="")


def check_corners(corners: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Return the corners of a box; an error for those that no image has."""
    if not all(abs(edge) <= _MAX_PIXELS for edge in corners):  # not a number, too
        raise ValueError(f"a box at {', '.join(map(str, corners))}")
    return corners
