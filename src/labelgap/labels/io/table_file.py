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
from labelgap.core.text import pluralize, truncate_text
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

MAX_PROBLEMS: Final = 10_000
"""From so many problems on a file is not read further: nobody reads them, and a file may have one per byte."""


class ProblemList:
    """Collects the problems of a file, and raises them; ``unit`` is what lines count, "row" in files without lines.

    ``fixable`` says whether ``labelgap inspect --fix`` can clean the file; a problem that prevents it sets this to
    False.
    """

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

    def append(self, message: str) -> None:
        """Add a problem after those before it, where no lines are counted."""
        self.add(len(self), message)

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
        """Raise one error with all problems, which says the outcome and the notes; nothing when there are no problems.

        Without a unit a message names its place: the same one again is of a file that was read again.
        """
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
    """How to read a table of labels, in any file format.

    Attributes:
        zeros: the meaning of 0 in a wide table: "absent" or "unknown" (nobody tagged it).
        unlisted: what a class in neither list of a lists table is: "unknown" or "absent".
        separator: between the names of a list; detected when None.
        classes: the classes to use, in this order; all of them when None.
        ignore_columns: columns that are not classes.
        rename: old name → new name, of classes and of columns; classes that get the same name are merged.
        aliases: a CSV of synonym, class.
        parents: a CSV of child, parent: where a child is present, its parent is present.
    """

    zeros: str = "absent"
    unlisted: str = "unknown"
    separator: str | None = None
    classes: Sequence[str] | None = None
    ignore_columns: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    aliases: str | os.PathLike[str] | None = None
    parents: str | os.PathLike[str] | None = None

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
    """The contents of a file of labels.

    Attributes:
        path: the file.
        table: its labels, with those that ``parents`` adds.
        splits: the split of every row, or None when the file names none.
        groups: the group of every row, or None when the file has no such column.
        lines: the line of every row in the file.
        findings: how cells and gaps were read.
        unit: what ``lines`` counts: "line", or "row" in files without lines.
        revisions: what ``parents`` added to the observed labels.
        sources: the file of every row, where several files were joined.
    """

    path: Path
    table: LabelTable
    splits: tuple[str, ...] | None
    groups: tuple[str, ...] | None
    lines: NDArray[np.int64]
    findings: tuple[Finding, ...]
    unit: str = "line"
    revisions: Revisions = field(default_factory=Revisions)
    sources: tuple[Path, ...] | None = None


def check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise an error for a value that is not allowed."""
    if value not in allowed:
        raise InputError(f"{option}={value!r}: it is {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}.")


_SPELLINGS_SHOWN: Final = 4
_SIMILAR_SHOWN: Final = 10


@dataclass(frozen=True)
class ColumnPerClass(Finding):
    """A wide table: what a 0 means, and the other spellings that were read as 1 (e.g. TRUE), as 0 and as blank."""

    zeros: str
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        present, absent, unknown = (
            f" (or {', '.join(spellings[:_SPELLINGS_SHOWN])})" if spellings else ""
            for spellings in (self.present, self.absent, self.unknown)
        )
        return f"a column per tag; 1{present} = present, 0{absent} = {self.zeros}, blank{unknown} = unknown"


@dataclass(frozen=True)
class ListsOfClasses(Finding, text="lists of tags; a tag that is not listed is {unlisted}"):
    """A table of lists; ``unlisted`` is "unknown" or "absent"."""

    unlisted: str


@dataclass(frozen=True)
class ListsWithBlanks(Finding, warning=True):
    """Names whose words are all classes of their own: a blank may separate the tags."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.names) - 1:,} more" if len(self.names) > 1 else ""
        each = "each word of them" if more else "each word of it"
        return f"'{truncate_text(self.names[0])}'{more}: {each} is a tag, too. --separator space if these are lists"


@dataclass(frozen=True)
class ColumnsIgnored(Finding):
    """Columns that are not classes."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"columns left out: {truncate_text(', '.join(self.names), 200)}"


@dataclass(frozen=True)
class ClassesRenamed(Finding):
    """Pairs of an old and a new name."""

    pairs: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"renamed: {truncate_text(', '.join(f'{old} = {new}' for old, new in self.pairs), 200)}"


@dataclass(frozen=True)
class ClassesLeftOut(Finding):
    """Classes that were not asked for, and how many known labels they have."""

    names: tuple[str, ...]
    labels: int

    def __str__(self) -> str:
        return f"tags left out: {truncate_text(', '.join(self.names), 200)} ({pluralize(self.labels, 'label')})"


@dataclass(frozen=True)
class ClassNeverListed(Finding):
    """A class that was asked for and has no label, and the class of the file that is spelled most like it."""

    name: str
    nearest: str | None = None

    def __str__(self) -> str:
        hint = f"; did you mean '{truncate_text(self.nearest)}'?" if self.nearest else ""
        return f"'{truncate_text(self.name)}' is never listed{hint}"


@dataclass(frozen=True)
class HierarchyApplied(Finding):
    """What parents added, the labels that stay absent although a child is present, and names that are no classes."""

    added: int
    contradictions: int = 0
    unknown_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"parents add {pluralize(self.added, 'present label')}"
        if self.contradictions:
            verbs = ("say", "stay") if self.contradictions > 1 else ("says", "stays")
            labels = pluralize(self.contradictions, "label")
            text += f"; {labels} {verbs[0]} absent where a child is present, and {verbs[1]}"
        if self.unknown_names:
            text += f"; no tags here: {truncate_text(', '.join(self.unknown_names), 100)}"
        return text


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
