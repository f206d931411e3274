"""From a table of labels and a folder of images to a data set: what CSV, Parquet and folders of photos share."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError, suggest_path
from labelgap.core.findings import Finding
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import ImagesSkipped, count_labels
from labelgap.data.images import FileImages, path_inside
from labelgap.data.readers.image_paths import ImageFinder, images_below, refuse_url
from labelgap.data.scanning import DuplicatePairs, find_duplicates, scan_images
from labelgap.data.split import assign_splits
from labelgap.labels import LabelTable
from labelgap.labels.io.formats import RawTable, open_csv, open_parquet_table, parse_table, read_csv, read_parquet
from labelgap.labels.io.table_file import TableFile, TableOptions, check_choice


@dataclass(frozen=True)
class ImageOptions:
    """How images are checked and split: "error" or "skip" for bad ones, "near", "exact" or "off" for duplicates."""

    on_bad_image: str = "error"
    duplicates: str = "near"
    allow_leaks: bool = False

    def __post_init__(self) -> None:
        check_choice("on_bad_image", self.on_bad_image, ("error", "skip"))
        check_choice("duplicates", self.duplicates, ("near", "exact", "off"))


def read_image_table(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None,
    read: Callable[[Path, ImageFinder], TableFile],
    options: ImageOptions,
    others: Mapping[str, str | os.PathLike[str] | None] | None = None,
) -> Dataset:
    """Read a table with its images, and tables of val and of test (``others``), or raise one error."""
    path, folder = Path(path), image_folder(path, images)
    finder = ImageFinder(folder, skip=options.on_bad_image == "skip")
    source = finder.source = path
    try:
        file = read(path, finder)
        for split, other in (others or {}).items():
            if other is not None:
                refuse_url(other, "tables")
                source = finder.source = Path(other)
                file = join_tables(file, read(source, finder), split)
    except ProblemsError as error:
        if not finder.checked:
            raise
        raise _with_images(error, source, finder, "nothing was trained") from None
    return build_dataset(file, folder, finder.files, finder.skipped, options, finder.findings())


def image_folder(path: str | os.PathLike[str], images: str | os.PathLike[str] | None) -> Path:
    """Return the folder that the names of a table are relative to: its own when ``images`` is None."""
    refuse_url(path, "tables")
    if images is None:
        return Path(path).parent
    refuse_url(images, "images")
    folder = Path(images)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        rule = "images is the folder that the names under 'image' are relative to."
        raise InputError(f"{folder} {what}: {rule}{suggest_path(folder)}")
    return folder


def _with_images(
    error: ProblemsError, source: Path, finder: ImageFinder, outcome: str, more: Sequence[Problem] = ()
) -> ProblemsError:
    """Return the error of a table with the problems of its images."""
    all_missing = 0 < finder.missing == finder.checked
    if all_missing:
        outcome += f". None of its images is in {finder.folder}: where are they? (--images DIR)"
    problems = [*error.problems, *more, *_unreadable_images(finder.folder, finder)]
    whole = ProblemsError(source, problems, outcome, unit=error.unit, fixable=error.fixable and not all_missing)
    for note in getattr(error, "__notes__", ()):
        whole.add_note(note)
    return whole


def _unreadable_images(folder: Path, finder: ImageFinder) -> list[Problem]:
    """Return the images that cannot be read, for a table with other problems: one error names all."""
    if finder.skip:
        return []
    names = [name for name in finder.files if finder.sources[name] == finder.source]
    scan = scan_images(FileImages(folder, names, [finder.files[name] for name in names]))
    return [Problem(finder.lines[names[row]], reason) for row, reason in scan.unreadable.items()]


def join_tables(file: TableFile, other: TableFile, split: str) -> TableFile:
    """Return a table with the rows of another one as a split; its classes are matched by name."""
    table, added = file.table, other.table.with_classes(file.table.classes)
    given = ("train",) * len(table) if file.splits is None else file.splits
    if split in given:
        raise InputError(f"{file.path} has {split} rows of its own: leave {split}={other.path} out, or those rows.")
    if shared := set(table.images).intersection(added.images):
        raise InputError(
            f"{min(shared)} is in {file.path} and in {other.path}, and {len(shared):,} images in all: an image that is "
            f"trained on cannot be {split}."
        )
    if not len(added.values):
        raise InputError(f"{other.path} knows no label of a class of {file.path} ({', '.join(table.classes[:5])} …).")
    groups = None
    if file.groups is not None or other.groups is not None:
        groups = (file.groups or ("",) * len(table)) + (other.groups or ("",) * len(added))
    return replace(
        file,
        table=LabelTable.concatenate([table, added]),
        splits=given + (split,) * len(added),
        groups=groups,
        lines=np.concatenate([file.lines, other.lines]),
        sources=(file.sources or (file.path,) * len(table)) + (other.path,) * len(added),
    )


def open_table(path: Path, given: Mapping[str, Any]) -> RawTable:
    """Return the cells of a CSV or Parquet table, read with the options of ``load_table``."""
    if is_parquet(path):
        return open_parquet_table(path)
    return open_csv(path, TableOptions.of(given), encoding=given.get("encoding"), delimiter=given.get("delimiter"))


def is_parquet(path: Path) -> bool:
    """Return whether a table is in Parquet: its suffix or its first bytes say so."""
    if path.suffix.lower() == ".parquet" or not path.is_file():
        return path.suffix.lower() == ".parquet"
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


class NewImages:
    """Images that are to join a data set, in a table, or in a folder without labels, of which the new ones count.

    ``names`` are their paths below the folder of the data set, which ``folder`` is in; ``known``: it has all of them
    already.
    """

    def __init__(self, data: Dataset, path: Path, folder: Path | None = None) -> None:
        self.data, options = data, data.recipe["options"]
        sources = [images for split in data.splits if isinstance(images := split.images, FileImages)]
        self.root = sources[0].root
        self._rows = {os.path.relpath(path, self.root): row for row, path in enumerate(chain(*map(_paths, sources)))}
        self._known, self._finder = list[Problem](), ImageFinder(self._inside(folder or self.root))
        self._finder.skip = options.get("on_bad_image") == "skip"
        self.file = self._list_folder(path) if path.is_dir() else self._read(path, options)
        self.names = tuple(map(self._name, self.file.table.images))
        self.known = bool(self.names) and len(self._known) == len(self.names) and self._has_labels()
        problems = [] if self.known else self._known
        if problems := [*problems, *_unreadable_images(self._finder.folder, self._finder)]:
            raise ProblemsError(path, problems, "nothing was added", unit=self.file.unit)

    def _inside(self, folder: Path) -> Path:
        folder = image_folder(folder, folder).absolute()
        if path_inside(self.root, folder) is None:
            copy = f"cp -r {shlex.quote(str(folder))} {shlex.quote(str(self.root))}/"
            raise InputError(f"{folder} is not in {self.root}, where the images of the run are. Copy it there: {copy}")
        return folder

    def _name(self, image: str) -> str:
        return os.path.relpath(self._finder.folder / self._finder.files.get(image, image), self.root)

    def _list_folder(self, path: Path) -> TableFile:
        folder = self._inside(path)
        found = [os.path.relpath(image, folder) for image in images_below(folder)]
        self._finder = ImageFinder(folder, skip=self._finder.skip)
        new = [name for name in found if os.path.relpath(folder / name, self.root) not in self._rows]
        problems = [Problem(0, problem) for name in new if (problem := self._finder(name)) is not None]
        if problems:
            raise ProblemsError(path, problems, "nothing was added", unit="")
        table = LabelTable.from_lists([[]] * len(new), classes=self.data.classes, images=new)
        return TableFile(path, table, None, None, np.zeros(len(new), dtype=np.int64), (), unit="")

    def _read(self, path: Path, options: Mapping[str, Any]) -> TableFile:
        self._finder.source = path
        try:
            opened = open_table(path, {**options, "encoding": None, "delimiter": None})  # its own
            return parse_table(opened, TableOptions.of(options), self._check)
        except ProblemsError as error:
            raise _with_images(error, path, self._finder, "nothing was added", self._known) from None

    def _check(self, image: str, line: int) -> str | None:
        problem = self._finder(image, line)
        if problem is None and self._name(image) in self._rows:
            self._known.append(Problem(line, f"{image} is in {self.data.name} already"))
        return problem

    def _has_labels(self) -> bool:
        table = LabelTable.concatenate([split.labels for split in self.data.splits]).with_classes(
            self.file.table.classes
        )
        rows, own = np.array([self._rows[name] for name in self.names]), self.file.table
        return bool((table.codes_at(rows[own.rows], own.columns) == own.values).all())


def _paths(images: FileImages) -> Iterator[Path]:
    return map(images.path, range(len(images)))


def _unreadable_error(file: TableFile, invalid: Mapping[int, str]) -> ProblemsError:
    sources = file.sources or (file.path,) * len(file.table)
    one_file = len({sources[row] for row in invalid}) == 1
    problems = [
        Problem(int(file.lines[row]), reason if one_file else f"{sources[row]}: {reason}")
        for row, reason in invalid.items()
    ]
    count = pluralize(len(invalid), "image")
    outcome = f"nothing was trained: {count} cannot be read (--on-bad-image skip leaves them out)"
    path = sources[min(invalid)] if one_file else file.path
    return ProblemsError(path, problems, outcome, unit=file.unit, fixable=one_file and file.unit != "")


def _select(file: TableFile, rows: NDArray[np.int64]) -> TableFile:
    chosen = rows.tolist()
    return replace(
        file,
        table=file.table.select(rows),
        splits=file.splits and tuple(file.splits[row] for row in chosen),
        groups=file.groups and tuple(file.groups[row] for row in chosen),
        lines=file.lines[rows],
        sources=file.sources and tuple(file.sources[row] for row in chosen),
    )


def build_dataset(
    file: TableFile,
    folder: Path,
    files: Mapping[str, str],
    skipped: Mapping[str, str],
    options: ImageOptions,
    findings: Sequence[Finding],
) -> Dataset:
    """Check the images of a table, leave out or refuse those that cannot be read, and split the rest."""
    images = FileImages(folder, file.table.images, [files.get(name, name) for name in file.table.images])
    invalid = {row: skipped[name] for row, name in enumerate(file.table.images) if name in skipped}
    usable = np.array([row for row in range(len(images)) if row not in invalid], dtype=np.int64)
    scan = scan_images(images.select(usable))
    invalid |= {int(usable[row]): reason for row, reason in scan.unreadable.items()}
    if invalid and options.on_bad_image == "error":
        raise _unreadable_error(file, invalid)
    good = np.array([row for row in range(len(images)) if row not in invalid], dtype=np.int64)
    if not len(good):
        raise InputError(
            f"{file.path}: none of its {len(images):,} images can be read, e.g. {next(iter(invalid.values()))}"
        )
    images, scan = images.select(good), scan.select(np.searchsorted(usable, good))
    pairs = find_duplicates(images, scan, options.duplicates)
    if invalid:
        findings = (*findings, ImagesSkipped(tuple(file.table.images[row] for row in sorted(invalid))))
    if len(good) < len(file.table):
        file = _select(file, good)
    parts, split_findings = split_images(file, images, pairs, options.allow_leaks)
    all_findings = (*file.findings, count_labels([file.table]), *findings, *split_findings)
    return Dataset.of(file.path.name, parts, all_findings, revisions=file.revisions)


def split_images(
    file: TableFile, images: FileImages, pairs: DuplicatePairs, allow_leaks: bool
) -> tuple[dict[str, Split], list[Finding]]:
    """Return the splits of a table that have images, and what is to be known of them."""
    rows, together, findings = assign_splits(file, pairs, allow_leaks)
    parts = {name: members for name, members in rows.items() if len(members)}
    return {
        name: Split(name, images.select(members), file.table.select(members), groups=together[members])
        for name, members in parts.items()
    }, findings


def load_table(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    val: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    zeros: str = "absent",
    unlisted: str = "unknown",
    delimiter: str | None = None,
    encoding: str | None = None,
    separator: str | None = None,
    classes: Sequence[str] | None = None,
    ignore_columns: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    aliases: str | os.PathLike[str] | None = None,
    parents: str | os.PathLike[str] | None = None,
    on_bad_image: str = "error",
    duplicates: str = "near",
    allow_leaks: bool = False,
    seed: int = 0,
) -> Dataset:
    """Read a CSV or Parquet file of labels and find its images, or raise one error with everything that is wrong.

    Without a ``split`` column all images are train, and a linear head is cross-validated over them; where a network is
    trained, a tenth of train is held out as val, by a hash of the images' names. Copies of an image, and images of one
    ``group``, stay together.

    Wide columns of Parquet hold booleans, numbers or texts; its lists are Parquet's own, or texts with a separator.
    What ``LabelTable.to_parquet`` wrote keeps the order of its classes. Rows are counted from 1.

    Args:
        path: wide (``image,[split],class…``) or lists (``image,[split],present,[absent]``).
        images: the folder that the names under ``image`` are relative to; the table's own folder when not given.
        val: a table of val images, in the same layout; its classes are matched by name.
        test: a table of test images.
        zeros: what a 0 in a wide table means: "absent", or "unknown" where it only means that nobody tagged it.
        unlisted: the state of a class in neither list of a lists table: "unknown" or "absent".
        delimiter: between cells of a CSV; like the next two detected, and reported in ``findings``, when not given.
        encoding: the encoding of the text of a CSV.
        separator: between the tags of a list.
        classes: the tags to use, in this order; other columns are left out.
        ignore_columns: columns that are not tags.
        rename: old name → new name, of tags (two that get one name become one) and of columns (``{"file": "image"}``).
        aliases: a CSV of two columns, synonym and tag.
        parents: a CSV of two columns, child and parent: where a child is present its parent is, as revisions.
        on_bad_image: "error" names all images that cannot be read, "skip" leaves them out.
        duplicates: which copies of images are searched for: "near", "exact" or "off".
        allow_leaks: whether copies of an image may be in two splits; an error otherwise where the file has such splits.
        seed: the seed of the val that is held out where a network is trained.
    """
    options = TableOptions(zeros, unlisted, separator, classes, ignore_columns, rename or {}, aliases, parents)

    def read(file: Path, finder: ImageFinder) -> TableFile:
        if is_parquet(file):
            if delimiter or encoding:
                raise InputError(f"{file} is a Parquet file: a delimiter and an encoding are those of a CSV.")
            return read_parquet(file, options, check_image=finder)
        return read_csv(file, options, encoding=encoding, delimiter=delimiter, check_image=finder)

    given = ImageOptions(on_bad_image, duplicates, allow_leaks)
    return read_image_table(path, images, read, given, {"val": val, "test": test})
