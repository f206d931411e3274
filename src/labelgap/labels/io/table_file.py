"""What reading a table of labels takes and gives: options, the table, findings, and all problems in one error."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, Problem, ProblemsError
from labelgap.core.findings import Finding
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

MAX_PROBLEMS: Final = 10_000
"""From so many problems on a file is not read further: nobody reads them, and a file may have one per byte."""


class ProblemList:
    """Collects the problems of a file, and raises them; ``unit`` is what lines count, "row" in files without lines."""

    def __init__(self, path: Path, unit: str = "line") -> None:
        self.path = path
        self.unit = unit
        self.fixable = unit != ""
        self._found: list[Problem] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, line: int, message: str) -> None:
        """Add a problem; all are raised when there are too many."""
        self._found.append(Problem(line, message))
        if len(self) >= MAX_PROBLEMS:
            self._found.append(Problem(line, "reading stopped here, after too many problems"))
            self.refuse()

    def add_all(self, problems: Iterable[Problem]) -> None:
        """Add problems that are known already, however many."""
        self._found.extend(problems)

    def extend(self, number: int, text: str) -> None:
        """Add a text to the message of a problem; ``number`` is how many were there before it."""
        problem = self._found[number]
        self._found[number] = Problem(problem.line, problem.message + text)

    def merge(self, numbers: Sequence[int], text: str) -> None:
        """Replace some problems by one with a text, in the place of the first; ``numbers`` are as in ``extend``."""
        self._found[numbers[0]] = Problem(self._found[numbers[0]].line, text)
        others = {*numbers[1:]}
        self._found = [each for number, each in enumerate(self._found) if number not in others]

    @property
    def found(self) -> tuple[Problem, ...]:
        """The problems so far."""
        return tuple(self._found)

    def refuse(self, outcome: str = "nothing was trained", notes: Sequence[str] = ()) -> None:
        """Raise one error with all problems, which says the outcome and the notes; nothing when there are none."""
        if self._found:
            found = self._found if self.unit else {each.message: each for each in reversed(self._found)}.values()
            raise ProblemsError(self.path, list(found), outcome, unit=self.unit, fixable=self.fixable, notes=notes)


RESERVED_COLUMNS: Final = ("image", "split", "group")
LIST_COLUMNS: Final = ("present", "absent")
SPLITS: Final = ("train", "val", "test")
SPLIT_NAMES: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""What people call the splits, in lower case."""


@dataclass(frozen=True)
class TableOptions:
    """How to read a table of labels, in any file format."""

    zeros: str = "absent"  # the meaning of 0 in a wide table: "absent" or "unknown" (nobody tagged it)
    unlisted: str = "unknown"  # what a class in neither list of a lists table is: "unknown" or "absent"
    separator: str | None = None  # between the names of a list; detected when None
    classes: Sequence[str] | None = None  # the classes to use, in this order; all of them when None
    ignore_columns: Sequence[str] = ()  # columns that are not classes
    rename: Mapping[str, str] = field(default_factory=dict)  # old name → new name, of classes and columns
    aliases: str | os.PathLike[str] | None = None  # a CSV of synonym, class
    parents: str | os.PathLike[str] | None = None  # a CSV of child, parent: a parent of what is present is present
    minus_one: int | None = None  # the code of −1, an uncertain label; None where it is no state

    def __post_init__(self) -> None:
        check_choice("zeros", self.zeros, ("absent", "unknown"))
        check_choice("unlisted", self.unlisted, ("unknown", "absent"))
        for option, names in (("classes", self.classes), ("ignore_columns", self.ignore_columns)):
            if isinstance(names, str):
                raise InputError(f"{option}={names!r}: give a list of names.")
        if self.classes is not None and len(set(self.classes)) < max(len(self.classes), 1):
            raise InputError("classes: name at least one tag, and each of them once.")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TableOptions:
        """Return those of the options of a reader that are about the table."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in names and value is not None})


@dataclass(frozen=True)
class TableFile:
    """The contents of a file of labels."""

    path: Path  # the file
    table: LabelTable  # its labels, with those that ``parents`` adds
    splits: tuple[str, ...] | None  # the split of every row, or None when the file names none
    groups: tuple[str, ...] | None  # the group of every row, or None when the file has no such column
    lines: NDArray[np.int64]  # the line of every row in the file
    findings: tuple[Finding, ...]  # how cells and gaps were read
    unit: str = "line"  # what ``lines`` counts: "line", or "row" in files without lines
    revisions: Revisions = field(default_factory=Revisions)  # what ``parents`` added to the observed labels
    sources: tuple[Path, ...] | None = None  # the file of every row, where several files were joined
    uncertain: int = 0  # how many cells are −1, where ``minus_one`` says what that means


def check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise an error for a value that is not allowed."""
    if value not in allowed:
        raise InputError(f"{option}={value!r}: it must be {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}.")


_SIMILAR_SHOWN: Final = 10


@dataclass(frozen=True)
class SimilarClasses(Finding, warning=True):
    """Names that differ only in case, blanks, marks or a plural, and their known positives, the most frequent first."""

    counts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        some = self.counts[:_SIMILAR_SHOWN]
        shown = " and ".join(f"'{name}' ({count:,})" for name, count in some)
        (chosen, _), *others = some
        options = " ".join(f"--rename {shlex.quote(f'{name}={chosen}')}" for name, _ in others)
        more = f" and {len(self.counts) - len(some):,} more" if len(some) < len(self.counts) else ""
        return f"{shown}{more} look like one tag: {options}"


@dataclass(frozen=True)
class MoreSimilarClasses(Finding, text="{count:,} more tags look like another", warning=True):
    """How many further groups of similar names there are."""

    count: int
