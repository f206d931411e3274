"""What readers of published files share: the layout of files, lists with problems, boxes, and the papers' split."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from labelgap.core.errors import InputError, Problem, ProblemsError, RunError, describe_missing_path
from labelgap.core.findings import Caution, Finding, Note
from labelgap.core.stored import read_bytes
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.findings import format_sizes, some_names
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.scanning import find_unreadable
from labelgap.labels import paper_split
from labelgap.labels.io.parse import image_name_problem
from labelgap.labels.io.table_file import ProblemList


@dataclass(frozen=True)
class RequiredFile:
    """A file, or files of a pattern, that a data set consists of.

    Attributes:
        path: relative to the root of the data set, with "/"; may be a pattern, ``JPEGImages/*.jpg``.
        content: what is in it, in a few words.
        others: other paths that will do.
        optional: whether the data can be loaded without it.
    """

    path: str
    content: str = ""
    others: tuple[str, ...] = ()
    optional: bool = False

    def problem(self, root: Path) -> str | None:
        """Return that it is missing below a root, and what it is; None where it is there or not needed."""
        if self.optional or any(_exists(root, path) for path in (self.path, *self.others)):
            return None
        about = "; ".join(filter(None, (f"or {', '.join(self.others)}" if self.others else "", self.content)))
        return f"{self.path} is missing{f' ({about})' if about else ''}"


@dataclass(frozen=True)
class DatasetLayout:
    """The files of a data set: whence, under which license, and how they must lie.

    A reader of published files has one beside its loading function: ``labelgap datasets NAME`` prints it, and
    ``labelgap datasets NAME PATH`` says which of its files are missing in a folder; loading checks what is in them.

    Attributes:
        root: name of the folder that the paths of ``files`` are relative to, as it is shown.
        find: returns the root that a path leads to, or None; None for data that are a single file or the user's own.
        notes: what a user should know of the published files.
        tried: whether the reader was tried on the published files; otherwise it is written from their description.
    """

    source: str = ""
    license: str = ""
    root: str = ""
    files: tuple[RequiredFile, ...] = ()
    find: Callable[[Path], Path | None] | None = None
    notes: tuple[str, ...] = ()
    tried: bool = True

    def problems(self, path: Path) -> list[str]:
        """Return all that is missing below a path, the root if it leads to no such data."""
        if self.find is None:
            return []
        root = self.find(path) or path
        return [problem for file in self.files if (problem := file.problem(root)) is not None]

    def tree(self) -> list[str]:
        """Return the files as lines, each folder once and what is below it indented.

        Example:
            >>> files = (RequiredFile("lists/train.txt", "names"), RequiredFile("photos/*.jpg", optional=True))
            >>> print("\\n".join(DatasetLayout(root="data/", files=files).tree()))
            data/
              lists/
                train.txt       names
              photos/
                *.jpg           if there
        """
        rows: list[tuple[str, str]] = []
        before: Sequence[str] = ()
        for file in self.files:
            *folders, name = file.path.split("/")
            for depth, folder in enumerate(folders):
                if folders[: depth + 1] != list(before[: depth + 1]):
                    rows.append((f"{'  ' * (depth + 1)}{folder}/", ""))
            also = f"or {', '.join(file.others)}" if file.others else ""
            remarks = ", ".join(filter(None, (file.content, also, "if there" if file.optional else "")))
            rows.append((f"{'  ' * (len(folders) + 1)}{name}", remarks))
            before = folders
        width = max((len(left) for left, _ in rows), default=0) + 4
        width = min(max(width, 20), 48)
        return [*([self.root] if self.root else []), *(f"{left:<{width}}{right}".rstrip() for left, right in rows)]


def _exists(root: Path, pattern: str) -> bool:
    return any(root.glob(pattern)) if any(sign in pattern for sign in "*?[") else (root / pattern).exists()


def shown_path(root: Path, file: Path) -> str:
    """Return a path as messages name it: below the root, or whole where it lies elsewhere."""
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)


_MAX_BYTES: Final = 1 << 28
_MAX_LOOKED_AT: Final = 20_000  # images that are looked at beside other problems, which takes a few seconds


class FileProblems:
    """Collects the problems of the files below a folder, each with file and line, in the order of reading."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._problems = ProblemList(root, unit="")
        self._outcome = "nothing was trained"
        self._images: list[str] = []

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, file: Path, message: str, line: int | str | None = None) -> None:
        """Add a problem of a file, or of a line of it; a text in place of a number names the row, for example."""
        where = "" if line is None else f", line {line:,}" if isinstance(line, int) else f", {line}"
        self._problems.add(len(self), f"{shown_path(self.root, file)}{where}: {message}")

    def add_images(self, found: Iterable[tuple[Path, str]], hint: str) -> None:
        """Add problems of images, however many they are; ``hint`` is the end of the error's first line."""
        problems = [
            Problem(number, f"{shown_path(self.root, file)}: {message}")
            for number, (file, message) in enumerate(found, len(self))
        ]
        self._problems.add_all(problems)
        if problems:
            self._outcome = f"nothing was trained. {hint}"

    def refuse(self, warnings: Sequence[Finding] = ()) -> None:
        """Raise one error with all problems, the warnings, and the images that a quick look finds unreadable."""
        if not len(self):
            return
        notes = list(map(str, warnings))
        if len(self._images) <= _MAX_LOOKED_AT:
            notes += find_unreadable(FileImages(self.root, self._images), decode=False).values()
        self._problems.refuse(self._outcome, notes)

    def check_images(self, files: Sequence[str], hint: str) -> None:
        """Add a problem of every image, or folder, that is not below the root; ``hint`` ends the error's first line."""
        listed: dict[Path, set[str] | None] = {}
        lost: Counter[Path] = Counter()
        found: list[tuple[Path, str]] = []
        for file in files:
            path = self.root / file
            folder = path.parent
            if (problem := image_name_problem(file)) is not None:
                found.append((self.root, problem))
            elif ".." in path.parts[len(self.root.parts) :]:
                found.append((self.root, f"{path} leads to another folder"))
            else:
                if folder not in listed:
                    listed[folder] = {child.name for child in folder.iterdir()} if folder.is_dir() else None
                names = listed[folder]
                if names is None:
                    lost[folder] += 1
                elif path.name not in names:
                    found.append((path, "does not exist"))
                else:
                    self._images.append(file)
        found += [(each, f"does not exist, nor do the {pluralize(lost[each], 'image')} in it") for each in lost]
        self.add_images(found, hint)

    def is_new(self, name: str, lines: dict[str, int], file: Path, line: int) -> bool:
        """Keep the line of a name; one that has a line already is a problem."""
        if (first := lines.setdefault(name, line)) != line:
            self.add(file, f"{truncate_text(name)} is listed again (first in line {first:,})", line)
        return first == line

    def read(self, file: Path) -> bytes:
        """Return the content of a file; empty, with a problem, where it cannot be read."""
        try:
            return read_bytes(file, limit=_MAX_BYTES)
        except RunError as error:
            reason = "is missing" if not file.exists() else str(error)
            self.add(file, reason)
            return b""

    def read_lines(self, file: Path) -> list[tuple[int, str]]:
        """Return the lines of a text that are not blank, each with its number from 1, without blanks around them."""
        text = self.read(file).decode("utf-8-sig", errors="replace")
        return [(number, line) for number, each in enumerate(text.splitlines(), 1) if (line := each.strip())]

    def read_numbered(self, file: Path) -> dict[int, tuple[int, str]]:
        """Return line and text of every ``number text`` of a file, by number; a number that comes twice is bad."""
        found: dict[int, tuple[int, str]] = {}
        before = len(self)
        for line, content in self.read_lines(file):
            number, _, text = content.partition(" ")
            if not (number.isascii() and number.isdigit() and len(number) < 10 and text.strip()):
                self.add(file, f"{truncate_text(repr(content))}: a line is a number, a blank and a text", line)
            elif int(number) in found:
                self.add(file, f"the number {number} is listed again (first in line {found[int(number)][0]:,})", line)
            else:
                found[int(number)] = line, text.strip()
        if not found and len(self) == before:
            self.add(file, "is empty")
        return found

    def read_names(self, file: Path) -> dict[int, str]:
        """Return the names of a file of ``number name`` lines by number; a name that comes twice is bad, too."""
        first: dict[str, int] = {}
        numbered = self.read_numbered(file).items()
        return {number: name for number, (line, name) in numbered if self.is_new(name, first, file, line)}


def find_root(path: Path, layout: DatasetLayout) -> Path:
    """Return the folder of a data set that a path leads to, or raise one error with all files that are missing."""
    refuse_url(path, "images")
    root = None if layout.find is None else layout.find(path)
    if root is None:
        if not path.is_dir():
            raise InputError(f"{path} is not a folder." if path.exists() else describe_missing_path(path))
        problems = [Problem(number, text) for number, text in enumerate(layout.problems(path))]
        raise ProblemsError(path, problems, f"nothing was trained. The files lie as in {layout.root}", unit="")
    return root


_SEED: Final = 1200
_MAX_PIXELS: Final = 1e7

Corners = tuple[float, float, float, float]  # left, top, right and bottom: inclusive, from 0


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
        """Add the box of an object at ``place``; a pixel beyond the edge is none: people count from 0 or from 1."""
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
        found = (
            (self._without_area, "box has", "boxes have", "no area inside the image: counted as one pixel"),
            (self._outside, "box reaches", "boxes reach", "beyond the image"),
            (self._of_no_class, "object is", "objects are", "of no class of the lists: left out"),
        )
        return [
            Caution(f"{pluralize(len(places), one, many)} {what}: {some_names(places)}", "images")
            for places, one, many, what in found
            if places
        ]


def from_official_splits(
    name: str, train: Split, test: Split, findings: Sequence[Finding], published: tuple[int, int] | None = None
) -> Dataset:
    """Split an official training set into train (80 %) and val (20 %) as the papers do; test stays complete.

    Other numbers of images than ``published`` are a finding.
    """
    rows, held_out = paper_split(len(train), seed=_SEED)
    parts = (
        replace(train.select(rows, "train"), origin=rows),
        replace(train.select(held_out, "val"), origin=held_out),
    )
    sizes = {"train": len(rows), "val": len(held_out), "test": len(test)}
    official = f"the papers' 80/20 split of the {len(train):,} official training images (seed {_SEED})"
    notes = [Note(f"train and val are {official}: {format_sizes(sizes)}", "split")]
    if published is not None and published != (len(train), len(test)):
        texts = [f"{one:,} / {other:,}" for one, other in ((len(train), len(test)), published)]
        notes.insert(0, Note(f"there are {texts[0]} training and test images, in the published version {texts[1]}"))
    return Dataset(name, *parts, test, findings=(*findings, *notes))


def check_corners(corners: Corners) -> Corners:
    """Return the corners of a box; an error for those that no image has."""
    if not all(abs(edge) <= _MAX_PIXELS for edge in corners):  # not a number, too
        raise ValueError(f"a box at {', '.join(map(str, corners))}")
    return corners
