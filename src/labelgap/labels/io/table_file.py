"""``TableFile``, the result of reading a file of labels, and ``TableOptions``, how to read it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.findings import Finding
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

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
