"""Where the files of a data set come from, how they must lie, and what is missing in a folder.

A reader of published files has a ``DatasetLayout`` beside its loading function; ``labelgap datasets NAME`` prints it,
and ``labelgap datasets NAME PATH`` checks a folder by it. The check is quick: it looks at names and at the sizes of
short lists, and loading checks the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from labelgap.core.errors import RunError
from labelgap.core.stored import check_ordinary
from labelgap.core.text import pluralize

_MAX_MATCHES: Final = 100_000
"""Files of a pattern that are counted."""


@dataclass(frozen=True)
class RequiredFile:
    """A file, or files of a pattern, that a data set consists of.

    Attributes:
        path: relative to the root of the data set, with "/"; may be a pattern, ``JPEGImages/*.jpg``.
        content: what is in it, in a few words.
        others: other paths that will do.
        optional: whether the data can be loaded without it.
        count: how many files of the pattern the published version has; None where it does not matter.
        lines: how many lines that are not blank the published version has; None where it does not matter.
        check: returns what is wrong with the first of the files, None if nothing is; has to be quick.
    """

    path: str
    content: str = ""
    others: tuple[str, ...] = ()
    optional: bool = False
    count: int | None = None
    lines: int | None = None
    check: Callable[[Path], str | None] | None = None

    def problems(self, root: Path) -> Iterator[str]:
        """Yield what is missing, or is not as published."""
        found = next(
            (matches for path in (self.path, *self.others) if (matches := _matches(root, path, self.count))), []
        )
        if not found:
            if not self.optional:
                about = "; ".join(filter(None, (f"or {', '.join(self.others)}" if self.others else "", self.content)))
                yield f"{self.path} is missing{f' ({about})' if about else ''}"
            return
        if self.count is not None and len(found) != self.count:
            published = f"the published version has {self.count:,}"
            yield f"{self.path}: {pluralize(len(found), 'file')}, {published}"
        file = found[0]
        try:
            check_ordinary(file) if not file.is_dir() else None
            if self.lines is not None and (lines := _count_lines(file)) != self.lines:
                yield f"{shown_path(root, file)}: {pluralize(lines, 'line')}, the published version has {self.lines:,}"
            if self.check is not None and (problem := self.check(file)) is not None:
                yield f"{shown_path(root, file)}: {problem}"
        except (RunError, OSError) as error:
            yield f"{shown_path(root, file)} cannot be read ({error})"


@dataclass(frozen=True)
class DatasetLayout:
    """The files of a data set: whence, under which license, and how they must lie.

    Attributes:
        source: where the files come from.
        license: under which terms, in a sentence.
        root: name of the folder that the paths of ``files`` are relative to, as it is shown.
        files: what is needed.
        find: returns the root that a path leads to, or None; None for data that are a single file or the user's own,
            whose folders are not checked.
        notes: what a user should know of the published files.
        tried: whether the reader was tried on the published files; otherwise it is written from their description.
        check: returns what is wrong below the root, apart from missing ``files``; has to be quick.
    """

    source: str = ""
    license: str = ""
    root: str = ""
    files: tuple[RequiredFile, ...] = ()
    find: Callable[[Path], Path | None] | None = None
    notes: tuple[str, ...] = ()
    tried: bool = True
    check: Callable[[Path], Sequence[str]] | None = None

    def problems(self, path: Path) -> list[str]:
        """Return everything that is missing below a path or is of another version; empty when nothing is.

        A path that leads to no such data is taken as the root, so that all files of it are named.
        """
        if self.find is None:
            return []
        found = self.find(path)
        root = found or path
        problems = list(dict.fromkeys(problem for file in self.files for problem in file.problems(root)))
        return problems if self.check is None or found is None else [*problems, *self.check(found)]

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


def _matches(root: Path, pattern: str, count: int | None) -> list[Path]:
    """Return the existing paths of a pattern, sorted; only the first where their number does not matter."""
    if not any(sign in pattern for sign in "*?["):
        path = root / pattern
        return [path] if path.exists() else []
    return sorted(islice(root.glob(pattern), _MAX_MATCHES if count else 1))


def _count_lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def shown_path(root: Path, file: Path) -> str:
    """Return a path as messages name it: below the root, or whole where it lies elsewhere."""
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)
