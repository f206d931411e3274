"""Findings about a file of labels: its format, and what was done to its classes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from labelgap.core.findings import Finding
from labelgap.core.text import pluralize, truncate_text

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
