"""Text files of published data sets: their lines with numbers, and names that must not come twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError, Problem, ProblemsError, RunError
from labelgap.core.findings import Finding
from labelgap.core.stored import read_bytes
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.layout import DatasetLayout, shown_path
from labelgap.data.scanning.file_check import find_unreadable
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.rows import image_name_problem

_MAX_BYTES: Final = 1 << 28
_MAX_LOOKED_AT: Final = 20_000
"""Images that are looked at beside other problems, which takes a few seconds."""


class FileProblems:
    """Collects the problems of the files of a data set, each with file and line, in the order of reading.

    Args:
        root: the folder that the shown paths are relative to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._problems = ProblemList(root, unit="")
        self._outcome = "nothing was trained"
        self._images: list[str] = []

    def __len__(self) -> int:
        return len(self._problems)

    @property
    def messages(self) -> list[str]:
        """The problems so far, in order."""
        return [problem.message for problem in self._problems.found]

    def add(self, file: Path, message: str, line: int | None = None) -> None:
        """Add a problem of a file, or of a line of it."""
        where = "" if line is None else f", line {line:,}"
        self._problems.append(f"{shown_path(self.root, file)}{where}: {message}")

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
        """Raise one error with all problems; nothing when there are none.

        It notes the warnings as well, and the images that a quick look finds unreadable, unless there are very many.
        """
        if not len(self):
            return
        notes = list(map(str, warnings))
        if len(self._images) <= _MAX_LOOKED_AT:
            notes += find_unreadable(FileImages(self.root, self._images), decode=False).values()
        self._problems.refuse(self._outcome, notes)

    def check_images(self, files: Sequence[str], hint: str) -> None:
        """Add a problem of every image that is not below the root, or has a name that no path should have.

        A folder that is not there is one problem, whatever it should hold. ``hint`` is the end of the error's first
        line.
        """
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

    def read_numbered(self, file: Path) -> dict[int, str]:
        """Return the texts of a file of ``number text`` lines by number; a number or a text that comes twice is bad."""
        found: dict[int, str] = {}
        first: dict[str, int] = {}
        before = len(self)
        for line, content in self.read_lines(file):
            number, _, text = content.partition(" ")
            if not (number.isascii() and number.isdigit() and len(number) < 10 and text.strip()):
                self.add(file, f"{truncate_text(repr(content))}: a line is a number and a name", line)
            elif int(number) in found:
                self.add(file, f"the number {number} is listed again", line)
            elif (name := text.strip()) in first:
                self.add(file, f"{truncate_text(name)} is listed again (first in line {first[name]:,})", line)
            else:
                found[int(number)], first[name] = name, line
        if not found and len(self) == before:
            self.add(file, "is empty")
        return found


def find_root(path: Path, layout: DatasetLayout) -> Path:
    """Return the folder of a data set that a path leads to, or raise one error with all files that are missing."""
    refuse_url(path, "images")
    root = None if layout.find is None else layout.find(path)
    if root is None:
        if not path.is_dir():
            raise InputError(f"{path} is not a folder.")
        problems = [Problem(number, text) for number, text in enumerate(layout.problems(path))]
        raise ProblemsError(path, problems, f"nothing was trained. The files lie as in {layout.root}", unit="")
    return root
