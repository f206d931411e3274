"""A table of labels and a folder of images become a data set: what CSV, Parquet and folders of photos share.

The images are looked for, looked at, and divided into train, val and test where the table does not say. Whatever was
decided is said in the data set's ``rules``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.duplicates import DuplicatePairs, find_duplicates
from labelgap.data.image_scan import scan_images
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import ImageFinder, refuse_url
from labelgap.data.split import SplitInputs, assign_splits
from labelgap.labels import LabelTable
from labelgap.labels.io.table_file import TableFile

__all__ = ["ImageOptions", "build_dataset", "read_image_table", "resolve_image_folder"]

_NAMED = 5


@dataclass(frozen=True)
class ImageOptions:
    """What is done about images.

    Attributes:
        on_bad_image: "error" names all that cannot be read in one error, "skip" leaves them out and says how many.
        duplicates: which copies are looked for: "near" (pictures that look the same, too), "exact" or "off". In any
            case every image is decoded once, small, to find those that cannot be read; that is remembered.
        allow_leaks: whether an image may be in two splits.
        seed: of the division, where there is none.
    """

    on_bad_image: str = "error"
    duplicates: str = "near"
    allow_leaks: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for option, allowed in (("on_bad_image", ("error", "skip")), ("duplicates", ("near", "exact", "off"))):
            value = getattr(self, option)
            if value not in allowed:
                raise InputError(f"{option}={value!r}: it is {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}.")


def resolve_image_folder(images: str | os.PathLike[str] | None, table: Path) -> Path:
    """Return the folder that image names start from; the table's own when none is given."""
    if images is not None:
        refuse_url(images, "images")
    folder = table.parent if images is None else Path(images)
    if images is not None and not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}: images is the folder that the names under 'image' start from.")
    return folder


def read_image_table(
    path: Path, folder: Path, read: Callable[[ImageFinder], TableFile], options: ImageOptions
) -> Dataset:
    """Read a table with its images, or raise one error with everything that is wrong.

    Args:
        path: the table.
        folder: where image names start.
        read: reads the table, asking the finder about every image.
        options: what is done about images.
    """
    finder = ImageFinder(folder, skip=options.on_bad_image == "skip")
    try:
        file = read(finder)
    except ProblemsError as error:
        if not finder.missing or finder.missing < finder.checked:
            raise
        outcome = f"nothing was trained. None of its images is in {folder}: where are they? (--images DIR)"
        raise ProblemsError(path, error.problems, outcome, unit=error.unit) from None
    return build_dataset(file, folder, finder.files, finder.skipped, options, finder.rules())


def build_dataset(
    file: TableFile,
    folder: Path,
    files: Mapping[str, str],
    skipped: Mapping[str, str],
    options: ImageOptions,
    found: list[str],
) -> Dataset:
    """Look at the images of a table, leave out or refuse what cannot be read, and divide the rest.

    Args:
        file: the table.
        folder: where the files are.
        files: image → path of its file below the folder.
        skipped: image → why it is left out already.
        options: what is done about images.
        found: what was found out about the files so far, in words.
    """
    images = FileImages(folder, file.table.images, [files.get(name, name) for name in file.table.images])
    wrong = {row: skipped[name] for row, name in enumerate(file.table.images) if name in skipped}
    usable = np.array([row for row in range(len(images)) if row not in wrong], dtype=np.int64)
    seen = scan_images(images.select(usable))
    wrong |= {int(usable[row]): reason for row, reason in seen.unreadable.items()}
    if wrong and options.on_bad_image == "error":
        problems = [Problem(int(file.lines[row]), reason) for row, reason in wrong.items()]
        outcome = f"nothing was trained: {_images(len(wrong))} cannot be read (--on-bad-image skip leaves them out)"
        raise ProblemsError(file.path, problems, outcome, unit=file.unit)
    good = np.array([row for row in range(len(images)) if row not in wrong], dtype=np.int64)
    if not len(good):
        raise InputError(
            f"{file.path}: none of its {len(images):,} images can be read, e.g. {next(iter(wrong.values()))}"
        )
    images, seen = images.select(good), seen.select(np.searchsorted(usable, good))
    pairs = find_duplicates(images, seen, options.duplicates)
    return _divided(file, good, images, pairs, options, [*found, *_left_out(wrong, file.table)])


def _divided(
    file: TableFile,
    good: NDArray[np.int64],
    images: FileImages,
    pairs: DuplicatePairs,
    options: ImageOptions,
    found: list[str],
) -> Dataset:
    table = file.table if len(good) == len(file.table) else file.table.select(good)
    splits, groups = (
        None if values is None else [values[row] for row in good.tolist()] for values in (file.splits, file.groups)
    )
    division = SplitInputs(
        file.path, table, splits, groups, pairs, file.lines[good], file.unit, options.seed, options.allow_leaks
    )
    rows, said = assign_splits(division)
    parts = {
        name: Split(name, images.select(members), table.select(members))
        for name, members in rows.items()
        if len(members)
    }
    if "train" not in parts or not len(parts["train"].labels.values):
        raise InputError(f"{file.path}: no label of a train image is known, so there is nothing to learn from.")
    rules = (*file.rules, _counted(table), *found, *said)
    return Dataset(
        file.path.name,
        parts["train"],
        parts.get("val"),
        parts.get("test"),
        rules=rules,
        revisions=file.revisions,
    )


def _left_out(wrong: Mapping[int, str], table: LabelTable) -> list[str]:
    if not wrong:
        return []
    names = ", ".join(table.images[row] for row in sorted(wrong)[:_NAMED])
    more = " …" if len(wrong) > _NAMED else ""
    verb = "is" if len(wrong) == 1 else "are"
    return [f"{_images(len(wrong))} cannot be read and {verb} left out: {names}{more}"]


def _images(count: int) -> str:
    return f"{count:,} image{'s' if count != 1 else ''}"


def _counted(table: LabelTable) -> str:
    present, absent, unknown = table.counts().total
    found = f"{present:,} labels present, {absent:,} absent, {unknown:,} unknown"
    return f"{len(table):,} images, {len(table.classes):,} classes: {found}"
