"""Your own photos and tags: a CSV of labels and a folder of images.

The table is read by ``labelgap.labels.csvfile``; here its images are looked for, and its rows are divided into train,
val and test where the file does not say. Whatever was decided is said in the data set's ``rules``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.splitting import share_sizes, stratified_split
from labelgap.labels import LabelTable
from labelgap.labels.csvfile import SPLITS, TableFile, read_csv

__all__ = ["load_csv"]

Rows = dict[str, NDArray[np.int64]]


def load_csv(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    zeros: str = "absent",
    unlisted: str = "unknown",
    seed: int = 0,
) -> Dataset:
    """Read a CSV of labels and find its images, or raise one error with everything that is wrong.

    Without a ``split`` column 80 % of the images are to learn from, 10 % are val and 10 % are test, stratified by known
    positives. With one, but without val rows, 10 % of train are held out as val.

    Args:
        path: wide (``image,[split],class…``) or lists (``image,[split],present,[absent]``).
        images: the folder that the names under ``image`` start from; the CSV's own folder when not given.
        zeros: what a 0 in a wide table says: "absent", or "unknown" where it only means that nobody tagged it.
        unlisted: what a class in neither list of a lists table is: "unknown" or "absent".
        seed: of the split, where the file gives none.
    """
    path = Path(path)
    folder = path.parent if images is None else Path(images)
    if images is not None and not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}: images is the folder that the names under 'image' start from.")
    file = _read(path, folder, zeros, unlisted)
    rows, split_rules = _divide(file, seed)
    train = _split("train", file.table, rows, folder)
    if train is None or not len(train.labels.values):
        raise InputError(f"{path}: no label of a train image is known, so there is nothing to learn from.")
    val, test = _split("val", file.table, rows, folder), _split("test", file.table, rows, folder)
    return Dataset(path.name, train, val, test, rules=(*file.rules, _found(file.table), *split_rules))


class _ImageCheck:
    """Says what is wrong with an image's name: it leads out of the folder, nothing is there, it is no file.

    Args:
        folder: where names start.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checked = 0
        self.missing = 0
        self._names: dict[str, str] = {}

    def __call__(self, name: str) -> str | None:
        self.checked += 1
        place = self.folder / name
        inside = _inside(self.folder, place)
        if inside is None:
            return f"{name} lies outside of the image folder {self.folder}"
        first = self._names.setdefault(inside, name)
        if first != name:
            return f"{name} is {first} once more, written differently"
        try:
            state = place.stat()
        except (FileNotFoundError, NotADirectoryError):
            self.missing += 1
            return f"{place} does not exist"
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return f"{place} cannot be read ({reason})"
        if not stat.S_ISREG(state.st_mode):
            return f"{place} is not a file"
        return None if state.st_size else f"{place} is empty (0 bytes)"


def _inside(folder: Path, place: Path) -> str | None:
    """Return a path as seen from a folder, without detours, or None when it leads out of it. Links are not followed."""
    try:
        relative = os.path.relpath(place, folder)
    except ValueError:  # another drive
        return None
    return None if Path(relative).parts[:1] == (os.pardir,) else relative


def _read(path: Path, folder: Path, zeros: str, unlisted: str) -> TableFile:
    check = _ImageCheck(folder)
    try:
        return read_csv(path, zeros=zeros, unlisted=unlisted, check_image=check)
    except ProblemsError as error:
        if not check.missing or check.missing < check.checked:
            raise
        outcome = f"nothing was trained. None of its images is in {folder}: where are they? (--images DIR)"
        raise ProblemsError(path, error.problems, outcome) from None


def _split(name: str, table: LabelTable, rows: Rows, folder: Path) -> Split | None:
    if not len(rows[name]):
        return None
    labels = table.select(rows[name])
    return Split(name, FileImages(folder, labels.images), labels)


def _divide(file: TableFile, seed: int) -> tuple[Rows, list[str]]:
    """Return the rows of every split, and in words where they come from."""
    if file.splits is None:
        return _divide_all(file, seed)
    given = np.array(file.splits)
    rows = {name: np.flatnonzero(given == name) for name in SPLITS}
    if not len(rows["train"]):
        raise InputError(
            f"{file.path}: no row has 'train' under split ({_sizes(rows)}), so there is nothing to learn from."
        )
    rules = [f"split as the file says: {_sizes(rows)}"]
    if not len(rows["val"]) and len(rows["train"]) > 1:
        everything = rows["train"]
        kept, held_out = stratified_split(file.table.select(everything), share_sizes(len(everything), 1), seed)
        rows = {**rows, "train": everything[kept], "val": everything[held_out]}
        rules.append(
            f"no val rows: {len(held_out):,} of the {len(everything):,} train images (10 %) are held out as val, "
            f"stratified by known positives, seed {seed}{_groups_ignored(file)}"
        )
    if not len(rows["test"]):
        rules.append("no test rows: nothing is measured on images that took no part")
    return rows, rules


def _divide_all(file: TableFile, seed: int) -> tuple[Rows, list[str]]:
    parts = stratified_split(file.table, share_sizes(len(file.table), 1, 1), seed)
    rows = dict(zip(SPLITS, parts, strict=True))
    rule = f"no split given: 80/10/10, stratified by known positives, seed {seed}: {_sizes(rows)}"
    return rows, [rule + _groups_ignored(file)]


def _groups_ignored(file: TableFile) -> str:
    return "" if file.groups is None else "; images of one group are not kept together yet"


def _sizes(rows: Rows) -> str:
    return ", ".join(f"{len(rows[name]):,} {name}" for name in SPLITS)


def _found(table: LabelTable) -> str:
    present, absent, unknown = table.counts().total
    found = f"{present:,} labels present, {absent:,} absent, {unknown:,} unknown"
    return f"{len(table):,} images, {len(table.classes):,} classes: {found}"
